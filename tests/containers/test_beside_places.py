"""Places of this machine and containers live side by side."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

import pytest

from agent_env.containers import ContainerPlace, EngineEndpoint
from agent_env.places import Command, Entry
from tests.container_engine import bench
from tests.sandboxes.people import MINE, spec, world


async def root_of(place: ContainerPlace) -> str:
    async with place.engine.asking("looking") as client:
        said = await client.containers.container(place.id).show()
    return str(((said.get("GraphDriver") or {}).get("Data") or {}).get("MergedDir"))


def is_mounted(folder: str) -> bool:
    return f" {folder} " in Path("/proc/self/mountinfo").read_text()


@pytest.mark.skipif(os.geteuid() != 0, reason="agentenv-capability-missing: root")
async def test_a_place_with_networking_takes_no_containers_root_away(docker: EngineEndpoint, busybox: str) -> None:
    async with bench(docker, busybox) as here:
        place = await here.deploy()
        root = await root_of(place)
        if not is_mounted(root):
            pytest.skip("agentenv-capability-missing: overlay_mounts (the engine's mounts are not this machine's)")
        with world("root") as person:
            provider = person.provider()
            try:
                sandbox = await provider.create(spec(f"{MINE}-beside"))
                assert (await (await sandbox.machine()).run(Command(["true"]))).ok
                await sandbox.aclose()
            finally:
                await provider.destroy(f"{MINE}-beside")
                await provider.aclose()
        assert is_mounted(root)
        assert isinstance((await place.stat([PurePosixPath("/bin/busybox")]))[PurePosixPath("/bin/busybox")], Entry)
