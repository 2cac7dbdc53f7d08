"""`openhands-events/v1`: the events of OpenHands' SDK, and beside them what each answer of the model took and how the turn ended."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
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

from .reading import count, split, table, text

_FINISH = "finish"
"""The tool by which the agent gives its answer."""
_CODES = {"MaxIterationsReached": "error_max_turns"}


class OpenHands:
    """Translates one turn.

    Args:
        servers: The MCP servers that there are. With one alone, its tools have their own names.
    """

    def __init__(self, servers: Collection[str] = ()) -> None:
        self._servers = servers
        self._unheard = True

    def feed(self, event: Mapping[str, Any]) -> Iterator[Event]:
        """What a native event says."""
        match event.get("kind"):
            case "MessageEvent" if event.get("source") == "agent":
                message = table(event, "llm_message")
                yield from _thought(message.get("reasoning_content"))
                yield MessageEvent(text=text(message.get("content")))
            case "ActionEvent":
                yield from self._action(event)
            case "ObservationEvent" if event.get("tool_name") != _FINISH:
                seen = table(event, "observation")
                failed = bool(seen.get("is_error")) or seen.get("exit_code") not in {None, 0}
                yield ToolResultEvent(call_id=str(event.get("tool_call_id")), content=text(seen.get("content")), is_error=failed)
            case "AgentErrorEvent" | "UserRejectObservation":
                said = event.get("error") or event.get("rejection_reason")
                yield ToolResultEvent(call_id=str(event.get("tool_call_id")), content=str(said), is_error=True)
            case "TokenUsage":
                model = str(event["model"]).removeprefix("litellm_proxy/") if event.get("model") else None
                read, written = count(event.get("prompt_tokens")), count(event.get("completion_tokens"))
                yield UsageEvent(model=model, input_tokens=read, output_tokens=written)
            case "ConversationErrorEvent":
                code = str(event.get("code"))
                self._unheard = False
                yield ErrorEvent(code=_CODES.get(code, code), message=str(event.get("detail")))
            case "Ended":
                yield from self._ended(str(event.get("status")))

    def _action(self, event: Mapping[str, Any]) -> Iterator[Event]:
        yield from _thought(event.get("reasoning_content"))
        if said := text(event.get("thought")):
            yield MessageEvent(text=said)
        name, action = str(event.get("tool_name")), table(event, "action")
        if name == _FINISH and isinstance(action.get("message"), str):
            yield MessageEvent(text=action["message"])
            return
        server: str | None = None
        if action.get("kind") == "MCPToolAction":
            name, server = split(name, self._servers) if len(self._servers) != 1 else (name, next(iter(self._servers)))
        yield ToolCallEvent(call_id=str(event.get("tool_call_id")), name=name, arguments=_arguments(event), server=server)

    def _ended(self, status: str) -> Iterator[Event]:
        if status == "finished":
            yield EndEvent(state="completed")
            return
        if self._unheard:
            yield ErrorEvent(code=status, message=f"the turn ended as {status}")
        yield EndEvent(state="failed")


def _thought(value: object) -> Iterator[Event]:
    if isinstance(value, str) and value:
        yield ReasoningEvent(text=value)


def _arguments(event: Mapping[str, Any]) -> Any:
    """As the model gave them."""
    given = table(event, "tool_call").get("arguments")
    try:
        return json.loads(given) if isinstance(given, str) else given
    except ValueError:
        return given
