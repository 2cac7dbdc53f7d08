"""A wire between us and a container engine that can be cut: every connection breaks, and nobody answers until it is mended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from agent_env.containers import EngineEndpoint
from tests.ports import free_port

_PIECE_BYTES = 1 << 16


@dataclass
class Wire:
    """Leads to an engine's socket. What the engine was asked to do goes on there, as after a restart that keeps containers."""

    at: Path | int
    """A socket; or a port of loopback, as an engine on another machine is reached by: its containers are then reached through it alone."""
    engine: Path
    _server: asyncio.Server | None = None
    _links: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def endpoint(self) -> EngineEndpoint:
        """As a client finds it."""
        return EngineEndpoint(f"unix://{self.at}" if isinstance(self.at, Path) else f"tcp://127.0.0.1:{self.at}")

    async def mend(self) -> None:
        """Takes connections."""
        if isinstance(self.at, Path):
            self._server = await asyncio.start_unix_server(self._carry, self.at)
        else:
            self._server = await asyncio.start_server(self._carry, "127.0.0.1", self.at)

    async def cut(self) -> None:
        """Breaks every connection at once, and takes no more."""
        if self._server is not None:
            self._server.close()
            if isinstance(self.at, Path):
                self.at.unlink(missing_ok=True)
        for link in list(self._links):
            link.cancel()
        if self._links:
            await asyncio.wait(self._links)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._links.add(task)
        far: asyncio.StreamWriter | None = None
        try:
            back, far = await asyncio.open_unix_connection(self.engine)
            async with asyncio.TaskGroup() as group:
                group.create_task(copied(reader, far))
                group.create_task(copied(back, writer))
        except* (OSError, asyncio.CancelledError):
            pass
        finally:
            self._links.discard(task)
            for each in (writer, far):
                if each is not None:
                    each.transport.abort()


async def copied(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
    """Carries one way until the end, and the end too."""
    while piece := await source.read(_PIECE_BYTES):
        to.write(piece)
        await to.drain()
    with suppress(OSError):
        to.write_eof()


@asynccontextmanager
async def wire(endpoint: EngineEndpoint, near: Path | None = None) -> AsyncIterator[Wire]:
    """A whole wire to an engine of this machine, by a socket `near`, or as if it were elsewhere."""
    assert endpoint.socket is not None
    made = Wire(near or free_port(), endpoint.socket)
    await made.mend()
    try:
        yield made
    finally:
        await made.cut()
