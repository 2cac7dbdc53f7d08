"""The scripted agent: it plays what it is told, well and badly, and every ending of it is told apart."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from agent_env_sdk.agent.hands import shell
from agent_env_sdk.agent.scripted import PIECE_BYTES, Scripted
from agent_env_sdk.testing import serve_here
from agent_env_sdk.testing.agents import ending, serve_agent_here
from agent_env_sdk.wire.a2a import Method, StatusUpdate, Task, TaskState
from agent_env_sdk.wire.agent_extensions import AGENT_CONFIG, MCP_CONFIG, TRAJECTORY
from agent_env_sdk.wire.parts import TextPart
from agent_env_sdk.wire.trajectory import events_adapter

from tests.busy import lasting
from tests.ports import free_port
from tests.sdk.environments import Stock


def script(*actions: dict[str, Any]) -> str:
    return json.dumps(list(actions))


async def test_it_runs_commands_calls_tools_and_says_what_came_of_it(tmp_path: Path) -> None:
    async with serve_here(Stock()) as stock, serve_agent_here(Scripted(folder=tmp_path)) as scripted:
        await stock.add({"items": [{"sku": "a", "qty": 5}]})
        await scripted.invoke(MCP_CONFIG, "add", {"url": f"{stock.base}/mcp", "name": "stock"})
        told = script(
            {"shell": "echo made > file; cat file"},
            {"say": "wrote {last}"},
            {"mcp": "stock.stock_take", "arguments": {"sku": "a", "qty": 1}},
            {"mcp": "stock_take", "arguments": {"sku": "a", "qty": 9}},
            {"mcp": "nobody.fly"},
            {"say": "{last}"},
            {"structured": {"done": True}},
        )
        task = await scripted.prompt(told)
        events = (await scripted.invoke(TRAJECTORY, "get", {"task_id": task.id}))["trajectory"]
    end = ending(task)
    assert end.text is not None
    assert end.text.startswith("wrote made\nthere is no MCP server named 'nobody'")
    assert (end.usage.tool_call_count, end.structured_output) == (4, {"done": True})
    assert (tmp_path / "file").read_text() == "made\n"
    results = [event for event in events_adapter.validate_python(events) if event.type == "tool_result"]
    assert [event.is_error for event in results] == [False, False, True, True]


@pytest.mark.parametrize(
    ("actions", "state", "code"),
    [
        ([], "completed", None),
        ([{"fail": {"code": "no.way", "message": "m"}}], "failed", "no.way"),
        ([{"reject": True}], "rejected", None),
        ([{"raise": "secret"}], "failed", "framework.unhandled_exception"),
        ([{"fly": 1}], "failed", "scripted.invalid_script"),
        ([{"shell": "exit 3"}, {"say": "went on"}], "completed", None),
    ],
)
async def test_each_ending_can_be_played(actions: list[dict[str, Any]], state: str, code: str | None) -> None:
    async with serve_agent_here(Scripted()) as scripted:
        task = await scripted.prompt(script(*actions))
    assert (task.status.state.value, ending(task).error_code) == (state, code)


@pytest.mark.parametrize("action", [{"hang": True}, {"stubborn": "too late"}, {"shell": "sleep 1000"}, {"sleep": 1000}])
async def test_whatever_it_waits_for_it_is_cancelled(action: dict[str, Any]) -> None:
    async with serve_agent_here(Scripted()) as scripted:
        task = await scripted.prompt(script({"progress": "ready"}, action), wait=False)
        async for update in scripted.follow(Method.RESUBSCRIBE, {"id": task.id}):
            if update.status.message is not None:
                break
        assert (await scripted.cancel(task.id)).status.state is TaskState.CANCELED
        assert (await scripted.task(task.id)).status.message is None


async def test_a_hundred_pieces_are_streamed_and_recorded() -> None:
    size = 100 * PIECE_BYTES
    async with serve_agent_here(Scripted()) as scripted:
        updates = [update async for update in scripted.stream(script({"stream": size}, {"say": "done"}))]
        task_id = next(update.id for update in updates if isinstance(update, Task))
        position, seen = 0, 0
        while True:
            page = await scripted.invoke(TRAJECTORY, "get", {"task_id": task_id, "after": position})
            seen += sum(len(event.get("text", "")) for event in page["events"] if event.get("text", "").startswith("x"))
            position = page["next"]
            if not page["has_more"]:
                break
    assert seen == size
    last = updates[-1]
    assert isinstance(last, StatusUpdate)
    assert last.status.message is not None
    assert last.status.message.parts[0] == TextPart(text="done")


async def test_turns_of_a_conversation_have_scripts_of_their_own() -> None:
    turns = {"turns": [[{"say": "one"}], [{"say": "two {prompt}"}]]}
    async with serve_agent_here(Scripted()) as scripted:
        await scripted.invoke(AGENT_CONFIG, "set", {"script": turns})
        said = [ending(await scripted.prompt("go", context_id="c")).text for _ in range(3)]
        other = ending(await scripted.prompt("go")).text
    assert said == ["one", "two go", "two go"]
    assert other == "one"


async def test_a_crash_ends_the_process_and_the_next_one_tells_it(tmp_path: Path) -> None:
    port = free_port()
    variables = {
        **os.environ,
        "A2A_HOST": "127.0.0.1",
        "A2A_PORT": str(port),
        "AGENTENV_AGENT_STATE": str(tmp_path),
        "AGENTENV_AGENT_TOKEN": "t",
    }
    body = {"jsonrpc": "2.0", "id": 1, "method": Method.SEND, "params": {"message": message(script({"crash": 7}))}}
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60, headers={"authorization": "Bearer t"}) as http:
        first = await started(variables, http)
        with pytest.raises(httpx.TransportError):
            await http.post("/a2a", json=body)
        assert await first.wait() == 7
        second = await started(variables, http)
        try:
            task = Task.model_validate((await http.post("/a2a", json=body)).json()["result"])
            assert (task.status.state, ending(task).error_code) == (TaskState.FAILED, "agent.stopped")
            said = await http.post(
                "/a2a", json={**body, "params": {"message": message(script({"shell": "echo $AGENTENV_AGENT_TOKEN."}, {"say": "{last}"}))}}
            )
            assert ending(Task.model_validate(said.json()["result"])).text == "."
        finally:
            second.send_signal(signal.SIGTERM)
            await second.wait()


def message(text: str) -> dict[str, Any]:
    return {"messageId": text, "role": "user", "parts": [{"kind": "text", "text": text}]}


async def started(variables: dict[str, str], http: httpx.AsyncClient) -> asyncio.subprocess.Process:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "agent_env_sdk.agent.scripted", env=variables, stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    line = await asyncio.wait_for(process.stderr.readline(), 90)
    assert b"serves on port" in line
    async with asyncio.timeout(90):
        while True:
            with suppress(httpx.TransportError):
                if (await http.get("/health")).status_code == 200:
                    return process


async def test_a_commands_output_is_kept_at_both_ends_and_what_it_left_behind_is_ended(tmp_path: Path) -> None:
    long = await shell("echo begin; head -c 1000000 /dev/zero | tr '\\0' x; echo end")
    assert long.output.startswith("begin")
    assert long.output.endswith("end\n")
    assert len(long.output) < 200_000
    behind = await shell("sleep 1000 & echo $!", folder=tmp_path)
    assert behind.exit_code == 0
    await asyncio.to_thread(gone, int(behind.output))
    late = await shell("echo early; sleep 1000", timeout_seconds=lasting(1))
    assert (late.exit_code, late.output.startswith("early")) == (None, True)


def gone(pid: int) -> None:
    """Waits until the process has ended; whoever adopts it may take a while to bury it."""
    until = time.monotonic() + 30
    with suppress(FileNotFoundError, ProcessLookupError):
        while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            assert time.monotonic() < until
            time.sleep(0.01)
