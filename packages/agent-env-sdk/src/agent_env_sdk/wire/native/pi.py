"""`pi-json-events/v1`: what `pi --mode json` prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from agent_env_sdk.wire.trajectory import (
    EndEvent,
    ErrorEvent,
    Event,
    MessageEvent,
    ReasoningEvent,
    ToolCallEvent,
    ToolResultEvent,
    UsageEvent,
)

from .reading import count, items, table, text


class Pi:
    """Translates one turn."""

    def __init__(self) -> None:
        self._failed = False

    def feed(self, event: Mapping[str, Any]) -> Iterator[Event]:
        """What a native event says."""
        match event.get("type"):
            case "message_end":
                message = table(event, "message")
                if message.get("role") == "assistant":
                    yield from self._said(message)
            case "tool_execution_start":
                yield ToolCallEvent(call_id=str(event.get("toolCallId")), name=str(event.get("toolName")), arguments=event.get("args"))
            case "tool_execution_end":
                content = text(table(event, "result").get("content"))
                yield ToolResultEvent(call_id=str(event.get("toolCallId")), content=content, is_error=bool(event.get("isError")))
            case "agent_end":
                yield EndEvent(state="failed" if self._failed else "completed")

    def _said(self, message: Mapping[str, Any]) -> Iterator[Event]:
        for block in items(message.get("content")):
            if block.get("type") == "thinking" and block.get("thinking"):
                yield ReasoningEvent(text=str(block["thinking"]))
            elif block.get("type") == "text" and block.get("text"):
                yield MessageEvent(text=str(block["text"]))
        usage = table(message, "usage")
        read = sum(count(usage.get(name)) or 0 for name in ("input", "cacheRead", "cacheWrite"))
        model = str(message["model"]) if "model" in message else None
        cost = table(usage, "cost").get("total")
        yield UsageEvent(model=model, input_tokens=read, output_tokens=count(usage.get("output")), cost_usd=cost or None)
        # One that is asked again is no end: the last message decides.
        self._failed = message.get("stopReason") in {"error", "aborted"}
        if self._failed:
            yield ErrorEvent(code="model_error", message=str(message.get("errorMessage") or message.get("stopReason")))
