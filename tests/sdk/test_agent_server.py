"""A served agent: its card, its tasks in every ending, one conversation at a time, restarts, and what it takes in."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from agent_env_sdk.agent import Agent, AgentConfig, AssemblyError, TaskResult, agent, asgi
from agent_env_sdk.testing.agents import AgentClient, ending, serve_agent_here
from agent_env_sdk.wire.a2a import Method, StatusUpdate, Task, TaskState, interfaces
from agent_env_sdk.wire.agent_extensions import (
    AGENT_CONFIG,
    MCP_CONFIG,
    PEER_AGENTS,
    SKILL_CONFIG,
    TRAJECTORY,
    TRIGGERS,
    card_request_accepts,
    method_of,
    supported_config,
    takes_message_config,
)
from agent_env_sdk.wire.errors import AgentEnvError
from agent_env_sdk.wire.rpc import RpcError

from tests.busy import lasting
from tests.sdk.agents import Echo, Plain

MESSAGE = {"messageId": "1", "role": "user"}
ROOT = Path(__file__).parents[2]


async def until_working(client: AgentClient, text: str, **more: Any) -> Task:
    """Sends without waiting for the end, and waits until the turn runs."""
    task = await client.prompt(text, wait=False, **more)
    async for update in client.follow(Method.RESUBSCRIBE, {"id": task.id}):
        if update.status.message is not None:
            break
    return task


async def settled(client: AgentClient, task: Task) -> Task:
    """Waits for a task's end."""
    async for _ in client.follow(Method.RESUBSCRIBE, {"id": task.id}):
        pass
    return await client.task(task.id)


async def test_the_card_is_read_by_clients_of_both_versions() -> None:
    async with serve_agent_here(Echo()) as echo:
        old = (await echo.http.get(f"{echo.base}/.well-known/agent.json")).json()
        card = await echo.card()
        assert (await echo.http.get(f"{echo.base}/health")).json() == {"status": "ok"}
    assert {"name", "description", "version", "url", "protocolVersion", "preferredTransport", "defaultInputModes", "defaultOutputModes",
            "skills", "capabilities"} <= set(old)  # fmt: skip
    assert (old["url"], old["protocolVersion"], old["version"]) == ("/a2a", "0.3.0", "7")
    assert [(each.url, each.version) for each in interfaces(card)] == [(f"{echo.base}/a2a", "1.0"), (f"{echo.base}/a2a", "0.3.0")]
    assert supported_config(card) == {"name", "description", "role", "timeout_seconds", "model", "system_prompt", "api_key"}
    settings = (method_of(card, AGENT_CONFIG, "set") or {})["request"]["schema"]
    assert settings["properties"]["api_key"]["writeOnly"] is True
    assert "default" not in json.dumps(settings)
    assert takes_message_config(card)
    trajectory = (method_of(card, TRAJECTORY, "get") or {})["request"]
    assert card_request_accepts(trajectory, ["task_id", "after"])


@pytest.mark.parametrize(
    ("text", "state", "said", "code", "kind"),
    [
        ("hello", "completed", "hello", None, None),
        ("fail no way", "failed", "no way", "echo.unable", "agent_error"),
        ("nothing", "failed", "the agent ended its turn without a result", "agent.no_result", "infra_error"),
        ("reject", "rejected", None, None, None),
    ],
)
async def test_each_ending_is_told_apart(text: str, state: str, said: str | None, code: str | None, kind: str | None) -> None:
    async with serve_agent_here(Echo()) as echo:
        task = await echo.prompt(text)
    end = ending(task)
    assert (task.status.state.value, end.text, end.error_code, end.error_type) == (state, said, code, kind)


async def test_what_an_agent_raises_is_in_its_log_and_not_in_the_answer() -> None:
    async with serve_agent_here(Echo()) as echo:
        task = await echo.prompt("raise hunter2")
    assert ending(task).error_code == "framework.unhandled_exception"
    assert ending(task).error_type == "infra_error"
    assert "hunter2" not in json.dumps(task.status.to_json())


async def test_a_turn_that_takes_too_long_fails_with_its_last_words() -> None:
    async with serve_agent_here(Echo()) as echo:
        task = await echo.prompt("wait forever", config={"timeout_seconds": lasting(0.2)})
    assert (task.status.state, ending(task).error_code) == (TaskState.FAILED, "agent.timeout")
    assert ending(task).text == "waiting for forever"


