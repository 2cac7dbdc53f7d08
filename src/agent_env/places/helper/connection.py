"""One connection to a helper: greets, carries frames, and shares itself among streams.

The socket is always read: what a stream may receive is bounded by the credit that it gave, so a slow reader holds up itself alone.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from agent_env.defaults import Limits
from agent_env.errors import DeadlineError, InfrastructureError, SandboxUnavailableError, SupersededError, TransportLostError
from agent_env.places.helper import protocol
from agent_env.places.helper.protocol import HEAD, Frame, Key, Refused
from agent_env.waiting import deadline

_PATH_MAX = 100
_WELCOME = 0


class Stream(Protocol):
    """What receives the frames of one stream."""

    def frame(self, kind: int, payload: bytes) -> None:
        """A frame arrived."""
        ...

    def lost(self, error: InfrastructureError) -> None:
        """No further frame will arrive."""
        ...


class Connection(asyncio.Protocol):
    """The frames of one socket. Made by `open_connection`."""

    def __init__(self, concerns: str) -> None:
        self.concerns = concerns
        """The place, for messages."""
        self.error: InfrastructureError | None = None
        """Why the connection ended; None while it lives."""
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._streams: dict[int, Stream] = {}
        self._next = 0
        self._writable = asyncio.Event()
        self._writable.set()
        self._closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def open(self, stream: Stream) -> int:
        """Registers a stream and returns its number.

        Raises:
            InfrastructureError: The connection has ended (see `ended`).
        """
        if self.error is not None:
            raise self.ended()
        self._next += 1
        self._streams[self._next] = stream
        return self._next

    def forget(self, number: int) -> None:
        """Takes no more frames of a stream."""
        self._streams.pop(number, None)

    def ended(self) -> InfrastructureError:
        """A fresh error that says why nothing can be asked any more."""
        cause = self.error
        if isinstance(cause, SupersededError):
            return SupersededError(cause.message, concerns=self.concerns, hint=cause.hint)
        detail = cause.message if cause else "the connection was closed"
        return SandboxUnavailableError(f"{self.concerns} can't be reached: {detail}", concerns=self.concerns)

    def send(self, data: bytes) -> None:
        """Queues bytes. Streams bound what they queue by their windows."""
        if self._transport is not None and self.error is None:
            self._transport.write(data)

    async def ready(self) -> None:
        """Waits until the socket takes more; at once when the connection has ended."""
        await self._writable.wait()

    def close(self, error: InfrastructureError | None = None) -> None:
        """Ends the connection."""
        self._end(error or SandboxUnavailableError(f"the connection to {self.concerns} was closed here", concerns=self.concerns))
        if self._transport is not None:
            self._transport.abort()

    async def wait_closed(self) -> None:
        """Waits until the socket is gone."""
        await asyncio.shield(self._closed)

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is connected."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone."""
        why = f": {exc}" if exc else ""
        self._end(TransportLostError(f"the connection to {self.concerns} broke{why}", concerns=self.concerns))
        if not self._closed.done():
            self._closed.set_result(None)

    def pause_writing(self) -> None:
        """The socket's buffer is full."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """The socket's buffer has room."""
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        """Cuts what arrived into frames."""
        buffer = self._buffer
        buffer += data
        at, size = 0, len(buffer)
        unpack, streams = HEAD.unpack_from, self._streams
        while size - at >= 9:
            length, kind, number = unpack(buffer, at)
            if length < 5 or length > protocol.MAX_FRAME:
                self.close(TransportLostError(f"{self.concerns} sent what is no frame", concerns=self.concerns))
                return
            end = at + 4 + length
            if end > size:
                break
            payload = bytes(buffer[at + 9 : end])
            at = end
            if kind == Frame.REFUSED:
                self.close(self._refusal(payload))
                return
            stream = streams.get(number)
            if stream is not None:
                stream.frame(kind, payload)
        del buffer[:at]

    def _refusal(self, payload: bytes) -> InfrastructureError:
        why = payload[0] if payload else 0
        if why == Refused.SUPERSEDED:
            epoch = protocol.U64.unpack_from(payload, 4)[0]
            return SupersededError(
                f"{self.concerns} has a later owner (epoch {epoch}), so this process may not act there", concerns=self.concerns
            )
        if why == Refused.VERSION:
            return SandboxUnavailableError(
                f"{self.concerns} runs a helper of another version", concerns=self.concerns, hint="deploy the sandbox again"
            )
        return SandboxUnavailableError(f"{self.concerns} refused this process's token", concerns=self.concerns)

    def _end(self, error: InfrastructureError) -> None:
        if self.error is not None:
            return
        self.error = error
        self._writable.set()
        streams = list(self._streams.values())
        self._streams.clear()
        for stream in streams:
            stream.lost(error)


