"""One turn of a prompt: sent once, followed to its ending, with its trajectory and what it used. What ended is written down, so that a
resume goes on after it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_env_sdk.wire.a2a import Usage
from agent_env_sdk.wire.encoding import json_bytes

from agent_env.agents.contract import Accepted, End, Ended, LiveAgent, Outgoing, Progress, Turn
from agent_env.agents.normalise import HEARD_FORMAT, atif, events_of, said, tokens, tool_calls
from agent_env.agents.trajectories import Keeping
from agent_env.errors import AgentEnvError
from agent_env.waiting import deadline

if TYPE_CHECKING:
    from agent_env.broker.contract import Usage as ModelUsage
    from agent_env.steps.contract import Run

Json = Any
_NORMALISED_BYTES = 32 << 20
"""Of a trajectory that is also kept normalised: beyond it, its native form is all there is."""
_TOLD_PROGRESS = 200
"""Of what an agent says while it works, as far as the progress view shows it."""
ENDED = "ended_object_url"
"""Fact of a prompt's row: what the turn came to, once it has."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What is kept of a turn's trajectory."""

    object_url: str | None = None
    """A JSON array of native events."""
    format: str | None = None
    atif_url: str | None = None
    """The same as an ATIF document."""
    events: int = 0
    truncated: bool = False
    problem: str | None = None
    """Why it is not whole."""


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """A turn with everything that is kept of it."""

    number: int
    turn: Turn
    asked: Sequence[Mapping[str, Json]]
    """The parts of its message."""
    trajectory: Kept = field(default_factory=Kept)
    tool_call_count: int | None = None
    usage: Mapping[str, Json] = field(default_factory=dict)
    refused: str | None = None
    """Why the run's broker refused the agent's last request for a model."""
    refused_because: str | None = None

    def to_json(self) -> dict[str, Json]:
        """For a row of the journal."""
        turn = {each.name: getattr(self.turn, each.name) for each in fields(Turn)}
        turn |= {
            "end": self.turn.end.value,
            "parts": list(self.turn.parts),
            "usage": self.turn.usage.to_json() if self.turn.usage else None,
        }
        kept = asdict(self.trajectory)
        own = {"number": self.number, "asked": list(self.asked), "tool_call_count": self.tool_call_count, "usage": dict(self.usage)}
        own |= {"refused": self.refused, "refused_because": self.refused_because}
        return {**own, "turn": turn, "trajectory": kept}

    @classmethod
    def of_json(cls, data: Mapping[str, Json]) -> TurnRecord:
        """What `to_json` wrote."""
        told = dict(data["turn"])
        told |= {"end": End(told["end"]), "usage": Usage(**told["usage"]) if told.get("usage") is not None else None}
        kept, refused, because = Kept(**data["trajectory"]), data.get("refused"), data.get("refused_because")
        return cls(data["number"], Turn(**told), data["asked"], kept, data["tool_call_count"], data["usage"], refused, because)

    def summary(self) -> dict[str, Json]:
        """For the run's context."""
        return {
            "turn": self.number,
            "end": self.turn.end.value,
            "message_id": self.turn.message_id,
            "task_id": self.turn.task_id,
            "tool_call_count": self.tool_call_count,
            "usage": dict(self.usage),
            "trajectory_object_url": self.trajectory.object_url,
            "trajectory_format": self.trajectory.format,
            "trajectory_atif_url": self.trajectory.atif_url,
            **({"trajectory_problem": self.trajectory.problem} if self.trajectory.problem else {}),
            **({"trajectory_truncated": True} if self.trajectory.truncated else {}),
            **({"gap": True} if self.turn.gap else {}),
        }


