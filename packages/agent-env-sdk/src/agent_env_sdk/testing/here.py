"""Serving an environment or an agent in this process, on a port of the loopback that the kernel chooses."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Final

import httpx
import uvicorn

from agent_env_sdk.environment.application import Application
from agent_env_sdk.environment.author import Environment
from agent_env_sdk.hosting import configuration
from agent_env_sdk.sockets import listen

from .client import CALL_SECONDS, Client

START_SECONDS: Final = 60.0


class _Server(uvicorn.Server):
    """Tells when it has started, and leaves signals to the test."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets)
        except SystemExit:  # uvicorn's word for a lifespan that failed; a test goes on
            self.should_exit = True
        finally:
            self.up.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def serve_here(environment: Environment, host: str = "127.0.0.1") -> AsyncIterator[Client]:
    """Serves the environment while the block runs.

    Args:
        environment: What is served; an object is served once.
        host: The address to listen on.

    Raises:
        AssemblyError: It can't be served as it stands.
        RuntimeError: Its `startup` failed; the log has the reason.
    """
    config = configuration(Application(environment).starlette())
    async with running_here(config, type(environment).__name__, host) as base, httpx.AsyncClient(timeout=CALL_SECONDS) as http:
        yield Client(base, http)


@asynccontextmanager
async def running_here(config: uvicorn.Config, name: str, host: str = "127.0.0.1") -> AsyncIterator[str]:
    """Runs a server while the block runs, and gives its address.

    Args:
        config: What is run.
        name: What it is called in the error.
        host: The address to listen on.

    Raises:
        RuntimeError: Its lifespan failed; the log has the reason.
    """
    config.timeout_graceful_shutdown = 1  # a test that fails may leave streams open
    with listen(host, 0) as listener:
        server = _Server(config)
        running = asyncio.create_task(server.serve(sockets=[listener]))
        running.add_done_callback(lambda _: server.up.set())
        try:
            async with asyncio.timeout(START_SECONDS):
                await server.up.wait()
            if not server.started:
                raise RuntimeError(f"{name} did not start")
            yield f"http://{host}:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await running
