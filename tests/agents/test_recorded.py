"""What agents did, read back from a run's record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agent_env.agents.recorded import recorded_prompts
from agent_env.cli.trajectories import LONGEST, show_prompts
from agent_env.stores import Objects

EVENTS = [
    {"type": "message", "source": "user", "text": "park it"},
    {"type": "reasoning", "text": "hm"},
    {"type": "tool_call", "call_id": "1", "name": "park", "server": "garage", "arguments": {"plate": "AB"}},
    {"type": "tool_result", "call_id": "1", "content": "full", "is_error": True},
    {"type": "usage", "input_tokens": 3},
    {"type": "message", "text": "It is\nfull."},
    {"type": "end", "state": "completed"},
]
SDK = "agentenv-events/v1"


@pytest.fixture
def objects(tmp_path: Path) -> Objects:
    return Objects(tmp_path / "objects")


def kept(objects: Objects, events: Any) -> str:
    return objects.put(json.dumps(events).encode()).url


def record(**fields: Any) -> dict[str, Any]:
    return {"prompt_id": "ask", "step_id": "asking", "agent_name": "solver", "state": "completed", **fields}


def turn(number: int, url: str | None, **fields: Any) -> dict[str, Any]:
    return {"turn": number, "end": "completed", "trajectory_object_url": url, "trajectory_format": SDK, **fields}


def test_each_call_of_a_tool_is_shown_with_its_result(objects: Objects, capsys: pytest.CaptureFixture[str]) -> None:
    used = {"input_tokens": 3, "cost_usd": 0.5}
    answer = record(turns=[turn(0, kept(objects, EVENTS))], tool_call_count=1, usage=used, model="m")
    show_prompts(recorded_prompts({"prompt_responses": [answer]}, objects), full=False)
    assert capsys.readouterr().out.splitlines() == [
        "ask · solver · m · completed · 1 tool call · 3 tokens in, $0.500000",
        "user      park it",
        "thought   hm",
        'call      garage.park {"plate": "AB"}',
        "failed    full",
        "agent     It is",
        "          full.",
    ]


def test_a_prompt_is_found_by_its_id_or_its_steps(objects: Objects) -> None:
    context = {"prompt_responses": [record(), record(prompt_id="more", step_id="again")]}
    assert [each.record["prompt_id"] for each in recorded_prompts(context, objects, only="again")] == ["more"]
    assert [each.record["prompt_id"] for each in recorded_prompts(context, objects, only="ask")] == ["ask"]
    assert recorded_prompts(context, objects, only="nope") == recorded_prompts({}, objects) == []


def test_what_is_not_there_or_not_known_is_said_and_hides_nothing_else(objects: Objects) -> None:
    cut = turn(2, kept(objects, EVENTS[:1]), trajectory_truncated=True)
    strange = turn(3, kept(objects, [{"odd": 1}]), trajectory_format="somebody-elses/1")
    gone = f"sha256:{'0' * 64}"
    turns = [turn(0, None, trajectory_problem="it went away"), turn(1, gone), cut, strange]
    (prompt,) = recorded_prompts({"prompt_responses": [record(turns=turns)]}, objects)
    told = [(each["normalised"], len(each["events"]), each["problem"]) for each in prompt.to_json()["turns"]]
    assert told[0] == (True, 0, "it went away")
    assert told[1][:2] == (True, 0)
    assert told[2] == (True, 1, "it was cut at its limit")
    assert told[3] == (False, 1, None)
    assert prompt.turns[3].events == [{"odd": 1}]


def test_a_record_of_another_installation_lists_addresses_alone(objects: Objects, capsys: pytest.CaptureFixture[str]) -> None:
    url = kept(objects, [{"type": "message", "text": "x" * (LONGEST + 1)}])
    context = {"prompt_responses": [record(agent_trajectory_object_url=url, error_message="why", error_code="c")]}
    show_prompts(recorded_prompts(context, objects), full=False)
    assert capsys.readouterr().out.endswith("x… (1 more characters: --full)\nerror     c: why\n")
    show_prompts(recorded_prompts(context, objects), full=True)
    assert "x" * (LONGEST + 1) in capsys.readouterr().out
