"""What coding agents tell of their work in formats of their own, translated into the one event model, as it comes.

Formats are contracts of others: each translator is held to streams that were recorded from the real programs. What a translator doesn't
know it passes over, so that a newer program's further events harm nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final, Protocol

from pydantic import ValidationError

from agent_env_sdk.wire.trajectory import SDK_FORMAT, Event, events_adapter

from .claude_code import ClaudeCode
from .codex import Codex
from .gemini import Gemini
from .opencode import OpenCode
from .openhands import OpenHands
from .pi import Pi
from .spans import Spans

__all__ = ["FORMATS", "Translator", "normalised", "translator"]


class Translator(Protocol):
    """Translates one turn's stream."""

    def feed(self, event: Mapping[str, Any]) -> Iterator[Event]:
        """What a native event says, in the event model; nothing for what is of no matter."""
        ...


FORMATS: Final[Mapping[str, Callable[[Collection[str]], Translator]]] = {
    "claude-code-stream-json/1": lambda _: ClaudeCode(),
    "codex-exec-json/1": lambda _: Codex(),
    "gemini-stream-json/1": Gemini,
    "opencode-events/1": OpenCode,
    "openhands-events/v1": OpenHands,
    "pi-json-events/v1": lambda _: Pi(),
    "agentenv-proxy/v1": lambda _: Spans(),
}


def translator(format: str, servers: Collection[str] = ()) -> Translator | None:
    """Who translates a format; None for one that nobody here knows.

    Args:
        format: As a trajectory names it.
        servers: The names of the MCP servers that the agent had, for formats that tell a tool's server only within its name.
    """
    made = FORMATS.get(format)
    return made(servers) if made else None


def normalised(format: str, events: Iterable[Mapping[str, Any]], servers: Collection[str] = ()) -> list[Event] | None:
    """A whole trajectory in the event model; None for a format that nobody here knows.

    Args:
        format: As the trajectory names it.
        events: Its native events. What an agent put between them that is none is left out.
        servers: The names of the MCP servers that the agent had.
    """
    if format == SDK_FORMAT:
        return list(_ours(events))
    found = translator(format, servers)
    return None if found is None else [each for event in events if isinstance(event, Mapping) for each in found.feed(event)]


def _ours(events: Iterable[Mapping[str, Any]]) -> Iterator[Event]:
    for event in events:
        try:
            yield from events_adapter.validate_python([event])
        except ValidationError:  # of a newer SDK, or an author's own
            continue
