"""Native trajectories as one event model, whichever agent they are of; see `agent_env_sdk.wire.trajectory`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agent_env_sdk.wire.trajectory import SDK_FORMAT, Event, MessageEvent, ToolCallEvent, UsageEvent, atif, events_adapter
from pydantic import ValidationError

Json = Any
HEARD_FORMAT = "agentenv-a2a-updates/1"
"""Of what we heard ourselves, of an agent that tells nothing: what was said to it, what it said while it worked, and its ending. The events
are the normalised ones."""
_OURS = frozenset({SDK_FORMAT, HEARD_FORMAT})


def events_of(native: Sequence[Json], format: str | None) -> list[Event] | None:
    """A native trajectory's events.

    Args:
        native: The agent's own events.
        format: What they are; None guesses that they may be our own.

    Returns:
        None for a format that nobody here knows.
    """
    if format in _OURS or format is None:
        return _own(native) if format is not None or _looks_own(native) else None
    from agent_env_sdk.wire.native import normalised

    return normalised(format, list(native))


def _own(native: Sequence[Json]) -> list[Event]:
    """Events of the SDK's own format. What an agent put between them that is none is left out."""
    found: list[Event] = []
    for each in native:
        try:
            found += events_adapter.validate_python([each])
        except ValidationError:
            continue
    return found


def _looks_own(native: Sequence[Json]) -> bool:
    return any(isinstance(each, dict) and each.get("type") in {"message", "tool_call", "tool_result", "end"} for each in native)


def tool_calls(events: Sequence[Event]) -> int:
    """How many tools were called."""
    return sum(isinstance(event, ToolCallEvent) for event in events)


def tokens(events: Sequence[Event]) -> tuple[int, int] | None:
    """Input and output tokens that the agent tells of; None where it tells none."""
    told = [event for event in events if isinstance(event, UsageEvent)]
    return (sum(each.input_tokens or 0 for each in told), sum(each.output_tokens or 0 for each in told)) if told else None


def said(text: str, *, source: str = "agent") -> dict[str, Json]:
    """A message as an event, for what we heard ourselves."""
    return MessageEvent.model_validate({"source": source, "text": text}).model_dump(mode="json", exclude_none=True)


__all__ = ["HEARD_FORMAT", "atif", "events_of", "said", "tokens", "tool_calls"]
