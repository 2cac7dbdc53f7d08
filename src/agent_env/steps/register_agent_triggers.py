"""`register_agent_triggers`: what a simulated user says by rule, without a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, cast

from agent_env_sdk.wire.agent_extensions import TRIGGERS
from pydantic import Field

from agent_env.documents.updates import ExtendMetadata, Json, Update
from agent_env.errors import Problem, UnsupportedError, UserError
from agent_env.steps.contract import EntityRef, OnResume, Plan, Run, Step, StepResult, apart
from agent_env.steps.targets import DEFAULT_AGENT

if TYPE_CHECKING:
    from agent_env.steps.register_env_triggers import RegisterEnvTriggers


@dataclass(frozen=True, slots=True)
class Registered(StepResult):
    """Which triggers were added."""

    record: Mapping[str, Json]

    def updates(self) -> tuple[Update, ...]:
        """Adds it to what was registered."""
        return (ExtendMetadata(("agent_trigger_registrations",), [dict(self.record)]),)

    def summary(self) -> str:
        """Their ids."""
        return ", ".join(map(str, self.record["added"])) or "nothing new"


class RegisterAgentTriggers(Step, type="register_agent_triggers"):
    """Register rules with an agent that plays a user: what it says, and when it ends the conversation, without a model."""

    on_resume: ClassVar[OnResume] = OnResume.REPEAT
    entity_refs: ClassVar[tuple[EntityRef, ...] | None] = ()

    agent_name: str = Field(default=DEFAULT_AGENT, min_length=1)
    """The deployed agent that plays the user."""
    triggers: Annotated[tuple[dict[str, Any], ...], Field(min_length=1)]
    """Rules: `id`, `once`, `when` (`step`, `env_trigger`, `conversational`, `all`, `any`) and `actions` (`say`, `end`)."""

    def problems(self, plan: Plan) -> Iterator[Problem]:
        """Ids must be unique; an environment's trigger that a rule waits for must be registered before."""
        return apart(self._listed_once(), self._registered(plan))

    def _listed_once(self) -> Iterator[Problem]:
        ids = [str(each["id"]) for each in self.triggers if each.get("id")]
        for twice in sorted({id for id in ids if ids.count(id) > 1}):
            yield Problem(f"the trigger {twice!r} is listed twice", path=".triggers")

    def _registered(self, plan: Plan) -> Iterator[Problem]:
        registered = {
            (step.env_id, str(trigger.get("id")))
            for step in map(_of_environments, plan.before(self.id))
            if step is not None
            for trigger in step.triggers
        }
        for env_id, trigger_id in env_triggers(self.triggers):
            if registered and (env_id, trigger_id) not in registered:
                known = ", ".join(sorted(id for env, id in registered if env == env_id)) or "none"
                hint = f"registered before: {known}"
                yield Problem(f"no step before registers the trigger {trigger_id!r} of environment {env_id!r}", path=".triggers", hint=hint)

    async def execute(self, run: Run) -> Registered:
        """Registers all of them or none.

        Raises:
            UnsupportedError: The agent takes no triggers.
            UserError: A rule waits for what no environment of the run does.
            AgentFailedError: The agent refuses a rule.
        """
        agent = await run.agent(self.agent_name)
        if not await agent.supports(TRIGGERS, "register"):
            raise UnsupportedError(f"agent {self.agent_name!r} takes no triggers: its card has no {TRIGGERS}", concerns=self.id)
        self._check_references(run)
        answer = await agent.invoke(TRIGGERS, "register", {"triggers": [dict(each) for each in self.triggers]})
        added = answer.get("added") if isinstance(answer, Mapping) else None
        return Registered({"step_id": self.id, "agent_name": self.agent_name, "added": list(added or ())})

    def _check_references(self, run: Run) -> None:
        deployed = {str(each.get("env_id")) for each in run.context.get("deployed_envs") or ()}
        registered = {
            (str(entry.get("env_id")), str(id))
            for entry in run.metadata.get("env_trigger_registrations") or ()
            for id in entry.get("added") or ()
        }
        for env_id, trigger_id in env_triggers(self.triggers):
            if env_id not in deployed:
                raise UserError(f"environment {env_id!r} is not deployed", concerns=self.id, hint=f"deployed: {sorted(deployed)}")
            if (env_id, trigger_id) not in registered:
                known = sorted(id for env, id in registered if env == env_id)
                raise UserError(f"environment {env_id!r} has no trigger {trigger_id!r}", concerns=self.id, hint=f"registered: {known}")


def env_triggers(rules: Any) -> Iterator[tuple[str, str]]:
    """The environments' triggers that rules wait for, however deep: `(env_id, trigger_id)`."""
    for rule in rules:
        yield from _conditions(rule.get("when"))


def _conditions(when: Json) -> Iterator[tuple[str, str]]:
    if not isinstance(when, Mapping):
        return
    if when.get("type") == "env_trigger":
        yield str(when.get("env_id")), str(when.get("trigger_id"))
    for inner in when.get("of") or ():
        yield from _conditions(inner)


def _of_environments(step: Step) -> RegisterEnvTriggers | None:
    return cast("RegisterEnvTriggers", step) if step.type_name == "register_env_triggers" else None
