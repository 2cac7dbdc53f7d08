"""The default agent against the scripted model server: it works, recovers, tells what it spent, and keeps its key to itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from agent_env_sdk.agent.mini import Mini
from agent_env_sdk.testing import serve_here
from agent_env_sdk.testing.agents import ending, serve_agent_here
from agent_env_sdk.testing.models import Call, Fault, ModelServer, Scenario, Step, serve_models
from agent_env_sdk.wire.a2a import TaskState
from agent_env_sdk.wire.agent_extensions import AGENT_CONFIG, MCP_CONFIG, TRAJECTORY
from agent_env_sdk.wire.trajectory import events_adapter

from tests.sdk.environments import Stock


def mini(models: ModelServer, scenario: str, folder: Path | None = None) -> Mini:
    return Mini(f"{models.base}/v1", models.key(scenario), folder=folder, model="m")


async def test_it_uses_shell_and_tools_and_tells_what_it_spent(tmp_path: Path) -> None:
    steps = (
        Step("first a look", (Call("shell", {"command": "echo made > file; cat file"}),), offers=("shell", "mcp:stock.stock_take")),
        Step(calls=(Call("mcp:stock.stock_take", {"sku": "a", "qty": 1}),), last_contains="made\n"),
        Step("done: {last}"),
    )
    async with serve_models({"s": Scenario(steps)}) as models, serve_here(Stock()) as stock:
        await stock.add({"items": [{"sku": "a", "qty": 5}]})
        async with serve_agent_here(mini(models, "s", tmp_path)) as agent:
            await agent.invoke(MCP_CONFIG, "add", {"url": f"{stock.base}/mcp", "name": "stock"})
            task = await agent.prompt("work")
            events = events_adapter.validate_python((await agent.invoke(TRAJECTORY, "get", {"task_id": task.id}))["trajectory"])
        assert models.problems == []
    end = ending(task)
    assert end.text is not None
    assert end.text.startswith("done: ")
    assert (end.usage.tool_call_count, end.usage.input_tokens, end.usage.output_tokens, end.usage.total_tokens) == (2, 30, 15, 45)
    assert [event.type for event in events] == [
        "message", "usage", "message", "tool_call", "tool_result", "usage", "tool_call", "tool_result", "usage", "message", "end",
    ]  # fmt: skip


async def test_it_goes_on_where_the_conversation_was() -> None:
    steps = (Step("one"), Step("two", last_contains="second"))
    async with serve_models({"s": Scenario(steps)}) as models, serve_agent_here(mini(models, "s")) as agent:
        said = [ending(await agent.prompt(text, context_id="c")).text for text in ("first", "second")]
        assert ending(await agent.prompt("elsewhere")).text == "one"
    assert said == ["one", "two"]


async def test_a_limit_of_the_rate_and_a_broken_answer_are_asked_again() -> None:
    faults = (Fault("status", 429, 0), Fault("status", 503, 0), Fault("malformed"))
    async with serve_models({"s": Scenario((Step("late", faults=faults),))}) as models, serve_agent_here(mini(models, "s")) as agent:
        assert ending(await agent.prompt("go")).text == "late"
        assert len(models.requests) == 4


async def test_a_refusal_fails_the_task_and_the_key_is_not_repeated() -> None:
    step = Step("x", faults=(Fault("echo_key", 401),))
    async with serve_models({"s": Scenario((step,))}) as models, serve_agent_here(mini(models, "s")) as agent:
        task = await agent.prompt("go")
    assert (task.status.state, ending(task).error_code, ending(task).error_type) == (TaskState.FAILED, "mini.model_refused", "infra_error")
    assert "the key *** is refused" in (ending(task).error_message or "")


async def test_what_the_model_runs_does_not_see_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve_models({"s": Scenario((Step(calls=(Call("shell", {"command": "env"}),)), Step("{last}")))}) as models:
        monkeypatch.setenv("LITELLM_BASE_URL", f"{models.base}/v1")
        monkeypatch.setenv("LITELLM_API_KEY", models.key("s"))
        async with serve_agent_here(Mini(model="m")) as agent:
            text = ending(await agent.prompt("go")).text or ""
    assert "PATH=" in text
    assert "scn-s" not in text


async def test_a_model_that_never_ends_is_stopped_at_the_limit() -> None:
    step = Step(calls=(Call("shell", {"command": "true"}),))
    async with serve_models({"s": Scenario((step,) * 9)}) as models, serve_agent_here(mini(models, "s")) as agent:
        task = await agent.prompt("go", config={"max_turns": 3})
        assert len(models.requests) == 3
    assert (ending(task).error_code, ending(task).error_type, ending(task).usage.tool_call_count) == ("mini.max_turns", "agent_error", 3)


async def test_settings_reach_the_model_and_an_asked_for_value_comes_back() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    async with serve_models({"s": Scenario((Step('{"n": 4}', model="big"),))}) as models, serve_agent_here(mini(models, "s")) as agent:
        await agent.invoke(AGENT_CONFIG, "set", {"model": "big", "system_prompt": "be brief", "effort": "low", "model_params": {"seed": 7}})
        task = await agent.prompt("go", config={"output_format": {"type": "json_schema", "schema": schema}})
        assert models.problems == []
        body = models.requests[0]["body"]
    assert ending(task).structured_output == {"n": 4}
    assert (body["messages"][0]["content"], body["reasoning_effort"], body["seed"]) == ("be brief", "low", 7)
    assert body["response_format"]["json_schema"]["schema"] == schema


async def test_without_a_model_it_says_what_is_missing() -> None:
    async with serve_agent_here(Mini()) as agent:
        assert "LITELLM_BASE_URL" in (ending(await agent.prompt("go")).error_message or "")
    async with serve_agent_here(Mini("http://127.0.0.1:9/v1", "k")) as agent:
        assert ending(await agent.prompt("go")).error_code == "mini.no_model"


async def test_tools_that_cannot_be_reached_are_told_and_wrong_arguments_are_the_models_business() -> None:
    steps = (Step(calls=(Call("shell", {"cmd": 1}),)), Step("{last}"))
    async with serve_models({"s": Scenario(steps)}) as models, serve_agent_here(mini(models, "s")) as agent:
        assert "needs `command`" in json.dumps(ending(await agent.prompt("go")).text)
        await agent.invoke(MCP_CONFIG, "add", {"url": "http://127.0.0.1:9/mcp"})
        assert ending(await agent.prompt("go")).error_code == "mini.tools_unreachable"


async def test_it_goes_on_where_the_conversation_was_after_a_restart(tmp_path: Path) -> None:
    steps = (Step("one"), Step("two", last_contains="second"))
    async with serve_models({"s": Scenario(steps)}) as models:
        for text, said in (("first", "one"), ("second", "two")):
            async with serve_agent_here(mini(models, "s"), state=tmp_path) as agent:
                assert ending(await agent.prompt(text, context_id="c")).text == said
