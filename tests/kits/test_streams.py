"""What coding agents print is a contract of theirs: streams that were recorded from the real programs, and what they come to.

`recorded/KIT-TURN.jsonl` is a turn as the kit's program printed it (`python -m tests.kits.recording KIT` records anew);
`recorded/KIT-TURN.events.json` is the same in the event model.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from agent_env_sdk.wire.native import FORMATS, normalised, translator
from agent_env_sdk.wire.trajectory import NATIVE_FORMATS, SDK_FORMAT, MessageEvent, ToolCallEvent, ToolResultEvent, atif, dump_event
from hypothesis import given, settings
from hypothesis import strategies as st

RECORDED = Path(__file__).parent / "recorded"
FORMAT = {
    "claude-code": "claude-code-stream-json/1",
    "codex": "codex-exec-json/1",
    "gemini": "gemini-stream-json/1",
    "opencode": "opencode-events/1",
    "openhands": "openhands-events/v1",
    "pi": "pi-json-events/v1",
}
STREAMS = sorted(path.stem for path in RECORDED.glob("*.jsonl"))
JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda each: st.lists(each, max_size=3), max_leaves=5)


def stream(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (RECORDED / f"{name}.jsonl").read_text().splitlines()]


def kit_of(name: str) -> str:
    return name.rpartition("-")[0]


@pytest.mark.parametrize("name", STREAMS)
def test_a_recorded_stream_comes_to_the_same_events(name: str) -> None:
    events = normalised(FORMAT[kit_of(name)], stream(name), ["stock"])
    assert events is not None
    assert [dump_event(event) for event in events] == json.loads((RECORDED / f"{name}.events.json").read_text())


@pytest.mark.parametrize("kit", [name.removesuffix("-1") for name in STREAMS if name.endswith("-1")])
def test_every_program_tells_the_same_of_the_same_turn(kit: str) -> None:
    events = normalised(FORMAT[kit], stream(f"{kit}-1"), ["stock"])
    assert events is not None
    said = [event.text for event in events if isinstance(event, MessageEvent) and event.source == "agent"]
    calls = [event for event in events if isinstance(event, ToolCallEvent)]
    results = {event.call_id: event for event in events if isinstance(event, ToolResultEvent)}
    assert (said[0], said[-1]) == ("Let me look.", "There are 5.")
    assert [call.call_id for call in calls] == list(results)
    assert "pwd; id -u; ls missing" in json.dumps(calls[0].arguments)
    assert "10001" in str(results[calls[0].call_id].content), "it runs without privileges"
    assert "5" in str(results[calls[1].call_id].content)
    if kit != "pi":  # which has no MCP and calls a command
        assert (calls[1].name, calls[1].server, calls[1].arguments) == ("stock_count", "stock", {"sku": "a"})
    folded = atif(events, session_id="s", agent_name=kit, agent_version="1")
    assert folded["final_metrics"]["total_prompt_tokens"] == 30
    assert folded["final_metrics"]["total_completion_tokens"] == 15


def test_every_known_format_is_translated() -> None:
    assert set(FORMATS) | {SDK_FORMAT} >= set(NATIVE_FORMATS)
    assert translator("somebody-elses/1") is None
    assert normalised(SDK_FORMAT, [{"type": "message", "text": "hi"}, {"type": "of tomorrow"}]) == [MessageEvent(text="hi")]


@pytest.mark.parametrize("format", [*FORMATS, SDK_FORMAT])
def test_what_is_no_event_is_left_out(format: str) -> None:
    assert normalised(format, [1, None, "x", [1], {}]) == []  # type: ignore[list-item]


def test_a_proxys_spans_are_read() -> None:
    spans = [
        {
            "name": "chat",
            "attributes": {
                "gen_ai.operation.name": "chat",
                "gen_ai.request.model": "m",
                "gen_ai.completion": json.dumps([{"role": "assistant", "content": "Let me look."}]),
                "gen_ai.usage.input_tokens": 3,
                "gen_ai.usage.output_tokens": 2,
            },
        },
        {
            "name": "bash",
            "status": {"status_code": "ERROR"},
            "attributes": {"gen_ai.operation.name": "execute_tool", "gen_ai.prompt": '{"command": "ls"}', "gen_ai.completion": "no"},
        },
    ]
    events = normalised("agentenv-proxy/v1", spans)
    assert events is not None
    assert [event.type for event in events] == ["message", "usage", "tool_call", "tool_result"]
    assert events[2] == ToolCallEvent(call_id="call_1", name="bash", arguments={"command": "ls"})


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(FORMATS)), st.sampled_from(STREAMS), st.data())
def test_a_stream_that_is_changed_anywhere_is_read_all_the_same(format: str, name: str, data: st.DataObject) -> None:
    """Whatever a newer program prints in a field's place, nothing is raised."""
    events = stream(name)
    event = data.draw(st.sampled_from(events))
    where: Any = event
    while isinstance(where, dict) and where:
        key = data.draw(st.sampled_from(sorted(where)))
        if not isinstance(where[key], dict) or data.draw(st.booleans()):
            where[key] = data.draw(JSON)
            break
        where = where[key]
    normalised(format, events, ["stock"])
