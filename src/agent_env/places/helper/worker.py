"""A worker in the place as two windows of bytes: what file work and forwarded connections have in common."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator

from agent_env.defaults import Limits
from agent_env.errors import (
    DeadlineError,
    InfrastructureError,
    SandboxUnavailableError,
    SupersededError,
    TransferError,
    TransportLostError,
)
from agent_env.places.helper import protocol
from agent_env.places.helper.connection import Connection
from agent_env.places.helper.protocol import Frame, Key
from agent_env.places.helper.window import Outgoing
from agent_env.waiting import deadline, shielded


class Worker:
    """One forked worker of the helper. Unread bytes hold it up, and nothing else."""

    def __init__(self, connection: Connection, kind: Frame, what: str, limits: Limits, *pairs: tuple[Key, bytes]) -> None:
        self.what = f"{what} in {connection.concerns}"
        """What is being done, for messages."""
        self._connection = connection
        self._limits = limits
        self._pieces: deque[bytes] = deque()
        self._changed = asyncio.Event()
        self._owed = 0
        self._error: InfrastructureError | None = None
        self._over = asyncio.Event()
        self._number = connection.open(self)
        self._out = Outgoing(connection, self._number)
        payload = protocol.fields((Key.WINDOW, protocol.u64(protocol.OUT_WINDOW)), *pairs)
        connection.send(protocol.frame(kind, self._number, payload))

    def frame(self, kind: int, payload: bytes) -> None:
        """A frame of this stream arrived."""
        if kind == Frame.STDOUT:
            self._pieces.append(payload)
        elif kind == Frame.CREDIT:
            self._out.granted(payload)
        elif kind == Frame.EXIT:
            self._end(self._ending(payload))
        elif kind == Frame.LAUNCH_FAILED:
            why = protocol.reason(protocol.LAUNCH_FAILED.unpack_from(payload)[1])
            self._end(TransferError(f"{self.what} can't begin: {why}", concerns=self._connection.concerns))
        self._changed.set()

    def lost(self, error: InfrastructureError) -> None:
        """The connection ended."""
        kind = SupersededError if isinstance(error, SupersededError) else TransportLostError
        self._end(kind(f"{self.what} was cut: {error.message}", concerns=error.concerns, hint=error.hint))

    def _ending(self, payload: bytes) -> InfrastructureError | None:
        signalled, timed_out, _, code, *_ = protocol.EXIT.unpack_from(payload)
        if timed_out:
            return DeadlineError(f"{self.what} did not end in time", concerns=self._connection.concerns)
        broken = signalled or code
        return TransferError(f"{self.what} broke off in the place", concerns=self._connection.concerns) if broken else None

    def _end(self, error: InfrastructureError | None) -> None:
        self._error = self._error or error
        self._over.set()
        self._changed.set()
        self._out.end()
        self._connection.forget(self._number)

    async def send(self, data: bytes) -> None:
        """Sends bytes as far as the worker takes them; ends early when it has ended."""
        await self._out.send(data)

    @property
    def ready(self) -> bool:
        """Something has arrived that nobody took, or the worker has ended."""
        return bool(self._pieces) or self._over.is_set()

    def finish(self) -> None:
        """Nothing more is sent."""
        self._out.finish()

    def abandon(self, error: InfrastructureError) -> None:
        """Ends the worker because of what went wrong here."""
        self._error = self._error or error
        self._connection.send(protocol.frame(Frame.KILL, self._number))

    async def receive(self) -> bytes:
        """The next bytes, or none when the worker has ended.

        Raises:
            TransferError: It broke off.
        """
        while not self._pieces:
            if self._over.is_set():
                if self._error is not None:
                    raise self._error
                return b""
            self._changed.clear()
            await self._changed.wait()
        piece = self._pieces.popleft()
        self._owed += len(piece)
        if self._owed >= protocol.OUT_WINDOW // 2:
            payload = protocol.fields((Key.WINDOW, protocol.u64(self._owed)))
            self._connection.send(protocol.frame(Frame.CREDIT, self._number, payload))
            self._owed = 0
        return piece

    async def stop(self) -> None:
        """Ends the worker, which removes what it half wrote, and waits for that."""
        if self._over.is_set():
            return
        self._connection.send(protocol.frame(Frame.KILL, self._number))
        try:
            await shielded(_wait(self._over), seconds=self._limits.cleanup_seconds, what=self.what)
        except DeadlineError:
            self._connection.forget(self._number)


async def _wait(event: asyncio.Event) -> None:
    await event.wait()


class TcpStream:
    """A connection to a port on the place's own loopback, carried over the helper's stream. Made by `HelperPlace.open_tcp`."""

    def __init__(self, worker: Worker, first: bytes) -> None:
        self._worker = worker
        self._first = first

    async def receive(self) -> bytes:
        """The next bytes; none at the end."""
        if self._first:
            first, self._first = self._first, b""
            return first
        return await self._worker.receive()

    @property
    def ready(self) -> bool:
        """Bytes or the end have arrived, so that `receive` waits for nothing."""
        return bool(self._first) or self._worker.ready

    async def pieces(self) -> AsyncIterator[bytes]:
        """Everything that arrives, until the end."""
        while piece := await self.receive():
            yield piece

    async def send(self, data: bytes) -> None:
        """Sends bytes, as far as the other side takes them."""
        await self._worker.send(data)

    def send_eof(self) -> None:
        """Says that nothing more will be sent; what the other side still sends can be received."""
        self._worker.finish()

    async def aclose(self) -> None:
        """Ends the connection, both ways."""
        await self._worker.stop()


async def open_tcp(connection: Connection, port: int, limits: Limits, wait_seconds: float = 0.0) -> TcpStream:
    """Connects to a port on the place's loopback.

    Args:
        connection: To the place's helper.
        port: The port.
        limits: Deadlines.
        wait_seconds: How long the helper looks for somebody who listens, before it says that there is nobody.

    Raises:
        SandboxUnavailableError: Nothing listens there.
    """
    asked = (Key.PORT, protocol.u64(port)), (Key.WAIT_MS, protocol.u64(wait_seconds * 1000))
    worker = Worker(connection, Frame.OPEN_TCP, f"a connection to port {port}", limits, *asked)
    head = b""
    try:
        async with deadline(limits.connect_seconds + wait_seconds, worker.what):
            while len(head) < 4 and (piece := await worker.receive()):
                head += piece
        error = int.from_bytes(head[:4], "little")
        if error or len(head) < 4:
            raise SandboxUnavailableError(f"port {port} of {connection.concerns} can't be reached: {protocol.reason(error)}")
    except BaseException:  # whatever went wrong, a worker that nobody holds must not stay
        await worker.stop()
        raise
    return TcpStream(worker, head[4:])
