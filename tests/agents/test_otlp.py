"""Trajectories as OpenTelemetry traces."""

from __future__ import annotations

import json
import re
from typing import Any

from agent_env_sdk.wire.trajectory import MessageEvent, ReasoningEvent, ToolCallEvent, ToolResultEvent, UsageEvent, atif

from agent_env.agents.otlp import RecordedTurn, otlp

AT = "2030-01-01T00:00:{:02d}Z"
EVENTS = [
    MessageEvent(source="user", text="Add it up", at=AT.format(1)),
    ReasoningEvent(text="I could use expr", at=AT.format(2)),
    ToolCallEvent(call_id="1", name="shell", arguments={"command": "expr 40 + 2"}, at=AT.format(3)),
    ToolResultEvent(call_id="1", content="42", at=AT.format(4)),
    UsageEvent(input_tokens=7, output_tokens=3),
    MessageEvent(text="It is 42.", at=AT.format(5)),
]


def turn(turn_id: str = "m-1", error: str | None = None, session: str = "c-1") -> RecordedTurn:
    document = atif(EVENTS, session_id=session, agent_name="solver", agent_version="2", model="gpt")
    return RecordedTurn(document, turn_id, AT.format(0), error, {"agentenv.prompt_id": "p"})


def spans(*turns: RecordedTurn) -> list[dict[str, Any]]:
    (group,) = otlp(turns, resource={"agentenv.run_id": "run-1"})["resourceSpans"]
    assert told(group["resource"]) == {"service.name": "solver", "agentenv.run_id": "run-1"}
    (scoped,) = group["scopeSpans"]
    assert scoped["scope"]["name"] == "agent-env"
    found: list[dict[str, Any]] = scoped["spans"]
    return found


def told(span: dict[str, Any]) -> dict[str, Any]:
    return {each["key"]: next(iter(each["value"].values())) for each in span["attributes"]}


def test_a_turn_is_a_span_with_its_requests_and_calls_below() -> None:
    root, chat, tool, last = spans(turn())
    assert [each["name"] for each in (root, chat, tool, last)] == ["invoke_agent solver", "chat gpt", "execute_tool shell", "chat gpt"]
    assert "parentSpanId" not in root
    assert {each["parentSpanId"] for each in (chat, tool, last)} == {root["spanId"]}
    assert {each["traceId"] for each in (root, chat, tool, last)} == {root["traceId"]}
    assert all(re.fullmatch("[0-9a-f]{16}", each["spanId"]) for each in (root, chat, tool, last))
    assert re.fullmatch("[0-9a-f]{32}", root["traceId"])
    begins, ends = int(root["startTimeUnixNano"]), int(root["endTimeUnixNano"])
    assert (begins, ends - begins) == (1893456001 * 10**9, 4 * 10**9)
    assert told(root)["gen_ai.conversation.id"] == "c-1"
    assert told(root)["agentenv.prompt_id"] == "p"
    asked = told(chat)
    assert (asked["gen_ai.usage.input_tokens"], asked["gen_ai.request.model"]) == ("7", "gpt")
    assert json.loads(asked["gen_ai.input.messages"])[0]["parts"][0]["content"] == "Add it up"
    assert [part["type"] for part in json.loads(asked["gen_ai.output.messages"])[0]["parts"]] == ["reasoning", "tool_call"]
    assert (told(tool)["gen_ai.tool.call.id"], told(tool)["gen_ai.tool.call.result"]) == ("1", "42")
    assert json.loads(told(last)["gen_ai.output.messages"])[0]["parts"][0]["content"] == "It is 42."


def test_turns_of_a_conversation_share_a_trace_and_what_failed_is_told() -> None:
    one, other = (each for each in spans(turn(), turn("m-2", error="it broke")) if "parentSpanId" not in each)
    assert one["traceId"] == other["traceId"]
    assert one["spanId"] != other["spanId"]
    assert other["status"] == {"code": 2, "message": "it broke"}
    assert "status" not in one
    assert spans(turn()) == spans(turn()), "the same run exports the same trace"
    assert spans(turn(session="c-2"))[0]["traceId"] != one["traceId"]
