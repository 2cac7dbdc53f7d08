"""`deploy_human_agent`: a person, or whoever answers in a person's place, as an agent without a sandbox."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from agent_env_sdk.wire.a2a import A2A_PATH, V0_3
from pydantic import Field

from agent_env.documents.records import DeployedAgent
from agent_env.documents.updates import AppendRecord, ExtendMetadata, Json, Update
from agent_env.errors import DeadlineError, InfrastructureError, Problem, UserError
from agent_env.steps.contract import EntityRef, OnResume, Plan, Run, Step, StepResult, apart
from agent_env.steps.fields import OptionalName
from agent_env.waiting import deadline

DEFAULT_NAME = "human_agent"


@dataclass(frozen=True, slots=True)
class HumanDeployed(StepResult):
    """Somebody who can be spoken to."""

    step_id: str
    record: DeployedAgent

    def updates(self) -> Iterator[Update]:
        """The record, and whose address it is."""
        yield AppendRecord("deployed_agents", self.record.to_json())
        told = {"step_id": self.step_id, "agent_name": self.record.agent_name, "a2a_url": self.record.a2a_url}
        yield ExtendMetadata(("human_agents",), [told])

    def summary(self) -> str:
        """Who, and where."""
        return f"{self.record.agent_name}: {self.record.a2a_url}"


class DeployHumanAgent(Step, type="deploy_human_agent"):
    """Make somebody outside known as an agent: a person behind a chat, or a service that speaks A2A. Nothing is started."""

    on_resume: ClassVar[OnResume] = OnResume.REPEAT
    entity_refs: ClassVar[tuple[EntityRef, ...] | None] = ()
    user_fields: ClassVar[frozenset[str]] = frozenset({"a2a_url"})

    agent_name: str = Field(default=DEFAULT_NAME, min_length=1)
    """The name that later steps use."""
    a2a_url: OptionalName = None
    """Its address; absent: `conversations.default_human_a2a_url` of the configuration, with `/instance/<this run's instance>`."""

    def problems(self, plan: Plan) -> Iterator[Problem]:
        """One a task; its name is its own."""
        return apart(self._only_one(plan), self._own_name(plan))

    def _only_one(self, plan: Plan) -> Iterator[Problem]:
        others = plan.deployers(self.id, self.type_name)
        if others:
            yield Problem(f"step {others[0].id!r} deploys a human agent already", hint="a run has one")

    def _own_name(self, plan: Plan) -> Iterator[Problem]:
        for type in ("deploy_agent", "install_agent"):
            for other in plan.deployers(self.id, type, agent_name=self.agent_name):
                yield Problem(f"Agent {self.agent_name!r} is already deployed by step {other.id!r}", path=".agent_name")

    async def execute(self, run: Run) -> HumanDeployed:
        """Looks whether it has a card, and goes on without one.

        Raises:
            UserError: There is one already, or no address is known.
        """
        if any(each.get("agent_name") == self.agent_name for each in run.context.get("deployed_agents") or ()):
            raise UserError(f"Agent with name {self.agent_name!r} is already deployed", concerns=self.id)
        if run.metadata.get("human_agents"):
            raise UserError("a human agent is already deployed", concerns=self.id, hint="a run has one")
        url = self.a2a_url or self._configured(run)
        record = DeployedAgent(agent_name=self.agent_name, api_url=url, a2a_url=url)
        return HumanDeployed(self.id, record.model_copy(update={"a2a_card": await self._card(run, record)}))

    def _configured(self, run: Run) -> str:
        base = run.human_url
        if not base:
            raise UserError(
                "no address of a human agent is known",
                concerns=self.id,
                hint="set a2a_url, or conversations.default_human_a2a_url in the configuration (AGENT_ENV_HUMAN_A2A_URL)",
            )
        return f"{base.rstrip('/')}/instance/{run.instance_id}"

    async def _card(self, run: Run, record: DeployedAgent) -> Mapping[str, Json]:
        agent = await run.agent_at(record)
        try:
            async with deadline(run.limits.human_card_seconds, "the human agent's card"):
                card = (await agent.card()).to_json()
        except (InfrastructureError, DeadlineError) as error:
            run.progress(f"no card of {self.agent_name}: {error}")
            card = {
                "name": self.agent_name,
                "description": "A person.",
                "version": "",
                "url": A2A_PATH,
                "protocolVersion": V0_3,
                "capabilities": {},
                "defaultInputModes": ["text/plain"],
                "defaultOutputModes": ["text/plain"],
                "skills": [],
            }
        return card
