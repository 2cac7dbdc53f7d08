"""Carries bytes between a place's stream and a connection of this machine: both ways, half-closed as they are, in constant memory."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Protocol, Self

from agent_env.errors import InfrastructureError
from agent_env.keeper.outside import Reached

CHUNK = 64 << 10


class Pipe(Protocol):
    """A connection inside a place, carried over its helper's stream (`places.helper.TcpStream` is one)."""

    async def receive(self) -> bytes:
        """The next bytes; none when the other side sends no more."""
        ...

    async def send(self, data: bytes) -> None:
        """Sends bytes, as far as the other side takes them."""
        ...

    def send_eof(self) -> None:
        """Says that nothing more will be sent; what the other side still sends can be received."""
        ...

    async def aclose(self) -> None:
        """Ends the connection, both ways."""
        ...


class Inlet:
    """What a client inside sends, read piece by piece or byte by byte."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._held = b""

    async def some(self) -> bytes:
        """The next bytes, however many; none at the end."""
        if self._held:
            held, self._held = self._held, b""
            return held
        return await self._pipe.receive()

    async def exactly(self, count: int) -> bytes:
        """So many bytes.

        Raises:
            EOFError: The client ended before.
        """
        while len(self._held) < count:
            piece = await self._pipe.receive()
            if not piece:
                raise EOFError
            self._held += piece
        taken, self._held = self._held[:count], self._held[count:]
        return taken

    def give_back(self, data: bytes) -> None:
        """Bytes that were read and belong to what comes next."""
        self._held = data + self._held


class Idle:
    """Ends its block with `TimeoutError` when nothing moved for so long."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._scope = asyncio.timeout(seconds)

    async def __aenter__(self) -> Self:
        await self._scope.__aenter__()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        await self._scope.__aexit__(kind, error, traceback)

    def moved(self) -> None:
        """Something moved."""
        if not self._scope.expired():
            self._scope.reschedule(asyncio.get_running_loop().time() + self._seconds)


async def splice(inlet: Inlet, pipe: Pipe, outside: Reached, *, idle_seconds: float) -> None:
    """Carries until both sides have said that they are done, one of them broke, or nothing moved for `idle_seconds`.

    Ends `outside` in every case; the pipe is its holder's.
    """
    try:
        async with Idle(idle_seconds) as idle, asyncio.TaskGroup() as group:
            group.create_task(_out(inlet, outside, idle))
            group.create_task(_back(outside, pipe, idle))
        outside.close()
    except* (OSError, InfrastructureError):  # one side is gone or stands still (TimeoutError is an OSError), so the other one ends too
        pass
    finally:
        if not outside.writer.is_closing():
            outside.abort()


async def _out(inlet: Inlet, outside: Reached, idle: Idle) -> None:
    while piece := await inlet.some():
        idle.moved()
        outside.writer.write(piece)
        await outside.writer.drain()
    if outside.writer.can_write_eof():
        outside.writer.write_eof()


async def _back(outside: Reached, pipe: Pipe, idle: Idle) -> None:
    while piece := await outside.reader.read(CHUNK):
        idle.moved()
        await pipe.send(piece)
        idle.moved()
    pipe.send_eof()
