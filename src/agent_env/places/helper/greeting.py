"""The first words to a helper: who calls, what its place is, and that its own command may start."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

from agent_env.defaults import Limits
from agent_env.errors import DeadlineError, InfrastructureError, LaunchError, SandboxUnavailableError, TransportLostError
from agent_env.host import socket_address
from agent_env.places.helper import protocol
from agent_env.places.helper.connection import Connection, Reply
from agent_env.places.helper.protocol import Frame, HelperConfig, Key
from agent_env.waiting import deadline

_WELCOME = 0
"""The stream of the greeting."""


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
    connection = await over_socket(link, concerns)
    await greet(connection, token=token, epoch=epoch, limits=limits)
    return connection


async def over_socket(link: socket.socket, concerns: str) -> Connection:
    """A connection that has said nothing yet, on a connected stream socket, which it then owns.

    Raises:
        SandboxUnavailableError: The socket is of no use.
    """
    try:
        _, connection = await asyncio.get_running_loop().create_connection(lambda: Connection(concerns), sock=link)
    except OSError as error:
        link.close()
        raise SandboxUnavailableError(f"{concerns} can't be reached: {error}", concerns=concerns) from error
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
        why = protocol.why_not_launched(what, number, name, user=config.user, cwd=config.cwd)
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
