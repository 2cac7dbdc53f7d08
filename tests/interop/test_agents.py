"""Agents of our SDK before other people's clients, and other people's agents before ours.

The packages live in environments of their own under `interop/` (`make interop`).
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from agent_env_sdk.testing.agents import AgentClient, ending, serve_agent_here
from agent_env_sdk.wire.a2a import CARD_PATHS
from agent_env_sdk.wire.agent_extensions import AGENT_CONFIG, MCP_CONFIG, TRAJECTORY

from agent_env.waiting import deadline, poll
from tests.busy import within
from tests.interop.test_published_client import ROOT, python
from tests.ports import free_port
from tests.sdk.agents import Echo

pytestmark = pytest.mark.timeout(300)
GENERATIONS = {"0.3": "a2a-0", "1.x": "a2a-1"}
TOKEN = "t0ken"


async def driven(environment: str, script: str, *arguments: str) -> dict[str, Any]:
    process = await asyncio.create_subprocess_exec(
        python(environment), str(ROOT / "interop" / script), *arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    async with deadline(within(60), f"interop/{script}"):
        out, told = await process.communicate()
    assert process.returncode == 0, told.decode()
    return dict(json.loads(out))


def flat(update: Any) -> dict[str, Any]:
    """What an update says, whichever way a client spells it: a task, or what changed of it."""
    last = update[-1] if isinstance(update, list) else update if "status" in update else next(iter(update.values()))
    message = last["status"].get("message") or {}
    state = last["status"]["state"].removeprefix("TASK_STATE_").lower()
    return {"state": state, "said": [part.get("text") for part in message.get("parts", [])]}


@pytest.mark.parametrize("generation", GENERATIONS)
async def test_the_official_client_of_either_generation_does_everything_that_it_can(generation: str) -> None:
    async with serve_agent_here(Echo(), token=TOKEN) as echo:
        seen = await driven(GENERATIONS[generation], "official_a2a.py", echo.base, TOKEN)
    assert [flat(update)["state"] for update in seen["streamed"]] == ["submitted", "working", "completed"]
    assert (flat(seen["streamed"][-1])["said"][0], flat(seen["waited"][-1])["said"][0]) == ("hello", "hello hello")
    assert (flat(seen["failed"][-1])["state"], flat(seen["failed"][-1])["said"][0]) == ("failed", "no")
    assert flat(seen["rejected"][-1])["state"] == "rejected"
    assert flat(seen["read"])["state"] in {"submitted", "working"}
    assert flat(seen["cancelled"]) == {"state": "canceled", "said": []}
    assert flat(seen["followed"][-1])["state"] == "canceled"
    assert seen["refused"] == {
        "cancelled twice": "A2AClientJSONRPCError" if generation == "0.3" else "TaskNotCancelableError",
        "unknown": "A2AClientJSONRPCError" if generation == "0.3" else "TaskNotFoundError",
        "without the token": "A2AClientHTTPError" if generation == "0.3" else "A2AClientError",
    }


async def test_the_official_client_lists_tasks_in_pages() -> None:
    async with serve_agent_here(Echo()) as echo:
        listed = (await driven("a2a-1", "official_a2a.py", echo.base))["listed"]
    whole = [task["id"] for task in listed["whole"]["tasks"]]
    assert (len(whole), listed["whole"]["totalSize"]) == (5, 5)
    assert [len(page) for page in listed["pages"]] == [2, 2, 1]
    assert [task for page in listed["pages"] for task in page] == whole
    assert [task["history"][0]["role"] for task in listed["whole"]["tasks"]] == ["ROLE_USER"] * 5
    assert [task["status"]["state"] for task in listed["failed"]["tasks"]] == ["TASK_STATE_FAILED"]


async def test_the_published_frameworks_client_deploys_prompts_and_reads_an_agent_of_ours() -> None:
    async with serve_agent_here(Echo()) as echo:
        seen = await driven("a2a-0", "drive_agent.py", echo.base)
    assert seen["card"] == ["echo", "/a2a", "0.3.0", "JSONRPC"]
    assert "urn:agentenv:trajectory/v1" in seen["extensions"]
    first, second, failed, rejected = seen["turns"]
    assert (first["state"], first["response_text"], first["context"], second["response_text"]) == ("completed", "hello", "c", "hello again")
    assert {key: failed[key] for key in ("state", "response_text", "tool_call_count", "error_type", "error_code", "error_message")} == {
        "state": "failed", "response_text": "no", "tool_call_count": 1, "error_type": "agent_error", "error_code": "echo.unable",
        "error_message": "no",
    }  # fmt: skip
    assert rejected["state"] == "rejected"
    assert (seen["slow"]["timed out"], seen["slow"]["then"]) == (True, "canceled")
    called = seen["called"]
    assert called["config"] == [[200, {"status": "updated"}], [200, {"config": {"model": "m", "api_key": "***"}}], 400]
    assert called["mcp"] == [
        [200, {"status": "added", "name": "x", "url": "http://x/mcp"}],
        409,
        [200, {"mcp_servers": {"x": {"url": "http://x/mcp", "has_headers": False}}}],
    ]
    assert called["peers"][0] == [200, {"status": "updated", "peers": 1}]
    assert called["trajectory"][0][1]["trajectory"][0]["text"] == "hello"
    assert (called["trajectory"][1]["state"], called["trajectory"][1]["has_more"]) == ("completed", False)
    assert called["triggers"][1][1]["done"] is True


@asynccontextmanager
async def serving(environment: str, folder: str, script: str, *arguments: str, **variables: str) -> AsyncIterator[str]:
    """Another package's agent in a process, from when its card can be read."""
    port = free_port()
    numbered = [argument.replace("PORT", str(port)) for argument in arguments]
    command = [python(environment), str(ROOT / "interop/servers" / folder / script), *numbered]
    environ = {**os.environ, "A2A_HOST": "127.0.0.1", "A2A_PORT": str(port), **variables}
    process = await asyncio.create_subprocess_exec(*command, env=environ, stderr=subprocess.PIPE)
    base = f"http://127.0.0.1:{port}"
    try:
        async with httpx.AsyncClient() as http:

            async def ready() -> bool | None:
                assert process.returncode is None, (await process.stderr.read()).decode() if process.stderr else ""
                try:
                    return any([(await http.get(f"{base}{path}")).is_success for path in CARD_PATHS]) or None
                except httpx.TransportError:
                    return None

            await poll(ready, within_seconds=within(30), what=f"the card of {script}")
        yield base
    finally:
        process.terminate()
        await process.communicate()


