"""`snapshot_agent_state` and `restore_agent_state`: an agent's conversation and workspace as an artifact, and back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Self

from agent_env_sdk.wire.agent_extensions import SNAPSHOT
from pydantic import Field, model_validator

from agent_env.documents.updates import ExtendMetadata, Json, SetMetadata, Update
from agent_env.errors import NotFoundError, Problem, TaskError
from agent_env.ids import derive_id, fs_safe
from agent_env.steps import agent_states
from agent_env.steps.contract import EntityRef, OnResume, Plan, Run, Step, StepResult
from agent_env.steps.fields import OptionalName, Seconds, Whole
from agent_env.steps.targets import DEFAULT_AGENT, AgentTarget


@dataclass(frozen=True, slots=True)
class StateSaved(StepResult):
    """The artifact, or why there is none."""

    record: Mapping[str, Json] | None
    services: Mapping[str, str]
    remark: str

    def updates(self) -> Iterator[Update]:
        """Adds it to the run's snapshots."""
        if self.record is not None:
            yield ExtendMetadata(("agent_snapshots",), [dict(self.record)])
        if self.services:
            yield SetMetadata(("snapshot_json_url",), json.dumps(dict(self.services)))

    def summary(self) -> str:
        """Which artifact."""
        return self.remark


class SnapshotAgentState(Step, type="snapshot_agent_state"):
    """Save an agent's conversation and workspace as an artifact, from which `restore_agent_state` goes on, in the same agent or another."""

    on_resume: ClassVar[OnResume] = OnResume.REPEAT
    entity_refs: ClassVar[tuple[EntityRef, ...] | None] = (
        EntityRef("env", "env_id"),
        EntityRef("artifact", "artifact_id", role="output"),
        EntityRef("artifact", "universe_artifact_id"),
    )

    prompt_id: str = Field(min_length=1)
    """Whose conversation."""
    agent_name: OptionalName = None
    """The agent; absent: the one that answered the prompt."""
    artifact_id: OptionalName = None
    """The artifact; by default one of this run and step, and then an agent that can't save is passed over."""
    env_id: OptionalName = None
    """With `universe_artifact_id`: also export what this environment's servers hold."""
    universe_artifact_id: OptionalName = None
    """The universe that the environment was loaded with."""
    timeout_seconds: Seconds | None = 120.0
    """Limit of the agent's saving."""

    @property
    def deadline_seconds(self) -> float | None:
        """None: the limit is the agent's."""
        return None

    def problems(self, plan: Plan) -> Iterator[Problem]:
        """An environment's data needs both names."""
        del plan
        if bool(self.env_id) != bool(self.universe_artifact_id):
            yield Problem("env_id and universe_artifact_id go together", path=".env_id")

    async def execute(self, run: Run) -> StateSaved:
        """Has the agent save, and keeps what it saved.

        Raises:
            NotFoundError: There is no answer to that prompt.
            TaskError: The answer tells no conversation.
            AgentNotAdvertisedError: The agent can't save, and an artifact was named.
            InfrastructureError: It could not.
        """
        answer = _answer(run, self.prompt_id, self.id)
        context_id = answer.get("a2a_context_id")
        if not context_id:
            raise TaskError(f"the answer to the prompt {self.prompt_id!r} tells no conversation", concerns=self.id)
        name = self.agent_name or str(answer.get("agent_name") or DEFAULT_AGENT)
        agent = await run.agent(name)
        if self.artifact_id is None and not await agent.supports(SNAPSHOT, "save"):
            return StateSaved(None, {}, f"agent {name} can't save its state")
        id = self.artifact_id or derive_id(run.instance_id, f"{fs_safe(self.id)}-agent-state")
        seconds = self.timeout_seconds or agent_states.LOAD_SECONDS
        told = await agent_states.saved(run, agent, context_id, id, run.scratch() / "state", seconds=seconds)
        record = {**told, "source_agent_name": name, "capture_step_id": self.id}
        return StateSaved(record, await self._services(run), f"{told['id']} v{told['version']}")

    async def _services(self, run: Run) -> dict[str, str]:
        """What the environment's servers hold: server → object."""
        from agent_env.steps.snapshot_env import SnapshotEnv

        if not (self.env_id and self.universe_artifact_id):
            return {}
        exporting = SnapshotEnv(id=self.id, env_id=self.env_id)
        saved = await exporting.exported(run, await run.environment(self.env_id), run.scratch() / "export")
        urls = {}
        for name, file in saved.items():
            urls[name] = (await asyncio.to_thread(run.objects.put_file, file.path, media_type="application/json")).url
        return urls


