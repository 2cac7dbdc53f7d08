"""`gemini-stream-json/1`: what `gemini --output-format stream-json` prints. A message comes in pieces; they are put together."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from agent_env_sdk.wire.trajectory import EndEvent, ErrorEvent, Event, MessageEvent, ToolCallEvent, ToolResultEvent, UsageEvent

from .reading import count, split, table


class Gemini:
    """Translates one turn.

    Args:
        servers: The MCP servers that there are.
    """

    def __init__(self, servers: Collection[str] = ()) -> None:
        self._servers = servers
        self._said, self._since = "", ""

    def feed(self, event: Mapping[str, Any]) -> Iterator[Event]:
        """What a native event says."""
        at = str(event.get("timestamp", "")) or None
        if event.get("type") == "message" and event.get("role") == "assistant":
            self._since = self._since or (at or "")
            self._said += str(event.get("content", ""))
            return
        if self._said:
            yield MessageEvent(at=self._since or None, text=self._said)
            self._said, self._since = "", ""
        match event.get("type"):
            case "tool_use":
                name, server = split(str(event.get("tool_name")), self._servers, before="mcp_")
                yield ToolCallEvent(at=at, call_id=str(event.get("tool_id")), name=name, arguments=event.get("parameters"), server=server)
            case "tool_result":
                failed = event.get("status") == "error"
                content = table(event, "error").get("message") if failed and not event.get("output") else event.get("output")
                yield ToolResultEvent(at=at, call_id=str(event.get("tool_id")), content=content, is_error=failed)
            case "error" if event.get("severity") != "warning":
                yield ErrorEvent(at=at, code="model_error", message=str(event.get("message")))
            case "result":
                yield from self._ended(event, at)

    def _ended(self, event: Mapping[str, Any], at: str | None) -> Iterator[Event]:
        stats = table(event, "stats")
        for model, told in table(stats, "models").items():
            tokens = table(told)
            yield UsageEvent(
                model=str(model), input_tokens=count(tokens.get("input_tokens")), output_tokens=count(tokens.get("output_tokens"))
            )
        if event.get("status") == "error":
            error = table(event, "error")
            yield ErrorEvent(at=at, code="model_error", message=str(error.get("message") or "the turn failed"))
            yield EndEvent(state="failed")
        else:
            yield EndEvent(state="completed")
