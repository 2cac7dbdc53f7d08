"""f24: the same code on Podman's Docker-compatible socket. Podman is slow to start containers, so few of them show much each."""

from __future__ import annotations

import secrets
from pathlib import Path, PurePosixPath

import pytest

from agent_env.containers import ENTRY_ATTEMPT, Engine, EngineEndpoint, attach, own_network, shared_network
from agent_env.errors import ContainerNotRunningError, EngineRefusedError, SupersededError, UnsupportedError
from agent_env.places import Command, Upload
from tests.container_engine import bench, busybox_of


def sh(text: str) -> Command:
    return Command(["sh", "-c", text])


async def test_f24_commands_files_secrets_and_owners(podman: EngineEndpoint, tmp_path: Path) -> None:
    data = secrets.token_bytes(500_000)
    async with bench(podman, busybox_of(podman)) as here:
        place = await here.deploy(user="worker", secrets={"KEY": "hidden"}, env={"A": "b c"}, cpu=0.5, memory_bytes=64 << 20, processes=100)
        assert (await place.run(sh("echo $A $KEY; id -u; ls /.dockerenv"))).stdout == b"b c hidden\n1001\n/.dockerenv\n"
        path = PurePosixPath("/srv/deep/data")
        await place.put([Upload(path, data)])
        found = (await place.get([path], tmp_path))[path]
        assert isinstance(found, Path)
        assert found.read_bytes() == data
        later = await attach(here.engine, place.id, token=here.token, epoch=2)
        here.places.append(later)
        with pytest.raises(SupersededError):
            await place.run(Command(["true"]))
        async with here.engine.asking("looking") as client:
            said = str(await client.containers.container(place.id).show())
        assert "hidden" not in said
        assert here.token not in said
        assert await later.stop_attempt(ENTRY_ATTEMPT) == 1
        assert (await later.run(Command(["true"]))).ok


async def test_f24_an_ending_is_told_with_its_code_and_everything_is_removed(podman: EngineEndpoint) -> None:
    async with bench(podman, busybox_of(podman)) as here:
        place = await here.deploy(argv=("sh", "-c", "until [ -e /tmp/go ]; do sleep 0.05; done; echo boom >&2; exit 3"))
        await place.run(sh("touch /tmp/go; sleep 60"))
        with pytest.raises(ContainerNotRunningError, match="exited with code 3"):
            await place.run(Command(["true"]))


async def test_f24_networks_of_our_own_and_published_ports(podman: EngineEndpoint) -> None:
    async with bench(podman, busybox_of(podman)) as here:
        try:
            network = await own_network(here.engine, f"back-{secrets.token_hex(6)}", here.labels)
            place = await here.deploy(network=network.id, ports=[8000])
        except (EngineRefusedError, ContainerNotRunningError) as error:
            pytest.skip(f"agentenv-capability-missing: podman_networks ({error})")
        assert 20000 <= place.ports[8000] <= 29999
        assert (await place.run(sh("ip addr | grep -c 'inet '"))).stdout == b"2\n"


async def test_f24_containers_that_must_not_talk_are_refused_one_network(podman: EngineEndpoint) -> None:
    async with Engine(podman) as engine:
        with pytest.raises(UnsupportedError, match="keep the containers of one network apart"):
            await shared_network(engine, f"test-{secrets.token_hex(6)}")


async def test_f24_a_root_that_can_not_be_written_is_no_obstacle(podman: EngineEndpoint) -> None:
    async with bench(podman, busybox_of(podman)) as here:
        place = await here.deploy(read_only=True)
        assert not (await place.run(sh("touch /x"))).ok
