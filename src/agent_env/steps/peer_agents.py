"""`peer_agents`: which agents an agent may speak to."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from agent_env_sdk.wire.agent_extensions import PEER_AGENTS, find
from pydantic import BaseModel, ConfigDict, Field

from agent_env.agents.contract import LiveAgent
from agent_env.documents.updates import ExtendMetadata, Json, Update
from agent_env.errors import Problem, UnsupportedError
from agent_env.steps.contract import EntityRef, OnResume, Plan, Run, Step, StepResult, apart
from agent_env.steps.fields import Texts

HEADERS = "headers"
"""A feature of cards: the agent sends what it is told of a peer's headers."""


class Peering(BaseModel):
    """An agent and whom it may speak to."""

    model_config = ConfigDict(frozen=True, extra="allow", defer_build=True)

    source_agent_name: str = Field(min_length=1)
    """The agent."""
    peer_agent_names: Texts = ()
    """The others; none takes away what it had."""


@dataclass(frozen=True, slots=True)
class Peered(StepResult):
    """Who may speak to whom now."""

    records: Sequence[Mapping[str, Json]]

    def updates(self) -> tuple[Update, ...]:
        """Adds them to what was recorded."""
        return (ExtendMetadata(("agent_peerings",), [dict(each) for each in self.records]),)

    def summary(self) -> str:
        """Each agent with its peers."""
        return "; ".join(f"{each['source_agent_name']} → {', '.join(each['peer_agent_names']) or 'nobody'}" for each in self.records)


class PeerAgents(Step, type="peer_agents"):
    """Tell agents which other agents they may speak to. Each table replaces what the agent had."""

    on_resume: ClassVar[OnResume] = OnResume.REPEAT
    entity_refs: ClassVar[tuple[EntityRef, ...] | None] = ()

    peerings: Annotated[tuple[Peering, ...], Field(min_length=1)]
    """Who may speak to whom: `source_agent_name`, `peer_agent_names`."""

    def problems(self, plan: Plan) -> Iterator[Problem]:
        """Each agent once, nobody with itself, and nobody twice; whoever is named is deployed before."""
        return apart(self._own_problems(), self._all_deployed(plan))

    def _own_problems(self) -> Iterator[Problem]:
        seen: set[str] = set()
        for index, each in enumerate(self.peerings):
            path = f".peerings[{index}]"
            yield from apart(_listed_once(each, path, seen), _not_itself(each, path), _nobody_twice(each, path))

    def _all_deployed(self, plan: Plan) -> Iterator[Problem]:
        names = {name for each in self.peerings for name in (each.source_agent_name, *each.peer_agent_names)}
        yield from undeployed(plan, self.id, names)

    async def execute(self, run: Run) -> Peered:
        """Looks at all of them first, and then tells all.

        Raises:
            PlacementError: An agent is not deployed.
            UnsupportedError: An agent takes no peers; nobody was told anything.
            UserError: A peer has no address that the agent could reach.
        """
        sources = {each.source_agent_name: await run.agent(each.source_agent_name) for each in self.peerings}
        for name, source in sources.items():
            if not await source.supports(PEER_AGENTS, "set"):
                raise UnsupportedError(f"agent {name!r} takes no peers: its card has no {PEER_AGENTS}", concerns=self.id)
        tables = {each.source_agent_name: await self._table(run, sources[each.source_agent_name], each) for each in self.peerings}
        async with asyncio.TaskGroup() as group:
            for name, source in sources.items():
                group.create_task(source.invoke(PEER_AGENTS, "set", {"peers": tables[name]}))
        return Peered([{"step_id": self.id, **each.model_dump(mode="json")} for each in self.peerings])

    async def _table(self, run: Run, source: LiveAgent, peering: Peering) -> list[dict[str, Json]]:
        extension = find(await source.card(), PEER_AGENTS)
        takes_headers = HEADERS in (((extension.params if extension else None) or {}).get("features") or ())
        return [await self._peer(run, peering.source_agent_name, name, takes_headers=takes_headers) for name in peering.peer_agent_names]

    async def _peer(self, run: Run, source: str, name: str, *, takes_headers: bool) -> dict[str, Json]:
        access = await run.peer_access(source, name)
        card = run.agent_record(name).a2a_card or {}
        told: dict[str, Json] = {"name": name, "url": access.url, "card": card}
        if card.get("description"):
            told["description"] = card["description"]
        if takes_headers and access.headers:
            told["headers"] = dict(access.headers)
        return told


def _listed_once(peering: Peering, path: str, seen: set[str]) -> Iterator[Problem]:
    if peering.source_agent_name in seen:
        yield Problem(f"agent {peering.source_agent_name!r} is listed twice", path=f"{path}.source_agent_name")
    seen.add(peering.source_agent_name)


def _not_itself(peering: Peering, path: str) -> Iterator[Problem]:
    if peering.source_agent_name in peering.peer_agent_names:
        yield Problem(f"agent {peering.source_agent_name!r} can't be its own peer", path=f"{path}.peer_agent_names")


def _nobody_twice(peering: Peering, path: str) -> Iterator[Problem]:
    for twice in sorted({name for name in peering.peer_agent_names if peering.peer_agent_names.count(name) > 1}):
        yield Problem(f"the peer {twice!r} is listed twice", path=f"{path}.peer_agent_names")


def undeployed(plan: Plan, step_id: str, names: set[str]) -> Iterator[Problem]:
    """Agents that no earlier step deploys."""
    kinds = ("deploy_agent", "install_agent", "deploy_human_agent")
    known = {str(each.get("agent_name")) for each in plan.preset("deployed_agents")}
    for name in sorted(names - known):
        if not any(plan.deployers(step_id, kind, agent_name=name) for kind in kinds):
            yield Problem(f"no step before deploys the agent {name!r}", hint="add it to depends_on, or deploy it first")