async def test_a_send_that_does_not_wait_is_followed_to_the_end() -> None:
    agent_ = Echo()
    async with serve_agent_here(agent_) as echo:
        task = await echo.prompt("wait g", wait=False)
        assert task.status.state is TaskState.SUBMITTED
        agent_.gate("g").set()
        assert (await settled(echo, task)).status.state is TaskState.COMPLETED


async def test_a_stream_tells_each_state_and_ends() -> None:
    agent_ = Echo()
    agent_.gate("g").set()
    async with serve_agent_here(agent_) as echo:
        updates = [update async for update in echo.stream("wait g")]
    assert isinstance(updates[0], Task)
    assert [update.status.state.value for update in updates] == ["submitted", "working", "working", "completed"]
    assert [update.final for update in updates if isinstance(update, StatusUpdate)] == [False, False, True]


async def test_cancelling_ends_the_turn_and_the_task_has_no_message() -> None:
    agent_ = Echo()
    async with serve_agent_here(agent_) as echo:
        task = await until_working(echo, "wait g")
        cancelled = await echo.cancel(task.id)
        assert (cancelled.status.state, cancelled.status.message) == (TaskState.CANCELED, None)
        assert agent_.running == []
        with pytest.raises(RpcError) as refused:
            await echo.cancel(task.id)
        assert refused.value.code == -32002


async def test_an_answer_after_the_cancel_changes_nothing() -> None:
    async with serve_agent_here(Echo()) as echo:
        task = await until_working(echo, "stubborn g")
        assert (await echo.cancel(task.id)).status.state is TaskState.CANCELED
        after = await echo.task(task.id)
    assert (after.status.state, after.status.message) == (TaskState.CANCELED, None)


async def test_a_waiting_turn_can_be_cancelled_before_it_ran() -> None:
    agent_ = Echo()
    async with serve_agent_here(agent_) as echo:
        await until_working(echo, "wait g", context_id="c")
        second = await echo.prompt("hello", context_id="c", wait=False)
        assert (await echo.cancel(second.id)).status.state is TaskState.CANCELED
        agent_.gate("g").set()


async def test_turns_of_a_conversation_run_one_at_a_time_and_others_at_once() -> None:
    agent_ = Echo()
    async with serve_agent_here(agent_) as echo:
        first = [await echo.prompt("wait g", context_id="a", wait=False) for _ in range(3)]
        await until_working(echo, "wait g", context_id="b")
        assert set(agent_.running) == {"a", "b"}
        agent_.gate("g").set()
        texts = [ending(await settled(echo, task)).text for task in first]
    assert agent_.most_at_once == 1
    assert texts == ["wait g", "wait g wait g", "wait g wait g wait g"]


async def test_the_same_message_is_answered_once() -> None:
    agent_ = Echo()
    agent_.gate("g").set()
    async with serve_agent_here(agent_) as echo:
        first, second = await asyncio.gather(*(echo.prompt("wait g", message_id="m") for _ in range(2)))
        assert first.id == second.id
        with pytest.raises(RpcError, match="messageId"):
            await echo.prompt("another", message_id="m")


@pytest.mark.parametrize(
    ("method", "params", "code", "text"),
    [
        ("message/send", {"message": {**MESSAGE, "parts": [{"kind": "text", "text": ""}]}}, -32602, "cannot be empty"),
        ("message/send", {"message": {"messageId": "1", "role": "user", "parts": []}}, -32602, "no parts"),
        ("message/send", {"message": {"messageId": "1", "role": "user", "parts": [{"kind": "text", "secret": "hush"}]}}, -32602, ""),
        ("message/send", {}, -32602, ""),
        ("SendMessage", {"message": {"messageId": "1", "role": "ROLE_USER", "parts": [{"hush": 1}]}}, -32602, "one of text"),
        ("message/send", {"message": {**MESSAGE, "taskId": "x", "parts": [{"kind": "text", "text": "a"}]}}, -32001, "not found"),
        ("tasks/get", {"id": "nobody"}, -32001, "Task not found"),
        ("tasks/get", {}, -32602, "id"),
        ("GetTask", {"id": "nobody"}, -32001, "Task not found"),
        ("tasks/resubscribe", {"id": "nobody"}, -32001, "Task not found"),
        ("tasks/pushNotificationConfig/set", {}, -32003, ""),
        ("tasks/fly", {}, -32601, ""),
    ],
)  # fmt: skip
async def test_what_cannot_be_answered_has_a_code_and_never_repeats_what_was_sent(
    method: str, params: dict[str, Any], code: int, text: str
) -> None:
    async with serve_agent_here(Echo()) as echo:
        answer = (await echo.http.post(f"{echo.base}/a2a", json={"jsonrpc": "2.0", "id": "7", "method": method, "params": params})).json()
    assert (answer["id"], answer["error"]["code"]) == ("7", code)
    assert text in answer["error"]["message"]
    assert "hush" not in json.dumps(answer)


