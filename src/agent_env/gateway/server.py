"""One server process: the gateway on sockets that somebody else holds open, until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
from collections.abc import Iterator, Sequence

import uvicorn

from agent_env.gateway.asgi import first_of
from agent_env.gateway.config import Settings
from agent_env.gateway.core import gateway
from agent_env.gateway.doors import AgentDoor, ControlDoor

_SWITCH_SECONDS = 0.0005
"""Threads here write files; the loop, which answers, must not wait for the usual 5 ms until one of them lets it run."""


class _Server(uvicorn.Server):
    """Signals are the process's business, not each server's."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(settings: Settings, agents: Sequence[socket.socket], controls: Sequence[socket.socket], alive: int) -> None:
    """Serves both doors until SIGTERM or SIGINT; then calls in progress may end.

    Args:
        settings: What the gateway was told.
        agents: Listening sockets of the agent doors.
        controls: Those of the control doors.
        alive: A descriptor that ends when whoever holds the sockets does; then there is nothing left to serve for.
    """
    sys.setswitchinterval(_SWITCH_SECONDS)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(alive, stop.set)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with gateway(settings) as made:
        servers = [
            _Server(_config(door, settings)) for door, sockets in ((AgentDoor(made), agents), (ControlDoor(made), controls)) if sockets
        ]
        groups = [sockets for sockets in (agents, controls) if sockets]
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(server.serve(sockets=list(held))) for server, held in zip(servers, groups, strict=True)]
            if await first_of(stop.wait(), *(asyncio.shield(task) for task in running)) == 0:
                await made.drain()
            for server in servers:
                server.should_exit = True


def _config(app: AgentDoor | ControlDoor, settings: Settings) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        loop="asyncio",
        ws="none",
        lifespan="off",
        access_log=False,  # a path may hold a token
        proxy_headers=False,
        server_header=False,
        log_config=None,
        timeout_keep_alive=int(settings.limits.client_idle_seconds),
        timeout_graceful_shutdown=int(settings.limits.stop_seconds),
        backlog=settings.limits.backlog,
    )
