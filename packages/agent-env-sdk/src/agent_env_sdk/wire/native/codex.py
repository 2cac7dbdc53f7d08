"""`codex-exec-json/1`: what `codex exec --json` prints."""

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

from .reading import count, table, text

_CALLS = {"command_execution": "shell", "file_change": "apply_patch", "web_search": "web_search", "mcp_tool_call": ""}
"""Items that are calls of tools, and what the tool is called where the item doesn't say."""


class Codex:
    """Translates one turn. Its counts of tokens are those of the whole conversation: `usage_before` is what earlier turns took of them."""

    def __init__(self, usage_before: tuple[int, int] = (0, 0)) -> None:
        self._before = usage_before
        self._told: set[str] = set()

    def feed(self, event: Mapping[str, Any]) -> Iterator[Event]:
        """What a native event says."""
        match event.get("type"):
            case "item.started" | "item.completed":
                yield from self._item(table(event, "item"), ended=event["type"] == "item.completed")
            case "turn.completed":
                usage, (read, written) = table(event, "usage"), self._before
                yield UsageEvent(
                    input_tokens=max(0, (count(usage.get("input_tokens")) or 0) - read),
                    output_tokens=max(0, (count(usage.get("output_tokens")) or 0) - written),
                )
                yield EndEvent(state="completed")
            case "turn.failed":
                yield ErrorEvent(code="model_error", message=str(table(event, "error").get("message") or "the turn failed"))
                yield EndEvent(state="failed")

    def _item(self, item: Mapping[str, Any], *, ended: bool) -> Iterator[Event]:
        kind = str(item.get("type"))
        if kind in _CALLS:
            yield from self._call(item, kind, ended=ended)
        elif ended and kind in {"agent_message", "reasoning"} and item.get("text"):
            yield (MessageEvent if kind == "agent_message" else ReasoningEvent)(text=str(item["text"]))

    def _call(self, item: Mapping[str, Any], kind: str, *, ended: bool) -> Iterator[Event]:
        call_id = str(item.get("id"))
        if call_id not in self._told:
            self._told.add(call_id)
            arguments = item.get("arguments") if kind == "mcp_tool_call" else _arguments(item, kind)
            name, server = str(item.get("tool") or _CALLS[kind]), item.get("server")
            yield ToolCallEvent(call_id=call_id, name=name, arguments=arguments, server=server if isinstance(server, str) else None)
        if ended:
            error = table(item, "error")
            output = text(table(item, "result").get("content")) if kind == "mcp_tool_call" else item.get("aggregated_output", "")
            failed = item.get("status") not in {None, "completed"} or bool(error) or item.get("exit_code") not in {None, 0}
            yield ToolResultEvent(call_id=call_id, content=str(error.get("message")) if error else output, is_error=failed)


def _arguments(item: Mapping[str, Any], kind: str) -> dict[str, Any]:
    name = {"command_execution": "command", "file_change": "changes", "web_search": "query"}[kind]
    return {name: item.get(name)}
