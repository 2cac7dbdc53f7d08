"""Networks: the installation's shared one, on which containers can't see each other, and small ones of their own for those that must.

The shared one is made by whoever needs it first and goes with the last container: nobody holds a lock. Whoever was about to join one that
goes, or that fills up, takes the next; `container.deploy` does so for `ContainerSpec.network == SHARED`.
"""

from __future__ import annotations

import asyncio
import ipaddress
import math
import random
import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

from agent_env.containers import objects
from agent_env.containers.engine import Engine
from agent_env.containers.spec import HOME
from agent_env.errors import (
    EngineConflictError,
    EngineFailedError,
    EngineRefusedError,
    InfrastructureError,
    NotFoundError,
    UnsupportedError,
)
from agent_env.waiting import back_off, poll

KIND = "agentenv.network"
"""`shared` or `own`."""
RANGES = tuple(ipaddress.IPv4Network(text) for text in ("10.213.0.0/16", "172.29.0.0/16", "192.168.224.0/19"))
"""Where our networks lie: of a size of our own, so that the thirty or so that an engine has by default never run out."""
_SHARED_PREFIX, _OWN_PREFIX = 24, 27
"""253 containers, of which a further shared network is made when they are there, and 29."""
_NOT_FOR_CONTAINERS = 3
"""Of a range's addresses: the network's, the gateway's, and the one that means all."""
_TRIES = 256
"""Of ranges that the engine says to be in use after all: what it says first can't tell what it is making."""
_ROUTES = Path("/proc/net/route")
_NO_TALK = {"com.docker.network.bridge.enable_icc": "false"}


@dataclass(frozen=True, slots=True)
class Network:
    """A network that containers join by `id`."""

    id: str
    name: str
    subnet: str
    gateway: str
    labels: Mapping[str, str]


async def shared_network(engine: Engine, home: str) -> Network:
    """The installation's network for containers that stand alone: they reach the outside, and nobody of each other.

    Made when there is none, or none with an address left. Whoever makes it at the same time mostly ends with the same one. It may be gone
    before it is joined (see `release_shared`): `ContainerSpec.network == SHARED` goes on with another then.

    Args:
        engine: The engine.
        home: The installation.

    Raises:
        UnsupportedError: This engine can't keep containers of one network apart; see `network_for_one`.
        EngineFailedError: No address range is left.
    """
    if (await engine.info()).kind == "podman":
        raise UnsupportedError(
            "Podman can't keep the containers of one network apart", concerns=str(engine.endpoint), hint="give each a network of its own"
        )
    found = await _shared(engine, home)
    if found is None:
        labels = {HOME: home, KIND: "shared"}
        made = await _create(engine, f"agentenv-{home}-{secrets.token_hex(3)}", labels, prefix=_SHARED_PREFIX, options=_NO_TALK)
        found = await _shared(engine, home) or made
        if found.id != made.id:
            await objects.remove(engine, objects.Listed("network", made.id, made.name))
    return found


async def release_shared(engine: Engine, home: str, *, settled_seconds: float = 0.0) -> list[str]:
    """Removes the shared network of an installation that has no container on it any more, running or not. Harmless at any moment.

    Args:
        engine: The engine.
        home: The installation.
        settled_seconds: How old it must be; a younger one is waited for. Whoever made it is about to join it, and who collects again and
            again would take each one away from under it.

    Returns:
        The ids of what was removed: none, or one, or the further ones of an installation that had many containers.
    """
    gone = []
    for each in await objects.networks(engine, {HOME: home, KIND: "shared"}):
        if await _released(engine, home, each, settled_seconds):
            gone.append(each.id)
    return gone


async def _released(engine: Engine, home: str, network: objects.Listed, settled_seconds: float) -> bool:
    """Whether a network that nobody is on could be removed. A busy engine keeps one for a moment after its last container has gone."""
    for attempt in range(2, engine.limits.network_removals + 2):
        try:
            return await _idle(engine, home, network, settled_seconds) and await objects.remove(engine, network)
        except (EngineRefusedError, EngineFailedError):  # that, or somebody has joined it meanwhile
            await back_off(attempt, limits=engine.limits)
    return False


async def _idle(engine: Engine, home: str, network: objects.Listed, settled_seconds: float) -> bool:
    """Whether nobody is on a network, once it is as old as that."""

    async def looked() -> bool | None:
        if {network.id, network.name} & await _joined(engine, home):
            return False
        return True if not settled_seconds or await _age(engine, network.id) >= settled_seconds else None

    within = settled_seconds + engine.limits.engine_seconds
    return await poll(looked, within_seconds=within, what="the joining of a new network", limits=engine.limits)