async def test_an_agent_of_the_published_package_is_prompted_configured_and_read() -> None:
    async with serving("a2a-0", "published_agent", "a2a_server.py") as base, httpx.AsyncClient(timeout=30) as http:
        client = AgentClient(base, http)
        await client.invoke(AGENT_CONFIG, "set", {"system_prompt": "be brief"})
        await client.invoke(MCP_CONFIG, "add", {"url": "http://x/mcp", "name": "x"})
        task = await client.prompt("hello", context_id="c")
        assert (task.status.state.value, ending(task).text) == ("completed", "hello")
        assert ending(task).structured_output == {"heard": "hello", "prompted_by": "be brief"}
        failed = await client.prompt("fail no")
        assert (ending(failed).error_code, ending(failed).error_type) == ("echo.unable", "agent_error")
        waiting = await client.prompt("wait 60", wait=False)
        assert (await client.cancel(waiting.id)).status.state.value == "canceled"
        assert (await client.invoke(TRAJECTORY, "get", {"task_id": task.id}))["trajectory"] == [{"heard": "hello"}]


def test_the_folder_of_the_published_agent_pins_what_its_environment_has() -> None:
    pinned = (ROOT / "interop/servers/published_agent/requirements.txt").read_text().strip()
    assert f'"{pinned}"' in Path(ROOT / "interop/a2a-0/pyproject.toml").read_text()
