"""Stands between the product and an engine: sees each request before the engine does, and can answer in its place or cut it off."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from agent_env.containers import EngineEndpoint
from tests.ports import free_port

_PIECE = 1 << 16


class Fate(Enum):
    """What becomes of a request."""

    PASSED = "passed"
    CUT_BEFORE = "cut before the engine saw it"
    CUT_AFTER = "cut when the engine had begun to answer"


@dataclass(frozen=True)
class Request:
    """One request to the engine."""

    method: str
    path: str
    body: bytes


@dataclass(frozen=True)
class Answered:
    """In place of the engine."""

    status: int
    body: bytes

    def encode(self) -> bytes:
        """As the client reads it."""
        return b"HTTP/1.1 %d Answered\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (
            self.status,
            len(self.body),
            self.body,
        )


Meddle = Callable[[Request], Fate | Answered]


@dataclass
class Meddler:
    """Leads to an engine's socket."""

    at: Path | int
    """A socket, or a port of loopback, as `Wire.at` is."""
    engine: Path
    meddle: Meddle
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)

    @property
    def endpoint(self) -> EngineEndpoint:
        """As a client finds it."""
        return EngineEndpoint(f"unix://{self.at}" if isinstance(self.at, Path) else f"tcp://127.0.0.1:{self.at}")

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection: request after request, until one is cut off or takes the connection over."""
        back, far = await asyncio.open_unix_connection(str(self.engine))
        answers: asyncio.Task[None] | None = None
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                request, raw = await _request(reader)
                fate = self.meddle(request)
                if isinstance(fate, Answered):
                    writer.write(fate.encode())
                    continue
                if fate is Fate.CUT_BEFORE:
                    break
                if fate is Fate.CUT_AFTER and answers is not None:
                    answers.cancel()
                    await asyncio.wait([answers])
                far.write(raw)
                if fate is Fate.CUT_AFTER:
                    await back.read(1)
                    break
                answers = answers or asyncio.ensure_future(_copied(back, writer))
                if b"\r\nupgrade:" in raw.lower():
                    await _copied(reader, far)
                    await answers
                    break
        for each in (writer, far):
            each.transport.abort()
        if answers is not None:
            answers.cancel()


async def _request(reader: asyncio.StreamReader) -> tuple[Request, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(fields.get("content-length", "0")))
    method, path, _ = first.split(" ", 2)
    return Request(method, path, body), head + body


async def _copied(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while piece := await source.read(_PIECE):
            to.write(piece)
            await to.drain()
        if to.can_write_eof():
            to.write_eof()


@contextmanager
def meddler(endpoint: EngineEndpoint, near: Path | None, meddle: Meddle) -> Iterator[Meddler]:
    """Serves in a thread of its own while the block lasts, from a folder `near` or as if it were elsewhere. `meddle` is called there."""
    assert endpoint.socket is not None
    made = Meddler(near / "meddler.sock" if near else free_port(), endpoint.socket, meddle)
    thread = threading.Thread(target=made.loop.run_forever, daemon=True)
    thread.start()

    async def serve() -> asyncio.Server:
        if isinstance(made.at, Path):
            return await asyncio.start_unix_server(made.carry, made.at, limit=_PIECE * 16)
        return await asyncio.start_server(made.carry, "127.0.0.1", made.at, limit=_PIECE * 16)

    server = asyncio.run_coroutine_threadsafe(serve(), made.loop).result(10)
    try:
        yield made
    finally:
        made.loop.call_soon_threadsafe(server.close)
        made.loop.call_soon_threadsafe(made.loop.stop)
        thread.join(10)
