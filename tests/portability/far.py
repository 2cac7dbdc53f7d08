"""An engine that is reached by TCP alone, as Docker Desktop's and remote ones are: a relay to the real one's socket."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agent_env.places.endpoint import LOOPBACK

_PIECE = 1 << 16


class FarEngine:
    """Passes bytes between a port of loopback and the engine's socket, and can cut what it carries."""

    def __init__(self, engine: Path) -> None:
        self._engine = engine
        self._open: set[asyncio.StreamWriter] = set()
        self.loop = asyncio.new_event_loop()
        self.port = 0

    @property
    def url(self) -> str:
        """As `DOCKER_HOST` names it."""
        return f"tcp://{LOOPBACK}:{self.port}"

    @property
    def url_of_a_stranger(self) -> str:
        """The same address in a spelling of which only the resolver knows that it is this machine's."""
        return f"tcp://0x{bytes(map(int, LOOPBACK.split('.'))).hex()}:{self.port}"

    async def serve(self) -> asyncio.Server:
        """Listens."""
        server = await asyncio.start_server(self._carry, LOOPBACK, 0)
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_unix_connection(str(self._engine))
        self._open |= {writer, far_writer}
        await asyncio.gather(_pass_on(reader, far_writer), _pass_on(far_reader, writer))
        self._open -= {writer, far_writer}

    def cut(self) -> None:
        """Breaks every connection, as a network does."""

        async def abort() -> None:
            for writer in self._open:
                writer.transport.abort()

        asyncio.run_coroutine_threadsafe(abort(), self.loop).result(10)


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while piece := await reader.read(_PIECE):
            writer.write(piece)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
            return
    writer.close()


@contextmanager
def far_engine(engine: Path) -> Iterator[FarEngine]:
    """Serves in a thread of its own while the block lasts."""
    far = FarEngine(engine)
    thread = threading.Thread(target=far.loop.run_forever, daemon=True)
    thread.start()
    server = asyncio.run_coroutine_threadsafe(far.serve(), far.loop).result(10)
    try:
        yield far
    finally:
        far.loop.call_soon_threadsafe(server.close)
        far.cut()
        far.loop.call_soon_threadsafe(far.loop.stop)
        thread.join(10)
