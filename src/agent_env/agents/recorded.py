"""What agents did in a run, as it is recorded: each prompt's turns, with the events of their trajectories in one model."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agent_env.errors import AgentEnvError

if TYPE_CHECKING:
    from agent_env.stores import Objects

Json = Any


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """One turn of a prompt."""

    number: int
    """From 0, as in the run's context."""
    state: str | None
    format: str | None
    """What the agent's own events are; see `agent_env_sdk.wire.trajectory`."""
    events: Sequence[Mapping[str, Json]]
    """In the one model of `agent_env_sdk.wire.trajectory`; the agent's own where nobody here knows their format."""
    known: bool = True
    """Whether the events are in that model."""
    problem: str | None = None
    """Why they are not there, or not whole."""

    def to_json(self) -> dict[str, Json]:
        """As commands print it."""
        return {
            "turn": self.number,
            "state": self.state,
            "format": self.format,
            "normalised": self.known,
            "problem": self.problem,
            "events": list(self.events),
        }


@dataclass(frozen=True, slots=True)
class RecordedPrompt:
    """One prompt, its answer, and what the agent did for it."""

    record: Mapping[str, Json]
    """Of the context's `prompt_responses`."""
    turns: Sequence[RecordedTurn]

    def to_json(self) -> dict[str, Json]:
        """As commands print it."""
        record = self.record
        error = {name: record.get(f"error_{name}") for name in ("type", "code", "message")}
        return {
            "prompt_id": record["prompt_id"],
            "step_id": record.get("step_id"),
            "agent": record.get("agent_name"),
            "model": record.get("model"),
            "state": record.get("state"),
            "error": error if any(error.values()) else None,
            "tool_calls": record.get("tool_call_count"),
            "usage": record.get("usage") or {},
            "response": record.get("response"),
            "turns": [turn.to_json() for turn in self.turns],
        }


def recorded_prompts(context: Mapping[str, Json], objects: Objects, *, only: str | None = None) -> list[RecordedPrompt]:
    """The prompts of a run, in their order.

    Args:
        context: The run's.
        objects: Where its trajectories are.
        only: The prompt (or step) of this id alone.
    """
    return [
        RecordedPrompt(record, [_turn(turn, objects) for turn in _turns(record)])
        for record in context.get("prompt_responses") or ()
        if only is None or only in (record.get("prompt_id"), record.get("step_id"))
    ]


def _turns(record: Mapping[str, Json]) -> Iterator[Mapping[str, Json]]:
    """A record's turns; one of another installation lists the addresses of their trajectories alone."""
    if record.get("turns"):
        yield from record["turns"]
        return
    listed = record.get("target_agent_per_turn_trajectory_object_urls") or [record.get("agent_trajectory_object_url")]
    for number, url in enumerate(listed if isinstance(listed, list) else []):
        told = {"trajectory_object_url": url, "trajectory_format": record.get("agent_trajectory_format")}
        yield {"turn": number, "end": record.get("state"), **told}


def _turn(turn: Mapping[str, Json], objects: Objects) -> RecordedTurn:
    from agent_env_sdk.wire.trajectory import dump_event

    from agent_env.agents.normalise import events_of

    number, state, format = int(turn.get("turn") or 0), turn.get("end"), turn.get("trajectory_format")
    url = turn.get("trajectory_object_url")
    if not url:
        return RecordedTurn(number, state, format, (), problem=str(turn.get("trajectory_problem") or "nothing was recorded"))
    try:
        native = json.loads(objects.read(str(url)))
    except (AgentEnvError, ValueError) as error:
        return RecordedTurn(number, state, format, (), problem=str(error))
    native = native if isinstance(native, list) else [native]
    events = events_of(native, format)
    problem = turn.get("trajectory_problem") or ("it was cut at its limit" if turn.get("trajectory_truncated") else None)
    if events is None:
        return RecordedTurn(number, state, format, native, known=False, problem=problem)
    return RecordedTurn(number, state, format, [dump_event(event) for event in events], problem=problem)
