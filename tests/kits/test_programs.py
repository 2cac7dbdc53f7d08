"""Agents that are programs, with a small program in place of a real one: what of a turn is the SDK's business, whichever program it is."""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from agent_env_sdk.agent import agent
from agent_env_sdk.agent.programs import Launch, Models, ProgramAgent, Turn
from agent_env_sdk.agent.turns import Progress, TaskRequest, TaskResult
from agent_env_sdk.testing.agents import AgentClient, ending, serve_agent_here
from agent_env_sdk.wire.a2a import Method, Task
from agent_env_sdk.wire.agent_extensions import TRAJECTORY

from agent_env.waiting import poll
from tests.busy import within

KEY = "sk-very-secret"
PROGRAM = Path(__file__).with_name("program.py")


@agent("fake")
class Fake(ProgramAgent):
    """A program that speaks codex's format."""

    program = "fake"
    trajectory_format = "codex-exec-json/1"

    def launch(self, turn: Turn) -> Launch:
        if turn.prompt == "unfit":
            raise ValueError("this can't be followed")
        turn.write("settings", "secret")
        return Launch([sys.executable, str(PROGRAM), turn.session or ""], {"PROGRAM_KEY": turn.models.key}, turn.prompt)

    def notice(self, turn: Turn, event: Mapping[str, Any]) -> None:
        if event.get("type") == "thread.started":
            turn.found["session"] = event["thread_id"]


def fake(folder: Path, base: str = "http://127.0.0.1:9") -> Fake:
    return Fake(workspace=folder / "workspace", homes=folder / "conversations", models=Models(base, KEY))


async def told(client: AgentClient, task: Task) -> list[dict[str, Any]]:
    return list((await client.invoke(TRAJECTORY, "get", {"task_id": task.id}))["trajectory"])


def named(mark: str) -> list[psutil.Process]:
    return [each for each in psutil.process_iter(["cmdline"]) if mark in " ".join(each.info["cmdline"] or [])]


def attached(folder: Path) -> list[Path]:
    return list(folder.glob("workspace/inputs/*/*"))


def modes(folder: Path, pattern: str) -> set[str]:
    return {oct(path.stat().st_mode & 0o777) for path in folder.glob(pattern)}


MODEL = {"model": "m"}


async def test_a_turn_is_recorded_as_it_is_and_counted(tmp_path: Path) -> None:
    async with serve_agent_here(fake(tmp_path)) as client:
        task = await client.prompt("work", config=MODEL)
        events = await told(client, task)
    end = ending(task)
    assert (task.status.state.value, end.text) == ("completed", "done: work")
    assert (end.usage.tool_call_count, end.usage.input_tokens, end.usage.output_tokens) == (1, 7, 3)
    assert [event["type"] for event in events] == [
        "thread.started", "turn.started", "item.started", "item.completed", "item.completed", "unheard.of", "turn.completed",
    ]  # fmt: skip
    assert events[-2] == {"type": "unheard.of", "kept": True}


async def test_calls_are_over_as_their_results_come_and_those_at_once_together(tmp_path: Path) -> None:
    heard: list[tuple[int, list[str]]] = []

    @agent("watched")
    class Watched(Fake):
        """Looks at what there is whenever calls are over, and only then lets the program go on."""

        async def run(self, request: TaskRequest[Any]) -> AsyncIterator[Progress | TaskResult]:
            """One turn."""

            async def over(count: int) -> None:
                if count:
                    heard.append((count, sorted(path.name for path in self.workspace.glob("?"))))
                    (self.workspace / f"heard-{sum(each for each, _ in heard) - 1}").touch()

            async for each in super().run(replace(request, calls_over=over)):
                yield each

    watched = Watched(workspace=tmp_path / "workspace", homes=tmp_path / "conversations", models=Models("http://127.0.0.1:9", KEY))
    async with serve_agent_here(watched) as client:
        assert ending(await client.prompt("calls", config=MODEL)).usage.tool_call_count == 3
    assert heard == [(1, ["0"]), (2, ["0", "1", "2"])]


async def test_a_conversation_goes_on_in_its_own_home_and_others_do_not_see_it(tmp_path: Path) -> None:
    async with serve_agent_here(fake(tmp_path)) as client:
        first = ending(await client.prompt("home", context_id="a", config=MODEL)).text
        again = ending(await client.prompt("home", context_id="a", config=MODEL)).text
        other = ending(await client.prompt("home", context_id="b", config=MODEL)).text
        session = ending(await client.prompt("session", context_id="a", config=MODEL)).text
    assert first == again != other
    assert session == "done: session thread-1"
    assert modes(tmp_path, "conversations/*/settings") == {"0o600"}


async def test_the_key_is_in_no_answer_and_in_no_event(tmp_path: Path) -> None:
    async with serve_agent_here(fake(tmp_path)) as client:
        for prompt in ("print the key", "fail with the key"):
            task = await client.prompt(prompt, config=MODEL)
            seen = json.dumps([task.to_json(), await told(client, task)])
            assert "***" in seen
            assert KEY not in seen


