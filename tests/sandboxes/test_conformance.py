"""The conformance kit against the providers of this machine."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from agent_env.sandboxes import provider
from agent_env.sandboxes.conformance import CHECKS, Check


@pytest.mark.parametrize("name", ["local", "unsafe_host"])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_provider_of_this_machine_conforms(check: Check, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_ENV_LOCAL_SANDBOX_DIR", str(tmp_path / "work"))

    async def run() -> None:
        await check(lambda: provider(name, state_root=tmp_path / "state"))

    asyncio.run(run())
    assert list((tmp_path / "state" / "sandboxes").glob("*")) == []
    assert list((tmp_path / "work").glob("*")) == []
