"""Serving an agent from a process: the sockets, and uvicorn on them."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import uvicorn

from agent_env_sdk.hosting import configuration
from agent_env_sdk.sockets import listen
from agent_env_sdk.wire.a2a import HOST_VARIABLE, PORT, PORT_VARIABLE, TOKEN_VARIABLE

from .application import Application
from .author import Agent


def serve(agent: Agent, host: str | None = None, port: int | None = None, *, state: Path | None = None) -> None:
    """Serves until a signal ends the process.

    Callers need the bearer token of the variable `AGENTENV_AGENT_TOKEN`; without it the server is open, and the variable is
    taken out of the environment, so that what the agent runs doesn't inherit it.

    Args:
        agent: What is served.
        host: Where to listen; None for the variable `A2A_HOST`, else every IPv4 address. `::` listens on IPv4 as well.
        port: Its port; None for the variable `A2A_PORT`, else 8000.
        state: The folder for what outlives a restart; None for the variable `AGENTENV_AGENT_STATE`, else a new one.

    Raises:
        AssemblyError: The agent can't be served as it is written.
        OSError: The port can't be had.
    """
    address = host or os.environ.get(HOST_VARIABLE) or "0.0.0.0"
    number = int(os.environ.get(PORT_VARIABLE) or PORT) if port is None else port
    token = os.environ.pop(TOKEN_VARIABLE, None) or None
    listener = listen(address, number)
    application = Application(agent, token=token, state=state)
    server = uvicorn.Server(configuration(application.starlette()))
    sys.stderr.write(f"{application.identity.name} serves on port {listener.getsockname()[1]}\n")
    sys.stderr.flush()
    asyncio.run(server.serve(sockets=[listener]))
