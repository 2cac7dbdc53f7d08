"""What is kept of a stream that may be longer than anybody wants to hold."""

from __future__ import annotations

from collections import deque


class Kept:
    """One output stream's bytes, cut to its limit at one end."""

    __slots__ = ("_from_end", "_pieces", "_size", "limit", "total")

    def __init__(self, limit: int, *, from_end: bool) -> None:
        self.total = 0
        self._pieces: deque[bytes] = deque()
        self._size = 0
        self.limit = limit
        """Bytes that are kept at the most."""
        self._from_end = from_end

    def add(self, piece: bytes) -> None:
        """Takes a piece in, and lets go of what can't matter any more."""
        self.total += len(piece)
        if not self._from_end:
            piece = piece[: self.limit - self._size]
        if piece:
            self._pieces.append(piece)
            self._size += len(piece)
        while self._from_end and self._pieces and self._size - len(self._pieces[0]) >= self.limit:
            self._size -= len(self._pieces.popleft())

    def bytes(self) -> bytes:
        """What was kept."""
        whole = b"".join(self._pieces)
        return whole[max(len(whole) - self.limit, 0) :] if self._from_end else whole
