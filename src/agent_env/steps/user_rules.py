"""What a simulated user says by rule: `register_agent_triggers` gave it the rules, and each turn asks whether one of them speaks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agent_env_sdk.wire.agent_extensions import TRIGGERS
from agent_env_sdk.wire.names import TRIGGERS as ENVIRONMENT_TRIGGERS

from agent_env.agents.contract import LiveAgent
from agent_env.clock import timestamp
from agent_env.errors import AgentEnvError, InfrastructureError
from agent_env.waiting import back_off

if TYPE_CHECKING:
    from agent_env.steps.contract import Run

Json = Any
_READ_ATTEMPTS, _READ_SECONDS = 3, 15.0
_MESSAGE_CHARACTERS = 200_000
"""What agents take of a message (the protocol's limit); of a longer one the end is shown."""


@dataclass(frozen=True, slots=True)
class Spoken:
    """What the rules said."""

    parts: Sequence[Mapping[str, Json]]
    done: bool


@dataclass
class Rules:
    """The rules of one simulated user in one conversation."""

    run: Run
    agent: LiveAgent
    fired: list[dict[str, Json]] = field(default_factory=list)
    """Which rule fired at which turn."""

    @classmethod
    async def of(cls, run: Run, agent: LiveAgent) -> Rules | None:
        """The rules that this run registered with the agent; None where it registered none."""
        known = [each.get("agent_name") for each in run.metadata.get("agent_trigger_registrations") or ()]
        registered = agent.record.agent_name in known
        return cls(run, agent) if registered and await agent.supports(TRIGGERS, "decide") else None

    async def decide(self, said: str, context_id: str, turn: int) -> Spoken | None:
        """What the rules say to an answer; None leaves it to the model.

        Raises:
            InfrastructureError: An environment does not tell what its triggers do: a rule that waits for one could not be held.
        """
        body = {
            "turn": turn,
            "solver_message": said[-_MESSAGE_CHARACTERS:],
            "context_id": context_id,
            "env_triggers": await environment_triggers(self.run),
        }
        answer = await self.agent.invoke(TRIGGERS, "decide", body)
        fired = [str(each) for each in answer.get("fired") or ()]
        now = timestamp(self.run.clock.now())
        self.fired += [{"kind": "fired", "trigger_id": each, "turn": turn, "at": now} for each in fired]
        parts, done = list(answer.get("parts") or ()), answer.get("done") is True
        return Spoken(parts, done) if done or (fired and parts) else None

    def results(self) -> dict[str, Json]:
        """For the run's metadata: what fired, and where the log of it is."""
        if not self.fired:
            return {}
        log = json.dumps({"events": self.fired}).encode()
        return {
            "agent_trigger_firings": list(self.fired),
            "agent_trigger_state": {"object_url": self.run.objects.put(log, media_type="application/json").url},
        }


def environments_with_triggers(run: Run) -> list[str]:
    """Environments that this run has registered triggers with."""
    return sorted({str(each.get("env_id")) for each in run.metadata.get("env_trigger_registrations") or ()})


async def environment_triggers(run: Run) -> dict[str, dict[str, str]]:
    """By environment: what its triggers do.

    Raises:
        InfrastructureError: An environment does not tell, after several attempts.
    """
    env_ids = environments_with_triggers(run)
    states = await asyncio.gather(*(_state(run, env_id) for env_id in env_ids))
    return {
        env_id: {str(each.get("id")): str(each.get("status")) for each in state.get("triggers") or ()}
        for env_id, state in zip(env_ids, states, strict=True)
    }


async def kept_trigger_states(run: Run) -> dict[str, dict[str, Json]]:
    """By environment: where the log of its triggers is kept as it is now, or why there is none. Never fails."""
    kept: dict[str, dict[str, Json]] = {}
    for env_id in environments_with_triggers(run):
        entry: dict[str, Json] = {"captured_at_utc": timestamp(run.clock.now())}
        try:
            state = json.dumps(await _state(run, env_id)).encode()
            entry["object_url"] = (await asyncio.to_thread(run.objects.put, state, media_type="application/json")).url
        except AgentEnvError as error:
            entry["error"] = str(error)
        kept[env_id] = entry
    return kept


async def _state(run: Run, env_id: str) -> Mapping[str, Json]:
    attempt = 1
    while True:
        try:
            live = await run.environment(env_id)
            state: Mapping[str, Json] = await live.control.invoke(ENVIRONMENT_TRIGGERS, {}, method="state", timeout_seconds=_READ_SECONDS)
            return state
        except InfrastructureError:
            attempt += 1
            if attempt > _READ_ATTEMPTS:
                raise
        await back_off(attempt, limits=run.limits)
