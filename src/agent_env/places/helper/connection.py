"""One connection to a helper: carries frames, and shares itself among streams. What is said first is in `greeting`.

The socket is always read: what a stream may receive is bounded by the credit that it gave, so a slow reader holds up itself alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from agent_env.errors import (
    InfrastructureError,
    PlaceAwaitsError,
    PlaceEndedError,
    SandboxUnavailableError,
    SupersededError,
    TransportLostError,
)
from agent_env.places.helper import protocol
from agent_env.places.helper.cutting import Cutter, NoFrameError
from agent_env.places.helper.protocol import Frame, Refused
from agent_env.waiting import deadline

STAYS = "if its image has nothing to run by itself, give it a command that stays, such as `sleep infinity`"
"""What to do about a container whose own command ended at once."""


class Stream(Protocol):
    """What receives the frames of one stream."""

    def frame(self, kind: int, payload: bytes) -> None:
        """A frame arrived."""
        ...

    def lost(self, error: InfrastructureError) -> None:
        """No further frame will arrive."""
        ...


class Connection(asyncio.Protocol):
    """The frames of one socket. Made by `greeting.open_connection`."""

    def __init__(self, concerns: str) -> None:
        self.concerns = concerns
        """The place, for messages."""
        self.error: InfrastructureError | None = None
        """Why the connection ended; None while it lives."""
        self.explain: Callable[[], InfrastructureError | None] = lambda: None
        """Says what became of the place when the connection broke, where somebody here can tell; without waiting."""
        self.bounds: Mapping[str, float] = {}
        """Bytes that the place may use of its `memory` and `disk`, as far as whoever connected knows; 0 is no limit."""
        self._transport: asyncio.Transport | None = None
        self._frames = Cutter()
        self._streams: dict[int, Stream] = {}
        self._next = 0
        self._writable = asyncio.Event()
        self._writable.set()
        self._unhurried = bytearray()
        """What goes out with whatever is sent next, or by itself when nothing is."""
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

    def adopt(self, number: int, stream: Stream) -> None:
        """Registers a stream whose number is known. On a connection that has ended, it is lost at once."""
        if self.error is not None:
            stream.lost(self.error)
            return
        self._streams[number] = stream

    def forget(self, number: int) -> None:
        """Takes no more frames of a stream."""
        self._streams.pop(number, None)

    @property
    def busy(self) -> bool:
        """Somebody waits for something."""
        return bool(self._streams)

    def ended(self) -> InfrastructureError:
        """A fresh error that says why nothing can be asked any more."""
        cause = self.error
        if isinstance(cause, SupersededError):
            return SupersededError(cause.message, concerns=self.concerns, hint=cause.hint)
        why = self.explain() if isinstance(cause, TransportLostError) else None
        if why is not None:
            return why
        detail = cause.message if cause else "the connection was closed"
        return SandboxUnavailableError(
            f"{self.concerns} can't be reached: {detail}", concerns=self.concerns, hint=cause.hint if cause else None
        )

    def send(self, data: bytes) -> None:
        """Queues bytes. Streams bound what they queue by their windows."""
        if self._transport is not None and self.error is None:
            if self._unhurried:
                data = bytes(self._unhurried) + data
                self._unhurried.clear()
            self._transport.write(data)

    def send_unhurried(self, data: bytes) -> None:
        """Queues bytes that nobody waits for: they share the turn, and the system call, of what is sent next.

        A caller that goes on at once, as one that runs command after command does, is let go first.
        """
        if not self._unhurried:
            loop = asyncio.get_running_loop()
            loop.call_soon(loop.call_soon, self._send_rest)
        self._unhurried += data

    def _send_rest(self) -> None:
        if self._unhurried:
            self.send(b"")

    async def ready(self) -> None:
        """Waits until the socket takes more; at once when the connection has ended."""
        await self._writable.wait()

    def close(self, error: InfrastructureError | None = None) -> None:
        """Ends the connection."""
        self._send_rest()
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
        if exc is not None and self._transport is not None:
            for data in unread(self._transport):
                self.data_received(data)
        self.broke(exc)

    def broke(self, error: Exception | None) -> None:
        """Whatever carries the frames is gone, and everything that arrived was received."""
        why = f": {error}" if error else ""
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
        if self.error is not None:
            return
        streams = self._streams
        try:
            for kind, number, payload in self._frames.cut(data):
                if kind == Frame.REFUSED:
                    self.close(self._refusal(payload))
                    return
                stream = streams.get(number)
                if stream is not None:
                    stream.frame(kind, payload)
        except NoFrameError:
            self.close(TransportLostError(f"{self.concerns} sent what is no frame", concerns=self.concerns))

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
        if why == Refused.AWAITING:
            return PlaceAwaitsError(f"{self.concerns} was started again and has not been told what it is", concerns=self.concerns)
        if why == Refused.ENDED:
            return PlaceEndedError(
                f"the command of {self.concerns} has ended, and the place with it",
                concerns=self.concerns,
                hint=STAYS,
            )
        if why == Refused.CONFIGURED:
            return SandboxUnavailableError(f"{self.concerns} was told by somebody else what it is", concerns=self.concerns)
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


def unread(transport: asyncio.Transport) -> Iterator[bytes]:
    """What a socket still holds when a write to it failed: that comes before what the far side said last is read, and it may say why."""
    if transport.get_extra_info("sslcontext") is not None:
        return  # what stands in the socket is not readable by itself
    descriptor = transport.get_extra_info("socket").fileno()
    with contextlib.suppress(OSError):
        while data := os.read(descriptor, protocol.CHUNK):
            yield data


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
