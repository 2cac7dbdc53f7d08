"""What all attempts of one run share in this process: its stores, its sandboxes, and what is made on first need."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from agent_env.agents.settings import AgentSettings
from agent_env.clock import Clock
from agent_env.config.values import ModelConfig
from agent_env.defaults import Limits
from agent_env.documents.records import DeployedEnvironment
from agent_env.documents.spelling import near
from agent_env.documents.updates import Json
from agent_env.engine.context import FrozenDict
from agent_env.engine.events import EventStream
from agent_env.engine.networks import OwnNetworks
from agent_env.engine.options import Stores
from agent_env.engine.sandboxes import Sandboxes
from agent_env.environments.settings import EnvironmentSettings
from agent_env.errors import PlacementError
from agent_env.steps.contract import Decision
from agent_env.stores.records import Lease

if TYPE_CHECKING:
    from agent_env.engine.agents import Agents
    from agent_env.engine.environments import Environments
    from agent_env.engine.models import RunModels
    from agent_env.redaction import Redactor


@dataclass
class Shared:
    """What all attempts of one run have in common."""

    run_id: str
    task_id: str
    instance_id: str
    lease: Lease
    stores: Stores
    sandboxes: Sandboxes
    events: EventStream
    redactor: Redactor
    limits: Limits
    clock: Clock
    state_root: Path
    context: Callable[[], FrozenDict]
    overrides: Mapping[str, Json]
    """`user_overrides` with the secrets that are never stored."""
    quiesce: str | None = None
    """The configuration's word for verifiers that have none of their own."""
    privileges: frozenset[str] = frozenset()
    """What this user's configuration grants the containers of tasks (`sandbox.container_privileges`)."""
    environments: EnvironmentSettings = field(default_factory=EnvironmentSettings)
    agents: AgentSettings = field(default_factory=AgentSettings)
    networks: OwnNetworks = field(default_factory=OwnNetworks)
    model_settings: ModelConfig = field(default_factory=ModelConfig)
    reviews: dict[str, asyncio.Future[Decision]] = field(default_factory=dict)
    """Questions that wait for an answer, by step."""
    ruled: dict[str, str] = field(default_factory=dict)
    """Lone servers that this process told their rules of tools, and in which life."""
    carried: dict[str, str] = field(default_factory=dict)
    """Containers of agents that this process had the keeper carry for, and in which life."""
    leading: dict[str, asyncio.Lock] = field(default_factory=dict)
    """Of each place of an agent: one at a time changes what is led to it."""
    _live: list[Environments] = field(default_factory=list)
    _agents: list[Agents] = field(default_factory=list)
    _models: list[RunModels] = field(default_factory=list)

    def live_environments(self) -> Environments:
        """The run's environments, made on first need."""
        if not self._live:
            from agent_env.engine.environments import Environments

            self._live.append(Environments(self))
        return self._live[0]

    def live_agents(self) -> Agents:
        """The run's agents, made on first need."""
        if not self._agents:
            from agent_env.engine.agents import Agents

            self._agents.append(Agents(self))
        return self._agents[0]

    def models(self) -> RunModels:
        """What the run may ask of models, made on first need."""
        if not self._models:
            from agent_env.engine.models import RunModels

            self._models.append(RunModels(self))
        return self._models[0]

    def environment_record(self, env_id: str, step_id: str | None = None) -> DeployedEnvironment:
        """The record of the deployed environment of that id (by that step). Raises `PlacementError` that lists what is deployed."""
        return DeployedEnvironment.read(recorded(self.context(), "deployed_envs", "env_id", env_id, "environment", step_id=step_id))

    async def let_go(self) -> None:
        """Lets go of everything that this process holds of the run's places; they go on."""
        for agents in self._agents:
            await agents.aclose()
        for live in self._live:
            await live.aclose()
        for models in self._models:
            await models.aclose()
        await self.sandboxes.aclose()

    def look_for_answer(self, step_id: str) -> None:
        """Hands a decision that reached the database to the step that waits for it."""
        waiting = self.reviews.get(step_id)
        asked = self.stores.journal.review(self.run_id, step_id)
        if waiting is not None and not waiting.done() and asked is not None and asked.decision is not None:
            decision: Literal["continue", "abort"] = "abort" if asked.decision == "abort" else "continue"
            waiting.set_result(Decision(decision, asked.decided_by or ""))


def recorded(
    context: Mapping[str, Json], collection: str, key: str, name: str, what: str, *, step_id: str | None = None
) -> Mapping[str, Json]:
    """A record of a run's context.

    Raises:
        PlacementError: There is none; lists what is deployed.
    """
    records = context.get(collection) or ()
    for record in records:
        if record.get(key) == name and (step_id is None or (record.get("metadata") or {}).get("deploy_step_id") == step_id):
            found: Mapping[str, Json] = record
            return found
    known = sorted({str(record.get(key)) for record in records})
    meant = near(name, known)
    raise PlacementError(
        f"{what} {name!r} is not deployed (deployed: {known})", concerns=name, hint=f"did you mean {meant!r}?" if meant else None
    )
