"""One engine exec as a connection: the bytes of a program in a container, in both directions, over the engine's own connection."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from struct import Struct
from typing import Protocol

import aiohttp
from aiodocker.exceptions import DockerError

from agent_env.containers.engine import Engine
from agent_env.errors import ContainerNotRunningError, EngineConflictError, EngineFailedError
from agent_env.places.helper.connection import Connection, unread

_HEAD = Struct(">BxxxL")
STDOUT, STDERR = 1, 2
_SAID_BYTES = 2000


class Ends(Protocol):
    """What takes a program's output."""

    def piece(self, which: int, data: bytes) -> None:
        """Output arrived: 1 is standard output, 2 is standard error."""
        ...

    def over(self, error: Exception | None) -> None:
        """No more will arrive: the program has ended, or the connection broke."""
        ...

    def pause_writing(self) -> None:
        """The engine takes no more input for now."""
        ...

    def resume_writing(self) -> None:
        """The engine takes more input."""
        ...


class HelperEnds:
    """A helper's connection: standard output carries its frames, standard error says why there are none."""

    def __init__(self, connection: Connection) -> None:
        self.pause_writing = connection.pause_writing
        self.resume_writing = connection.resume_writing
        self._connection = connection
        self._said = b""

    def piece(self, which: int, data: bytes) -> None:
        """Output arrived."""
        if which == STDOUT:
            self._connection.data_received(data)
        else:
            self._said = (self._said + data)[:_SAID_BYTES]

    def over(self, error: Exception | None) -> None:
        """The connection is gone."""
        said = self._said.decode(errors="replace").strip()
        self._connection.broke(ConnectionError(said) if said and error is None else error)


class Carrier(asyncio.Protocol):
    """Takes over the engine's connection after its answer, and cuts what arrives into the engine's pieces: a kind, a length, bytes."""

    def __init__(self, ends: Ends, transport: asyncio.Transport, response: aiohttp.ClientResponse, before: asyncio.BaseProtocol) -> None:
        self._ends = ends
        self._transport = transport
        self._response = response
        self._before = before
        self._head = b""
        """The beginning of a piece's head that has not arrived whole."""
        self._which, self._left = STDOUT, 0
        """Whose piece is under way, and how much of it is still to come: it is passed on as it comes."""

    def data_received(self, data: bytes) -> None:
        """Bytes arrived."""
        at, size = 0, len(data)
        while at < size:
            if self._left:
                end = min(at + self._left, size)
                self._left -= end - at
                self._ends.piece(self._which, data[at:end])
            else:
                end = min(at + _HEAD.size - len(self._head), size)
                self._head += data[at:end]
                if len(self._head) == _HEAD.size:
                    (self._which, self._left), self._head = _HEAD.unpack(self._head), b""
            at = end

    def pause_writing(self) -> None:
        """The engine takes no more input for now."""
        self._ends.pause_writing()

    def resume_writing(self) -> None:
        """The engine takes more input."""
        self._ends.resume_writing()

    def eof_received(self) -> bool:
        """The program has ended."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone, with the program or before it."""
        if exc is not None:
            for data in unread(self._transport):
                self.data_received(data)
        self._ends.over(exc)
        if isinstance(self._before, asyncio.Protocol):
            self._before.connection_lost(exc)  # the client library lets go of the connection
        self._response.close()


class _Early:
    """What arrived together with the engine's answer, before the connection was taken over."""

    def __init__(self) -> None:
        self.data = b""

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        self.data += data
        return False, b""

    def feed_eof(self) -> None:
        return

    def set_exception(self, *_: object) -> None:
        return


async def open_exec(engine: Engine, container_id: str, argv: list[str], *, concerns: str) -> Connection:
    """Starts the helper's `connect` in a container, as root, and connects to it. Two requests, one process.

    Raises:
        ContainerNotRunningError: The container is not there, stopped or paused.
        EngineFailedError: The program could not be started.
    """
    body = {"AttachStdin": True, "AttachStdout": True, "AttachStderr": True, "Cmd": argv, "User": "0:0", "WorkingDir": "/"}
    connection = Connection(concerns)
    _, transport = await start_exec(engine, container_id, body, HelperEnds(connection), concerns=concerns)
    connection.connection_made(transport)
    return connection


async def start_exec(
    engine: Engine, container_id: str, body: Mapping[str, object], ends: Ends, *, concerns: str
) -> tuple[str, asyncio.Transport]:
    """Starts a program in a container and connects its streams.

    Args:
        engine: The engine.
        container_id: The container.
        body: The engine's own description of the program, without a terminal.
        ends: Takes the output.
        concerns: The container, for messages.

    Returns:
        The engine's id of the program, and the transport that carries its input.

    Raises:
        ContainerNotRunningError: The container is not there, stopped or paused.
        EngineFailedError: The program could not be started.
    """
    try:
        async with engine.asking(f"opening a stream to {concerns}", missing=ContainerNotRunningError, concerns=concerns) as docker:
            made = await docker._query_json(f"containers/{container_id}/exec", method="POST", data=dict(body))
            response = await docker.session.post(
                engine.url(f"exec/{made['Id']}/start"),
                data=json.dumps({"Detach": False, "Tty": False}),
                headers={"Content-Type": "application/json", "Connection": "Upgrade", "Upgrade": "tcp"},
                timeout=aiohttp.ClientTimeout(),
                read_until_eof=False,
            )
            if response.status not in (101, 200) or response.connection is None:
                text = (await response.read())[:_SAID_BYTES].decode(errors="replace")
                response.close()
                raise DockerError(response.status, text)
    except EngineConflictError as error:  # it is there, and stopped or paused
        raise ContainerNotRunningError(error.message, concerns=concerns) from error
    return str(made["Id"]), _take_over(response, ends, concerns)


def _take_over(response: aiohttp.ClientResponse, ends: Ends, concerns: str) -> asyncio.Transport:
    held = response.connection
    assert held is not None
    before, transport = held.protocol, held.transport
    if before is None or not isinstance(transport, asyncio.Transport):
        response.close()
        raise EngineFailedError(f"the container engine closed the stream to {concerns} at once", concerns=concerns)
    early = _Early()
    before.set_parser(early, early)
    carrier = Carrier(ends, transport, response, before)
    transport.set_protocol(carrier)
    if early.data:
        carrier.data_received(early.data)
    return transport
