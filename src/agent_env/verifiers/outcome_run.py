"""What a verifier may ask of the run that it grades: its turns and the triggers that fired. Staged beside the script; Python 3.9 will do.

What was not recorded never fails to load: asking for it raises `RunRecordUnavailableError`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


class RunRecordUnavailableError(Exception):
    """Something was not recorded."""

    def __init__(self, source: str, reason: str) -> None:
        super().__init__(f"{source}: {reason}")
        self.source = source
        self.reason = reason


RunRecordUnavailable = RunRecordUnavailableError
"""As published verifiers call it."""


@dataclass(frozen=True)
class Message:
    """What one side said."""

    turn: int
    role: str
    """`user` or `agent`."""
    text: str
    sent_at: str | None = None
    author: str | None = None
    written_by_triggers: Sequence[str] = ()
    user_sim: bool = False
    parts: Sequence[Mapping[str, Any]] = ()
    env_clock: str | None = None


@dataclass(frozen=True)
class Firing:
    """A trigger that fired."""

    trigger_id: str
    source: str
    """`env:<id>` or `user_agent`."""
    turn: int
    """0: before the first message."""
    at: str | None = None
    virtual_time: str | None = None
    ok: bool = True
    provoked_by: Any | None = None


@dataclass(frozen=True)
class Turn:
    """A message, its reply, and what fired meanwhile."""

    number: int
    message: Message
    reply: Message | None
    firings: Sequence[Firing] = ()


@dataclass(frozen=True)
class Run:
    """The conversation that is graded."""

    turns: Sequence[Turn]
    all_firings: Sequence[Firing] = ()
    unavailable: Sequence[Mapping[str, str]] = ()
    """What was not recorded: `source` and `reason`."""

    def firings(self, trigger_id: str | None = None, env: str | None = None) -> list[Firing]:
        """The firings of a trigger, of an environment, or all."""
        for missing in self.unavailable:
            if env is None or missing["source"] == f"env:{env}":
                raise RunRecordUnavailableError(missing["source"], missing["reason"])
        found = [each for each in self.all_firings if env is None or each.source == f"env:{env}"]
        return [each for each in found if trigger_id is None or each.trigger_id == trigger_id]

    def firing(self, trigger_id: str) -> Firing | None:
        """The first firing of a trigger; None when it did not fire."""
        return next(iter(self.firings(trigger_id)), None)

    def turn(self, number: int) -> Turn:
        """A turn, from 1."""
        found = next((turn for turn in self.turns if turn.number == number), None)
        if found is None:
            raise RunRecordUnavailableError("conversation", f"it has no turn {number}; it has {len(self.turns)}")
        return found

    def as_of(self, number: int) -> Run:
        """The run as it was when that turn had ended."""
        before = [each for each in self.all_firings if each.turn <= number]
        return Run([turn for turn in self.turns if turn.number <= number], before, self.unavailable)


def read(data: Mapping[str, Any] | None) -> Run:
    """A run from what was staged."""
    given = data or {}
    firings = [Firing(**each) for each in given.get("firings", ())]
    turns = []
    for each in given.get("turns", ()):
        reply = Message(**each["reply"]) if each.get("reply") else None
        turns.append(Turn(each["number"], Message(**each["message"]), reply, [one for one in firings if one.turn == each["number"]]))
    return Run(turns, firings, given.get("unavailable", ()))
