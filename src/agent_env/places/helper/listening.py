"""A port of a place's loopback that is listened on from here: each connection to it is a stream of its own, half-closed as it is."""

from __future__ import annotations

import asyncio
from collections import deque

from agent_env.defaults import Limits
from agent_env.errors import InfrastructureError, SandboxUnavailableError, TransferError
from agent_env.places.helper import protocol
from agent_env.places.helper.connection import Connection
from agent_env.places.helper.protocol import Frame, Key
from agent_env.places.helper.window import Outgoing
from agent_env.waiting import deadline

_WINDOW = 256 << 10
"""Bytes that the helper may send ahead on one accepted connection: hundreds of them at once stay within tens of megabytes."""


class TcpPipe:
    """A connection that a program of the place made to the port. Made by `TcpListener.accept`."""

    def __init__(self, connection: Connection, number: int, what: str) -> None:
        self._connection = connection
        self._number = number
        self._what = what
        self._pieces: deque[bytes] = deque()
        self._changed = asyncio.Event()
        self._out = Outgoing(connection, number)
        self._owed = 0
        self._ended = False
        self._over = False
        self._error: InfrastructureError | None = None
        connection.adopt(number, self)

    def begin(self) -> None:
        """Has the helper take what the program sends. Until then nothing was, and another relay could serve the connection as well."""
        self._grant(_WINDOW)

    def _grant(self, count: int) -> None:
        self._connection.send(protocol.frame(Frame.CREDIT, self._number, protocol.fields((Key.WINDOW, protocol.u64(count)))))

    def frame(self, kind: int, payload: bytes) -> None:
        """A frame of this stream arrived."""
        if kind == Frame.STDOUT:
            self._pieces.append(payload)
        elif kind == Frame.STDIN_EOF:
            self._ended = True
        elif kind == Frame.CREDIT:
            self._out.granted(payload)
        elif kind == Frame.EXIT:
            code = protocol.EXIT.unpack_from(payload)[3]
            self._end(TransferError(f"{self._what} broke off: {protocol.reason(code)}") if code else None)
        self._changed.set()

    def lost(self, error: InfrastructureError) -> None:
        """The connection to the helper ended."""
        self._end(TransferError(f"{self._what} was cut: {error.message}", concerns=error.concerns))

    def _end(self, error: InfrastructureError | None) -> None:
        self._over = self._ended = True
        self._error = self._error or error
        self._connection.forget(self._number)
        self._changed.set()
        self._out.end()

    async def receive(self) -> bytes:
        """The next bytes; none when the program sends no more.

        Raises:
            TransferError: The connection broke.
        """
        while not self._pieces:
            if self._error is not None:
                raise self._error
            if self._ended:
                return b""
            self._changed.clear()
            await self._changed.wait()
        piece = self._pieces.popleft()
        self._owed += len(piece)
        if self._owed >= _WINDOW // 2 and not self._over:
            self._grant(self._owed)
            self._owed = 0
        return piece

    async def send(self, data: bytes) -> None:
        """Sends bytes, as far as the program takes them.

        Raises:
            TransferError: The connection broke.
        """
        if not await self._out.send(data):
            raise self._error or TransferError(f"{self._what} has ended")

    def send_eof(self) -> None:
        """Says that nothing more will be sent; what the program still sends can be received."""
        self._out.finish()

    def abort(self) -> None:
        """Ends the connection at once. What was sent still arrives if its end was said before; otherwise the program sees a reset."""
        if not self._over:
            self._connection.send(protocol.frame(Frame.KILL, self._number))
            self._end(None)

    async def aclose(self) -> None:
        """As `abort`."""
        self.abort()


class TcpListener:
    """A port of the place's loopback. Made by `listen_tcp`."""

    def __init__(self, connection: Connection, port: int) -> None:
        self.port = port
        self._connection = connection
        self._what = f"a connection to port {port} of {connection.concerns}"
        self._waiting: deque[TcpPipe] = deque()
        self._changed = asyncio.Event()
        self._error: InfrastructureError | None = None
        self._number = connection.open(self)
        self.answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def frame(self, kind: int, payload: bytes) -> None:
        """A frame of this stream arrived."""
        if kind == Frame.ACCEPTED:
            self._waiting.append(TcpPipe(self._connection, int.from_bytes(payload[:4], "little"), self._what))
        elif kind == Frame.DONE and not self.answer.done():
            self.answer.set_result(None)
        elif kind in (Frame.LAUNCH_FAILED, Frame.EXIT):
            code = protocol.LAUNCH_FAILED.unpack_from(payload)[1]
            where = f"port {self.port} of {self._connection.concerns}"
            problem = f"{where} can't be listened on: {protocol.reason(code)}" if code else f"{where} is no longer listened on"
            self.lost(SandboxUnavailableError(problem, concerns=self._connection.concerns))
        self._changed.set()

    def lost(self, error: InfrastructureError) -> None:
        """No connection will arrive any more."""
        self._error = self._error or error
        self._connection.forget(self._number)
        self._changed.set()
        if not self.answer.done():
            self.answer.set_exception(error)
            self.answer.exception()  # whoever asked may have given up

    def ask(self) -> None:
        """Has the helper listen."""
        payload = protocol.fields((Key.PORT, protocol.u64(self.port)), (Key.WINDOW, protocol.u64(0)))
        self._connection.send(protocol.frame(Frame.LISTEN_TCP, self._number, payload))

    async def accept(self) -> TcpPipe:
        """The next connection.

        Raises:
            TransportLostError: The connection to the helper ended.
            SandboxUnavailableError: The port is no longer ours.
        """
        while not self._waiting:
            if self._error is not None:
                raise self._error
            self._changed.clear()
            await self._changed.wait()
        pipe = self._waiting.popleft()
        pipe.begin()
        return pipe

    def close(self) -> None:
        """Listens no more: whoever connects then is refused. Connections that were accepted go on."""
        if self._error is None:
            self._connection.send(protocol.frame(Frame.KILL, self._number))
            self.lost(SandboxUnavailableError(f"port {self.port} is no longer listened on"))
        while self._waiting:
            self._waiting.popleft().abort()

    async def aclose(self) -> None:
        """As `close`."""
        self.close()


async def listen_tcp(connection: Connection, port: int, limits: Limits) -> TcpListener:
    """Listens on a port of the place's loopback.

    Raises:
        SandboxUnavailableError: The port is taken.
    """
    listener = TcpListener(connection, port)
    try:
        listener.ask()
        async with deadline(limits.connect_seconds, f"listening on port {port} of {connection.concerns}"):
            await asyncio.shield(listener.answer)
    except BaseException:  # whatever went wrong, a port that nobody serves must not stay
        await listener.aclose()
        raise
    return listener
