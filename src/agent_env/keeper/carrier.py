"""Carries everything for one place: connects to its helper as a relay, listens on its loopback, and serves what arrives."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial

from agent_env.defaults import Limits
from agent_env.errors import AgentEnvError, InfrastructureError, PortTakenError, SandboxUnavailableError, TransportLostError
from agent_env.host import boot_seconds
from agent_env.keeper import egress
from agent_env.keeper.egress import Gate
from agent_env.keeper.outside import Outside, Reached, Refusal
from agent_env.keeper.policy import Policy
from agent_env.keeper.reaching import connected
from agent_env.keeper.records import MODELS, Carried, Egress, FromHost, ToHost
from agent_env.keeper.splice import CHUNK, Inlet, Pipe, splice
from agent_env.places.endpoint import LOOPBACK
from agent_env.places.helper.connection import Connection
from agent_env.places.helper.listening import TcpListener, listen_tcp
from agent_env.places.helper.worker import open_tcp
from agent_env.waiting import back_off

Serve = Callable[[Pipe], Awaitable[None]]

Bound = Sequence[tuple[FromHost, socket.socket]]
_ATTEMPTS = 5
_BACKLOG = 64


class Carrier:
    """One place's relays."""

    def __init__(
        self, carried: Carried, token: str, *, outside: Outside, limits: Limits, tell: Callable[[Refusal], None], models: Serve
    ) -> None:
        self.carried = carried
        """What it was told to carry."""
        self.open = 0
        """Connections at this moment."""
        self._token = token
        self._outside = outside
        self._limits = limits
        self._tell = tell
        self._models = models
        self._bound: Bound = ()
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def ready(self) -> None:
        """Waits until everything is listened for.

        Raises:
            AgentEnvError: It can't be.
        """
        await asyncio.shield(self._ready)

    async def run(self) -> None:
        """Carries until the place is gone or its time is up; a connection that broke meanwhile is made again."""
        place = self.carried.place
        problem: AgentEnvError = SandboxUnavailableError(f"sandbox {place} is no longer carried for", concerns=place)
        try:
            async with asyncio.timeout(self._seconds_left()):
                with published(self.carried) as self._bound:
                    await self._again_and_again()
        except TimeoutError:
            problem = SandboxUnavailableError(f"the time of sandbox {place} is up", concerns=place)
        except AgentEnvError as error:
            problem = error
        finally:
            if not self._ready.done():
                self._ready.set_exception(problem)
                self._ready.exception()  # somebody may be waiting for it, or nobody

    def _seconds_left(self) -> float | None:
        return None if self.carried.expires is None else max(self.carried.expires - boot_seconds(), 0.0)

    async def _again_and_again(self) -> None:
        failures = 0
        while True:
            try:
                connection = await self._connected()
                failures = 0
                await self._carry(connection)
            except TransportLostError:
                failures += 1
                if failures > _ATTEMPTS:
                    raise
                await back_off(failures + 1, limits=self._limits)

    async def _connected(self) -> Connection:
        """A connection that may relay and nothing else.

        Raises:
            SandboxUnavailableError: The place is gone.
            TransportLostError: It can't be had now.
        """
        return await connected(self.carried, self._token, self._limits)

    async def _carry(self, connection: Connection) -> None:
        """Until the connection ends.

        Raises:
            TransportLostError: It ended.
            SandboxUnavailableError: A port of the place is taken.
        """
        inside = [relay for relay in self.carried.relays if not isinstance(relay, FromHost)]
        listeners: list[TcpListener] = []
        try:
            for relay in inside:
                listeners.append(await listen_tcp(connection, relay.listen, self._limits))
            if not self._ready.done():
                self._ready.set_result(None)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._until_lost(connection))
                for relay, listener in zip(inside, listeners, strict=True):
                    group.create_task(self._accept(self._server(relay), listener, group))
                for port, listening in self._bound:
                    group.create_task(self._accept_here(connection, port, listening, group))
        except (InfrastructureError, BaseExceptionGroup) as error:
            if connection.error is not None:
                raise TransportLostError(connection.error.message, concerns=self.carried.place) from error
            raise error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error from None
        finally:
            for listener in listeners:
                listener.close()  # said, unlike a keeper's death, which the helper takes for a moment's absence
            connection.close()

    async def _until_lost(self, connection: Connection) -> None:
        await connection.wait_closed()
        raise TransportLostError(f"the connection to sandbox {self.carried.place} broke", concerns=self.carried.place)

    async def _accept(self, serve: Serve, listener: TcpListener, group: asyncio.TaskGroup) -> None:
        most = self._limits.keeper_connections
        while True:
            pipe = await listener.accept()
            if self.open < most:
                self.open += 1
                group.create_task(self._served(serve, pipe))
            else:
                self._tell(Refusal("*", listener.port, f"{most} connections at once are the most that a sandbox may have"))
                pipe.abort()

    async def _accept_here(self, connection: Connection, port: FromHost, listening: socket.socket, group: asyncio.TaskGroup) -> None:
        while True:
            link, _ = await asyncio.get_running_loop().sock_accept(listening)
            if self.open < self._limits.keeper_connections:
                self.open += 1
                group.create_task(self._inward(connection, port, link))
            else:
                link.close()

    async def _inward(self, connection: Connection, port: FromHost, link: socket.socket) -> None:
        """One connection of this machine, to a program of the place."""
        try:
            with link:
                link.setblocking(False)
                pipe = await open_tcp(connection, port.to, self._limits)
                try:
                    outside = Reached(*await asyncio.open_connection(sock=link, limit=CHUNK))
                    await splice(Inlet(pipe), pipe, outside, idle_seconds=self._limits.keeper_idle_stream_seconds)
                finally:
                    await pipe.aclose()
        except (OSError, InfrastructureError):
            return  # nothing listens there, or one of them went
        finally:
            self.open -= 1

    async def _served(self, serve: Serve, pipe: Pipe) -> None:
        try:
            await serve(pipe)
        except Exception:  # whatever a program of the place sent, it ends its own connection and nobody else's; the log has the rest
            logging.getLogger(__name__).exception("a connection of sandbox %s", self.carried.place)
        finally:
            self.open -= 1
            with contextlib.suppress(InfrastructureError):
                await pipe.aclose()

    def _server(self, relay: Egress | ToHost) -> Serve:
        if isinstance(relay, Egress):
            policy = Policy.parse(relay.hosts, relay.cidrs, relay.allow_private)
            return partial(egress.serve, gate=Gate(policy, self._outside, self._limits, self._tell))
        return self._models if relay.port == MODELS else partial(self._to_host, port=relay.port)

    async def _to_host(self, pipe: Pipe, *, port: int) -> None:
        reached = await self._outside.to_host(port)
        if isinstance(reached, Reached):
            await splice(Inlet(pipe), pipe, reached, idle_seconds=self._limits.keeper_idle_stream_seconds)


@contextlib.contextmanager
def published(carried: Carried) -> Iterator[Bound]:
    """Listens on the ports of this machine's loopback that lead into the place.

    Raises:
        PortTakenError: One of them is somebody else's.
    """
    with contextlib.ExitStack() as stack:
        bound = []
        for relay in carried.relays:
            if isinstance(relay, FromHost):
                # TCP is named, since asyncio sends small pieces at once only on sockets that say so.
                listening = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP))
                listening.setblocking(False)
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    listening.bind((LOOPBACK, relay.port))
                    listening.listen(_BACKLOG)
                except OSError as error:
                    raise PortTakenError(f"port {relay.port} of this machine can't be listened on: {error.strerror}") from error
                bound.append((relay, listening))
        yield bound
