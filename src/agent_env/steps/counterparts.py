"""Who answers an agent in a conversation of several turns: an agent that plays a user, or somebody behind an address."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agent_env.agents.contract import End, LiveAgent, Outgoing, Turn
from agent_env.documents.records import DeployedAgent
from agent_env.errors import UserError
from agent_env.steps.user_rules import Rules

if TYPE_CHECKING:
    from agent_env.steps.contract import Run
    from agent_env.steps.prompt_agent import PromptAgent

Json = Any
Parts = Sequence[Mapping[str, Json]]
DEFAULT_FORMAT: Mapping[str, Json] = {
    "type": "json_schema",
    "schema": {
        "type": "object",
        "properties": {"message": {"type": "string"}, "done": {"type": "boolean"}},
        "required": ["message", "done"],
        "additionalProperties": False,
    },
}
"""What a simulated user answers (reference)."""


@dataclass
class Counterpart:
    """Somebody who answers.

    Args:
        run: The step's run.
        agent: Who it is.
        simulated: It plays a user, and answers in a form of its own.
        seconds: Limit of one answer.
        config: Its settings for each answer.
    """

    run: Run
    agent: LiveAgent
    simulated: bool
    seconds: float
    config: Mapping[str, Json] = field(default_factory=dict)
    rules: Rules | None = None
    """What it says without a model."""
    further: list[Json] = field(default_factory=list)
    """What a simulated user told beside its message, turn by turn."""

    async def answer(self, turn: Turn, conversation_id: str, number: int) -> Parts | None:
        """The next message for the agent; None ends the conversation."""
        spoken = await self.rules.decide(turn.text or "", conversation_id, number) if self.rules is not None else None
        if spoken is not None:
            self.further.append(None)
            return None if spoken.done else spoken.parts
        parts = [part for part in turn.parts if part.get("kind") != "data"] or [{"kind": "text", "text": turn.text or "(no answer)"}]
        message = Outgoing(
            parts=parts,
            message_id=f"{self.run.attempt_id}-user-{number}",
            context_id=conversation_id,
            config=self.config,
            timeout_seconds=self.seconds,
        )
        said = await self.agent.ask(message)
        if said.end is not End.COMPLETED:  # nobody answers any more: what the agent said stands
            self.run.progress(f"the conversation ends: {said.error_message or said.end.value}")
            return None
        if not self.simulated:
            return [part for part in said.parts if part.get("kind") != "data"] or None
        return self._simulated(said)

    def _simulated(self, said: Turn) -> Parts | None:
        told = said.structured_output
        if not isinstance(told, Mapping):
            try:
                told = json.loads(said.text or "")
            except (ValueError, RecursionError):
                told = None
        if not isinstance(told, Mapping) or not isinstance(told.get("message"), str):
            self.further.append(None)
            return [{"kind": "text", "text": said.text}] if said.text else None
        self.further.append({name: value for name, value in told.items() if name not in {"message", "done"}} or None)
        if told.get("done") is True or not told["message"].strip():
            return None
        return [{"kind": "text", "text": told["message"]}]

    def results(self) -> dict[str, Json]:
        """For the run's metadata."""
        found: dict[str, Json] = self.rules.results() if self.rules is not None else {}
        if any(self.further):
            found["usersim_turn_outputs"] = list(self.further)
        return found


async def counterpart_of(step: PromptAgent, run: Run) -> Counterpart:
    """Who answers: the address that the step names, else the deployed agent.

    Raises:
        UserError: Nobody is there.
    """
    if step.user_a2a_url is not None:
        agent = await run.agent_at(DeployedAgent(agent_name=step.user_agent_name, api_url=step.user_a2a_url, a2a_url=step.user_a2a_url))
        return Counterpart(run, agent, simulated=False, seconds=step.user_agent_timeout_seconds)
    known = [str(each.get("agent_name")) for each in run.context.get("deployed_agents") or ()]
    if step.user_agent_name not in known:
        raise UserError(
            f"a conversation of {step.max_conversation_turns} turns needs somebody who answers, and no agent {step.user_agent_name!r} is "
            f"deployed (deployed: {sorted(known)})",
            concerns=step.id,
            hint="deploy one, name it in user_agent_name, or set user_a2a_url",
        )
    record = run.agent_record(step.user_agent_name)
    simulated = record.sandbox_id is not None
    overrides = run.run_overrides()
    model = run.overrides().get("user_model") or overrides.get("user_model") or step.user_model or record.default_model
    config = {"output_format": step.user_output_format or dict(DEFAULT_FORMAT), "model": model} if simulated else {}
    agent = await run.agent(step.user_agent_name)
    rules = await Rules.of(run, agent)
    return Counterpart(run, agent, simulated=simulated, seconds=step.user_agent_timeout_seconds, config=config, rules=rules)
