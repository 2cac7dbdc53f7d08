"""What an answer leaves behind on its way, and the one event that is taken out of a stream."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent_env.broker.dialects import UsageReader


_LAST = (b"data: [DONE]", b'"type":"message_stop"', b'"type": "message_stop"', b"event: message_stop", b"event: response.completed")
_LAST_BYTES = 1 << 20
"""The last event of a stream may hold the whole answer once more."""


@dataclass
class KeptAnswer:
    """An answer as it came, up to a limit. Secrets are taken out of it when it is written down."""

    most_bytes: int
    content_type: str = "application/json"
    body: bytearray = field(default_factory=bytearray)
    cut: bool = False
    """It was longer than what is kept."""
    whole: bool = False
    """It came to its end."""
    reader: UsageReader | None = None

    @property
    def ended(self) -> bool:
        """The last event of its stream is here: some clients hang up on it, before the connection says that there is no more."""
        return any(mark in self.body[-_LAST_BYTES:] for mark in _LAST)

    async def keeping(self, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The pieces, kept and counted as they go by."""
        async for piece in pieces:
            if self.reader is not None:
                self.reader.feed(piece)
            if len(self.body) + len(piece) <= self.most_bytes:
                self.body += piece
            else:
                self.cut = True
            yield piece


async def without_usage(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """A stream of chat completions without the event that tells its tokens, which nobody but us asked for.

    Every other event is passed on as it came, once it is whole.
    """
    held = b""
    async for piece in pieces:
        held += piece
        while (end := _end_of_event(held)) is not None:
            event, held = held[:end], held[end:]
            if not _only_usage(event):
                yield event
    if held:
        yield held


def _end_of_event(data: bytes) -> int | None:
    ends = [at + len(mark) for mark in (b"\n\n", b"\r\n\r\n") if (at := data.find(mark)) >= 0]
    return min(ends) if ends else None


def _only_usage(event: bytes) -> bool:
    if b'"usage"' not in event:
        return False
    try:
        value = json.loads(event.strip().removeprefix(b"data:"))
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and value.get("choices") == [] and bool(value.get("usage"))