class Reply:
    """A stream that gathers small frames until DONE (or WELCOME): for questions with short answers."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def frame(self, kind: int, payload: bytes) -> None:
        """A frame arrived."""
        if kind in (Frame.DONE, Frame.WELCOME):
            if not self.answer.done():
                self.answer.set_result(payload)
        else:
            self.frames.append(payload)

    def lost(self, error: InfrastructureError) -> None:
        """No answer will come."""
        if not self.answer.done():
            self.answer.set_exception(type(error)(error.message, concerns=error.concerns, hint=error.hint))


async def ask(connection: Connection, kind: Frame, payload: bytes, *, seconds: float) -> tuple[bytes, Sequence[bytes]]:
    """Sends one request and waits for its DONE.

    Raises:
        DeadlineError: No answer within `seconds`.
    """
    reply = Reply()
    number = connection.open(reply)
    try:
        connection.send(protocol.frame(kind, number, payload))
        async with deadline(seconds, f"{kind.name.lower()} in {connection.concerns}"):
            return await reply.answer, reply.frames
    finally:
        connection.forget(number)


def connected_socket(path: Path) -> socket.socket:
    """A socket connected to a unix socket whose path may be longer than the kernel's 108 bytes.

    Raises:
        OSError: Nobody listens there.
    """
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    folder = -1
    try:
        name = os.fspath(path)
        if len(os.fsencode(name)) > _PATH_MAX:
            folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
            name = f"/proc/self/fd/{folder}/{path.name}"
        link.connect(name)
    except OSError:
        link.close()
        raise
    finally:
        if folder >= 0:
            os.close(folder)
    link.setblocking(False)
    return link


async def open_connection(link: socket.socket, *, concerns: str, token: str, epoch: int, limits: Limits) -> Connection:
    """Greets the helper on a connected stream socket, which the connection then owns.

    Raises:
        SupersededError: A later owner has taken the place over.
        SandboxUnavailableError: The token or version does not fit, or the helper is gone.
        DeadlineError: It does not answer.
    """
    loop = asyncio.get_running_loop()
    try:
        _, connection = await loop.create_connection(lambda: Connection(concerns), sock=link)
    except OSError as error:
        link.close()
        raise SandboxUnavailableError(f"{concerns} can't be reached: {error}", concerns=concerns) from error
    hello = protocol.fields((Key.VERSION, protocol.u64(protocol.VERSION)), (Key.TOKEN, token.encode()), (Key.EPOCH, protocol.u64(epoch)))
    reply = Reply()
    connection._streams[_WELCOME] = reply
    try:
        connection.send(protocol.frame(Frame.HELLO, _WELCOME, hello))
        async with deadline(limits.connect_seconds, f"the greeting of {concerns}"):
            await reply.answer
    except TransportLostError as error:
        raise SandboxUnavailableError(f"{concerns} is gone: it closed the connection at once", concerns=concerns) from error
    except (DeadlineError, asyncio.CancelledError):
        connection.close()
        raise
    connection.forget(_WELCOME)
    return connection