@pytest.mark.parametrize(("body", "code"), [(b"{", -32700), (b"[]", -32600), (b'{"jsonrpc": "1.0"}', -32600), (b"", -32600)])
async def test_what_is_not_json_rpc_is_told_so(body: bytes, code: int) -> None:
    async with serve_agent_here(Plain()) as plain:
        assert (await plain.http.post(f"{plain.base}/a2a", content=body)).json()["error"]["code"] == code


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        ('{"jsonrpc":"2.0","id":"\\ud800","method":"tasks/get","params":{"id":"\\ud800"}}', -32001),
        ('{"jsonrpc":"2.0","id":1,"method":"\\ud800"}', -32601),
        ('{"jsonrpc":"2.0","id":NaN,"method":"tasks/get","params":{"id":"x"}}', -32001),
        ('{"jsonrpc":"2.0","id":1,"method":"message/send","params":{"message":{"messageId":"m","role":"user","parts":[{"kind":"data","data":'
         + '{"a":' * 300 + "1" + "}" * 300 + "}]}}}", -32602),
    ],
    ids=["half a character", "half a method", "no number", "deep"],
)  # fmt: skip
async def test_what_can_hardly_be_repeated_is_answered_all_the_same(sent: str, code: int) -> None:
    async with serve_agent_here(Echo()) as echo:
        assert (await echo.http.post(f"{echo.base}/a2a", content=sent)).json()["error"]["code"] == code


