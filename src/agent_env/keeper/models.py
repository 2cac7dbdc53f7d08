"""The model broker within the keeper: what it was told of endpoints is in memory alone, and is told again to a keeper that replaces it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from agent_env.broker.accounts import Accounts
from agent_env.broker.admission import Refused
from agent_env.broker.answers import Answer, Request, answer_refused
from agent_env.broker.broker import Broker
from agent_env.broker.contract import Refusal, split_token
from agent_env.broker.endpoints import Endpoints, token_in
from agent_env.broker.serving import Pipe, StreamPipe, serve
from agent_env.defaults import Limits
from agent_env.errors import StorageError
from agent_env.places.endpoint import LOOPBACK
from agent_env.redaction import Redactor
from agent_env.stores.database import Database
from agent_env.stores.installation import InstallationKey

PORT_FILE = "models.port"


class Models:
    """Serves agents' calls of models, on whatever pipes they come.

    Args:
        state_root: The installation's state folder.
        limits: `model_*`.
    """

    def __init__(self, state_root: Path, limits: Limits) -> None:
        self.redactor = Redactor()
        """Knows every key that was told."""
        self._folder = state_root / "keeper"
        self._key = InstallationKey(state_root)
        self._limits = limits
        self._endpoints: dict[str, Endpoints] = {}
        self._brokers: dict[str, tuple[Database, Accounts, Broker]] = {}
        self._told = asyncio.Event()
        self._opening = asyncio.Lock()
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def tell(self, database: str, endpoints: Mapping[str, Mapping[str, Any]]) -> None:
        """Learns where models are asked, and which database counts the calls.

        Raises:
            StorageError: The database can't be opened.
        """
        async with self._opening:
            if database not in self._brokers:
                db = await asyncio.to_thread(Database.open, database, limits=self._limits)
                accounts = Accounts(db)
                broker = Broker(accounts, self._key, self._known, redactor=self.redactor, limits=self._limits)
                self._brokers[database] = db, accounts, broker
        for name, plain in endpoints.items():
            known = Endpoints.of(plain)
            self.redactor.add(*known.secrets())
            self._endpoints[name] = known
        told, self._told = self._told, asyncio.Event()
        told.set()

    async def serve(self, pipe: Pipe) -> None:
        """Serves one connection to its end."""
        await serve(pipe, self, self._limits)

    @asynccontextmanager
    async def answering(self, request: Request) -> AsyncIterator[Answer]:
        """Answers one request by the broker whose database knows its token."""
        await self._until(lambda: self._brokers)
        broker = await self._broker_of(request)
        if broker is None:
            missing = Refused(Refusal.TOKEN, "that is no token of this model broker") if self._brokers else _UNTOLD
            yield answer_refused(request, missing)
            return
        async with broker.answering(request) as answer:
            yield answer

    async def listen(self) -> int:
        """Listens on this machine's loopback too, for places that share it. The port stays the same as long as nobody else has it.

        Raises:
            StorageError: No port can be had.
        """
        async with self._opening:
            if self._server is None:
                try:
                    bound = self._bound()
                except OSError as error:
                    raise StorageError(f"the model broker can't listen on {LOOPBACK}: {error.strerror}") from error
                self._server = await asyncio.start_server(self._connected, sock=bound)
            port: int = self._server.sockets[0].getsockname()[1]
            (self._folder / PORT_FILE).write_text(str(port))
            return port

    async def aclose(self) -> None:
        """Lets go of everything."""
        if self._server is not None:
            self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        while self._brokers:
            _, (db, _, broker) = self._brokers.popitem()
            await broker.aclose()
            await asyncio.to_thread(db.close)

    async def _known(self, name: str) -> Endpoints | None:
        await self._until(lambda: name in self._endpoints)
        return self._endpoints.get(name)

    async def _broker_of(self, request: Request) -> Broker | None:
        named = split_token(token_in(request.headers, request.target.partition("?")[2]) or "")
        for _, accounts, broker in self._brokers.values():
            if named is None or await asyncio.to_thread(accounts.find, named[0]) is not None:
                return broker
        return None

    async def _until(self, told: Callable[[], object]) -> None:
        """Waits for somebody to tell it, for a while. A keeper that replaced another one is told in a moment."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._limits.model_key_seconds):
                while not told():
                    await self._told.wait()

    def _bound(self) -> socket.socket:
        with contextlib.suppress(OSError, ValueError):
            return _listening(int((self._folder / PORT_FILE).read_text()))
        return _listening(0)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self.serve(StreamPipe(reader, writer))
        except asyncio.CancelledError:
            pass  # the keeper ends; nobody waits for this task
        finally:
            self._connections.discard(task)
            writer.close()


_UNTOLD = Refused(Refusal.KEY, "the model broker was just started, and nobody has told it the key yet: whoever goes on with the run does")


def _listening(port: int) -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((LOOPBACK, port))
    except OSError:
        made.close()
        raise
    return made
