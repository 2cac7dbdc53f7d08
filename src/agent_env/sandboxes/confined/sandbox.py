"""Handles on confined sandboxes, and what their records tell."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Protocol

from agent_env.documents.network import NetworkPolicy
from agent_env.places import Place, Published
from agent_env.places.endpoint import LOOPBACK
from agent_env.sandboxes.confined.place import ConfinedPlace
from agent_env.sandboxes.confined.records import Facts
from agent_env.sandboxes.contract import Level, SandboxInfo

if TYPE_CHECKING:
    from agent_env.keeper import Watch


class Lead(Protocol):
    """Has ports of a place's own loopback lead to this machine's, or be led to; see `Life.lead`."""

    def __call__(self, sandbox_id: str, *, leads: Mapping[int, int] = ..., answers: Mapping[int, int] = ...) -> Awaitable[None]: ...


class RecordedSandbox:
    """What a live handle tells of its sandbox from the record alone."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    @property
    def info(self) -> SandboxInfo:
        """What the journal keeps of it."""
        return info_of(self._facts)

    @property
    def levels(self) -> Mapping[str, Level]:
        """How each limit holds in it."""
        return {name: Level(value) for name, value in self._facts.levels.items()}

    @property
    def published(self) -> Published:
        """Its ports, on this machine's loopback."""
        ports = {int(served): int(port) for served, port in self._facts.ports.items()}
        return Published({served: f"http://{LOOPBACK}:{port}" for served, port in ports.items()}, ports, (LOOPBACK,))

    @property
    def network(self) -> NetworkPolicy:
        """The policy in force."""
        return NetworkPolicy.model_validate(self._facts.network.get("policy", {}))


class ConfinedSandbox(RecordedSandbox):
    """A sandbox with one place of its own, until its handle is closed."""

    def __init__(self, facts: Facts, place: ConfinedPlace, *, watch: Watch | None, lead: Lead) -> None:
        super().__init__(facts)
        self._place = place
        self._keeper = watch
        self._lead = lead

    async def machine(self) -> Place:
        """The place."""
        return self._place

    async def lead_to_host(self, ports: Mapping[int, int]) -> None:
        """Makes ports of this machine's loopback answer on the place's own; see `contract.LeadsToHost`."""
        await self._lead(self._facts.sandbox_id, leads=ports)

    def report_to(self, tell: Callable[[Mapping[str, object]], None]) -> None:
        """Tells what the place was refused to reach, from now on and what was not told yet."""
        if self._keeper is not None:
            self._keeper.start(tell)

    async def aclose(self) -> None:
        """Lets go of the connection; the sandbox goes on."""
        if self._keeper is not None:
            await self._keeper.aclose()
        await self._place.aclose()


def info_of(facts: Facts) -> SandboxInfo:
    """A record as the journal keeps it."""
    data = {field.name: getattr(facts, field.name) for field in fields(facts) if field.name not in {"sandbox_id", "labels"}}
    return SandboxInfo(facts.sandbox_id, dict(facts.labels), facts.alive, data)
