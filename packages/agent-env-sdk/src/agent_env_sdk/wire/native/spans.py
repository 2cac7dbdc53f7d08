"""`agentenv-proxy/v1`: spans of OpenTelemetry's conventions for generative AI, as agents that are driven from outside record them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from agent_env_sdk.wire.trajectory import EndEvent, ErrorEvent, Event, MessageEvent, ToolCallEvent, ToolResultEvent, UsageEvent

from .reading import count, items, table, text


class Spans:
    """Translates one turn."""

    def __init__(self) -> None:
        self._calls, self._said = 0, False

    def feed(self, event: Mapping[str, Any]) -> Iterator[Event]:
        """What a span says."""
        attributes = table(event, "attributes")
        at = str(event["start_time"]) if isinstance(event.get("start_time"), str) else None
        match attributes.get("gen_ai.operation.name"):
            case "chat":
                for message in _messages(attributes.get("gen_ai.completion")):
                    if said := text(message.get("content")):
                        self._said = True
                        yield MessageEvent(at=at, text=said)
                model = attributes.get("gen_ai.request.model")
                read, written = (count(attributes.get(f"gen_ai.usage.{name}_tokens")) for name in ("input", "output"))
                if read is not None or written is not None:
                    yield UsageEvent(at=at, model=str(model) if model else None, input_tokens=read, output_tokens=written)
            case "chain":
                failed = table(event, "status").get("status_code") == "ERROR"
                completion = text(attributes.get("gen_ai.completion"))
                if failed:
                    yield ErrorEvent(at=at, code="driver_error", message=completion)
                elif completion and not self._said:  # of a driver that tells nothing of its model
                    yield MessageEvent(at=at, text=completion)
                yield EndEvent(at=at, state="failed" if failed else "completed")
            case "execute_tool":
                self._calls += 1
                call_id = str(attributes.get("gen_ai.tool.call.id") or f"call_{self._calls}")
                name = str(attributes.get("gen_ai.tool.name") or event.get("name"))
                arguments, said = (_json(attributes.get(f"gen_ai.{each}")) for each in ("prompt", "completion"))
                yield ToolCallEvent(at=at, call_id=call_id, name=name, arguments=arguments)
                failed = table(event, "status").get("status_code") == "ERROR"
                yield ToolResultEvent(at=at, call_id=call_id, content=said, is_error=failed)


def _json(value: object) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def _messages(value: object) -> list[Mapping[str, Any]]:
    read = _json(value)
    if isinstance(read, str):
        return [{"content": read}]
    return items(read) if isinstance(read, list) else [read] if isinstance(read, Mapping) else []
