"""One registered trigger and how it stands, also across a restart of the gateway."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from agent_env_sdk.wire.clock import instant, parse_duration, parse_instant

from agent_env.gateway.triggers.grammar import Exponential, TimeWhen, Trigger

_PROVOKED = ("type", "tool", "app", "method", "path", "status", "roles", "repeat")
_TIMED = ("at", "after", "offset", "every", "count", "until", "seed")


class Status(StrEnum):
    """How a trigger stands."""

    ARMED = "armed"
    FIRING = "firing"
    QUEUED = "queued"
    """Firing, with further calls waiting for their turn."""
    FIRED = "fired"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def in_flight(self) -> bool:
        """Whether a fire goes on."""
        return self in (Status.FIRING, Status.QUEUED)


@dataclass(frozen=True, slots=True)
class Cause:
    """What set a fire off."""

    context: Mapping[str, Any]
    """`args` and `result` of a call, `args` and `request` of a website's request, nothing of the clock."""
    since: float
    """Where the axis of virtual seconds was: delays run from there."""
    number: int = 0
    """Under which the journal keeps it; 0 for one that needs no keeping."""


@dataclass
class Progress:
    """How far a fire is. What the journal says of it decides what is done again after a restart."""

    key: str = field(default_factory=lambda: secrets.token_hex(8))
    """Of this fire alone: what it asks for carries it, so that whoever is asked twice can tell."""
    place: int = 0
    """Of the action that is next, or going on."""
    begun: bool = False
    """The action may have had its effect."""
    due: float | None = None
    """Where on the axis of virtual seconds the action's delay ends."""
    again: bool = False
    """An instruction is given for the second time."""
    task: str | None = None
    """Of an executor: it has the instruction."""


@dataclass(frozen=True, slots=True)
class Due:
    """What is due of a time trigger."""

    marks: tuple[datetime, ...]
    capped: bool
    """There are more, for later."""
    over: bool
    """None follows."""

    def to_json(self) -> dict[str, Any]:
        """What the journal keeps."""
        return {"marks": [instant(mark) for mark in self.marks], "capped": self.capped, "over": self.over}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Due:
        """What `to_json` wrote."""
        return cls(tuple(parse_instant(mark) for mark in value["marks"]), value["capped"], value["over"])


class Draws:
    """Seeded exponential gaps that go on after a restart where they stood."""

    def __init__(self, gap: Exponential, seed: int, made: int = 0) -> None:
        self._mean = parse_duration(gap.mean).total_seconds()
        self._source = random.Random(seed)
        self.made = 0
        for _ in range(made):
            self.next()

    def next(self) -> float:
        """Seconds."""
        self.made += 1
        return self._source.expovariate(1.0 / self._mean)


@dataclass(eq=False)
class Armed:
    """See the module."""

    spec: Trigger
    number: int
    """Its place in the order of registration."""
    status: Status = Status.ARMED
    detected_at: str | None = None
    fired_at: str | None = None
    fire_count: int = 0
    failure_count: int = 0
    last_failure_at: str | None = None
    attempts: int = 0
    next_mark: datetime | None = None
    resolved: bool = False
    """A time trigger knows its first mark."""
    generation: int = -1
    """Of the clock that the mark was reckoned with."""
    waiting: bool = False
    evaluating: bool = False
    """Its state is being looked at."""
    progress: Progress | None = None
    """Of the fire that goes on."""
    due: Due | None = None
    """Marks whose fires go on or follow."""
    pending: deque[Cause] = field(default_factory=deque)
    task: asyncio.Task[None] | None = None
    gaps: Draws | None = None
    delays: dict[int, Draws] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.restart_gaps()
        for place, action in enumerate(self.spec.actions):
            if isinstance(action.delay, Exponential):
                self.delays[place] = Draws(action.delay, action.delay.seed or 0)

    @property
    def id(self) -> str:
        """What it is called."""
        return self.spec.id

    @property
    def time(self) -> TimeWhen | None:
        """Its condition, where that is the clock."""
        return self.spec.when if isinstance(self.spec.when, TimeWhen) else None

    def restart_gaps(self) -> None:
        """Draws from the beginning again."""
        when = self.time
        if when is not None and isinstance(when.every, Exponential):
            self.gaps = Draws(when.every, when.seed or 0)

    def gap_seconds(self) -> float:
        """Virtual seconds to the next mark."""
        when = self.time
        if self.gaps is not None:
            return self.gaps.next()
        return parse_duration(when.every).total_seconds() if when is not None and isinstance(when.every, str) else 0.0

    def shown(self) -> dict[str, Any]:
        """As `/triggers/state` tells it."""
        when = self.spec.when.model_dump(mode="json", exclude_unset=True)
        return {
            "id": self.id,
            "type": self.spec.when.type,
            "when": {key: when[key] for key in (*_PROVOKED, *_TIMED) if key in when},
            "status": str(self.status),
            "detected_at": self.detected_at,
            "fired_at": self.fired_at,
            "fire_count": self.fire_count,
            "failure_count": self.failure_count,
            "last_failure_at": self.last_failure_at,
            "barrier": self.spec.barrier.model_dump(mode="json", exclude_unset=True) if self.spec.barrier is not None else None,
            "pending": len(self.pending),
            "waiting": self.waiting,
            "next_mark": instant(self.next_mark) if self.next_mark is not None else None,
        }

    def to_json(self) -> dict[str, Any]:
        """What the journal keeps."""
        return {
            "number": self.number,
            "spec": self.spec.model_dump(mode="json", exclude_unset=True),
            "status": str(self.status),
            "detected_at": self.detected_at,
            "fired_at": self.fired_at,
            "fire_count": self.fire_count,
            "failure_count": self.failure_count,
            "last_failure_at": self.last_failure_at,
            "attempts": self.attempts,
            "next_mark": instant(self.next_mark) if self.next_mark is not None else None,
            "resolved": self.resolved,
            "gaps": self.gaps.made if self.gaps is not None else 0,
            "delays": {str(place): draws.made for place, draws in self.delays.items()},
            "evaluating": self.evaluating,
            "progress": asdict(self.progress) if self.progress is not None else None,
            "due": self.due.to_json() if self.due is not None else None,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any], generation: int) -> Armed:
        """What `to_json` wrote."""
        made = cls(Trigger.model_validate(value["spec"]), value["number"], Status(value["status"]), generation=generation)
        for name in ("detected_at", "fired_at", "fire_count", "failure_count", "last_failure_at", "attempts", "resolved"):
            setattr(made, name, value[name])
        made.next_mark = parse_instant(value["next_mark"]) if value["next_mark"] else None
        made.evaluating = bool(value.get("evaluating"))
        made.progress = Progress(**value["progress"]) if value.get("progress") else None
        made.due = Due.from_json(value["due"]) if value.get("due") else None
        for _ in range(value["gaps"] if made.gaps is not None else 0):
            made.gap_seconds()
        for place, draws in made.delays.items():
            for _ in range(value["delays"].get(str(place), 0)):
                draws.next()
        return made
