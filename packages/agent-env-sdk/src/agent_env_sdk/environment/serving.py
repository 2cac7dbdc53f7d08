"""Serving an environment from a process: the socket, and uvicorn on it."""

from __future__ import annotations

import asyncio
import os
import sys

from agent_env_sdk.hosting import Server, configuration
from agent_env_sdk.sockets import listen
from agent_env_sdk.wire.names import HOST_VARIABLE, PORT, PORT_VARIABLE

from .application import Application
from .author import Environment


def serve(environment: Environment, host: str | None = None, port: int | None = None) -> None:
    """Serves until a signal ends the process.

    Args:
        environment: What is served.
        host: Where to listen; None for the variable `MCP_HOST`, else every IPv4 address. `::` listens on IPv4 as well.
        port: Its port; None for the variable `MCP_PORT`, else 18765.

    Raises:
        AssemblyError: The environment can't be served as it stands.
        OSError: The port can't be had.
    """
    address = host or os.environ.get(HOST_VARIABLE) or "0.0.0.0"
    number = int(os.environ.get(PORT_VARIABLE) or PORT) if port is None else port
    listener = listen(address, number)
    application = Application(environment)
    server = Server(configuration(application.starlette()), application.stop)
    sys.stderr.write(f"{application.surface.card.name} serves on port {listener.getsockname()[1]}\n")
    sys.stderr.flush()
    asyncio.run(server.serve(sockets=[listener]))
    if application.invoker.busy:
        os._exit(0)  # a handler that hangs on its thread would keep the process for good
