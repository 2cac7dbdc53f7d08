"""Who judges: a model, through the run's broker, or a deployed agent."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import NAMESPACE_URL, uuid5

from agent_env.agents.contract import End, Outgoing
from agent_env.verifiers.judging.asking import Cost, JudgeFaultError, Said

if TYPE_CHECKING:
    from agent_env.steps.contract import Run

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

    async def ask(self, messages: Sequence[Mapping[str, str]], schema: Mapping[str, Json]) -> Said:
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
    _asked: dict[str, str] = field(default_factory=dict)

    async def ask(self, messages: Sequence[Mapping[str, str]], schema: Mapping[str, Json]) -> Said:
        """The agent's answer.

        Raises:
            JudgeFaultError: It gave none.
            InfrastructureError: It can't be reached.
        """
        agent = await self.run.agent(self.agent_name)
        first = len(messages) <= 2
        text = "\n\n".join(each["content"] for each in messages) if first else messages[-1]["content"]
        key = json.dumps(messages[:2], sort_keys=True)
        output = {"type": "json_schema", "schema": dict(schema)}
        message = Outgoing(
            parts=[{"kind": "text", "text": text}],
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
