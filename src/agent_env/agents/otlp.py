"""What agents did as OpenTelemetry traces: OTLP in JSON, with the attributes of the conventions for generative AI.

A span a turn (`invoke_agent`), below it one a request to the model (`chat`) and one a call of a tool (`execute_tool`). Ids come from
the conversation, so that the same run exports the same trace. Formats: opentelemetry-proto 1.x in JSON (ids in hexadecimal, 64-bit
integers as texts); OpenTelemetry semantic conventions, `gen_ai`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from agent_env import __version__

Json = Any
_INTERNAL, _CLIENT = 1, 3
"""Kinds of spans."""
_FAILED: Final = 2
"""A status."""
_NANOSECONDS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """A turn of an agent, as the run keeps it."""

    document: Mapping[str, Json]
    """ATIF."""
    turn_id: str
    began: str
    """When nothing in it says when (RFC 3339)."""
    error: str | None = None
    facts: Mapping[str, str] = field(default_factory=dict)
    """Further attributes of the turn's span."""


def otlp(turns: Iterable[RecordedTurn], *, resource: Mapping[str, str]) -> dict[str, Json]:
    """An OTLP document (`ExportTraceServiceRequest`).

    Args:
        turns: In their order.
        resource: Attributes of the whole, beside `service.name`.
    """
    spans: dict[str, list[Json]] = {}
    for turn in turns:
        name = str((turn.document.get("agent") or {}).get("name") or "agent")
        spans.setdefault(name, []).extend(_Spans(turn).all())
    scope = {"name": "agent-env", "version": __version__}
    return {
        "resourceSpans": [
            {"resource": {"attributes": _attributes({"service.name": name, **resource})}, "scopeSpans": [{"scope": scope, "spans": each}]}
            for name, each in spans.items()
        ]
    }


class _Spans:
    """The spans of one turn."""

    def __init__(self, turn: RecordedTurn) -> None:
        self._turn = turn
        self._agent: Mapping[str, Json] = turn.document.get("agent") or {}
        self._session = str(turn.document.get("session_id") or turn.turn_id)
        self._trace = hashlib.sha256(self._session.encode()).hexdigest()[:32]
        self._steps = [step for step in turn.document.get("steps") or () if isinstance(step, Mapping)]
        self._times = _times(self._steps, turn.began)

    def all(self) -> Iterator[dict[str, Json]]:
        """The turn's, and those below it."""
        name = str(self._agent.get("name") or "agent")
        facts = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": name,
            "gen_ai.agent.version": self._agent.get("version") or None,
            "gen_ai.conversation.id": self._session,
            **self._turn.facts,
        }
        made = self._span("turn", f"invoke_agent {name}", _INTERNAL, (self._times[0], self._times[-1]), facts)
        del made["parentSpanId"]
        if self._turn.error is not None:
            made["status"] = {"code": _FAILED, "message": self._turn.error}
        yield made
        told: list[Json] = []
        for index, step in enumerate(self._steps):
            when = self._times[index], self._times[index + 1]
            if step.get("source") == "agent":
                yield self._chat(step, index, when, told)
                told = []
                yield from self._tools(step, index, when)
            elif step.get("message"):
                told.append({"role": str(step.get("source")), "parts": [{"type": "text", "content": step["message"]}]})

    def _chat(self, step: Mapping[str, Json], index: int, when: tuple[int, int], told: Sequence[Json]) -> dict[str, Json]:
        metrics, model = step.get("metrics") or {}, step.get("model_name") or self._agent.get("model_name")
        parts: list[Json] = []
        if step.get("reasoning_content"):
            parts.append({"type": "reasoning", "content": step["reasoning_content"]})
        if step.get("message"):
            parts.append({"type": "text", "content": step["message"]})
        for call in step.get("tool_calls") or ():
            named = {"id": call.get("tool_call_id"), "name": call.get("function_name"), "arguments": call.get("arguments")}
            parts.append({"type": "tool_call", **named})
        facts = {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": model,
            "gen_ai.conversation.id": self._session,
            "gen_ai.usage.input_tokens": metrics.get("prompt_tokens"),
            "gen_ai.usage.output_tokens": metrics.get("completion_tokens"),
            "gen_ai.input.messages": json.dumps(told, ensure_ascii=False) if told else None,
            "gen_ai.output.messages": json.dumps([{"role": "assistant", "parts": parts}], ensure_ascii=False),
        }
        return self._span(f"chat/{index}", f"chat {model}" if model else "chat", _CLIENT, when, facts)

    def _tools(self, step: Mapping[str, Json], index: int, when: tuple[int, int]) -> Iterator[dict[str, Json]]:
        results = {
            str(each.get("source_call_id")): each.get("content")
            for each in (step.get("observation") or {}).get("results") or ()
            if isinstance(each, Mapping)
        }
        for number, call in enumerate(step.get("tool_calls") or ()):
            id, name = str(call.get("tool_call_id")), str(call.get("function_name"))
            facts = {
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": name,
                "gen_ai.tool.type": "function",
                "gen_ai.tool.call.id": id,
                "gen_ai.tool.call.arguments": json.dumps(call.get("arguments"), ensure_ascii=False),
                "gen_ai.tool.call.result": _text(results.get(id)),
            }
            yield self._span(f"tool/{index}/{number}", f"execute_tool {name}", _INTERNAL, when, facts)

    def _span(self, key: str, name: str, kind: int, when: tuple[int, int], facts: Mapping[str, Json]) -> dict[str, Json]:
        return {
            "traceId": self._trace,
            "spanId": self._id(key),
            "parentSpanId": self._id("turn"),
            "name": name,
            "kind": kind,
            "startTimeUnixNano": str(when[0]),
            "endTimeUnixNano": str(when[1]),
            "attributes": _attributes(facts),
        }

    def _id(self, key: str) -> str:
        return hashlib.sha256(f"{self._session}\0{self._turn.turn_id}\0{key}".encode()).hexdigest()[:16]


def _times(steps: Sequence[Mapping[str, Json]], began: str) -> list[int]:
    """When each step began, and the last ended; one that does not say began when the one before it did."""
    last = _nanoseconds(began) or 0
    known = [_nanoseconds(str(step.get("timestamp"))) for step in steps]
    first = next((each for each in known if each is not None), last)
    found, last = [], first
    for each in known:
        last = max(last, each) if each is not None else last
        found.append(last)
    return [*(found or [last]), last]


def _nanoseconds(text: str) -> int | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return round(moment.timestamp() * 1_000_000) * (_NANOSECONDS // 1_000_000)


def _attributes(facts: Mapping[str, Json]) -> list[dict[str, Json]]:
    return [{"key": name, "value": _value(value)} for name, value in facts.items() if value is not None]


def _value(value: Json) -> dict[str, Json]:
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case _:
            return {"stringValue": str(value)}


def _text(value: Json) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)
