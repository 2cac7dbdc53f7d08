"""Each running process listens on a socket in the run's folder: cancel, live events and review decisions, without polling.

One JSON object a line each way. `{"do": "cancel"}`, `{"do": "review", "step_id", "decision", "by"}` answer with one line;
`{"do": "events", "after": n}` answers with an event a line until the run is over.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from agent_env.defaults import Limits
from agent_env.documents.updates import Json
from agent_env.errors import AgentEnvError, InfrastructureError
from agent_env.host import socket_address
from agent_env.waiting import deadline

SOCKET_NAME = "control.sock"
Answer = AsyncIterator[Mapping[str, Json]]
Handle = Callable[[Mapping[str, Json]], Answer]


def run_folder(state_root: Path, run_id: str) -> Path:
    """A run's own folder on this machine: its control socket and its scratch."""
    return state_root / "runs" / run_id


def is_open(folder: Path) -> bool:
    """Whether there is a socket to ask. It may be a dead process's."""
    return (folder / SOCKET_NAME).exists()


def discard(folder: Path) -> None:
    """Removes the socket of an owner that was killed."""
    (folder / SOCKET_NAME).unlink(missing_ok=True)


@asynccontextmanager
async def listening(folder: Path, handle: Handle, *, limits: Limits) -> AsyncIterator[None]:
    """Serves the control socket of a run while the block runs. The folder is 0700, the socket 0600.

    Answers that are under way when the block ends are given to their end, within `limits.cleanup_seconds`.
    """
    bound = _bound(folder)
    connections = _Connections(handle)
    server = await asyncio.start_unix_server(connections.serve, sock=bound)
    try:
        yield
    finally:
        server.close()
        discard(folder)
        await connections.close(limits.cleanup_seconds)


class _Connections:
    """Who is connected, and who is being answered."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._open: set[asyncio.Task[None]] = set()
        self._busy: set[asyncio.Task[None]] = set()
        self._closing = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None:
            return
        self._open.add(task)
        try:
            while not self._closing and (line := await reader.readline()):
                self._busy.add(task)
                await _answer(line, writer, self._handle)
                self._busy.discard(task)
        except (ConnectionError, ValueError):
            pass  # The other side went away, or sent a line beyond the reader's limit: the connection is over, the run is not.
        finally:
            self._open.discard(task)
            self._busy.discard(task)
            writer.close()

    async def close(self, seconds: float) -> None:
        self._closing = True
        for task in self._open - self._busy:
            task.cancel()
        if self._open:
            _, late = await asyncio.wait(self._open, timeout=seconds)
            for task in late:
                task.cancel()


async def ask(folder: Path, request: Mapping[str, Json], *, limits: Limits) -> Mapping[str, Json] | None:
    """One request to the process that runs a run.

    Returns:
        Its answer, or None when nobody listens there.

    Raises:
        DeadlineError: It did not answer.
        InfrastructureError: It refused.
    """
    async with deadline(limits.connect_seconds, f"the process that runs {folder.name}"):
        async for answer in stream(folder, request):
            if "error" in answer:
                raise InfrastructureError(str(answer["error"].get("message", "refused")))
            return answer
    return None


async def stream(folder: Path, request: Mapping[str, Json]) -> Answer:
    """All lines that answer a request; none when nobody listens there."""
    try:
        reader, writer = await asyncio.open_unix_connection(sock=_connected(folder))
    except (FileNotFoundError, ConnectionRefusedError):
        return
    try:
        writer.write(_line(request))
        await writer.drain()
        while line := await reader.readline():
            yield json.loads(line)
    except ConnectionError:
        return
    finally:
        writer.close()


async def _answer(line: bytes, writer: asyncio.StreamWriter, handle: Handle) -> None:
    try:
        request = json.loads(line)
        if not isinstance(request, dict):
            raise ValueError("a request is a JSON object")
    except ValueError as error:
        writer.write(_line({"error": {"code": "usage", "message": f"not a request: {error}"}}))
        await writer.drain()
        return
    try:
        async for answer in handle(request):
            writer.write(_line(answer))
            await writer.drain()
    except AgentEnvError as error:
        writer.write(_line({"error": {"code": error.code, "message": str(error)}}))
        await writer.drain()


def _line(value: Mapping[str, Json]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def _bound(folder: Path) -> socket.socket:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / SOCKET_NAME
    path.unlink(missing_ok=True)
    made = _with_short_path(folder, socket.socket.bind)
    path.chmod(0o600)
    return made


def _connected(folder: Path) -> socket.socket:
    return _with_short_path(folder, socket.socket.connect)


def _with_short_path(folder: Path, act: Callable[[socket.socket, str], None]) -> socket.socket:
    """A socket's address holds 107 bytes, a state folder's path may be longer: the folder's descriptor stands for it."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with socket_address(folder / SOCKET_NAME) as address:
            act(made, address)
    except OSError:
        made.close()
        raise
    made.setblocking(False)
    return made
