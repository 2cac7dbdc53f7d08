"""`prompt_agent`: something is asked of a deployed agent, and its answer kept."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self

from agent_env_sdk.wire.encoding import json_bytes
from agent_env_sdk.wire.parts import Part, TextPart
from pydantic import Field, TypeAdapter, ValidationError, field_validator, model_validator

from agent_env.agents.contract import LiveAgent, Outgoing
from agent_env.agents.endings import AGENT, INFRASTRUCTURE, failure_of, message_of, whose
from agent_env.broker.contract import Refusal
from agent_env.documents.records import PromptResponse
from agent_env.documents.updates import AppendRecord, ExtendMetadata, Json, SetMetadata, Update
from agent_env.errors import AgentEnvError, BudgetExceededError, ModelUnavailableError, Problem
from agent_env.steps import agent_changes
from agent_env.steps.contract import EntityRef, OnResume, Plan, Run, Step, StepResult
from agent_env.steps.counterparts import Counterpart, counterpart_of
from agent_env.steps.fields import OptionalName, Seconds, Whole
from agent_env.steps.prompting import Prompting, TurnRecord, quietly
from agent_env.steps.state_series import Series, SnapshotConfig
from agent_env.steps.targets import DEFAULT_AGENT
from agent_env.steps.user_rules import kept_trigger_states
from agent_env.waiting import shielded

_PARTS: TypeAdapter[list[Part]] = TypeAdapter(list[Part])
_NOT_PARAMS = frozenset({"model", "messages", "api_key", "api_base", "user", "metadata", "timeout", "response_format"})
_OBJECT = "sha256:"
_LEAST_POLL = 0.5


@dataclass(frozen=True, slots=True)
class Prompted(StepResult):
    """What the agent answered, turn by turn."""

    step_id: str
    record: PromptResponse
    conversation: Mapping[str, Json]
    model: str | None
    simulated: Mapping[str, Json]
    env_triggers: Mapping[str, Mapping[str, Json]]
    """By environment: where the log of its triggers is."""
    states: Sequence[Mapping[str, Json]] = ()
    """What was saved of the agent's state meanwhile."""
    simulator: tuple[str | None] | None = None
    """The model of whoever played the user, where an agent did."""
    error: AgentEnvError | None = None

    def updates(self) -> Iterator[Update]:
        """The response, also of a turn that failed, and where its conversation is."""
        yield AppendRecord("prompt_responses", self.record.to_json())
        yield SetMetadata(("a2a_conversations", self.step_id), dict(self.conversation))
        yield SetMetadata(("models", "solver", self.step_id), self.model)
        if self.simulator is not None:
            yield SetMetadata(("models", "user simulator", self.step_id), self.simulator[0])
        for path, value in self.simulated.items():
            yield SetMetadata((path, self.step_id), value)
        for env_id, log in self.env_triggers.items():
            yield SetMetadata(("env_trigger_state", env_id), dict(log))
        if self.states:
            yield ExtendMetadata(("agent_snapshots",), [dict(each) for each in self.states])

    def summary(self) -> str:
        """How it begins."""
        text = (self.record.response or "").strip().replace("\n", " ")
        return text if len(text) <= 80 else f"{text[:79]}…"

    def failure(self) -> AgentEnvError | None:
        """The turn's ending, unless it completed."""
        return self.error


@dataclass(frozen=True, slots=True)
class Talk:
    """What all turns of a conversation share."""

    prompting: Prompting
    counterpart: Counterpart | None
    model: str | None
    context_id: str
    series: Series | None = None


