"""`proxy/v1`: an agent without a model is driven from outside."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from agent_env_sdk.agent.proxy import Proxy
from agent_env_sdk.testing import serve_here
from agent_env_sdk.testing.agents import AgentClient, ending, serve_agent_here
from agent_env_sdk.wire.a2a import Method, Task
from agent_env_sdk.wire.agent_extensions import MCP_CONFIG, PROXY, TRAJECTORY, find
from agent_env_sdk.wire.native import normalised

from tests.sdk.environments import Stock

TOKEN = "driver-" + "x" * 20


@dataclass(frozen=True)
class Driver:
    """Asks what a driver asks; an answer is its status and its object."""

    client: AgentClient

    async def __call__(self, name: str, **fields: Any) -> tuple[int, Any]:
        answer = await self.client.http.post(f"{self.client.base}/ext/proxy/{name}", json={"token": TOKEN, **fields})
        return answer.status_code, answer.json()

    async def ok(self, name: str, **fields: Any) -> Any:
        status, value = await self(name, **fields)
        assert status == 200, value
        return value

    async def turn(self, text: str, **config: Any) -> tuple[Task, str]:
        """A turn that was begun, and its id."""
        task = await self.client.prompt(text, wait=False, config=config or None)
        version = 0
        while True:
            told = await self.ok("next", after=version)
            if any(turn["task_id"] == task.id for turn in told["turns"]):
                return task, task.id
            version = told["version"]

    async def ended(self, task: Task) -> Task:
        async for _ in self.client.follow(Method.RESUBSCRIBE, {"id": task.id}):
            pass
        return await self.client.task(task.id)


@asynccontextmanager
async def driven(folder: Path | None = None, **options: Any) -> AsyncIterator[Driver]:
    async with serve_agent_here(Proxy(folder, poll_seconds=options.pop("poll_seconds", 25.0)), **options) as client:
        driver = Driver(client)
        await driver.ok("claim")
        yield driver


async def test_a_turn_is_played_from_outside_with_commands_and_tools(tmp_path: Path) -> None:
    async with driven(tmp_path) as driver, serve_here(Stock()) as stock:
        await stock.add({"items": [{"sku": "a", "qty": 5}]})
        await driver.client.invoke(MCP_CONFIG, "add", {"url": f"{stock.base}/mcp", "name": "stock"})
        task, turn = await driver.turn("count", system_prompt="be brief")
        (told,) = (await driver.ok("next"))["turns"]
        assert (told["parts"], told["system_prompt"]) == ([{"kind": "text", "text": "count"}], "be brief")
        tools = {tool["name"]: tool.get("server") for tool in (await driver.ok("tools", task_id=turn))["tools"]}
        assert (tools["bash"], tools["stock_count"]) == (None, "stock")
        command = {"kind": "bash", "command": "echo out; echo err >&2; pwd; exit 3"}
        done = await driver.ok("act", task_id=turn, action_id="1", action=command)
        assert done == {"done": True, "result": {
            "kind": "bash", "exit_code": 3, "stdout": f"out\n{tmp_path}\n", "stderr": "err\n", "timed_out": False}}  # fmt: skip
        call = {"kind": "tool", "server": "stock", "name": "stock_count", "arguments": {"sku": "a"}}
        counted = await driver.ok("act", task_id=turn, action_id="2", action=call)
        assert counted["result"] == {"kind": "tool", "content": [{"type": "text", "text": "5"}], "is_error": False}
        await driver.ok("reply", task_id=turn, parts=[{"kind": "text", "text": "there are 5"}])
        end = ending(await driver.ended(task))
        assert (end.text, end.usage.tool_call_count) == ("there are 5", 2)
        events = normalised("agentenv-proxy/v1", (await driver.client.invoke(TRAJECTORY, "get", {"task_id": task.id}))["trajectory"])
        assert [event.type for event in events or []] == ["tool_call", "tool_result", "tool_call", "tool_result", "message", "end"]
        assert find(await driver.client.card(), PROXY) is not None


async def test_an_action_is_done_once_and_can_be_asked_for_again(tmp_path: Path) -> None:
    async with driven(tmp_path, poll_seconds=0.05) as driver:
        _, turn = await driver.turn("go")
        slow = {"kind": "bash", "command": "echo once >> log; while [ ! -e go ]; do sleep 0.02; done; cat log"}
        assert await driver.ok("act", task_id=turn, action_id="a", action=slow) == {"done": False}
        assert (await driver("act", task_id=turn, action_id="a", action={"kind": "bash", "command": "other"}))[0] == 409
        (tmp_path / "go").touch()
        while not (answer := await driver.ok("result", action_id="a"))["done"]:
            pass
        assert answer["result"]["stdout"] == "once\n"
        assert (await driver.ok("act", task_id=turn, action_id="a", action=slow))["result"]["stdout"] == "once\n"
        late = {"kind": "bash", "command": "sleep 60", "timeout_seconds": 0.05}
        while not (answer := await driver.ok("act", task_id=turn, action_id="b", action=late))["done"]:
            pass
        assert (answer["result"]["timed_out"], answer["result"]["exit_code"]) == (True, None)


async def test_the_first_driver_keeps_the_agent_also_after_a_restart(tmp_path: Path) -> None:
    for _ in range(2):
        async with driven(state=tmp_path) as driver:
            assert (await driver("claim", token="y" * 22))[0] == 409
            assert (await driver("next", token="y" * 22))[0] == 401
            assert (await driver("claim", token="short"))[0] == 400


async def test_recorded_calls_are_done_before_anything_else_is_said(tmp_path: Path) -> None:
    function = {"name": "bash", "arguments": json.dumps({"command": "true"})}
    message = {"role": "assistant", "content": "I look.", "tool_calls": [{"id": "c", "type": "function", "function": function}]}
    async with driven(tmp_path) as driver:
        task, turn = await driver.turn("go")
        await driver.ok("record", task_id=turn, message=message, model="m", usage={"prompt_tokens": 3, "completion_tokens": 2})
        assert (await driver("record", task_id=turn, message="more"))[0] == 409
        assert (await driver("reply", task_id=turn, parts=[{"text": "done"}]))[0] == 409
        assert (await driver("act", task_id=turn, action_id="1", action={"kind": "bash", "command": "false"}))[0] == 409
        await driver.ok("act", task_id=turn, action_id="1", action={"kind": "bash", "command": "true"})
        await driver.ok("record", task_id=turn, message={"role": "assistant", "content": [{"type": "text", "text": "Done."}]})
        await driver.ok("reply", task_id=turn, parts=[{"text": "Done."}])
        await driver.ended(task)
        events = normalised("agentenv-proxy/v1", (await driver.client.invoke(TRAJECTORY, "get", {"task_id": task.id}))["trajectory"])
    assert [event.type for event in events or []] == ["message", "usage", "tool_call", "tool_result", "message", "end"]


@pytest.mark.parametrize(("reply", "state", "code"), [({"error": "gave up"}, "failed", "proxy.driver_error"), (None, "canceled", None)])
async def test_a_turn_that_ends_otherwise_stops_what_still_runs(
    tmp_path: Path, reply: dict[str, Any] | None, state: str, code: str | None
) -> None:
    async with driven(tmp_path, poll_seconds=0.05) as driver:
        task, turn = await driver.turn("go")
        await driver.ok("act", task_id=turn, action_id="1", action={"kind": "bash", "command": "sleep 600"})
        if reply is None:
            await driver.client.cancel(task.id)
        else:
            await driver.ok("reply", task_id=turn, **reply)
        ended = await driver.ended(task)
        assert (ended.status.state.value, ending(ended).error_code) == (state, code)
        assert (await driver("result", action_id="1"))[0] == 404
        assert (await driver("reply", task_id=turn, parts=[{"text": "late"}]))[0] == 404


async def test_what_is_no_text_is_refused() -> None:
    async with driven() as driver:
        message = {"messageId": "1", "role": "user", "parts": [{"kind": "data", "data": {}}]}
        task = Task.model_validate(await driver.client.rpc("message/send", {"message": message}))
    assert ending(task).error_code == "proxy.unsupported_part"
