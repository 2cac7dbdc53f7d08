"""Recorded once, a run is done again without a model: the same answers, the same counts, and a clear word where the run went elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from agent_env_sdk.testing.models import Call, Scenario, Step

from agent_env.broker import Budget, Price, Refusal
from agent_env.broker.dialects import route_of
from agent_env.broker.endpoints import Endpoints
from agent_env.broker.recordings import asked, normalised
from tests.broker.world import BODIES, HI, PATHS, desk

SHELL = [{"type": "function", "function": {"name": "shell", "parameters": {}}}]
WORK = {"work": Scenario((Step("I look", calls=(Call("shell", {"command": "ls"}),)), Step("there is {last}")))}


def told(result: str) -> dict[str, Any]:
    said = [*HI["messages"], {"role": "assistant", "content": "I look"}, {"role": "tool", "tool_call_id": "call_0_0", "content": result}]  # type: ignore[misc]
    return {"model": "m", "messages": said, "tools": SHELL}


def test_a_question_is_the_same_whatever_ids_its_client_made_up() -> None:
    def said(first: str, second: str) -> dict[str, Any]:
        return {
            "model": "m",
            "prompt_cache_key": first,
            "client_metadata": {"x-codex-installation-id": first},
            "input": [
                {"type": "message", "id": f"msg_{first}", "role": "user", "content": [{"type": "input_text", "text": f"in {second}"}]},
                {"type": "function_call_output", "id": second, "call_id": "call_0", "output": f"made rollout_{first}.jsonl"},
            ],
        }

    route = route_of("POST", "/v1/responses")
    assert route is not None
    one = asked(route, "m", said("e361e0cd-6389-5f6b-86c8-4c0ac2d2a001", "019a2f00deadbeefdeadbeef00000001"))
    other = asked(route, "m", said("00000000-6389-4f6b-86c8-4c0ac2d2a0ff", "019a2f00deadbeefdeadbeef00000002"))
    assert one == other


@pytest.mark.parametrize("dialect", sorted(PATHS))
async def test_a_recorded_answer_is_replayed_byte_for_byte_with_no_model_and_the_same_counts(tmp_path: Path, dialect: str) -> None:
    kept = str(tmp_path / "recorded")
    prices = {"m": Price(1.0, 2.0)}
    async with desk(f"sqlite:///{tmp_path}/one.db", tmp_path, record=kept, prices=prices) as here:
        recorded = await here.ask(await here.token(), BODIES[dialect], PATHS[dialect])
        first = await here.used()
    async with desk(f"sqlite:///{tmp_path}/two.db", tmp_path, replay=kept, prices=prices) as here:
        here.tell("nothing", Endpoints((), prices))  # no endpoint, no key
        replayed = await here.ask(await here.grant("agent", "nothing"), BODIES[dialect], PATHS[dialect])
        assert (replayed.status_code, replayed.content) == (recorded.status_code, recorded.content)
        assert replayed.headers["content-type"] == recorded.headers["content-type"]
        assert await here.used() == first
        assert here.models.requests == []


async def test_the_same_question_asked_twice_gets_its_first_and_its_second_answer(tmp_path: Path) -> None:
    kept = str(tmp_path / "recorded")
    scenarios = {"one": Scenario((Step("first"),)), "two": Scenario((Step("second"),))}
    async with desk(f"sqlite:///{tmp_path}/one.db", tmp_path, scenarios, record=kept) as here:
        for scenario in ("one", "two"):
            await here.ask(await here.token(scenario=scenario))
    async with desk(f"sqlite:///{tmp_path}/two.db", tmp_path, replay=kept) as here:
        token = await here.token()
        answers = [(await here.ask(token)).json()["choices"][0]["message"]["content"] for _ in range(3)]
        assert answers == ["first", "second", "second"]


async def test_a_result_of_a_tool_that_differs_still_finds_its_place_in_the_conversation(tmp_path: Path) -> None:
    kept = str(tmp_path / "recorded")
    async with desk(f"sqlite:///{tmp_path}/one.db", tmp_path, WORK, record=kept) as here:
        token = await here.token(scenario="work")
        await here.ask(token, {**HI, "tools": SHELL})
        await here.ask(token, told("pid 4711, load 0.31"))
    async with desk(f"sqlite:///{tmp_path}/two.db", tmp_path, replay=kept) as here:
        token = await here.token()
        first = await here.ask(token, {**HI, "tools": SHELL})
        second = await here.ask(token, told("pid 993, load 2.77"))
        assert first.json()["choices"][0]["message"]["content"] == "I look"
        assert second.json()["choices"][0]["message"]["content"] == "there is pid 4711, load 0.31"


async def test_a_question_that_was_never_recorded_is_refused_with_where_it_differs(tmp_path: Path) -> None:
    kept = str(tmp_path / "recorded")
    async with desk(f"sqlite:///{tmp_path}/one.db", tmp_path, record=kept) as here:
        await here.ask(await here.token())
    async with desk(f"sqlite:///{tmp_path}/two.db", tmp_path, replay=kept) as here:
        token = await here.token()
        refused = await here.ask(token, {**HI, "messages": [{"role": "user", "content": "something else"}]})
        assert (refused.status_code, refused.json()["error"]["code"]) == (424, Refusal.NOT_RECORDED)
        assert "something else" in refused.json()["error"]["message"]
        assert '"hi"' in refused.json()["error"]["message"]
        assert (await here.used()).problem is Refusal.NOT_RECORDED
        assert here.models.requests == []


async def test_a_replay_stops_at_the_budget_where_the_run_did(tmp_path: Path) -> None:
    kept = str(tmp_path / "recorded")
    for name, more in (("one", {"record": kept}), ("two", {"replay": kept})):
        async with desk(f"sqlite:///{tmp_path}/{name}.db", tmp_path, budget=Budget(tokens=30), **more) as here:
            token = await here.token()
            assert [(await here.ask(token)).status_code for _ in range(3)] == [200, 200, 403]


def test_recordings_hold_neither_times_nor_ids() -> None:
    said = {
        "text": "On 2026-11-30T03:12:44.123Z (Mon Nov 30 2026, 11/30/2026) run 3f2504e0-4f89-41d3-9a0c-0305e82c3301 took 1.25 s "
        "in /tmp/tmpab12c; id 9f86d081884c7d65, at 1764470000 on 127.0.0.1:43121",
        "list": ["deadline 2026-01-02", "msg_3f2504e0-4f89-41d3-9a0c-0305e82c3301"],
        "number": 7,
    }
    other = {
        "text": "On 2027-01-01T13:02:04Z (Fri Jan 01 2027, 1/1/2027) run 00000000-4f89-41d3-9a0c-0305e82c3301 took 15 ms "
        "in /tmp/other; id 0f86d081884c7d66, at 1864470000 on 127.0.0.1:5",
        "list": ["deadline 2026-01-03", "msg_00000000-4f89-41d3-9a0c-0305e82c3301"],
        "number": 7,
    }
    assert normalised(said) == normalised(other)
    assert normalised("I have 3 apples and 12 pears in /app/data") == "I have 3 apples and 12 pears in /app/data"


async def test_a_recording_is_plain_json_that_a_person_can_read(tmp_path: Path) -> None:
    kept = tmp_path / "recorded"
    async with desk(f"sqlite:///{tmp_path}/one.db", tmp_path, record=str(kept)) as here:
        await here.ask(await here.token(), BODIES["openai-chat"], PATHS["openai-chat"])
    [file] = kept.iterdir()
    data = json.loads(file.read_text())
    assert (data["format"], data["status"], data["request"]["model"]) == ("agent-env-model-recording/1", 200, "m")
    assert data["text"].endswith("data: [DONE]\n\n")


async def test_half_a_character_is_recorded_and_replayed(tmp_path: Path) -> None:
    kept, asked = str(tmp_path / "recorded"), r'{"model":"m","messages":[{"role":"user","content":"cut \ud83d"}]}'
    answers = []
    for folder in ({"record": kept}, {"replay": kept}):
        async with desk(f"sqlite:///{tmp_path}/{len(answers)}.db", tmp_path, **folder) as here:
            headers = {"authorization": f"Bearer {await here.token()}"}
            answers.append((await here.http.post(f"{here.base}/v1/chat/completions", content=asked, headers=headers)).content)
    assert b"hello" in answers[0]
    assert answers[0] == answers[1]
