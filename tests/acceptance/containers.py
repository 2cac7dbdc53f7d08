"""A look into the container engine, and somebody else's hand in it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from agent_env.containers import Engine, EngineEndpoint, labelled, objects
from agent_env.stores.installation import home_of
from tests.acceptance.conftest import Home

T = TypeVar("T")


def asked(docker: EngineEndpoint, what: Callable[[Engine], Awaitable[T]]) -> T:
    """Asks the engine, as somebody who is not the product."""

    async def ask() -> T:
        async with Engine(docker) as engine:
            return await what(engine)

    return asyncio.run(ask())


def in_engine(docker: EngineEndpoint, home: Home) -> list[str]:
    """Everything of a home that the engine has, but for the network that its containers share."""
    found = asked(docker, lambda engine: labelled(engine, {"agentenv.home": home_of(home.state)}))
    return [f"{each.kind} {each.name}" for each in found if each.labels.get("agentenv.network") != "shared"]


def inspected(docker: EngineEndpoint, container_id: str) -> dict[str, Any]:
    return asked(docker, lambda engine: objects.inspect(engine, container_id))


def told(docker: EngineEndpoint, container_id: str, verb: str) -> None:
    """`stop`, `kill`, `start`, `pause` …: somebody else's hand."""

    async def tell(engine: Engine) -> None:
        async with engine.asking(verb, seconds=60) as client:
            await client._query_json(f"containers/{container_id}/{verb}", method="POST", params={"t": 0} if verb == "stop" else None)

    asked(docker, tell)


def removed(docker: EngineEndpoint, container_id: str) -> None:
    asked(docker, lambda engine: objects.remove_container(engine, container_id))


@contextmanager
def decoy(docker: EngineEndpoint, image: str, name: str, *command: str) -> Iterator[str]:
    """A container that somebody else made, of any name. Yields its id."""

    async def make(engine: Engine) -> str:
        body = {"Image": image, "Entrypoint": ["/bin/sh", "-c"], "Cmd": [" ".join(command) or "exec sleep 1000"], "User": "0"}
        async with engine.asking("making a decoy") as client:
            made = await client._query_json("containers/create", method="POST", data=body, params={"name": name})
            async with client._query(f"containers/{made['Id']}/start", method="POST"):
                return str(made["Id"])

    made = asked(docker, make)
    try:
        yield made
    finally:
        removed(docker, made)
