"""One connection to a helper: greets, carries frames, and shares itself among streams.

The socket is always read: what a stream may receive is bounded by the credit that it gave, so a slow reader holds up itself alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from agent_env.defaults import Limits
from agent_env.errors import (
    DeadlineError,
    InfrastructureError,
    LaunchError,
    PlaceAwaitsError,
    PlaceEndedError,
    SandboxUnavailableError,
    SupersededError,
    TransportLostError,
)
from agent_env.host import socket_address
from agent_env.places.helper import protocol
from agent_env.places.helper.cutting import Cutter, NoFrameError
from agent_env.places.helper.protocol import Frame, HelperConfig, Key, Refused
from agent_env.waiting import deadline

STAYS = "if its image has nothing to run by itself, give it a command that stays, such as `sleep infinity`"
"""What to do about a container whose own command ended at once."""
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


def connected_socket(path: Path) -> socket.socket:
    """A socket connected to a unix socket whose path may be longer than the kernel's 108 bytes.

    Raises:
        OSError: Nobody listens there.
    """
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with socket_address(path) as address:
            link.connect(address)
    except OSError:
        link.close()
        raise
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
    await greet(connection, token=token, epoch=epoch, limits=limits)
    return connection


async def greet(connection: Connection, *, token: str, epoch: int, limits: Limits) -> None:
    """Greets the helper at the other end of a connection, whatever carries it. Raises as `open_connection`; then it is closed."""
    hello = protocol.fields((Key.VERSION, protocol.u64(protocol.VERSION)), (Key.TOKEN, token.encode()), (Key.EPOCH, protocol.u64(epoch)))
    await _first_word(connection, Frame.HELLO, hello, Reply(), limits)


async def configure(connection: Connection, config: HelperConfig, limits: Limits) -> None:
    """Tells a waiting helper what its place is, which greets it too, and waits until the place's own command has been started.

    With `entry_later` it is not started, and `enter` has to be called.

    Raises:
        LaunchError: The place's own command can't be started; the place then ends, unless it is to be held.
        SandboxUnavailableError: Somebody else was first, or this caller is not trusted.
    """
    entry = EntryStart()
    try:
        await _first_word(connection, Frame.CONFIGURE, config.encode(), entry, limits, keep=True)
        if not config.entrypoint or config.entry_later:
            return
        async with deadline(limits.connect_seconds, f"the start of the command of {connection.concerns}"):
            failure = await entry.started
    except (DeadlineError, asyncio.CancelledError):
        connection.close()
        raise
    finally:
        connection.forget(_WELCOME)
    _check_entry(connection, config, failure)


async def enter(connection: Connection, config: HelperConfig, limits: Limits) -> None:
    """Has a place start its own command, which was told to it with `entry_later`. One that started it already does nothing.

    Raises:
        LaunchError: The command can't be started; the place then ends, unless it is to be held.
        SandboxUnavailableError: The place is gone.
    """
    entry = EntryStart()
    number = connection.open(entry)
    try:
        connection.send(protocol.frame(Frame.ENTRY, number))
        async with deadline(limits.connect_seconds, f"the start of the command of {connection.concerns}"):
            answer = await entry.answer
            failure = await entry.started if protocol.U64.unpack(answer)[0] else None
    finally:
        connection.forget(number)
    _check_entry(connection, config, failure)


def _check_entry(connection: Connection, config: HelperConfig, failure: bytes | None) -> None:
    if failure is not None:
        what, number = protocol.LAUNCH_FAILED.unpack_from(failure)
        name = protocol.text(protocol.raw(config.entrypoint[0]))[:200]
        why = f"{protocol.WHAT.get(what, 'it could not be launched')}: {protocol.reason(number)}"
        raise LaunchError(f"{name} could not be started in {connection.concerns}: {why}", concerns=connection.concerns)


class EntryStart(Reply):
    """The answer to a configuration, and then how the start of the place's own command went."""

    def __init__(self) -> None:
        super().__init__()
        self.started: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()

    def frame(self, kind: int, payload: bytes) -> None:
        """A frame arrived."""
        if kind in (Frame.STARTED, Frame.LAUNCH_FAILED, Frame.EXIT):
            if not self.started.done():
                self.started.set_result(payload if kind == Frame.LAUNCH_FAILED else None)
            return
        super().frame(kind, payload)

    def lost(self, error: InfrastructureError) -> None:
        """No answer will come."""
        super().lost(error)
        if not self.started.done():
            self.started.set_exception(type(error)(error.message, concerns=error.concerns, hint=error.hint))
            self.started.exception()  # marks it as seen: who still waits for the greeting is told there


async def _first_word(connection: Connection, kind: Frame, payload: bytes, reply: Reply, limits: Limits, *, keep: bool = False) -> None:
    connection.adopt(_WELCOME, reply)
    try:
        connection.send(protocol.frame(kind, _WELCOME, payload))
        async with deadline(limits.connect_seconds, f"the greeting of {connection.concerns}"):
            await reply.answer
    except TransportLostError as error:
        message = f"{connection.concerns} is gone: it closed the connection at once"
        raise SandboxUnavailableError(message, concerns=connection.concerns) from error
    except (DeadlineError, asyncio.CancelledError):
        connection.close()
        raise
    if not keep:
        connection.forget(_WELCOME)