@dataclass(frozen=True, slots=True)
class StateRestored(StepResult):
    """Under which id the conversation goes on."""

    record: Mapping[str, Json]

    def updates(self) -> tuple[Update, ...]:
        """Adds it to what was taken up."""
        return (ExtendMetadata(("agent_loaded_snapshots",), [dict(self.record)]),)

    def summary(self) -> str:
        """Who goes on with what."""
        return f"{self.record['agent_name']}: {self.record['source_artifact_id']} as {self.record['context_id']}"


class RestoreAgentState(Step, type="restore_agent_state"):
    """Have a deployed agent take up a saved state: the conversation, and the workspace in place of its own."""

    on_resume: ClassVar[OnResume] = OnResume.REPEAT
    entity_refs: ClassVar[tuple[EntityRef, ...] | None] = (EntityRef("artifact", "artifact_id", version_field="artifact_version"),)

    agent_name: str = Field(default=DEFAULT_AGENT, min_length=1)
    """The agent."""
    artifact_id: OptionalName = None
    """The saved state."""
    artifact_version: Annotated[Whole, Field(ge=1)] | None = None
    """Its version; the newest when absent."""
    snapshot_step_id: OptionalName = None
    """Or the step of this run that saved it."""
    context_id: OptionalName = None
    """Under which id the conversation goes on; absent: its own. `prompt_agent` continues it with this `context_id`."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if bool(self.artifact_id) == bool(self.snapshot_step_id):
            raise ValueError("needs artifact_id or snapshot_step_id, and not both")
        return self

    @property
    def target(self) -> AgentTarget:
        """The agent."""
        return AgentTarget(self.agent_name)

    def problems(self, plan: Plan) -> Iterator[Problem]:
        """The step that saves comes before, or the artifact exists."""
        if self.snapshot_step_id:
            step = plan.step(self.snapshot_step_id)
            if step is None or step.type_name != SnapshotAgentState.type_name or step not in plan.before(self.id):
                yield Problem(f"no snapshot_agent_state {self.snapshot_step_id!r} comes before", path=".snapshot_step_id")
        elif plan.artifacts is not None and plan.artifact(str(self.artifact_id), self.artifact_version) is None:
            makers = [step for step in plan.before(self.id) if getattr(step, "artifact_id", None) == self.artifact_id]
            if not any(isinstance(step, SnapshotAgentState) for step in makers):
                yield Problem(f"artifact {self.artifact_id!r} does not exist", path=".artifact_id")

    async def execute(self, run: Run) -> StateRestored:
        """Hands the state over.

        Raises:
            NotFoundError: There is no such state.
            UserError: The artifact is no agent's state.
            AgentNotAdvertisedError: The agent can't take one up.
            InfrastructureError: It could not.
        """
        id, version = self._source(run)
        agent = await run.agent(self.agent_name)
        told = await agent_states.restored(run, agent, id, version, context_id=self.context_id, concerns=self.id)
        return StateRestored({**told, "agent_name": self.agent_name})

    def _source(self, run: Run) -> tuple[str, int | None]:
        if self.artifact_id:
            return self.artifact_id, self.artifact_version
        saved = [each for each in run.metadata.get("agent_snapshots") or () if each.get("capture_step_id") == self.snapshot_step_id]
        if not saved:
            raise NotFoundError(f"step {self.snapshot_step_id!r} saved no state", concerns=self.id)
        return str(saved[-1]["id"]), int(saved[-1]["version"])


def _answer(run: Run, prompt_id: str, concerns: str) -> Mapping[str, Json]:
    known = run.context.get("prompt_responses") or ()
    found = next((each for each in known if each.get("prompt_id") == prompt_id), None)
    if found is None:
        names = sorted(str(each.get("prompt_id")) for each in known)
        raise NotFoundError(f"there is no answer to the prompt {prompt_id!r} (there are {names})", concerns=concerns)
    return dict(found)
