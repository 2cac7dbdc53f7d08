"""Engines that are not here: reached by TCP alone, their containers' addresses and their files out of reach."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

import httpx
import pytest

from agent_env.containers import ContainerPlace, Engine, EngineEndpoint, find_endpoint, labelled
from agent_env.containers.objects import inspect
from agent_env.documents.network import NetworkMode, NetworkPolicy
from agent_env.images import BuildContext, BuildRequest, Images, KnownKeyring
from agent_env.images.reference import ImageReference
from agent_env.places import Command, Place, Upload
from agent_env.sandboxes.contract import SandboxSpec
from agent_env.sandboxes.local.container_machine import MachineSandbox
from agent_env.sandboxes.local.container_sandbox import ContainerSandbox
from agent_env.sandboxes.local.provider import LocalProvider
from agent_env.stores.installation import home_of
from agent_env.waiting import poll
from tests.portability.far import FarEngine, far_engine
from tests.portability.mac import Mac
from tests.sandboxes.people import QUICKLY_SETTLED


@pytest.fixture
def far(docker: EngineEndpoint) -> Iterator[FarEngine]:
    assert docker.socket is not None
    with far_engine(docker.socket) as made:
        yield made


@dataclass
class Person:
    """Somebody whose engine is elsewhere."""

    folder: Path
    url: str
    image: str
    mode: str

    def provider(self, **environ: str) -> LocalProvider:
        options = {"isolation": "container", "machine_image": self.image}
        given = {"HOME": str(self.folder), "AGENT_ENV_LOCAL_SANDBOX_DIR": str(self.folder / "work"), "DOCKER_HOST": self.url, **environ}
        return LocalProvider(self.folder / "state", options=options, environ={"PATH": os.environ["PATH"], **given}, limits=QUICKLY_SETTLED)

    @asynccontextmanager
    async def made(self, **changes: Any) -> AsyncIterator[tuple[MachineSandbox | ContainerSandbox, ContainerPlace]]:
        sandbox = f"local-{secrets.token_hex(5)}"
        home = home_of(self.folder / "state")
        spec = SandboxSpec(
            sandbox, self.mode, self.image, labels={"agentenv.home": home, "agentenv.sandbox": sandbox}, token=f"t-{sandbox}", **changes
        )
        provider = self.provider()
        try:
            made = await provider.create(spec)
            assert isinstance(made, ContainerSandbox)
            try:
                yield made, await place_of(made)
            finally:
                await made.aclose()
                assert await provider.destroy(sandbox)
            async with Engine(EngineEndpoint(self.url)) as engine:
                assert [each for each in await labelled(engine, {"agentenv.home": home}) if each.kind != "network"] == []
        finally:
            await provider.sweep()
            await provider.aclose()


async def place_of(sandbox: ContainerSandbox) -> ContainerPlace:
    place: Place
    if isinstance(sandbox, MachineSandbox):
        place = await sandbox.machine()
    else:
        place = await sandbox.container(str(sandbox.info.facts["container_id"]))
    assert isinstance(place, ContainerPlace)
    return place


@pytest.fixture(params=["vm", "container"])
def person(request: pytest.FixtureRequest, tmp_path: Path, far: FarEngine, box_image: str) -> Person:
    return Person(tmp_path, far.url, box_image, request.param)


async def answers(url: str) -> str:
    async with httpx.AsyncClient(trust_env=False) as client:

        async def answer() -> str | None:
            try:
                return (await client.get(url)).text
            except httpx.TransportError:
                return None

        return await poll(answer, within_seconds=60, what="an answer of a published port")


def test_an_engine_by_tcp_is_not_taken_for_one_of_this_machine(far: FarEngine) -> None:
    async def run() -> None:
        async with Engine(EngineEndpoint(far.url)) as engine:
            assert not (await engine.info()).on_this_machine

    asyncio.run(run())


@pytest.mark.parametrize(
    ("url", "here"),
    [
        ("unix:///var/run/docker.sock", True),
        ("tcp://127.0.0.1:2375", True),
        ("tcp://localhost:2375", True),
        ("tcp://[::1]:2375", True),
        ("tcp://engine.example:2375", False),
        ("https://192.0.2.7:2376", False),
    ],
)
def test_only_ports_on_a_loopback_that_is_ours_are_left_to_the_engine(url: str, here: bool) -> None:
    assert EngineEndpoint(url).publishes_here is here


def test_commands_and_files_pass_through_its_stream_alone(person: Person) -> None:
    content = secrets.token_bytes(3 << 20)

    async def run() -> None:
        async with person.made() as (_, place):
            await place.put([Upload(PurePosixPath("/work/blob"), content)])
            done = await place.run(Command(["sha256sum", "/work/blob"]))
            assert done.stdout.split()[0].decode() == hashlib.sha256(content).hexdigest()
            assert await place.read(PurePosixPath("/work/blob")) == content

    asyncio.run(run())


def test_nothing_of_this_machine_is_mounted(person: Person) -> None:
    async def run() -> None:
        async with person.made() as (sandbox, place):
            said = await inspect(await sandbox.engine(), place.id)
            assert {mount["Type"] for mount in said["Mounts"]} == {"volume"}
            assert not said["HostConfig"].get("Binds")
            assert str(person.folder) not in json.dumps(said)

    asyncio.run(run())


@pytest.mark.parametrize("mode", ["allow_all", "none"])
def test_its_published_ports_answer_on_loopback(person: Person, mode: str) -> None:
    async def run() -> None:
        async with person.made(ports=(8000,), network=NetworkPolicy(mode=NetworkMode(mode))) as (sandbox, place):
            await place.run(Command(["sh", "-c", "mkdir -p /w; echo far > /w/index.html; httpd -p 8000 -h /w"]))
            assert await answers(sandbox.published.tunnels[8000]) == "far\n"

    asyncio.run(run())


def test_ports_of_an_engine_elsewhere_are_carried_and_open_nothing_there(person: Person, far: FarEngine) -> None:
    person = replace(person, url=far.url_of_a_stranger)

    async def run() -> None:
        async with person.made(ports=(8000,)) as (sandbox, place):
            await place.run(Command(["sh", "-c", "mkdir -p /w; echo carried > /w/index.html; httpd -p 127.0.0.1:8000 -h /w"]))
            assert await answers(sandbox.published.tunnels[8000]) == "carried\n"
            said = await inspect(await sandbox.engine(), place.id)
            assert not said["HostConfig"]["PortBindings"]
            later = person.provider()
            again = await later.attach(sandbox.info.sandbox_id, epoch=2, token=f"t-{sandbox.info.sandbox_id}")
            assert again.published == sandbox.published
            await again.aclose()
            await later.aclose()
            assert await answers(sandbox.published.tunnels[8000]) == "carried\n"

    asyncio.run(run())


def test_a_wire_that_is_cut_is_tied_again(person: Person, far: FarEngine) -> None:
    async def run() -> None:
        async with person.made() as (_, place):
            await place.run(Command(["sh", "-c", "echo kept > /tmp/kept"]))
            far.cut()

            async def again() -> bytes | None:
                done = await place.run(Command(["cat", "/tmp/kept"]))
                return done.stdout or None

            assert await poll(again, within_seconds=60, what="a command after the cut") == b"kept\n"

    asyncio.run(run())


def test_what_a_record_names_is_found_whatever_the_environment_says_by_then(person: Person) -> None:
    async def run() -> None:
        async with person.made() as (sandbox, _):
            elsewhere = person.provider(DOCKER_HOST="unix:///nowhere/docker.sock")
            again = await elsewhere.attach(sandbox.info.sandbox_id, epoch=2, token=f"t-{sandbox.info.sandbox_id}")
            assert isinstance(again, ContainerSandbox)
            assert (await (await place_of(again)).run(Command(["true"]))).ok
            await again.aclose()
            await elsewhere.aclose()

    asyncio.run(run())


def test_a_context_names_it(far: FarEngine, tmp_path: Path) -> None:
    name = "far"
    meta = tmp_path / ".docker/contexts/meta" / hashlib.sha256(name.encode()).hexdigest() / "meta.json"
    meta.parent.mkdir(parents=True)
    meta.write_text(json.dumps({"Name": name, "Endpoints": {"docker": {"Host": far.url, "SkipTLSVerify": False}}}))
    (tmp_path / ".docker/config.json").write_text(json.dumps({"currentContext": name}))

    async def run() -> None:
        for environ in ({}, {"DOCKER_CONTEXT": name}):
            async with Engine(find_endpoint(environ, tmp_path)) as engine:
                assert engine.endpoint.url == far.url
                assert (await engine.info()).os == "linux"

    asyncio.run(run())


def test_an_image_is_built_from_files_that_it_can_not_see(far: FarEngine, tmp_path: Path, box_image: str) -> None:
    folder = tmp_path / "context"
    folder.mkdir()
    (folder / "Dockerfile").write_text(f"FROM {box_image}\nCOPY told /told\n")
    (folder / "told").write_text("from here\n")
    home = f"test-{secrets.token_hex(5)}"

    async def run() -> None:
        async with Engine(EngineEndpoint(far.url)) as engine:
            images = Images(engine, state_root=tmp_path / "state", home=home, keyring=KnownKeyring({}))
            name = ImageReference.parse(f"agentenv-test/far-{secrets.token_hex(4)}:1")
            held = await images.build(BuildRequest(BuildContext.of(folder, "Dockerfile"), name))
            assert held.id
            space = await images.space()
            await space.gc(everything=True)

    asyncio.run(run())


@pytest.mark.timeout(400)  # the image is made first, once
def test_hello_scores_one_on_a_mac_whose_engine_is_reached_by_tcp(mac: Mac, far: FarEngine, python_image: str) -> None:
    mac = replace(mac, docker_host=far.url)
    mac.configure(f'[sandbox.providers.local.config]\nmachine_image = "{python_image}"\n')
    ran = mac.agent_env("run", "hello", "--fail-under", "1")
    assert mac.agent_env("gc").returncode == 0
    assert ran.returncode == 0, ran.stdout + ran.stderr