async def _age(engine: Engine, network_id: str) -> float:
    """Seconds since a network was made, by the engine's own clock; of one that is gone, more than anybody asks for."""
    seen = await _look(engine, network_id)
    if seen is None:
        return math.inf
    async with engine.asking("asking for its time") as docker:
        now = str((await docker.system.info())["SystemTime"])
        return (datetime.fromisoformat(now) - datetime.fromisoformat(seen.made)).total_seconds()


async def _joined(engine: Engine, home: str) -> frozenset[str]:
    """Ids and names of the networks that the installation's containers are on, those too that have only been made or have stopped."""
    async with engine.asking("listing containers") as docker:
        found = await docker._query_json("containers/json", params={"all": "1", **objects.label_filter({HOME: home})})
        told = {str((each.get("HostConfig") or {}).get("NetworkMode") or "") for each in found}
        ends = [end for each in found for end in ((each.get("NetworkSettings") or {}).get("Networks") or {}).items()]
        return frozenset(told | {name for name, _ in ends} | {str((end or {}).get("NetworkID") or "") for _, end in ends})


async def network_for_one(engine: Engine, home: str, name: str, labels: Mapping[str, str]) -> Network:
    """Where a container that stands alone goes: the shared network, or one of its own where an engine can't keep that apart.

    Args:
        engine: The engine.
        home: The installation.
        name: Of a network of its own.
        labels: Of a network of its own, by which it is removed with its container.
    """
    try:
        return await shared_network(engine, home)
    except UnsupportedError:
        return await own_network(engine, name, labels)


async def can_be_joined(engine: Engine, network: Network) -> bool:
    """Whether a network is still there, and has an address left for another container."""
    found = await _look(engine, network.id)
    return found is not None and found.has_room


async def own_network(engine: Engine, name: str, labels: Mapping[str, str], *, internal: bool = False) -> Network:
    """A small network for containers that must talk with each other.

    Args:
        engine: The engine.
        name: For people; `id` is its identity.
        labels: The run, sandbox and installation that it belongs to.
        internal: Without a way to the outside. No fence against the host: its listeners are reached, and nothing is published.

    Raises:
        EngineFailedError: No address range is left.
    """
    return await _create(engine, name, {**labels, KIND: "own"}, prefix=_OWN_PREFIX, options={}, internal=internal)


async def join(engine: Engine, network: str, container_id: str, aliases: Sequence[str], *, concerns: str) -> None:
    """Puts a container on a further network. One that runs has to be changed for it, which takes longer.

    Args:
        engine: The engine.
        network: Its id, or a name.
        container_id: The container.
        aliases: Its further names there.
        concerns: The container's name, for messages.

    Raises:
        NotFoundError: There is no such network.
        EngineRefusedError: It can't join it.
    """
    body = {"Container": container_id, "EndpointConfig": {"Aliases": list(aliases)}}
    async with engine.asking(f"joining the network {network[:12]}", concerns=concerns) as docker:
        await docker._query_json(f"networks/{network}/connect", method="POST", data=body)


@dataclass(frozen=True, slots=True)
class _Seen:
    """A network as an engine tells of it."""

    network: Network
    made: str
    has_room: bool


async def _shared(engine: Engine, home: str) -> Network | None:
    """The oldest that has room, whoever asks, so that all agree."""
    listed = await objects.networks(engine, {HOME: home, KIND: "shared"})
    looks = await asyncio.gather(*(_look(engine, each.id) for each in listed))
    found = [seen for seen in looks if seen is not None and seen.has_room]
    return min(found, key=lambda seen: (seen.made, seen.network.id)).network if found else None


async def inspect(engine: Engine, network_id: str) -> tuple[Network, str] | None:
    """A network, and when it was made; None when there is none."""
    seen = await _look(engine, network_id)
    return None if seen is None else (seen.network, seen.made)


async def _look(engine: Engine, network_id: str) -> _Seen | None:
    try:
        async with engine.asking("looking at a network", concerns=network_id) as docker:
            return _seen(await docker._query_json(f"networks/{network_id}"))
    except NotFoundError:
        return None


def _seen(said: Mapping[str, Any]) -> _Seen:
    address = ((said.get("IPAM") or {}).get("Config") or [{}])[0]
    subnet = str(address.get("Subnet", ""))
    whole = ipaddress.ip_network(subnet) if subnet else None
    gateway = str(address.get("Gateway") or (next(whole.hosts()) if whole else ""))
    network = Network(str(said["Id"]), str(said["Name"]), subnet, gateway, said.get("Labels") or {})
    room = whole is None or whole.num_addresses - _NOT_FOR_CONTAINERS > len(said.get("Containers") or {})
    return _Seen(network, str(said.get("Created", "")), room)


