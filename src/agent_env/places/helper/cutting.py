"""A stream of bytes cut into the frames, or the records of file work, that it consists of. What arrived whole is copied once."""

from __future__ import annotations

from collections.abc import Iterator

from agent_env.places.helper.protocol import HEAD, MAX_FRAME

_LEAST = HEAD.size - 4
"""What follows a frame's length at the least: its type and its number."""


class NoFrameError(Exception):
    """A length that no frame has: what comes can't be told apart any more."""


class Cutter:
    """Takes a stream in pieces, however it was cut on its way."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = bytearray()
        """The beginning of a frame that has not arrived whole."""

    def cut(self, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        """What is whole now, in order: type, number and payload. To be taken to its end before the next piece.

        Raises:
            NoFrameError: See there.
        """
        at, size = 0, len(data)
        if self._held:
            at = self._fill(data)
            if at > size:
                return
            _, kind, number = HEAD.unpack_from(self._held)
            payload = bytes(memoryview(self._held)[HEAD.size :])
            self._held.clear()
            yield kind, number, payload
        while size - at >= HEAD.size:
            length, kind, number = HEAD.unpack_from(data, at)
            end = at + 4 + _checked(length)
            if end > size:
                break
            yield kind, number, data[at + HEAD.size : end]
            at = end
        if at < size:
            self._held += memoryview(data)[at:]

    def _fill(self, data: bytes) -> int:
        """Adds what is the held frame's. Returns where the next one begins: behind the piece when this one is not whole yet."""
        held, at = self._held, 0
        if len(held) < HEAD.size:
            at = HEAD.size - len(held)
            held += data[:at]
            if len(held) < HEAD.size:
                return at
        missing = 4 + _checked(HEAD.unpack_from(held)[0]) - len(held)
        held += memoryview(data)[at : at + missing]
        return at + missing


def _checked(length: int) -> int:
    if not _LEAST <= length <= MAX_FRAME:
        raise NoFrameError
    return length