class Prompting:
    """The turns of one prompt.

    Args:
        run: The step's run.
        agent: Who is asked.
        agent_name: As the task calls it.
        every_seconds: How often a long turn's trajectory is read while it goes on.
    """

    def __init__(self, run: Run, agent: LiveAgent, agent_name: str, *, every_seconds: float) -> None:
        self._run, self._agent, self._name, self._every = run, agent, agent_name, every_seconds
        self._noted: list[str] = []

    async def turn(self, number: int, message: Outgoing) -> TurnRecord:
        """One turn, or what an earlier process had of it."""
        earlier = self._run.noted_prompt(message.message_id)
        self._noted.append(message.message_id)
        if earlier is not None and earlier.get(ENDED):
            return TurnRecord.of_json(json.loads(self._run.objects.read(str(earlier[ENDED]))))
        if earlier is not None:
            message = replace(message, known_task=earlier.get("task_id"), may_have_been_sent=True)
        await self._run.note_prompt(message.message_id, self._name, {"context_id": message.context_id, "turn": number})
        if self._agent.record.brokered:
            await self._run.models.begin_turn(self._name, message.message_id)
        record = await self._held(number, message)
        stored = await asyncio.to_thread(self._run.objects.put, json.dumps(record.to_json()).encode(), media_type="application/json")
        await self._run.note_prompt(message.message_id, self._name, {ENDED: stored.url})
        return record

    async def close(self) -> None:
        """All its turns are over, whichever way."""
        for message_id in self._noted:
            await self._run.prompt_over(message_id)

    async def _held(self, number: int, message: Outgoing) -> TurnRecord:
        folder = self._run.scratch() / message.message_id
        folder.mkdir(exist_ok=True)
        keeping = self._agent.keeping(folder / "events.jsonl")
        heard = _Heard(message)
        turn = Turn(End.LOST, message.message_id, context_id=message.context_id)
        following: asyncio.Task[None] | None = None
        try:
            async with aclosing(self._agent.prompt(message)) as updates:
                async for update in updates:
                    match update:
                        case Accepted(task_id=task_id):
                            await self._run.note_prompt(message.message_id, self._name, {"task_id": task_id})
                            limit = message.timeout_seconds + self._run.limits.answer_margin_seconds
                            follow = keeping.follow(task_id, every_seconds=self._every, within_seconds=limit)
                            following = following or asyncio.ensure_future(follow)
                        case Progress(text=text):
                            heard.add(text)
                            self._run.progress(f"{self._name}: {text[:_TOLD_PROGRESS]}")
                        case Ended(turn=ended):
                            turn = ended
        finally:
            if following is not None:
                following.cancel()
                await asyncio.wait({following})
        kept, events = await self._kept(turn, keeping, heard, folder)
        asked = await self._asked_of_models(message.message_id)
        record = TurnRecord(number, turn, message.parts, kept, _calls(turn, events), {**_used(turn, events), **_counted(asked)})
        if asked is None or asked.problem is None:
            return record
        # Whatever the agent makes of it, also as an answer: its last request for a model was refused.
        return replace(record, refused=asked.problem.value, refused_because=asked.message)

    async def _asked_of_models(self, message_id: str) -> ModelUsage | None:
        """What went through the broker in this turn: exact, whatever the agent says."""
        if not self._agent.record.brokered:
            return None
        used = await self._run.models.usage(holder=self._name, turn=message_id)
        return used if used.requests or used.refused else None

    async def _kept(self, turn: Turn, keeping: Keeping, heard: _Heard, folder: Path) -> tuple[Kept, list[Any] | None]:
        """The turn's trajectory in the object store, as far as it can be had."""
        problem = None
        if turn.task_id is not None:
            try:
                async with deadline(self._run.limits.agent_trajectory_seconds, "fetching the trajectory"):
                    await keeping.rest(turn.task_id)
            except AgentEnvError as error:
                problem = error.message
        if not keeping.count:  # the agent tells nothing: what was heard is what there is
            keeping.format = HEARD_FORMAT
            await keeping.add(heard.events(turn))
        path = await asyncio.to_thread(keeping.array, folder / "trajectory.json")
        stored = await asyncio.to_thread(self._run.objects.put_file, path, media_type="application/json")
        native = await asyncio.to_thread(keeping.events, limit_bytes=_NORMALISED_BYTES)
        events = events_of(native, keeping.format) if native is not None else None
        atif_url = await asyncio.to_thread(self._atif, turn, events) if events else None
        return Kept(stored.url, keeping.format, atif_url, keeping.count, keeping.truncated, problem), events

    def _atif(self, turn: Turn, events: list[Any]) -> str:
        card = self._agent.record.a2a_card or {}
        document = atif(
            events,
            session_id=turn.context_id or turn.message_id,
            agent_name=str(card.get("name") or self._name),
            agent_version=str(card.get("version") or ""),
        )
        return self._run.objects.put(json_bytes(document), media_type="application/json").url


class _Heard:
    """What was said in a turn, as far as it was heard here."""

    def __init__(self, message: Outgoing) -> None:
        self._asked = "\n".join(str(part.get("text")) for part in message.parts if part.get("kind") == "text")
        self._said: list[str] = []
        self._size = 0

    def add(self, text: str) -> None:
        self._size += len(text)
        if self._size <= _NORMALISED_BYTES:
            self._said.append(text)

    def events(self, turn: Turn) -> list[Json]:
        answer = [turn.text] if turn.text and turn.text not in self._said[-1:] else []
        spoken = [said(text) for text in (*self._said, *answer)]
        return [said(self._asked, source="user"), *spoken, {"type": "end", "state": turn.end.value}]


def _calls(turn: Turn, events: list[Any] | None) -> int | None:
    """As the agent tells it, else as its trajectory shows."""
    told = turn.usage.tool_call_count if turn.usage is not None else None
    return told if told is not None or events is None else tool_calls(events)


def _used(turn: Turn, events: list[Any] | None) -> dict[str, Json]:
    """What the agent tells of what it used: in its answer, else in its trajectory."""
    used = {name: value for name, value in (turn.usage.to_json() if turn.usage else {}).items() if name != "tool_call_count"}
    if not used.keys() & {"input_tokens", "output_tokens"} and events is not None and (counted := tokens(events)) is not None:
        used |= {"input_tokens": counted[0], "output_tokens": counted[1]}
    return used


def _counted(asked: ModelUsage | None) -> dict[str, Json]:
    """What the broker counted, which beats what an agent says."""
    if asked is None:
        return {}
    counted = {"input_tokens": asked.input_tokens, "output_tokens": asked.output_tokens, "total_tokens": asked.total_tokens}
    priced = {"cost_usd": asked.cost_usd} if asked.cost_usd is not None else {}
    return {**counted, **priced, "model_requests": asked.requests}


async def quietly(closing: Prompting) -> None:
    """Closes, whatever the store says: the ending itself is what must be heard."""
    with suppress(AgentEnvError):
        await closing.close()
