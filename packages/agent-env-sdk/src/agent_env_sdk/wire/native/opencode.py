"""`opencode-events/1`: what `opencode run --format json` prints. A turn's end is the end of its last step."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime
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

from .reading import count, split, table


class OpenCode:
    """Translates one turn.

    Args:
        servers: The MCP servers that there are.
    """

    def __init__(self, servers: Collection[str] = ()) -> None:
        self._servers = servers

    def feed(self, event: Mapping[str, Any]) -> Iterator[Event]:
        """What a native event says."""
        at, part = _moment(event.get("timestamp")), table(event, "part")
        match event.get("type"):
            case "text" if part.get("text"):
                yield MessageEvent(at=at, text=str(part["text"]))
            case "reasoning" if part.get("text"):
                yield ReasoningEvent(at=at, text=str(part["text"]))
            case "tool_use":
                yield from self._call(part, at)
            case "step_finish":
                yield from _step(part, at)
            case "error":
                error = table(event, "error")
                told = table(error, "data").get("message") or error.get("message") or error.get("name")
                yield ErrorEvent(at=at, code="model_error", message=str(told))
                yield EndEvent(at=at, state="failed")

    def _call(self, part: Mapping[str, Any], at: str | None) -> Iterator[Event]:
        state, call_id = table(part, "state"), str(part.get("callID"))
        name, server = split(str(part.get("tool")), self._servers)
        yield ToolCallEvent(at=at, call_id=call_id, name=name, arguments=state.get("input"), server=server)
        failed = state.get("status") == "error" or table(state, "metadata").get("exit") not in {None, 0}
        yield ToolResultEvent(at=at, call_id=call_id, content=state.get("output", state.get("error")), is_error=failed)


def _step(part: Mapping[str, Any], at: str | None) -> Iterator[Event]:
    tokens = table(part, "tokens")
    cached = table(tokens, "cache")
    read = sum(count(each) or 0 for each in (tokens.get("input"), cached.get("read"), cached.get("write")))
    written = sum(count(each) or 0 for each in (tokens.get("output"), tokens.get("reasoning")))
    yield UsageEvent(at=at, input_tokens=read, output_tokens=written)
    if part.get("reason") not in {"tool-calls", "unknown", None}:
        yield EndEvent(at=at, state="completed")


def _moment(value: object) -> str | None:
    milliseconds = count(value)
    if milliseconds is None:
        return None
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