async def test_a_version_that_is_not_spoken_is_refused() -> None:
    async with serve_agent_here(Plain()) as plain:
        body = {"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {"id": "x"}}
        answer = await plain.http.post(f"{plain.base}/a2a", json=body, headers={"A2A-Version": "2.0"})
    assert answer.json()["error"]["code"] == -32009


async def test_a_message_has_settings_of_its_own() -> None:
    async with serve_agent_here(Echo()) as echo:
        await echo.invoke(AGENT_CONFIG, "set", {"model": "m", "api_key": "k"})
        own, usual = await asyncio.gather(echo.prompt("settings", config={"model": "other"}), echo.prompt("settings"))
        with pytest.raises(RpcError) as refused:
            await echo.prompt("settings", config={"fly": "hush"})
    assert ending(own).structured_output == {"model": "other", "key": "k", "prompt": None}
    assert ending(usual).structured_output == {"model": "m", "key": "k", "prompt": None}
    assert "hush" not in str(refused.value.data)


async def test_settings_are_merged_shown_and_on_the_card() -> None:
    async with serve_agent_here(Echo()) as echo:
        assert await echo.invoke(AGENT_CONFIG, "set", {"model": "m", "api_key": "k"}) == {"status": "updated"}
        await echo.invoke(AGENT_CONFIG, "set", {"name": "Ada", "description": "counts"})
        with pytest.raises(AgentEnvError, match="timeout_seconds") as refused:
            await echo.invoke(AGENT_CONFIG, "set", {"timeout_seconds": "hush", "model": "n"})
        shown = await echo.invoke(AGENT_CONFIG, "get")
        card = await echo.card()
    assert shown == {"config": {"model": "m", "api_key": "***", "name": "Ada", "description": "counts"}}
    assert (card.name, card.description) == ("Ada", "counts")
    assert (refused.value.status, "hush" in refused.value.message) == (400, False)


async def test_servers_of_tools_are_added_replaced_and_removed() -> None:
    async with serve_agent_here(Echo()) as echo:
        one = {"url": "http://a/mcp", "name": "a", "headers": {"authorization": "hush"}}
        assert await echo.invoke(MCP_CONFIG, "add", one) == {"status": "added", "name": "a", "url": "http://a/mcp"}
        for twice in (one, {"url": "http://a/mcp"}):
            with pytest.raises(AgentEnvError) as refused:
                await echo.invoke(MCP_CONFIG, "add", twice)
            assert refused.value.status == 409
        assert (await echo.invoke(MCP_CONFIG, "upsert", {**one, "url": "http://b/mcp"}))["status"] == "updated"
        assert (await echo.invoke(MCP_CONFIG, "upsert", {**one, "url": "http://b/mcp"}))["status"] == "updated"
        assert await echo.invoke(MCP_CONFIG, "list") == {"mcp_servers": {"a": {"url": "http://b/mcp", "has_headers": True}}}
        assert await echo.invoke(MCP_CONFIG, "remove", {"name": "a"}) == {"removed": True}
        assert await echo.invoke(MCP_CONFIG, "remove", {"name": "a"}) == {"removed": False}
        assert (await echo.invoke(MCP_CONFIG, "add", {"url": "http://c"}))["name"].startswith("mcp_")


async def test_peers_are_replaced_as_a_whole() -> None:
    async with serve_agent_here(Echo()) as echo:
        peers = [{"name": "b", "url": "http://b", "card": {"name": "b"}, "description": "helps"}, {"name": "c", "url": "http://c"}]
        assert await echo.invoke(PEER_AGENTS, "set", {"peers": peers}) == {"status": "updated", "peers": 2}
        shown = await echo.invoke(PEER_AGENTS, "list")
        assert await echo.invoke(PEER_AGENTS, "set", {"peers": []}) == {"status": "updated", "peers": 0}
    assert shown == {"peers": [{"name": "b", "url": "http://b", "description": "helps"}, {"name": "c", "url": "http://c"}]}


async def test_skills_are_written_and_listed_once(tmp_path: Path) -> None:
    agent_ = Echo()
    agent_.skills_folder = tmp_path / "skills"
    async with serve_agent_here(agent_) as echo:
        skill = {"name": "sum", "description": "adds", "skill_md": "# Sum"}
        assert await echo.invoke(SKILL_CONFIG, "add", skill) == {"name": "sum"}
        with pytest.raises(AgentEnvError) as refused:
            await echo.invoke(SKILL_CONFIG, "add", skill)
        assert await echo.invoke(SKILL_CONFIG, "list") == {"skills": {"sum": {"description": "adds"}}}
        card = await echo.card()
    assert refused.value.status == 409
    assert (tmp_path / "skills/sum/SKILL.md").read_text() == "# Sum"
    assert [(each.id, each.tags) for each in card.skills] == [("skill-sum", ["skill"])]


async def test_a_trajectory_is_read_in_pages_while_the_turn_runs_and_whole_later() -> None:
    agent_ = Echo()
    async with serve_agent_here(agent_) as echo:
        first = await echo.prompt("record 5", context_id="c")
        running = await until_working(echo, "wait g", context_id="c")
        page = await echo.invoke(TRAJECTORY, "get", {"context_id": "c", "after": 0, "limit": 4})
        rest = await echo.invoke(TRAJECTORY, "get", {"context_id": "c", "after": page["next"]})
        live = await echo.invoke(TRAJECTORY, "get", {"task_id": running.id, "after": 1})
        with pytest.raises(AgentEnvError) as early:
            await echo.invoke(TRAJECTORY, "get", {"task_id": running.id})
        with pytest.raises(AgentEnvError) as beyond:
            await echo.invoke(TRAJECTORY, "get", {"task_id": running.id, "after": 2})
        whole = await echo.invoke(TRAJECTORY, "get", {"task_id": first.id})
        agent_.gate("g").set()
    assert (page["next"], page["has_more"], page["state"], page["format"]) == (4, True, "running", "agentenv-events/v1")
    assert [event.get("native", event.get("text")) for event in page["events"] + rest["events"]] == ["record 5", 0, 1, 2, 3, 4, "wait g"]
    assert (live["events"], live["next"], live["has_more"]) == ([], 1, False)
    assert (early.value.status, beyond.value.status) == (404, 400)
    assert len(whole["trajectory"]) == 6


@pytest.mark.parametrize(
    "sent", [{"task_id": "x", "context_id": "y"}, {}, {"task_id": "x", "after": 0, "objects": {}}, {"task_id": "x", "after": True}]
)
async def test_a_trajectory_that_is_asked_for_wrongly_is_refused(sent: dict[str, Any]) -> None:
    async with serve_agent_here(Echo()) as echo:
        with pytest.raises(AgentEnvError) as refused:
            await echo.invoke(TRAJECTORY, "get", sent)
    assert refused.value.status == 400


async def test_a_restart_keeps_tasks_trajectories_sessions_and_registrations(tmp_path: Path) -> None:
    async with serve_agent_here(Echo(), state=tmp_path) as echo:
        done = await echo.prompt("hello", context_id="c", message_id="m")
        cut = await until_working(echo, "wait g", context_id="d")
        await echo.invoke(AGENT_CONFIG, "set", {"name": "Ada"})
        await echo.invoke(MCP_CONFIG, "add", {"url": "http://a/mcp", "name": "a"})
    async with serve_agent_here(Echo(), state=tmp_path) as echo:
        assert (await echo.prompt("hello", context_id="c", message_id="m")).id == done.id
        assert ending(await echo.prompt("again", context_id="c")).text == "hello again"
        lost = await echo.task(cut.id)
        assert (lost.status.state, ending(lost).error_code, ending(lost).error_type) == (TaskState.FAILED, "agent.stopped", "infra_error")
        assert len((await echo.invoke(TRAJECTORY, "get", {"task_id": cut.id}))["trajectory"]) == 1
        assert (await echo.card()).name == "Ada"
        assert set((await echo.invoke(MCP_CONFIG, "list"))["mcp_servers"]) == {"a"}


async def test_a_folder_that_nobody_named_goes_with_its_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    served = Echo()
    async with serve_agent_here(served) as echo:
        assert ending(await echo.prompt("hello")).text == "hello"
        assert served.state is not None
        assert served.state.parent.parent == tmp_path
    assert await asyncio.to_thread(lambda: [*tmp_path.iterdir()]) == []


EXITS = """
import os
from agent_env_sdk.agent import asgi
from agent_env_sdk.agent.memory import Memory
from agent_env_sdk.agent.staging import Staging
from tests.sdk.agents import Echo, Plain
never_served, staging = asgi(Echo()), Staging()
staging._root()
Memory(Plain()).keep("c", [])
remembers = Memory(plain := Plain())
remembers.keep("c", [])
there = set(os.listdir(os.environ["TMPDIR"]))
if not os.fork():
    raise SystemExit
assert os.wait()[1] == 0 and set(os.listdir(os.environ["TMPDIR"])) == there
print(sorted(name.rpartition("-")[0] for name in there))
"""


def test_no_folder_that_nobody_named_outlives_its_process_nor_goes_with_a_fork(tmp_path: Path) -> None:
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", EXITS], cwd=ROOT, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.stderr) == ("['agent-memory', 'agent-staging', 'agent-state']\n", "")
    assert list(tmp_path.iterdir()) == []


async def test_a_task_that_a_crash_left_running_has_failed_and_a_torn_line_is_left_out(tmp_path: Path) -> None:
    async with serve_agent_here(Echo(), state=tmp_path) as echo:
        task = await echo.prompt("record 2")
    [saved] = (tmp_path / "tasks").glob("*.json")
    value = json.loads(saved.read_text())
    value["task"]["status"] = {"state": "working"}
    saved.write_text(json.dumps(value))
    (tmp_path / "tasks/torn.json").write_text("{")
    with next((tmp_path / "trajectories").glob("*.jsonl")).open("a") as file:
        file.write('{"nati')
    async with serve_agent_here(Echo(), state=tmp_path) as echo:
        assert ending(await echo.task(task.id)).error_code == "agent.stopped"
        assert len((await echo.invoke(TRAJECTORY, "get", {"task_id": task.id}))["trajectory"]) == 3


async def test_a_token_guards_everything_but_card_and_health() -> None:
    async with serve_agent_here(Echo(), token="sesame") as echo, httpx.AsyncClient() as stranger:
        assert ending(await echo.prompt("hello")).text == "hello"
        body = {"jsonrpc": "2.0", "id": 1, "method": "tasks/get", "params": {"id": "x"}}
        for path in ("/a2a", "/ext/agent-config", "/ext/mcp-config", "/ext/trajectory", "/ext/peer-agents"):
            for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic sesame"}):
                assert (await stranger.post(f"{echo.base}{path}", json=body, headers=headers)).status_code == 401
        assert (await stranger.get(f"{echo.base}/ext/agent-config")).status_code == 401
        card = (await stranger.get(f"{echo.base}/.well-known/agent-card.json")).json()
        assert (await stranger.get(f"{echo.base}/health")).status_code == 200
    assert card["securitySchemes"] == {"bearer": {"type": "http", "scheme": "bearer"}}


async def test_triggers_speak_for_a_user() -> None:
    rules = [
        {"id": "hi", "when": {"type": "step", "turn": 1}, "actions": [{"type": "say", "text": "hello"}]},
        {"id": "paid", "when": {"type": "all", "of": [
            {"type": "env_trigger", "env_id": "shop", "trigger_id": "t"},
            {"type": "conversational", "where": {"message": {"regex": "(?i)done"}}},
        ]}, "actions": [{"type": "say", "text": "thanks"}, {"type": "end"}]},
    ]  # fmt: skip
    async with serve_agent_here(Echo()) as echo:
        assert await echo.invoke(TRIGGERS, "register", {"triggers": rules}) == {"ok": True, "added": ["hi", "paid"], "all": ["hi", "paid"]}
        assert (await echo.invoke(TRIGGERS, "register", {"triggers": rules}))["all"] == ["hi", "paid"]
        with pytest.raises(AgentEnvError, match="another trigger"):
            await echo.invoke(TRIGGERS, "register", {"triggers": [{**rules[0], "once": False}]})
        first = await echo.invoke(TRIGGERS, "decide", {"turn": 1})
        quiet = await echo.invoke(TRIGGERS, "decide", {"turn": 2, "solver_message": "Done", "env_triggers": {"shop": {"t": "armed"}}})
        last = await echo.invoke(TRIGGERS, "decide", {"turn": 3, "solver_message": "Done", "env_triggers": {"shop": {"t": "fired"}}})
        again = await echo.invoke(TRIGGERS, "decide", {"turn": 1})
        state = await echo.invoke(TRIGGERS, "state")
    assert first == {"parts": [{"kind": "text", "text": "hello"}], "done": False, "fired": ["hi"]}
    assert quiet == {"parts": [], "done": False, "fired": []}
    assert last == {"parts": [{"kind": "text", "text": "thanks"}], "done": True, "fired": ["paid"]}
    assert again["fired"] == ["hi"]
    assert [each["when_type"] for each in state["triggers"]] == ["step", "all"]


async def test_an_expression_that_takes_too_long_is_ended_and_nothing_is_remembered() -> None:
    slow = {"when": {"type": "conversational", "where": {"message": {"regex": "(a|aa)+$"}}}, "actions": [{"type": "end"}]}
    first = {"id": "hi", "when": {"type": "step", "turn": 1}, "actions": [{"type": "end"}]}
    async with serve_agent_here(Echo()) as echo:
        await echo.invoke(TRIGGERS, "register", {"triggers": [first, slow]})
        with pytest.raises(AgentEnvError) as refused:
            await echo.invoke(TRIGGERS, "decide", {"turn": 1, "solver_message": "a" * 5000 + "b"})
        assert (await echo.invoke(TRIGGERS, "decide", {"turn": 2}))["fired"] == []
        state = await echo.invoke(TRIGGERS, "state")
    assert refused.value.status == 504
    assert [each["kind"] for each in state["firing_log"]] == ["registered"]


def test_what_cannot_be_served_says_what_to_change() -> None:
    @agent("sync")
    class Sync(Agent):
        def run(self, request):
            return TaskResult.said("x")

    class Unnamed(Agent):
        async def run(self, request):
            return TaskResult.said("x")

    class Needy(AgentConfig):
        model: str

    @agent("needy")
    class NeedyAgent(Unnamed):
        config = Needy

    for wrong, words in ((Sync(), "async def"), (Unnamed(), "decorator"), (NeedyAgent(), "model")):
        with pytest.raises(AssemblyError, match=words):
            asgi(wrong)


async def test_fifty_conversations_at_once() -> None:
    agent_ = Echo()
    async with serve_agent_here(agent_) as echo:
        running = [asyncio.create_task(echo.prompt("wait g", context_id=str(number))) for number in range(50)]
        await until_working(echo, "wait other")
        agent_.gate("g").set()
        agent_.gate("other").set()
        assert {(await each).status.state for each in running} == {TaskState.COMPLETED}
