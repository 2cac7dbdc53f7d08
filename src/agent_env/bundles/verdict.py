"""Runs under the names by which their users know them, and what many of them come to: for every face of agent-env."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agent_env.documents.scoring import Tally, score_of, tally

if TYPE_CHECKING:
    from agent_env.engine.outcome import RunOutcome

ERROR_KEYS = ("code", "message", "step_id")
"""What the documented JSON says of an error."""


def attempt_label(named: str, attempt: int, attempts: int) -> str:
    """A name that tells one of several attempts from the others, counted from 0."""
    return f"{named} #{attempt + 1}" if attempts > 1 else named


@dataclass(frozen=True, slots=True)
class Result:
    """A run under the name by which its user knows the task."""

    task: str
    run_id: str
    status: str
    word: str
    scores: Mapping[str, float | None]
    duration_seconds: float | None
    error: Mapping[str, Any] | None
    kind: str
    """The kind of its ending; see `documents.outcomes`."""
    version: int | None = None
    label: str = ""
    """What tells it from the other runs of its task: a row of the seeds, an attempt."""
    context: str | None = None
    """The file with its context, beside the results; None where none was written."""

    @classmethod
    def of(cls, task: str, outcome: RunOutcome, label: str = "") -> Result:
        """An outcome of the engine."""
        return cls(
            task,
            outcome.run_id,
            outcome.status,
            outcome.word,
            outcome.scores,
            outcome.duration_seconds,
            outcome.error,
            str(outcome.kind),
            outcome.task_version,
            label,
        )

    def to_json(self) -> dict[str, Any]:
        """The documented shape of one run."""
        return {
            "run_id": self.run_id,
            "task": self.task,
            "status": self.status,
            "kind": self.kind,
            "scores": {name: score for name, score in self.scores.items() if score is not None},
            "score": self.score,
            "duration_seconds": None if self.duration_seconds is None else round(self.duration_seconds, 6),
            "error": {name: self.error.get(name) for name in ERROR_KEYS} if self.error else None,
            **({"context": self.context} if self.context is not None else {}),
        }

    @property
    def score(self) -> float | None:
        """What it enters statistics with; None when it is unscored or does not count."""
        return score_of(self)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A run that a command was to do."""

    task: str
    attempt: int = 1
    """Which of the task's runs in this command, from 1; with seeds each row counts."""
    label: str = ""
    """What tells it from the other runs of its task."""

    def to_json(self) -> dict[str, Any]:
        """The documented shape of a run that had not begun."""
        return {"task": self.task, "attempt": self.attempt}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What all runs of one command come to."""

    results: Sequence[Result]
    fail_under: float | None = None
    group_id: str | None = None
    """What the command's runs have in common."""
    not_started: Sequence[Wanted] = ()
    """What the command was to do, and had not begun when it was cut short."""

    @property
    def tally(self) -> Tally:
        """How many count, their mean score and its standard error."""
        return tally(self.results)

    @property
    def mean(self) -> float | None:
        """The mean score of the runs that count; None when none was scored."""
        return self.tally.mean

    @property
    def completed(self) -> bool:
        """Every run completed, and none is owed."""
        return not self.not_started and all(result.status == "completed" for result in self.results)

    @property
    def ok(self) -> bool:
        """What exit code 0 says: every run completed, and the mean reaches the mark if there is one."""
        return self.completed and self.reached

    @property
    def reached(self) -> bool:
        """There is no mark, or the mean is not below it."""
        return self.fail_under is None or ((mean := self.mean) is not None and mean >= self.fail_under)

    @property
    def passed(self) -> bool:
        """As `ok`, and without a mark no score is below 1."""
        return self.ok and (self.fail_under is not None or all(result.word in {"passed", "unscored"} for result in self.results))

    def to_json(self) -> dict[str, Any]:
        """The documented object of `run --json`."""
        came = self.tally
        return {
            "runs": [result.to_json() for result in self.results],
            "passed": self.passed,
            "mean_score": came.mean,
            "standard_error": came.standard_error,
            "counted": came.counted,
            "not_counted": came.not_counted,
            "group_id": self.group_id,
            "not_started": [wanted.to_json() for wanted in self.not_started],
        }
