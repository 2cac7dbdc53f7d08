"""A live handle on a sandbox that is a container, and the containers of one sandbox, each connected once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from agent_env.documents.network import NetworkPolicy
from agent_env.errors import (
    ContainerNotRunningError,
    PlaceLostError,
    PlacementError,
    SandboxUnavailableError,
    SupersededError,
    UnsupportedError,
    UsageError,
)
from agent_env.places import Place, Published
from agent_env.places.endpoint import LOOPBACK
from agent_env.sandboxes.confined.records import Facts
from agent_env.sandboxes.contract import Level, SandboxInfo

if TYPE_CHECKING:
    from agent_env.containers import ContainerPlace, Engine, ExecPlace, Listed
    from agent_env.keeper import Watch

Lead = Callable[[str, Place, Mapping[int, int]], Awaitable[None]]
CONTAINER_MARKER = ".agent-container-mode"


def container_name(sandbox_id: str) -> str:
    """The name of the container that a sandbox is: for people and other tools, never its identity."""
    return f"agent-{sandbox_id}"


class Family:
    """The containers of one sandbox.

    Args:
        engine: Where they are.
        facts: The sandbox.
        token: The sandbox's; every container of it has the same.
        epoch: The caller's.
        relay_token: What a container lets relays in by: given its role, none for the sandbox's own.
        own: The place of its own container, if that is connected already.
        reduced: Its own container is taken also if our helper is not in it, or has another token.
        secrets: What each container was told in confidence, by its id, should it have been started again.
    """

    def __init__(
        self,
        engine: Engine,
        facts: Facts,
        *,
        token: str,
        epoch: int,
        relay_token: Callable[[str], str] = lambda _: "",
        own: Place | None = None,
        reduced: bool = False,
        secrets: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        self.engine = engine
        self._facts = facts
        self._token = token
        self._epoch = epoch
        self._relay_token = relay_token
        self._reduced = reduced
        self._secrets = {} if secrets is None else secrets
        self._places: dict[str, Place] = {own.id: own} if own is not None else {}
        self._locks: dict[str, asyncio.Lock] = {}

    async def place(self, container_id: str) -> Place:
        """The place of one, connected.

        Raises:
            ContainerNotRunningError: It is not running, or is gone; the message lists what runs.
            PlacementError: It is another sandbox's.
            SupersededError: A later owner has it.
        """
        async with self._locks.setdefault(container_id, asyncio.Lock()):
            if container_id not in self._places:
                try:
                    place = await self._attached(container_id)
                except PlaceLostError as error:
                    raise await self._gone(container_id, error) from error
                self._places[container_id] = place
            return self._places[container_id]

    async def _attached(self, container_id: str) -> ContainerPlace | ExecPlace:
        from agent_env.containers import reduced
        from agent_env.containers.container import known, reached
        from agent_env.containers.spec import ROLE, SANDBOX

        own = container_id == self._facts.container_id
        try:
            facts = await known(self.engine, container_id)
            relayed = self._relay_token("" if own else facts.labels.get(ROLE, ""))
            told = self._secrets.get(container_id, {})
            place = await reached(self.engine, facts, token=self._token, epoch=self._epoch, secrets=told, relay_token=relayed)
        except (PlaceLostError, ContainerNotRunningError, SupersededError):
            raise
        except (UsageError, SandboxUnavailableError):
            if own and (self._reduced or self._facts.maker == {}):  # made elsewhere: no helper of ours, or one that knows another key
                return await reduced(self.engine, container_id)
            raise
        if place.labels.get(SANDBOX) != self._facts.sandbox_id:
            await place.aclose()
            raise PlacementError(f"the container {place.name!r} is not one of sandbox {self._facts.sandbox_id}", concerns=place.name)
        return place

    async def _gone(self, container_id: str, error: PlaceLostError) -> Exception:
        from agent_env.containers.spec import SANDBOX
        from agent_env.containers.state import not_running

        name = self._facts.container_name if container_id == self._facts.container_id else None
        known = {**self._facts.labels, SANDBOX: self._facts.sandbox_id}
        return await not_running(self.engine, container_id, name or container_id[:12], otherwise=error, known=known)

    async def aclose(self) -> None:
        """Lets go of every connection; the containers go on."""
        while self._places:
            _, place = self._places.popitem()
            await place.aclose()


class ContainerSandbox:
    """A sandbox of this machine that is one container."""

    def __init__(self, facts: Facts, place: Place, family: Family, *, watch: Watch | None = None, lead: Lead) -> None:
        self._facts = facts
        self._place = place
        self._family = family
        self._keeper = watch
        self._lead = lead
        self._ports = _ports(facts, place)

    @property
    def info(self) -> SandboxInfo:
        """What the journal keeps of it."""
        return container_info(self._facts, alive=True)

    @property
    def levels(self) -> Mapping[str, Level]:
        """How the engine holds each limit in it."""
        return {name: Level(value) for name, value in self._facts.levels.items()}

    @property
    def published(self) -> Published:
        """Its ports on this machine's loopback, as the engine has them."""
        return Published({served: f"http://{LOOPBACK}:{port}" for served, port in self._ports.items()}, self._ports, (LOOPBACK,))

    @property
    def network(self) -> NetworkPolicy:
        """The policy in force."""
        return NetworkPolicy.model_validate(self._facts.network["policy"])

    @property
    def work_dir(self) -> Path:
        """Its folder on this machine, which holds the marker and our own files alone."""
        return Path(self._facts.work_dir)

    @property
    def container_name(self) -> str:
        """Its container's name."""
        return container_name(self._facts.sandbox_id)

    async def machine(self) -> Place:
        """There is none: the sandbox is its container.

        Raises:
            UnsupportedError: Always.
        """
        raise UnsupportedError(
            f"sandbox {self._facts.sandbox_id} is the container {self.container_name!r}; it has no machine of its own",
            concerns=self._facts.sandbox_id,
            hint="deploy one with sandbox_mode 'vm' for what needs a machine",
        )

    async def container(self, container_id: str) -> Place:
        """A container of this sandbox, by id."""
        return await self._family.place(container_id)

    async def engine(self) -> Engine:
        """The engine that its container runs in."""
        return self._family.engine

    async def lead_to_host(self, ports: Mapping[int, int]) -> None:
        """Makes ports of this machine's loopback answer on the container's own; see `contract.LeadsToHost`.

        Raises:
            UnsupportedError: The container is not of our making, so nothing of ours is in it that could.
        """
        from agent_env.containers import ContainerPlace

        if not isinstance(self._place, ContainerPlace):
            raise UnsupportedError(f"the container {self.container_name!r} has no helper of ours", concerns=self._facts.sandbox_id)
        await self._lead(self._facts.sandbox_id, self._place, ports)

    def report_to(self, tell: Callable[[Mapping[str, object]], None]) -> None:
        """Tells what it was refused to reach, from now on and what was not told yet."""
        if self._keeper is not None:
            self._keeper.start(tell)

    async def aclose(self) -> None:
        """Lets go of connections; the container goes on."""
        if self._keeper is not None:
            await self._keeper.aclose()
        await self._family.aclose()


def container_info(facts: Facts, *, alive: bool) -> SandboxInfo:
    """A record as the journal keeps it."""
    data = {name: getattr(facts, name) for name in Facts.__dataclass_fields__ if name not in {"sandbox_id", "labels"}}
    return SandboxInfo(facts.sandbox_id, dict(facts.labels), alive, data)


def listed_info(listed: Listed) -> SandboxInfo | None:
    """What an engine's object tells of a sandbox; None where it is nobody's alone."""
    from agent_env.containers.spec import SANDBOX

    sandbox_id = listed.labels.get(SANDBOX)
    if not sandbox_id:
        return None
    labels = {name: value for name, value in listed.labels.items() if name != "agentenv.told"}
    own = listed.kind == "container" and listed.name == container_name(sandbox_id)
    return SandboxInfo(sandbox_id, labels, own and listed.state == "running", {"container_id": listed.id} if own else {})


def _ports(facts: Facts, place: Place) -> dict[int, int]:
    """As the engine says by the container's id; what the record says where that is not to be had."""
    known = getattr(place, "ports", None)
    return dict(known) if known else {int(served): int(port) for served, port in facts.ports.items()}
