"""A connection to the helper of a container: past its engine where that can be, else by one exec of the helper's `connect`."""

from __future__ import annotations

from dataclasses import dataclass

from agent_env.containers.direct import reach
from agent_env.containers.engine import Engine
from agent_env.containers.spec import HELPER
from agent_env.containers.state import started_at
from agent_env.containers.stream import open_exec
from agent_env.places.helper.connection import Connection
from agent_env.places.helper.greeting import over_socket


@dataclass(frozen=True, slots=True)
class Connected:
    """A connection over which nothing was said yet."""

    connection: Connection
    life: str
    """Which life of the container it leads to: see `state.started_at`."""
    direct: bool
    """The engine has no part in it."""


async def connect(engine: Engine, container_id: str, listens_on: str, *, concerns: str) -> Connected:
    """Connects to the helper that listens on an abstract name in a container.

    Raises:
        ContainerNotRunningError: The container is not there, stopped or paused.
        EngineFailedError: The helper's program could not be started there.
        EngineUnavailableError: Nobody answers.
        SandboxUnavailableError: The connection ended at once.
    """
    reached = await reach(engine, container_id, listens_on)
    if reached is not None:
        return Connected(await over_socket(reached.link, concerns), reached.life, direct=True)
    connection = await open_exec(engine, container_id, [HELPER, "connect", f"@{listens_on}"], concerns=concerns)
    try:
        return Connected(connection, await started_at(engine, container_id), direct=False)
    except BaseException:  # whatever went wrong, a connection that nobody holds must not stay
        connection.close()
        raise
