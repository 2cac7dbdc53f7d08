"""What a sandbox of another home than its installation's shares with nobody goes with it."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path
from typing import Any

import pytest

from agent_env.containers import Engine, EngineEndpoint, labelled
from agent_env.ids import new_sandbox_id
from agent_env.sandboxes.contract import SandboxSpec
from agent_env.sandboxes.registry import provider


def test_the_network_of_another_home_goes_with_its_last_sandbox(
    docker: EngineEndpoint, busybox: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o755)
    monkeypatch.setenv("AGENT_ENV_LOCAL_SANDBOX_DIR", str(tmp_path / "sandboxes"))
    home = f"home-{secrets.token_hex(6)}"

    async def all_of_it() -> None:
        local = provider("local", state_root=tmp_path / "state")
        ids = [new_sandbox_id("local") for _ in range(2)]
        async with Engine(docker) as engine:
            for sandbox_id in ids:
                labels = {"agentenv.home": home, "agentenv.sandbox": sandbox_id}
                held: dict[str, Any] = {"image": busybox, "token": secrets.token_hex(16), "labels": labels}
                await (await local.create(SandboxSpec(sandbox_id, mode="container", **held))).aclose()
            for sandbox_id in ids:
                await local.destroy(sandbox_id)
            await local.aclose()  # the network goes beside whatever else is done
            assert await labelled(engine, {"agentenv.home": home}) == []

    asyncio.run(all_of_it())
