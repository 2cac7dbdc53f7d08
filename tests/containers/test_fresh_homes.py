"""Homes that are used once and never seen again, as a build machine has them: none leaves anything in the engine that all of them share."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path

import pytest

from agent_env.containers import Engine, EngineEndpoint, labelled
from agent_env.places import Command
from agent_env.sandboxes.contract import SandboxSpec
from agent_env.sandboxes.local.provider import LocalProvider
from agent_env.stores.installation import home_of
from tests.chaos.containers import image


async def one(root: Path, image_name: str) -> str:
    """A home's whole life: a sandbox that is a container, a command in it, its removal. Returns the home."""
    home = home_of(root)
    provider = LocalProvider(root)
    sandbox_id = f"local-{secrets.token_hex(6)}"
    labels = {"agentenv.home": home, "agentenv.sandbox": sandbox_id}
    try:
        sandbox = await provider.create(
            SandboxSpec(sandbox_id, mode="container", image=image_name, labels=labels, token="t", ttl_seconds=600)
        )
        place = await sandbox.container(str(sandbox.info.facts["container_id"]))
        assert (await place.run(Command(["true"]))).ok
        await sandbox.aclose()
        assert await provider.destroy(sandbox_id)
    finally:
        await provider.aclose()
    return home


async def homes(docker: EngineEndpoint, root: Path, *, one_after_another: int, at_once: int) -> None:
    name = image(docker)
    used = [await one(root / f"one-{number}", name) for number in range(one_after_another)]
    used += await asyncio.gather(*(one(root / f"together-{number}", name) for number in range(at_once)))
    assert len(set(used)) == one_after_another + at_once
    async with Engine(docker) as engine:
        left = [each for home in used for each in await labelled(engine, {"agentenv.home": home})]
    assert left == []


@pytest.fixture(autouse=True)
def apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AGENT_ENV_LOCAL_SANDBOX_DIR", str(tmp_path / "sandboxes"))


async def test_homes_that_never_collect_leave_no_network(docker: EngineEndpoint, tmp_path: Path) -> None:
    await homes(docker, tmp_path, one_after_another=2, at_once=3)


@pytest.mark.slow
@pytest.mark.timeout(1200)
async def test_more_homes_than_there_were_ever_ranges_leave_no_network(docker: EngineEndpoint, tmp_path: Path) -> None:
    await homes(docker, tmp_path, one_after_another=180, at_once=40)
