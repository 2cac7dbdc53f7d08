"""Where nothing can be confined, a container of the engine plays the machine, and whoever uses it sees no difference."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

import httpx
import pytest

from agent_env.containers import Engine, EngineEndpoint, labelled
from agent_env.documents.network import NetworkMode, NetworkPolicy
from agent_env.errors import ContainerNotRunningError, UnsupportedError, UserError
from agent_env.places import Command, Shape, Upload
from agent_env.sandboxes.confined import probe
from agent_env.sandboxes.contract import LeadsToHost
from agent_env.sandboxes.local.container_machine import MachineSandbox
from agent_env.sandboxes.local.provider import LocalProvider
from agent_env.stores.installation import home_of
from agent_env.waiting import poll
from tests.container_engine import archive_of, ensure
from tests.portability.mac import Mac
from tests.sandboxes.people import World, spec, world

CANARY = "canary-" + secrets.token_hex(6)
SCRATCH = "agentenv-test/no-shell:1"


@dataclass
class Here:
    """A person whose machines are containers."""

    own: World
    docker: EngineEndpoint
    image: str

    def provider(self, **options: object) -> LocalProvider:
        return self.own.provider(**{"isolation": "container", "machine_image": self.image, **options})

    def spec(self, **changes: Any) -> Any:
        sandbox = f"local-{secrets.token_hex(5)}"
        labels = {"agentenv.home": home_of(self.own.state), "agentenv.sandbox": sandbox}
        return spec(sandbox, **{"labels": labels, "disk_bytes": 0, **changes})

    async def left(self) -> list[object]:
        async with Engine(self.docker) as engine:
            found = await labelled(engine, {"agentenv.home": home_of(self.own.state)})
        return [*self.own.left(), *(each for each in found if each.kind != "network")]

    @asynccontextmanager
    async def made(self, **changes: Any) -> AsyncIterator[tuple[LocalProvider, MachineSandbox]]:
        provider = self.provider()
        wanted = self.spec(**changes)
        try:
            sandbox = await provider.create(wanted)
            assert isinstance(sandbox, MachineSandbox)
            try:
                yield provider, sandbox
            finally:
                await sandbox.aclose()
                assert await provider.destroy(wanted.sandbox_id)
            assert await self.left() == []
        finally:
            await provider.sweep()
            await provider.aclose()


@pytest.fixture
def here(docker: EngineEndpoint, box_image: str) -> Iterator[Here]:
    with world("root") as own:
        yield Here(own, docker, box_image)


async def said(sandbox: MachineSandbox, script: str) -> str:
    done = await (await sandbox.machine()).run(Command(["sh", "-c", script]))
    assert done.exit_code == 0, done.stderr
    return done.stdout.decode().strip()


def test_it_has_what_every_machine_has(here: Here) -> None:
    async def run() -> None:
        async with here.made(env={"TOLD": CANARY}) as (provider, sandbox):
            assert await said(sandbox, "pwd; id -u; echo $HOME; echo $TOLD") == f"/app\n0\n/root\n{CANARY}"
            assert await said(sandbox, "sudo -u root -E id -un; sudo -i echo fine") == "root\nfine"
            assert await said(sandbox, "for f in /app /work /loaded /tmp; do echo x > $f/x && cat $f/x; done") == "x\nx\nx\nx"
            place = await sandbox.machine()
            await place.put([Upload(PurePosixPath("/app/deep/file"), b"bytes")])
            assert await place.read(PurePosixPath("/app/deep/file")) == b"bytes"
            can = await provider.capabilities()
            assert (can.shape, can.modes) == (Shape.MACHINE_BACKED, {"vm", "container"})
            assert sandbox.levels == can.limits
            assert "container_id" not in sandbox.info.facts, "nobody takes the machine for a container"

    asyncio.run(run())


def test_its_variables_are_not_told_to_the_engine(here: Here) -> None:
    async def run() -> None:
        async with here.made(env={"TOLD": CANARY}) as (_, sandbox):
            async with Engine(here.docker) as engine:
                found = await labelled(engine, {"agentenv.home": home_of(here.own.state)})
                [container] = [each for each in found if each.kind == "container"]
                async with engine.asking("looking") as docker:
                    assert CANARY not in str(await docker.containers.container(container.id).show())
            assert await said(sandbox, "echo $TOLD") == CANARY

    asyncio.run(run())


def test_another_process_finds_the_same_machine(here: Here) -> None:
    async def run() -> None:
        async with here.made(env={"TOLD": CANARY}) as (provider, sandbox):
            await said(sandbox, "echo kept > /app/kept")
            sandbox_id = sandbox.info.sandbox_id
            assert [info.alive async for info in provider.list({"agentenv.sandbox": sandbox_id})] == [True]
            later = here.provider()
            again = await later.attach(sandbox_id, epoch=2, token="t-" + sandbox_id)
            assert isinstance(again, MachineSandbox)
            assert await said(again, "cat /app/kept; echo $TOLD") == f"kept\n{CANARY}"
            assert again.published == sandbox.published
            await again.aclose()
            await later.aclose()

    asyncio.run(run())


@pytest.mark.parametrize("mode", ["allow_all", "none"])
def test_its_ports_answer_here_with_a_network_and_without(here: Here, mode: str) -> None:
    async def run() -> None:
        async with here.made(ports=(8000,), network=NetworkPolicy(mode=NetworkMode(mode))) as (_, sandbox):
            await said(sandbox, "echo served > /app/index.html; httpd -p 8000 -h /app")
            url = sandbox.published.tunnels[8000]
            async with httpx.AsyncClient(trust_env=False) as client:

                async def answer() -> str | None:
                    try:
                        return (await client.get(url)).text
                    except httpx.TransportError:
                        return None

                assert await poll(answer, within_seconds=60, what="an answer of the machine's port") == "served\n"

    asyncio.run(run())


def test_what_runs_beside_it_answers_on_its_loopback_and_goes_with_it(here: Here) -> None:
    async def run() -> None:
        async with here.made() as (_, sandbox):
            from agent_env.containers import ContainerSpec, deploy, shared_network

            engine = await sandbox.engine()
            labels = dict(sandbox.info.labels)
            network = (await shared_network(engine, labels["agentenv.home"])).id
            token = "t-" + sandbox.info.sandbox_id
            beside = await deploy(
                engine,
                ContainerSpec(
                    name=f"web-{sandbox.info.sandbox_id}",
                    image=here.image,
                    labels=labels,
                    token=token,
                    argv=["sh", "-c", "mkdir /w; echo beside > /w/index.html; exec httpd -f -p 80 -h /w"],
                    network=network,
                    ports=[80],
                ),
            )
            assert isinstance(sandbox, LeadsToHost)
            await sandbox.lead_to_host(dict(beside.ports))
            await beside.aclose()
            asked = "for i in 1 2 3 4 5 6 7 8 9; do wget -qO- http://127.0.0.1:80/ && exit; sleep 0.3; done"
            assert await said(sandbox, asked) == "beside"
            done = await (await sandbox.container(beside.id)).run(Command(["cat", "/w/index.html"]))
            assert done.stdout == b"beside\n"

    asyncio.run(run())


def test_an_allow_list_holds(here: Here) -> None:
    async def run() -> None:
        policy = NetworkPolicy(mode=NetworkMode.ALLOWLIST, allow_hosts=("allowed.example",))
        async with here.made(network=policy) as (_, sandbox):
            refused = await said(sandbox, "wget -qO- http://denied.example/ 2>&1; ls /sys/class/net")
            assert "403" in refused
            assert refused.splitlines()[-1] == "lo"

    asyncio.run(run())


def test_a_machine_that_was_stopped_is_an_error_that_says_so(here: Here) -> None:
    async def run() -> None:
        async with here.made() as (_, sandbox):
            place = await sandbox.machine()
            async with Engine(here.docker) as engine, engine.asking("killing") as docker:
                await docker.containers.container(place.id).kill()
            with pytest.raises(ContainerNotRunningError, match="is not running"):
                await place.stat([PurePosixPath("/app")])

    asyncio.run(run())


def test_an_image_without_a_shell_is_refused_and_nothing_is_left(here: Here) -> None:
    image = ensure(here.docker, SCRATCH, lambda: archive_of({"nothing": b"here"}))

    async def run() -> None:
        provider = here.provider(machine_image=image)
        with pytest.raises(UnsupportedError, match="no /bin/sh") as caught:
            await provider.create(here.spec())
        assert "machine_image" in str(caught.value.hint)
        await provider.aclose()
        assert await here.left() == []

    asyncio.run(run())


@pytest.mark.parametrize(
    ("isolation", "there", "plays"),
    [
        ("auto", "engine namespaces", False),
        ("auto", "engine", True),
        ("container", "engine namespaces", True),
        ("namespaces", "engine namespaces", False),
        ("namespaces", "engine", None),
        ("auto", "", None),
        ("container", "namespaces", None),
    ],
)
def test_who_plays_the_machine(docker: EngineEndpoint, tmp_path: Path, isolation: str, there: str, plays: bool | None) -> None:
    seen = probe.survey()
    machine = seen if "namespaces" in there else replace(seen, is_root=False, bwrap=None, user_namespaces="user.max_user_namespaces is 0")
    environ = {"HOME": str(tmp_path), "DOCKER_HOST": docker.url if "engine" in there else "unix:///nowhere/docker.sock"}

    async def run() -> None:
        provider = LocalProvider(tmp_path / "state", options={"isolation": isolation}, environ=environ, machine=machine)
        can = await provider.capabilities()
        reasons = provider.problems(spec("local-1"), can)
        assert bool(reasons) == (plays is None), reasons
        assert any("plays the machine" in note for note in can.notes) == bool(plays)
        await provider.aclose()

    asyncio.run(run())


@pytest.mark.parametrize("options", [{"isolation": "hope"}, {"machine_image": ""}, {"machine_image": 3}])
def test_an_option_that_means_nothing_is_refused(tmp_path: Path, options: dict[str, object]) -> None:
    with pytest.raises(UserError):
        LocalProvider(tmp_path, options=options)


@pytest.mark.timeout(400)  # the image is made first, once
def test_hello_scores_one_on_a_mac_with_an_engine(mac: Mac, docker: EngineEndpoint, python_image: str) -> None:
    mac = replace(mac, docker_host=docker.url)
    mac.configure(f'[sandbox.providers.local.config]\nmachine_image = "{python_image}"\n')
    checked = mac.agent_env("doctor")
    assert checked.returncode == 0, checked.stdout
    assert f"a container of {docker.url} (DOCKER_HOST) plays the machine" in checked.stdout
    ran = mac.agent_env("run", "hello", "--fail-under", "1")
    assert mac.agent_env("gc").returncode == 0
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_conformance_kit_passes_on_a_mac_with_an_engine(mac: Mac, docker: EngineEndpoint, python_image: str) -> None:
    mac = replace(mac, docker_host=docker.url)
    mac.configure(f'[sandbox.providers.local.config]\nmachine_image = "{python_image}"\n')
    checked = mac.agent_env("provider", "check", "local", seconds=580)
    assert mac.agent_env("gc").returncode == 0
    assert checked.returncode == 0, checked.stdout[-5000:]
