"""`claude-code-stream-json/1`: what `claude -p --output-format stream-json --verbose` prints."""

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

_PARTS_OF_A_TOOL = 3


class ClaudeCode:
    """Translates one turn."""

    def feed(self, event: Mapping[str, Any]) -> Iterator[Event]:
        """What a native event says."""
        at = event.get("timestamp") if isinstance(event.get("timestamp"), str) else None
        match event.get("type"):
            case "assistant":
                yield from self._said(event, at)
            case "user":
                for block in items(table(event, "message").get("content")):
                    if block.get("type") == "tool_result":
                        yield ToolResultEvent(
                            at=at, call_id=str(block.get("tool_use_id")), content=text(block.get("content")),
                            is_error=bool(block.get("is_error")),
                        )  # fmt: skip
            case "result":
                yield from self._ended(event)

    def _said(self, event: Mapping[str, Any], at: str | None) -> Iterator[Event]:
        for block in items(table(event, "message").get("content")):
            match block.get("type"):
                case "text" if block.get("text"):
                    yield MessageEvent(at=at, text=str(block["text"]))
                case "thinking" if block.get("thinking"):
                    yield ReasoningEvent(at=at, text=str(block["thinking"]))
                case "tool_use":
                    parts = str(block.get("name")).split("__", 2)
                    ours = parts[0] == "mcp" and len(parts) == _PARTS_OF_A_TOOL
                    server, name = (parts[1], parts[2]) if ours else (None, str(block.get("name")))
                    yield ToolCallEvent(at=at, call_id=str(block.get("id")), name=name, arguments=block.get("input"), server=server)

    def _ended(self, event: Mapping[str, Any]) -> Iterator[Event]:
        usage = table(event, "usage")
        # Read from the provider's cache or written to it, they are input all the same.
        told = [count(usage.get(name)) for name in ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")]
        model = next(iter(table(event, "modelUsage")), None)
        if usage:
            yield UsageEvent(model=model, input_tokens=sum(each or 0 for each in told), output_tokens=count(usage.get("output_tokens")))
        if event.get("is_error") or event.get("subtype") != "success":
            subtype = str(event.get("subtype"))
            # An error of the model's API ends a turn as a `success` whose text tells it.
            code = "model_error" if subtype == "success" else subtype
            problems = event.get("errors")
            told_as = event.get("result") or ("; ".join(map(str, problems)) if isinstance(problems, list) else "")
            yield ErrorEvent(code=code, message=str(told_as or subtype))
            yield EndEvent(state="failed")
        else:
            yield EndEvent(state="completed")