@pytest.mark.parametrize(
    ("prompt", "code", "kind", "said"),
    [
        ("fail of the model", "fake.model_error", "infra_error", "the model is away"),
        ("exit 3", "fake.exited", "infra_error", "the program ended with 3: its last words"),
        ("unfit", "fake.invalid_setting", "agent_error", "this can't be followed"),
    ],
)
async def test_each_way_to_fail_has_its_code(tmp_path: Path, prompt: str, code: str, kind: str, said: str) -> None:
    async with serve_agent_here(fake(tmp_path)) as client:
        task = await client.prompt(prompt, config=MODEL)
    end = ending(task)
    assert (task.status.state.value, end.error_code, end.error_type, end.error_message) == ("failed", code, kind, said)


async def test_without_a_model_or_an_endpoint_no_program_is_started(tmp_path: Path) -> None:
    async with serve_agent_here(fake(tmp_path)) as client:
        assert ending(await client.prompt("work")).error_code == "fake.no_model"
    async with serve_agent_here(fake(tmp_path, "")) as client:
        assert ending(await client.prompt("work", config=MODEL)).error_code == "fake.no_endpoint"


async def test_cancelling_ends_everything_that_the_turn_started_also_what_left_its_group(tmp_path: Path) -> None:
    mark = f"mark-{os.getpid()}-{tmp_path.name}"
    async with serve_agent_here(fake(tmp_path)) as client:
        task = await client.prompt(f"children {mark}", config=MODEL, wait=False)

        async def both() -> bool | None:
            return len(named(mark)) == 2 or None

        await poll(both, within_seconds=within(20), what="the program's children")
        assert (await client.cancel(task.id)).status.state.value == "canceled"

        async def none() -> bool | None:
            return not named(mark) or None

        await poll(none, within_seconds=within(20), what="the children's end")
        # What came until then is kept.
        assert (await told(client, task))[0]["type"] == "thread.started"


async def test_a_turn_that_takes_too_long_is_ended_with_its_last_words(tmp_path: Path) -> None:
    said: list[str] = []
    async with serve_agent_here(fake(tmp_path)) as client:
        for seconds in (1.0, 8.0, within(30.0)):  # a busy machine may start the program too late to hear a word of it
            end = ending(await client.prompt("hang", config={**MODEL, "timeout_seconds": seconds}))
            assert end.error_code == "agent.timeout"
            said.append(end.text)
            if said[-1]:
                break
    assert said[-1] == "I begin"


async def test_what_a_turn_left_running_goes_on_and_is_not_waited_for(tmp_path: Path) -> None:
    mark = f"mark-{os.getpid()}-{tmp_path.name}"
    async with serve_agent_here(fake(tmp_path)) as client:
        task = await client.prompt(f"leave {mark}", config=MODEL)
        assert task.status.state.value == "completed"
        [left] = named(mark)
        left.kill()


async def test_attached_files_are_in_the_workspace_and_the_prompt_says_where(tmp_path: Path) -> None:
    parts = [
        {"kind": "text", "text": "read"},
        {"kind": "file", "file": {"bytes": base64.b64encode(b"content").decode(), "name": "../../note.txt", "mimeType": "text/plain"}},
        {"kind": "file", "file": {"uri": "https://x.test/a.png", "mimeType": "image/png"}},
    ]
    message = {"messageId": "1", "role": "user", "parts": parts, "metadata": {"urn:agentenv:agent-config/v1": MODEL}}
    async with serve_agent_here(fake(tmp_path)) as client:
        task = Task.model_validate(await client.rpc(Method.SEND, {"message": message}))
    [file] = attached(tmp_path)
    assert (file.name, file.read_text()) == (".._.._note.txt".lstrip("."), "content")
    assert ending(task).text == f"done: read\n\n[Attached: {file}]\n\n[Attached: https://x.test/a.png]"


async def test_a_snapshot_of_a_conversation_has_the_programs_memory(tmp_path: Path) -> None:
    one, two = fake(tmp_path / "one"), fake(tmp_path / "two")
    async with serve_agent_here(one) as client:
        await client.prompt("remember this", context_id="a", config=MODEL)
    await two.load_context("b", await one.save_context("a"))
    async with serve_agent_here(two) as client:
        assert ending(await client.prompt("recall", context_id="b", config=MODEL)).text == "done: recall remember this"


async def test_an_asked_for_value_is_read_from_the_answer(tmp_path: Path) -> None:
    async with serve_agent_here(fake(tmp_path)) as client:
        for prompt in ("json plain", "json fenced"):
            task = await client.prompt(prompt, config={**MODEL, "output_format": {"type": "json_schema", "schema": {}}})
            assert ending(task).structured_output == {"n": 1}
