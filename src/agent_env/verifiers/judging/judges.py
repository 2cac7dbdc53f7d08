"""Who judges: a model, through the run's broker, a deployed agent, or an agent that is deployed for it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import NAMESPACE_URL, uuid5

from agent_env.agents.contract import End, Outgoing
from agent_env.steps.requests import AgentRequest
from agent_env.verifiers.judging.asking import Cost, Judge, JudgeFaultError, Message, Said, pictures_of, text_of
from agent_env.waiting import shielded

if TYPE_CHECKING:
    from agent_env.documents.records import DeployedAgent
    from agent_env.steps.contract import Run
    from agent_env.verifiers.rubrics_verifier import RubricsVerifier

Json = Any


@dataclass(frozen=True)
class ModelJudge:
    """A model, asked from this process: counted and recorded as the run's judge, within the judges' own budget."""

    run: Run
    holder: str
    """The step's id."""
    model: str | None
    params: Mapping[str, Json]
    timeout_seconds: float

    async def ask(self, messages: Sequence[Message], schema: Mapping[str, Json]) -> Said:
        """The model's answer.

        Raises:
            JudgeFaultError: The judges' budget is used up.
            ModelUnavailableError: The model can't be asked.
        """
        from agent_env.errors import BudgetExceededError

        try:
            answer = await self.run.models.chat(
                messages,
                role="judge",
                holder=self.holder,
                model=self.model,
                params=dict(self.params) or None,
                response_format={"type": "json_schema", "json_schema": {"name": "verdicts", "strict": True, "schema": dict(schema)}},
                timeout_seconds=self.timeout_seconds,
            )
        except BudgetExceededError as error:
            raise JudgeFaultError(f"the judge can't be asked: {error.message}", concerns=self.holder, hint=error.hint) from error
        usage = answer.usage
        return Said(answer.text, Cost(1, usage.input_tokens, usage.output_tokens, usage.cost_usd), answer.model)


@dataclass
class AgentJudge:
    """A deployed agent. Each conversation with it has a context of its own."""

    run: Run
    holder: str
    agent_name: str
    config: Mapping[str, Json]
    timeout_seconds: float
    deployed: DeployedAgent | None = None
    """Its record, where the run's context does not have it."""
    _asked: dict[str, str] = field(default_factory=dict)

    async def ask(self, messages: Sequence[Message], schema: Mapping[str, Json]) -> Said:
        """The agent's answer.

        Raises:
            JudgeFaultError: It gave none.
            InfrastructureError: It can't be reached.
        """
        own = self.deployed
        agent = await (self.run.agent(self.agent_name) if own is None else self.run.agent_at(own))
        first = len(messages) <= 2
        told = messages if first else messages[-1:]
        pictures = [picture for each in told for picture in pictures_of(each)]
        key = json.dumps(messages[:2], sort_keys=True)
        output = {"type": "json_schema", "schema": dict(schema)}
        message = Outgoing(
            parts=[
                {"kind": "text", "text": "\n\n".join(text_of(each) for each in told)},
                *({"kind": "file", "file": {"bytes": data, "mimeType": kind}} for kind, data in pictures),
            ],
            message_id=str(uuid5(NAMESPACE_URL, f"{self.run.attempt_id}/{json.dumps(messages, sort_keys=True)}")),
            context_id=self._asked.get(key) or str(uuid5(NAMESPACE_URL, f"{self.run.attempt_id}/{key}")),
            config={**self.config, "output_format": output, "timeout_seconds": self.timeout_seconds},
            timeout_seconds=self.timeout_seconds,
        )
        turn = await agent.ask(message)
        if turn.end is not End.COMPLETED:
            said = turn.error_message or turn.text or "without a word"
            raise JudgeFaultError(f"the judging agent {self.agent_name!r} ended as {turn.end}: {said}", concerns=self.holder)
        if turn.context_id:
            self._asked[key] = turn.context_id
        usage = turn.usage
        cost = Cost(
            1, (usage.input_tokens or 0) if usage else 0, (usage.output_tokens or 0) if usage else 0, usage.cost_usd if usage else None
        )
        return Said(turn.text or json.dumps(turn.structured_output), cost)


@asynccontextmanager
async def judge_of(step: RubricsVerifier, run: Run, model: str | None) -> AsyncIterator[Judge]:
    """Who judges for a step; an agent that is deployed for it is gone afterwards.

    Raises:
        UserError: It can't be deployed as asked.
        InfrastructureError: It did not come up.
    """
    overrides = run.run_overrides()
    effort = overrides.get("judge_effort") or step.effort
    thinking = overrides.get("judge_max_thinking_tokens") or step.max_thinking_tokens
    by_agent = overrides.get("use_agent_judge", step.use_agent_judge) is not False
    agent_id = run.overrides().get("judge_a2a_agent_id") or step.judge_a2a_agent_id
    config = {"model": model, "effort": effort, "max_thinking_tokens": thinking}
    given = {name: value for name, value in config.items() if value is not None}
    if step.agent_name is not None:
        yield AgentJudge(run, step.id, step.agent_name, given, step.judge_timeout_seconds)
    elif by_agent and agent_id:
        record = await run.deploy_agent(_judging_agent(step, run, str(agent_id)))
        try:
            own = {"model": record.default_model} if record.default_model else {}
            yield AgentJudge(run, step.id, record.agent_name, {**own, **given}, step.judge_timeout_seconds, record)
        finally:
            gone = run.teardown_sandbox(str(record.sandbox_id))
            await shielded(gone, seconds=run.limits.teardown_seconds, what=f"removing the judging agent of {step.id!r}")
    else:
        params = {**({"reasoning_effort": effort} if effort else {}), **step.judge_params}
        yield ModelJudge(run, step.id, model, params, step.judge_timeout_seconds)


def _judging_agent(step: RubricsVerifier, run: Run, agent_id: str) -> AgentRequest:
    overrides = run.run_overrides()
    provider = overrides.get("agent_sandbox") or overrides.get("sandbox") or run.overrides().get("judge_sandbox_type")
    return AgentRequest(
        agent_name=f"judge-{step.id}",
        agent_id=agent_id,
        provider=str(provider) if provider else step.judge_sandbox_type,
        named=False,
        model_role="judge",
        cpu=run.limits.sandbox_cpu,
        memory_bytes=run.limits.sandbox_memory_bytes,
        disk_bytes=run.limits.sandbox_disk_bytes,
        ttl_seconds=run.limits.sandbox_ttl_seconds,
    )
