"""The conformance kit of agents against an agent of the published protocol package: what it checks is what others do as well."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agent_env.waiting import deadline
from tests.busy import within
from tests.interop.test_agents import serving

pytestmark = pytest.mark.timeout(300)
AGENT_ENV = Path(sys.executable).with_name("agent-env")


async def test_an_agent_of_the_published_package_passes(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state"), "XDG_CONFIG_HOME": str(tmp_path / "config")}
    async with serving("a2a-0", "published_agent", "a2a_server.py") as url:
        command = [str(AGENT_ENV), "agent", "validate", url, "--write", "--json"]
        process = await asyncio.create_subprocess_exec(*command, env={**os.environ, **home}, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        async with deadline(within(120), "agent validate"):
            out, told = await process.communicate()
    report = json.loads(out)
    wrong = {check["id"]: check["detail"] for check in report["checks"] if check["result"] == "failed"}
    assert (process.returncode, report["passed"], wrong) == (0, True, {}), told.decode()
    passed = {check["id"].partition("/")[0] for check in report["checks"] if check["result"] == "passed"}
    assert passed >= {"agent_card", "core_protocol", "agent_config", "mcp_config", "trajectory", "staging"}
