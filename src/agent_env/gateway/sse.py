"""Server-sent events as bytes: reading a child's stream, writing ours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Event:
    """One event: its type, its data as sent, and its id where the sender can resume."""

    kind: str
    data: str
    id: str | None
    retry_milliseconds: int | None


_RETRY_DIGITS = 9
"""Of the milliseconds that a sender asks for: eleven days. What is longer is no time that anybody means."""


class TooLargeError(ValueError):
    """One event is larger than its reader takes."""


class EventReader:
    """Feeds on chunks in any cut and gives whole events. One event may hold `limit_bytes`."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._rest = bytearray()
        self._held = 0
        self._begin()

    def feed(self, chunk: bytes) -> Iterator[Event]:
        """The events that the chunk completes.

        Raises:
            TooLargeError: An event outgrew the limit.
        """
        self._rest += chunk
        while True:
            line = self._next_line()
            if line is None:
                break
            event = self._line(line)
            if event is not None:
                yield event
        if len(self._rest) + self._held > self._limit:
            raise TooLargeError(f"one event is larger than {self._limit} bytes")

    def _next_line(self) -> bytes | None:
        newline = self._rest.find(b"\n")
        back = self._rest.find(b"\r", 0, newline if newline >= 0 else len(self._rest))
        if back >= 0:
            if back + 1 == len(self._rest):
                return None  # a line feed may follow
            after = back + (2 if self._rest[back + 1 : back + 2] == b"\n" else 1)
            end = back
        elif newline >= 0:
            after, end = newline + 1, newline
        else:
            return None
        line = bytes(self._rest[:end])
        del self._rest[:after]
        return line

    def _begin(self) -> None:
        self._kind = "message"
        self._data: list[str] = []
        self._id: str | None = None
        self._retry: int | None = None
        self._seen = False
        self._held = 0

    def _line(self, line: bytes) -> Event | None:
        if not line:
            event = Event(self._kind, "\n".join(self._data), self._id, self._retry) if self._seen else None
            self._begin()
            return event
        if line.startswith(b":"):
            return None
        name, _, value = line.partition(b":")
        text = value.removeprefix(b" ").decode("utf-8", "replace")
        self._held += len(value)
        self._seen = True
        match name:
            case b"data":
                self._data.append(text)
            case b"event":
                self._kind = text
            case b"id":
                self._id = text
            case b"retry" if text.isascii() and text.isdigit() and len(text) <= _RETRY_DIGITS:
                self._retry = int(text)
        return None


def encode(message: str) -> bytes:
    """One message event. Line ends inside the message (white space between tokens) become lines of their own."""
    if "\n" in message or "\r" in message:
        lines = message.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        message = "\ndata: ".join(lines)
    return f"event: message\ndata: {message}\n\n".encode()


KEEP_ALIVE = b": keep-alive\n\n"
