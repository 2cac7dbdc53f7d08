"""What an engine holds of ours, found by labels and removed by id: containers, networks, volumes. Never by name, never another's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent_env.containers.engine import Engine
from agent_env.errors import EngineConflictError, NotFoundError, TransportLostError
from agent_env.waiting import poll


@dataclass(frozen=True, slots=True)
class Listed:
    """An object of ours in an engine."""

    kind: str
    """`container`, `network` or `volume`."""
    id: str
    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    state: str = ""
    """Of a container: `created` (a start that was cut or failed), `running`, `paused`, `exited`, `dead`."""

    @property
    def half_made(self) -> bool:
        """A container that never ran."""
        return self.kind == "container" and self.state == "created"


@dataclass(frozen=True, slots=True)
class Removed:
    """What a removal took away, and what it could not."""

    gone: Sequence[Listed] = ()
    left: Mapping[str, str] = field(default_factory=dict)
    """Id → why it is still there."""


def label_filter(labels: Mapping[str, str], **more: Sequence[str]) -> dict[str, str]:
    """The query of a list request: every one of these labels."""
    return {"filters": json.dumps({"label": [f"{name}={value}" for name, value in labels.items()], **more})}


async def containers(engine: Engine, labels: Mapping[str, str]) -> list[Listed]:
    """Every container that carries these labels, in whatever state."""
    async with engine.asking("listing containers") as docker:
        found = await docker._query_json("containers/json", params={"all": "1", **label_filter(labels)})
        return [
            Listed("container", each["Id"], (each.get("Names") or [""])[0].lstrip("/"), each.get("Labels") or {}, each.get("State", ""))
            for each in found
        ]


async def named(engine: Engine, name: str, labels: Mapping[str, str]) -> Listed | None:
    """The container of exactly this name that also carries these labels: how a record without an id is resolved, once, before it is
    pinned by id. A name alone is never enough: anybody can take it.

    Raises:
        ValueError: Without labels it could be anybody's.
    """
    if not labels:
        raise ValueError("a container is found by name and labels; there are no labels")
    return next((each for each in await containers(engine, labels) if each.name == name), None)


async def networks(engine: Engine, labels: Mapping[str, str]) -> list[Listed]:
    """Every network that carries these labels."""
    async with engine.asking("listing networks") as docker:
        found = await docker._query_json("networks", params=label_filter(labels))
        return [Listed("network", each["Id"], each["Name"], each.get("Labels") or {}) for each in found]


async def volumes(engine: Engine, labels: Mapping[str, str]) -> list[Listed]:
    """Every volume that carries these labels."""
    async with engine.asking("listing volumes") as docker:
        found = await docker._query_json("volumes", params=label_filter(labels))
        return [Listed("volume", each["Name"], each["Name"], each.get("Labels") or {}) for each in found.get("Volumes") or []]


async def labelled(engine: Engine, labels: Mapping[str, str]) -> list[Listed]:
    """Everything that carries these labels, containers first: the order in which it can be removed."""
    lists = await asyncio.gather(containers(engine, labels), networks(engine, labels), volumes(engine, labels))
    return [each for found in lists for each in found]


async def running_names(engine: Engine, labels: Mapping[str, str]) -> list[str]:
    """The names of what runs and carries these labels, for messages."""
    async with engine.asking("listing containers") as docker:
        found = await docker._query_json("containers/json", params=label_filter(labels))
        return sorted(name.lstrip("/") for each in found for name in (each.get("Names") or [])[:1])


_PARTS = ("Config", "State", "HostConfig", "NetworkSettings")
"""Of what an engine tells of a container: objects, empty ones where it tells nothing."""


async def inspect(engine: Engine, container_id: str) -> dict[str, Any]:
    """What the engine knows about a container.

    Raises:
        NotFoundError: There is none with this id.
    """
    async with engine.asking(f"looking at the container {container_id[:12]}", concerns=container_id) as docker:
        found: dict[str, Any] = await docker._query_json(f"containers/{container_id}/json")
        parts = {name: found.get(name) or {} for name in _PARTS}
        for name, part in (*parts.items(), ("Labels", parts["Config"].get("Labels") or {})):
            if not isinstance(part, dict):
                raise TypeError(f"{name} is an object")
        return {"Name": "", **found, **parts, "Id": str(found["Id"])}  # what has no id is no container


async def remove_container(engine: Engine, container_id: str) -> bool:
    """Removes a container, running or not, and waits until it is gone, whoever else removes it too. Returns whether it was there.

    Raises:
        DeadlineError: It is still there after `Limits.engine_seconds`.
    """

    async def gone() -> bool | None:
        try:
            await inspect(engine, container_id)
        except NotFoundError:
            return True
        return None

    try:
        async with engine.asking(f"removing the container {container_id[:12]}", concerns=container_id) as docker:
            await docker.containers.container(container_id).delete(force=True, v=True)
    except NotFoundError:
        return False
    except EngineConflictError:
        await poll(gone, within_seconds=engine.limits.engine_seconds, what=f"the removal of the container {container_id[:12]}")
    return True


async def remove(engine: Engine, listed: Listed) -> bool:
    """Removes one object by id. Returns whether it was there; somebody else's removal counts as done."""
    if listed.kind == "container":
        return await remove_container(engine, listed.id)
    path = "networks" if listed.kind == "network" else "volumes"
    try:
        async with engine.asking(f"removing the {listed.kind} {listed.name}", concerns=listed.id) as docker:
            await docker._query_json(f"{path}/{listed.id}", method="DELETE")
    except NotFoundError:
        return False
    return True


async def remove_all(engine: Engine, labels: Mapping[str, str]) -> Removed:
    """Removes everything that carries these labels: all containers, then networks and volumes. Bounded, and safe to repeat.

    Raises:
        ValueError: Without labels it would be everybody's.
    """
    if not labels:
        raise ValueError("objects are removed by labels; there are none")
    everything = await labelled(engine, labels)
    gone: list[Listed] = []
    left: dict[str, str] = {}
    for kinds in (("container",), ("network", "volume")):
        batch = [each for each in everything if each.kind in kinds]
        results = await asyncio.gather(*(remove(engine, each) for each in batch), return_exceptions=True)
        for each, result in zip(batch, results, strict=True):
            if isinstance(result, TransportLostError | OSError):
                raise result
            if isinstance(result, BaseException):
                left[each.id] = str(result)
            elif result:
                gone.append(each)
    return Removed(gone, left)