async def _create(
    engine: Engine, name: str, labels: Mapping[str, str], *, prefix: int, options: Mapping[str, str], internal: bool = False
) -> Network:
    """The engine decides who has an address range: one that is taken is refused, and another is tried."""
    here = (await engine.info()).on_this_machine
    refusal: InfrastructureError | None = None
    for subnet in islice(ranges_beside(prefix, await _subnets(engine), routes() if here else ()), _TRIES):
        gateway = str(next(subnet.hosts()))
        body = {
            "Name": name,
            "CheckDuplicate": True,
            "Driver": "bridge",
            "Internal": internal,
            "EnableIPv6": False,
            "IPAM": {"Driver": "default", "Config": [{"Subnet": str(subnet), "Gateway": gateway}]},
            "Options": dict(options),
            "Labels": dict(labels),
        }
        try:
            async with engine.asking(f"making the network {name}", concerns=name) as docker:
                made = await docker._query_json("networks/create", method="POST", data=body)
                return Network(str(made["Id"]), name, str(subnet), gateway, labels)
        except EngineConflictError as error:
            refusal = error
    raise EngineFailedError(
        f"the network {name} could not be made: no address range of ours is free ({refusal or 'networks and routes lie in all'})",
        concerns=name,
        hint="remove unused networks: agent-env gc removes ours, `docker network ls` shows the others",
    )


async def _subnets(engine: Engine) -> list[ipaddress.IPv4Network]:
    """What every network of the engine has, whoever made it."""
    async with engine.asking("listing networks") as docker:
        found = await docker._query_json("networks")
        configs = [config for each in found for config in (each.get("IPAM") or {}).get("Config") or ()]
        whole = [ipaddress.ip_network(config["Subnet"], strict=False) for config in configs if config.get("Subnet")]
    return [each for each in whole if isinstance(each, ipaddress.IPv4Network)]


def ranges_beside(
    prefix: int, taken: Sequence[ipaddress.IPv4Network], ways: Sequence[ipaddress.IPv4Network]
) -> Iterator[ipaddress.IPv4Network]:
    """As `free_ranges`, with what this machine has a way to.

    A way to more than a whole range of ours is a VPN's, which leads everything there (0.0.0.0/1) or all private addresses (10.0.0.0/8):
    what lies nowhere in it goes first, and inside of it a network of ours, having the narrower way, is reached all the same.

    Args:
        prefix: How large.
        taken: What other networks of the engine have.
        ways: The networks that this machine has a way to.
    """
    yield from free_ranges(prefix, [*taken, *ways])
    narrow = [way for way in ways if not any(way != ours and ours.subnet_of(way) for ours in RANGES)]
    if len(narrow) < len(ways):
        yield from free_ranges(prefix, [*taken, *narrow])


def free_ranges(prefix: int, taken: Iterable[ipaddress.IPv4Network]) -> Iterator[ipaddress.IPv4Network]:
    """Ranges of ours that nothing lies in, in the order in which to try them.

    By chance, so that whoever asks at once does not ask for the same; small ones where a block of a shared one's size has been begun, so
    that whole ones remain.

    Args:
        prefix: How large: at least as long as that of a shared one.
        taken: What lies anywhere.
    """
    source = random.SystemRandom()
    begun: list[ipaddress.IPv4Network] = []
    whole: list[ipaddress.IPv4Network] = []
    for ours in RANGES:
        inside = _by_block(ours, [each for each in taken if each.overlaps(ours)])
        for block in ours.subnets(new_prefix=_SHARED_PREFIX):
            others = inside.get(int(block.network_address), ())
            if not others:
                whole.append(block)
            elif prefix > _SHARED_PREFIX:
                begun += [part for part in block.subnets(new_prefix=prefix) if not any(part.overlaps(other) for other in others)]
    yield from source.sample(begun, len(begun))
    for block in source.sample(whole, len(whole)):
        yield source.choice([*block.subnets(new_prefix=prefix)])


def _by_block(ours: ipaddress.IPv4Network, taken: Collection[ipaddress.IPv4Network]) -> Mapping[int, list[ipaddress.IPv4Network]]:
    """What lies in each block of a shared network's size: looking through everything for each block takes a second on a full machine."""
    size = 1 << (32 - _SHARED_PREFIX)
    found: dict[int, list[ipaddress.IPv4Network]] = {}
    for each in taken:
        first = max(int(each.network_address), int(ours.network_address)) // size * size
        last = min(int(each.broadcast_address), int(ours.broadcast_address))
        for start in range(first, last + 1, size):
            found.setdefault(start, []).append(each)
    return found


def routes(table: Path = _ROUTES) -> list[ipaddress.IPv4Network]:
    """The networks that this machine has a way to, without the default one; none where it does not tell."""
    try:
        lines = table.read_text().splitlines()[1:]
    except OSError:
        return []
    found = []
    for line in lines:
        fields = line.split()
        address, mask = (int.from_bytes(bytes.fromhex(fields[at]), "little") for at in (1, 7))
        if mask:
            found.append(ipaddress.IPv4Network((address, mask.bit_count())))
    return found