class PromptAgent(Step, type="prompt_agent"):
    """Ask something of a deployed agent, in one turn or in several with somebody who answers it."""

    on_resume: ClassVar[OnResume] = OnResume.REATTACH
    entity_refs: ClassVar[tuple[EntityRef, ...] | None] = ()
    other_words: ClassVar[Mapping[str, str]] = {
        "message": "prompt",
        "text": "prompt",
        "agent": "agent_name",
        "turns": "max_conversation_turns",
    }

    prompt: str | None = None
    """What is asked. This or `parts`."""
    parts: tuple[dict[str, Any], ...] | None = None
    """What is asked, as A2A parts: text, files (`uri` or `bytes`), data."""
    prompt_id: str = ""
    """The name that verifiers use; the step's id by default."""
    agent_name: str = Field(default=DEFAULT_AGENT, min_length=1)
    """The deployed agent."""
    timeout_seconds: Seconds = 600.0
    """Limit of one turn; the agent is told it, and asked to stop when it is over."""
    poll_interval_seconds: Seconds = 2.0
    """How often the trajectory of a long turn is read while it goes on."""
    trajectory_output_prefix: str | None = None
    """Kept in the record; trajectories are stored by their content."""
    model: OptionalName = None
    """The model that the agent is to use, where it takes one."""
    model_params: dict[str, Any] | None = None
    """Further settings of the model, where the agent takes them."""
    system_prompt: str | None = None
    """For this prompt, where the agent takes one."""
    max_turns: Annotated[Whole, Field(ge=1)] | None = None
    """How often the agent may ask its model."""
    output_format: dict[str, Any] | None = None
    """`{"type": "json_schema", "schema": {…}}`: the form of its answer."""
    max_thinking_tokens: Annotated[Whole, Field(ge=0)] | None = None
    """For models that think."""
    effort: OptionalName = None
    """For models that think."""
    harness: OptionalName = None
    """Which of its harnesses the agent is to use."""
    agentenv_tools: Any = None
    """Handed to the agent."""
    context_id: OptionalName = None
    """A conversation that goes on; absent begins one."""
    max_conversation_turns: Annotated[Whole, Field(ge=1)] = 1
    """Most turns, with somebody who answers the agent."""
    user_agent_name: str = "human_agent"
    """The deployed agent that answers it: one that plays a user, or a person."""
    user_a2a_url: OptionalName = None
    """The address of somebody who answers it, in place of a deployed agent."""
    user_agent_timeout_seconds: Seconds = 600.0
    """Limit of one answer of theirs."""
    user_output_format: dict[str, Any] | None = None
    """The form of a simulated user's answer; `message` and `done` by default."""
    user_model: OptionalName = None
    """The simulated user's model."""
    snapshot_config: SnapshotConfig | None = None
    """When to save the agent's state while it works, each time as a new version of one artifact of this run and step."""
    live_trajectory: bool = False
    """Without effect: the trajectory of every turn is read while it goes on (`agent-env runs trajectory RUN --follow`)."""

    @model_validator(mode="before")
    @classmethod
    def _named(cls, data: Any) -> Any:
        from agent_env.steps.fields import default_to_id

        return default_to_id(data, "prompt_id")

    @field_validator("parts")
    @classmethod
    def _a2a_parts(cls, value: tuple[dict[str, Any], ...] | None) -> tuple[dict[str, Any], ...] | None:
        if value is None:
            return None
        try:
            parts = _PARTS.validate_python(list(value))
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            raise ValueError(f"are not A2A parts: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
        if not parts or any(isinstance(part, TextPart) and not part.text for part in parts):
            raise ValueError("need at least one part, and no empty text")
        return value

    @field_validator("model_params")
    @classmethod
    def _free_params(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        taken = sorted(_NOT_PARAMS & (value or {}).keys())
        if taken:
            raise ValueError(f"may not set {', '.join(taken)}")
        return value

    @model_validator(mode="after")
    def _one_question(self) -> Self:
        if (self.prompt is None or not self.prompt.strip()) == (self.parts is None):
            raise ValueError("prompt_agent: set exactly one of `prompt` and `parts`")
        return self

    @property
    def deadline_seconds(self) -> float | None:
        """None: the limit is one turn's."""
        return None

    def problems(self, plan: Plan) -> Iterator[Problem]:
        """An environment whose state is to be saved is deployed before."""
        env_id = self.snapshot_config.env_id if self.snapshot_config is not None else None
        there = [each.get("env_id") for each in plan.preset("deployed_envs")]
        if env_id is not None and env_id not in there and not plan.deployers(self.id, "deploy_env", env_id=env_id):
            yield Problem(f"environment {env_id!r} is not deployed before", path=".snapshot_config.env_id")

    async def execute(self, run: Run) -> Prompted:
        """Asks, and follows the answer; a resume finds the turn that it had begun, and never asks twice.

        Raises:
            PlacementError: The agent is not deployed.
        """
        agent = await run.agent(self.agent_name)
        counterpart = await counterpart_of(self, run) if self.max_conversation_turns > 1 else None
        every = max(self.poll_interval_seconds, _LEAST_POLL)
        prompting = Prompting(run, agent, self.agent_name, every_seconds=every)
        model = self._model(run, agent)
        context_id = self.context_id or str(uuid.uuid5(uuid.NAMESPACE_OID, run.attempt_id))
        config = self.snapshot_config
        series = Series(run, agent, config, step_id=self.id, context_id=context_id) if config is not None else None
        unsaved: AgentEnvError | None = None
        try:
            async with agent_changes.keeping(run, agent) as changes, series.following() if series is not None else nullcontext():
                turns = await self._talk(run, Talk(prompting, counterpart, model, context_id, series))
            if series is not None:
                unsaved = await series.end(len(turns))
            if changes is not None:
                unsaved = unsaved or changes.problem
        except BaseException:  # also of a cancelled step: nobody else would close them
            await shielded(quietly(prompting), seconds=run.limits.cleanup_seconds, what="closing the prompt's rows")
            raise
        last = turns[-1].turn
        log = ""
        if failure_of(last, self.agent_name) is not None and not message_of(last):
            log = await agent.log_tail()
        error = refusal_of(turns[-1]) or failure_of(last, self.agent_name, log=log)
        await prompting.close()
        return Prompted(
            step_id=self.id,
            env_triggers=await kept_trigger_states(run),
            record=self._record(turns, model, log),
            conversation=self._conversation(run, turns),
            model=model,
            simulated=counterpart.results() if counterpart is not None else {},
            states=series.rows if series is not None else (),
            simulator=(counterpart.config.get("model"),) if counterpart is not None and counterpart.simulated else None,
            error=error or unsaved,
        )

    async def _talk(self, run: Run, talk: Talk) -> list[TurnRecord]:
        context_id, counterpart = talk.context_id, talk.counterpart
        parts: Sequence[Mapping[str, Json]] = self._first_parts(run)
        turns: list[TurnRecord] = []
        waiting: str | None = None
        while True:
            message = Outgoing(
                parts=parts,
                message_id=f"{run.attempt_id}-{len(turns)}",
                context_id=context_id,
                task_id=waiting,
                config=self._settings(run, talk.model),
                timeout_seconds=self.timeout_seconds,
            )
            record = await talk.prompting.turn(len(turns), message)
            turns.append(record)
            going_on = record.refused is None and failure_of(record.turn, self.agent_name) is None
            if counterpart is None or not going_on or len(turns) >= self.max_conversation_turns:
                return turns
            answer = await counterpart.answer(record.turn, context_id, len(turns))
            if answer is None:
                return turns
            if talk.series is not None:
                await talk.series.turn_over(len(turns))
            parts = answer
            waiting = record.turn.task_id if record.turn.end == "input_required" else None

    def _first_parts(self, run: Run) -> list[Mapping[str, Json]]:
        if self.parts is None:
            return [{"kind": "text", "text": self.prompt}]
        return [readable(part, run) for part in self.parts]

    def _model(self, run: Run, agent: LiveAgent) -> str | None:
        named = run.overrides().get("model") or run.context.get("agent_model") or self.model
        found = named or agent.record.default_model or run.context.get("default_agent_model")
        return str(found) if found else None

    def _settings(self, run: Run, model: str | None) -> dict[str, Json]:
        overrides = run.run_overrides()
        return {
            "model": model,
            "model_params": self.model_params,
            "system_prompt": self.system_prompt,
            "effort": run.overrides().get("effort") or overrides.get("agent_effort") or self.effort,
            "harness": self.harness or run.context.get("agent_harness"),
            "max_turns": overrides.get("agent_max_turns") or self.max_turns,
            "max_thinking_tokens": overrides.get("agent_max_thinking_tokens") or self.max_thinking_tokens,
            "output_format": self.output_format,
            "agentenv_tools": self.agentenv_tools,
            "task_id": run.task_id,
        }

    def _record(self, turns: Sequence[TurnRecord], model: str | None, log: str) -> PromptResponse:
        last = turns[-1]
        urls = [each.trajectory.object_url for each in turns]
        counts = [each.tool_call_count for each in turns if each.tool_call_count is not None]
        failed = failure_of(last.turn, self.agent_name) is not None
        return PromptResponse(
            prompt_id=self.prompt_id,
            response=last.turn.text,
            prompt_text=self.prompt if self.prompt is not None else _text(self.parts or ()),
            source_agent_per_turn_prompt_parts=[
                None if index == 0 and self.prompt is not None else list(each.asked) for index, each in enumerate(turns)
            ],
            tool_call_count=sum(counts) if counts else None,
            model=model,
            error_type=whose(last.turn) if last.refused is None else AGENT if last.refused == Refusal.BUDGET else INFRASTRUCTURE,
            error_code=last.refused or ((last.turn.error_code or last.turn.end.value) if failed else None),
            error_message=last.refused_because or (message_of(last.turn, log) if failed else None),
            agent_session_id=last.turn.task_id or "",
            a2a_context_id=last.turn.context_id,
            agent_name=self.agent_name,
            step_id=self.id,
            structured_output=last.turn.structured_output,
            agent_trajectory_object_url=next((url for url in reversed(urls) if url), None),
            agent_trajectory_object_prefix=self.trajectory_output_prefix,
            target_agent_per_turn_trajectory_object_urls=urls,
            state=last.turn.end.value,
            partial=last.turn.partial,
            usage=_sum([each.usage for each in turns]),
            agent_trajectory_format=last.trajectory.format,
            agent_trajectory_atif_url=last.trajectory.atif_url,
            turns=[each.summary() for each in turns],
        )

    def _conversation(self, run: Run, turns: Sequence[TurnRecord]) -> dict[str, Json]:
        """The whole of it as an object; the context has where it is."""
        messages: list[Json] = []
        for each in turns:
            messages += [{"role": "user", "parts": list(each.asked)}, {"role": "agent", "parts": list(each.turn.parts)}]
        conversation_id = turns[-1].turn.context_id or self.context_id
        document = {
            "conversation_id": conversation_id,
            "task_instance_id": run.instance_id,
            "target_agent_name": self.agent_name,
            "messages": messages,
            "a2a_tasks": [
                {"a2a_task_id": each.turn.message_id, "task_id": each.turn.task_id, "state": each.turn.end.value} for each in turns
            ],
        }
        stored = run.objects.put(json_bytes(document), media_type="application/json")
        return {"conversation_id": conversation_id, "turns": len(turns), "object_url": stored.url}


def readable(part: Mapping[str, Json], run: Run) -> Mapping[str, Json]:
    """A part as an agent can read it: an object of our store travels inside the message.

    Raises:
        NotFoundError: There is no such object.
    """
    file = part.get("file")
    if part.get("kind") != "file" or not isinstance(file, Mapping) or not str(file.get("uri") or "").startswith(_OBJECT):
        return part
    data = run.objects.read(str(file["uri"]))
    media_type = file.get("mimeType") or run.objects.media_type(str(file["uri"]))
    inline = {"bytes": base64.b64encode(data).decode(), **({"mimeType": media_type} if media_type else {})}
    return {**part, "file": {**inline, **({"name": file["name"]} if file.get("name") else {})}}


def refusal_of(record: TurnRecord) -> AgentEnvError | None:
    """A turn whose last request for a model was refused: a budget is the agent's own end, all else a fault of ours."""
    if record.refused is None:
        return None
    message = record.refused_because or f"the agent was refused a model: {record.refused}"
    if record.refused == Refusal.BUDGET.value:
        return BudgetExceededError(message, hint="raise the run's model budget")
    return ModelUnavailableError(message)


def _text(parts: Sequence[Mapping[str, Json]]) -> str:
    return "\n".join(str(part["text"]) for part in parts if part.get("kind") == "text")


def _sum(usages: Sequence[Mapping[str, Json]]) -> dict[str, Json]:
    total: dict[str, Json] = {}
    for usage in usages:
        for name, value in usage.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                total[name] = total.get(name, 0) + value
    return total
