"""What is sent on one stream of a place's helper: never more than the other end has room for."""

from __future__ import annotations

import asyncio

from agent_env.places.helper import protocol
from agent_env.places.helper.connection import Connection
from agent_env.places.helper.protocol import Frame


class Outgoing:
    """The sending half of a stream."""

    __slots__ = ("_connection", "_credit", "_finished", "_keeps", "_kept", "_number", "_room", "_sent", "over")

    def __init__(self, connection: Connection, number: int, *, keeps: bool = False) -> None:
        self.over = False
        """The stream has ended: nothing is taken any more."""
        self._connection = connection
        self._number = number
        self._credit = protocol.IN_WINDOW
        self._room = asyncio.Event()
        self._keeps = keeps
        self._kept = bytearray()
        """What was sent and may not have arrived, where it is to be sent again over another connection."""
        self._sent = 0
        self._finished = False

    def granted(self, payload: bytes) -> None:
        """The other end has taken so much: a CREDIT arrived."""
        self._credit += protocol.U64.unpack_from(payload)[0]
        under_way = protocol.IN_WINDOW - self._credit
        del self._kept[: max(len(self._kept) - under_way, 0)]
        self._room.set()

    def pause(self) -> None:
        """The connection has ended, and another one may follow: nothing is sent until then."""
        self._credit = 0

    def resume(self, connection: Connection, number: int, had: int, room: int) -> None:
        """Goes on over another connection.

        Args:
            connection: The other connection.
            number: The stream there.
            had: How many bytes have arrived, of all that were sent.
            room: How many more are taken.
        """
        self._connection, self._number = connection, number
        del self._kept[: max(had - (self._sent - len(self._kept)), 0)]
        for at in range(0, len(self._kept), protocol.CHUNK):
            connection.send(protocol.frame(Frame.STDIN, number, bytes(self._kept[at : at + protocol.CHUNK])))
        if self._finished:
            connection.send(protocol.frame(Frame.STDIN_EOF, number))
        self._credit = room - len(self._kept)
        self._room.set()

    def end(self) -> None:
        """The stream has ended, so that whoever sends is let go."""
        self.over = True
        self._room.set()

    async def send(self, data: bytes) -> bool:
        """Sends bytes as far as they are taken. Returns whether all were; the stream has ended when not."""
        view = memoryview(data)
        while view and not self.over:
            if not self._credit:
                self._room.clear()
                await self._room.wait()
                continue
            await self._connection.ready()
            if piece := view[: min(self._credit, protocol.CHUNK)]:
                view = view[len(piece) :]
                self._connection.send(self._framed(piece))
        return not view

    def whole(self, data: bytes) -> bytes:
        """The frames of all that is ever sent, for who sends them together with something else. At most `protocol.IN_WINDOW`."""
        self._finished = True
        return (self._framed(data) if data else b"") + protocol.frame(Frame.STDIN_EOF, self._number)

    def _framed(self, piece: bytes | memoryview) -> bytes:
        self._credit -= len(piece)
        self._sent += len(piece)
        if self._keeps:
            self._kept += piece
        return protocol.frame(Frame.STDIN, self._number, piece)

    def finish(self) -> None:
        """Says that nothing more is sent."""
        if not self.over:
            self._finished = True
            self._connection.send(protocol.frame(Frame.STDIN_EOF, self._number))
