"""How the keeper reaches a place's helper: a socket of this machine, or a container's.

The second half of each pair is what a provider writes down; nothing of it is secret.
"""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from agent_env.defaults import Limits
from agent_env.errors import EngineUnavailableError, SandboxUnavailableError, TransportLostError
from agent_env.places.helper.connection import Connection
from agent_env.places.helper.greeting import connected_socket, greet, open_connection

if TYPE_CHECKING:
    from agent_env.containers import ContainerPlace, Engine
    from agent_env.keeper.records import Carried

_GONE = frozenset({errno.ENOENT, errno.ECONNREFUSED, errno.ENOTDIR})
"""A helper listens for as long as its place lives."""
_UNIX, _CONTAINER = "unix", "container"


def at_socket(path: Path) -> Mapping[str, str]:
    """A helper that listens on a socket of this machine."""
    return {_UNIX: str(path)}


def in_container(place: ContainerPlace) -> Mapping[str, str]:
    """A helper that is a container's first process."""
    endpoint = place.engine.endpoint
    certificates = {"certificates": str(endpoint.certificates)} if endpoint.certificates is not None else {}
    return {
        _CONTAINER: place.id,
        "name": place.name,
        "socket": place.facts.told.socket,
        "engine": endpoint.url,
        "verify": "yes" if endpoint.verify else "no",
        **certificates,
    }


async def connected(carried: Carried, token: str, limits: Limits) -> Connection:
    """A connection to a place's helper that may relay and nothing else.

    Raises:
        SandboxUnavailableError: The place is gone, or lets no relay in.
        TransportLostError: It can't be had now.
    """
    way = next((ways for name, ways in _WAYS.items() if name in carried.reach), None)
    if way is None:
        raise SandboxUnavailableError(f"nothing says how sandbox {carried.place} is reached", concerns=carried.place)
    return await way(carried, token, limits)


async def _by_socket(carried: Carried, token: str, limits: Limits) -> Connection:
    place = carried.place
    try:
        link = connected_socket(Path(carried.reach[_UNIX]))
    except OSError as error:
        kind = SandboxUnavailableError if error.errno in _GONE else TransportLostError
        raise kind(f"sandbox {place} can't be reached: {error.strerror}", concerns=place) from error
    return await open_connection(link, concerns=f"sandbox {place}", token=token, epoch=0, limits=limits)


async def _by_engine(carried: Carried, token: str, limits: Limits) -> Connection:
    from agent_env.containers.connecting import connect

    reach = carried.reach
    engine = _engine(reach, limits)
    concerns = f"container {reach['name']}"
    try:
        connection = (await connect(engine, reach[_CONTAINER], reach["socket"], concerns=concerns)).connection
    except EngineUnavailableError as error:  # a container outlives a restart of its engine
        raise TransportLostError(error.message, concerns=carried.place) from error
    await greet(connection, token=token, epoch=0, limits=limits)
    return connection


_engines: dict[tuple[str, ...], Engine] = {}


def _engine(reach: Mapping[str, str], limits: Limits) -> Engine:
    """One client for each engine, for as long as the process lives: its connections are shared by all its containers."""
    from agent_env.containers import Engine
    from agent_env.containers.endpoint import EngineEndpoint

    key = reach["engine"], reach.get("certificates", ""), reach["verify"]
    if key not in _engines:
        certificates = Path(key[1]) if key[1] else None
        _engines[key] = Engine(EngineEndpoint(key[0], "recorded", certificates, key[2] == "yes"), limits=limits)
    return _engines[key]


async def close_engines() -> None:
    """Lets go of every engine's client."""
    while _engines:
        await _engines.popitem()[1].aclose()


_WAYS: Mapping[str, Callable[[Carried, str, Limits], Awaitable[Connection]]] = {_UNIX: _by_socket, _CONTAINER: _by_engine}
