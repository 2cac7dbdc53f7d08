"""What a finished run looks like: the documented JSON, one row of a table, and the sum of many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agent_env.cli.output import line, table

if TYPE_CHECKING:
    from agent_env.engine.outcome import RunOutcome

ERROR_KEYS = ("code", "message", "step_id")
MOST_ERRORS = 20


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
    counts: bool
    """The ending may enter statistics; an infrastructure fault may not."""
    kind: str = ""
    version: int | None = None

    @classmethod
    def of(cls, task: str, outcome: RunOutcome) -> Result:
        """An outcome of the engine."""
        return cls(
            task,
            outcome.run_id,
            outcome.status,
            outcome.word,
            outcome.scores,
            outcome.duration_seconds,
            outcome.error,
            outcome.counts,
            str(outcome.kind),
            outcome.task_version,
        )

    def to_json(self) -> dict[str, Any]:
        """The documented shape of one run."""
        return {
            "run_id": self.run_id,
            "task": self.task,
            "status": self.status,
            "scores": {name: score for name, score in self.scores.items() if score is not None},
            "duration_seconds": None if self.duration_seconds is None else round(self.duration_seconds, 6),
            "error": {name: self.error.get(name) for name in ERROR_KEYS} if self.error else None,
        }

    @property
    def score(self) -> float | None:
        """The mean of its verifiers' scores; None when nothing was scored or the ending does not count."""
        numbers = [score for score in self.scores.values() if score is not None]
        return sum(numbers) / len(numbers) if numbers and self.counts else None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What all runs of one command come to."""

    results: Sequence[Result]
    fail_under: float | None = None

    @property
    def mean(self) -> float | None:
        """The mean score of the runs that count; None when none was scored."""
        numbers = [score for result in self.results if (score := result.score) is not None]
        return sum(numbers) / len(numbers) if numbers else None

    @property
    def completed(self) -> bool:
        """Every run completed."""
        return all(result.status == "completed" for result in self.results)

    @property
    def ok(self) -> bool:
        """What exit code 0 says: every run completed, and the mean reaches the mark if there is one."""
        if self.fail_under is None:
            return self.completed
        return self.completed and self.mean is not None and self.mean >= self.fail_under

    @property
    def passed(self) -> bool:
        """As `ok`, and without a mark no score is below 1."""
        return self.ok and (self.fail_under is not None or all(result.word in {"passed", "unscored"} for result in self.results))

    def to_json(self) -> dict[str, Any]:
        """The documented object of `run --json`."""
        return {"runs": [result.to_json() for result in self.results], "passed": self.passed}


def score_text(scores: Mapping[str, float | None]) -> str:
    """`verifier 0.5, other -`; a single verifier without its name."""
    shown = {name: "-" if score is None else f"{score:g}" if score in (0, 1) else f"{score:.3f}" for name, score in scores.items()}
    if len(shown) == 1:
        return next(iter(shown.values()))
    return ", ".join(f"{name} {value}" for name, value in shown.items())


def seconds_text(seconds: float | None) -> str:
    """A duration for people."""
    if seconds is None:
        return "-"
    if seconds < 100:
        return f"{seconds:.2f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02} min"


def show(verdict: Verdict, *, quiet: bool = False, said: Sequence[str] = ()) -> None:
    """The result table on standard output, then what went wrong, then the sum."""
    results = verdict.results
    if not quiet:
        rows = [(r.task, r.run_id, r.word, score_text(r.scores), seconds_text(r.duration_seconds)) for r in results]
        table(("TASK", "RUN", "RESULT", "SCORE", "TIME"), rows, right=(4,))
        _show_attempts(results)
        _show_errors(results)
        for text in said:
            line(text)
    line(summary(verdict))


def summary(verdict: Verdict) -> str:
    """One line for everything."""
    words = Counter(result.word for result in verdict.results)
    parts = [f"{count} {word}" for word, count in sorted(words.items(), key=lambda item: _ORDER.index(item[0]))]
    faults = Counter(result.kind for result in verdict.results if result.status == "failed" and not result.counts)
    if faults:
        parts.append(f"not counted: {', '.join(f'{count} {kind}' for kind, count in faults.most_common())}")
    if verdict.mean is not None:
        parts.append(f"mean score {verdict.mean:.3f}")
    if verdict.fail_under is not None:
        parts.append(f"{'reaches' if verdict.ok else 'misses'} the mark {verdict.fail_under:g}")
    return " · ".join(parts) if parts else "no runs"


_ORDER = ("passed", "scored below 1", "unscored", "failed", "cancelled")


def _show_attempts(results: Sequence[Result]) -> None:
    by_task: dict[str, list[Result]] = {}
    for result in results:
        by_task.setdefault(result.task, []).append(result)
    if all(len(runs) == 1 for runs in by_task.values()):
        return
    rows = []
    for task, runs in by_task.items():
        mean = Verdict(runs).mean
        counted = [run for run in runs if run.counts and run.status != "cancelled"]
        passed = sum(run.word == "passed" for run in counted)
        rows.append((task, f"{passed} of {len(counted)}", None if mean is None else f"{mean:.3f}", len(runs) - len(counted) or None))
    line()
    table(("TASK", "PASSED", "MEAN", "NOT COUNTED"), rows, right=(1, 2, 3))


def _show_errors(results: Sequence[Result]) -> None:
    failed = [result for result in results if result.error]
    for result in failed[:MOST_ERRORS]:
        error = result.error or {}
        step = f" step {error['step_id']}:" if error.get("step_id") else ""
        line(f"{result.task} ({result.run_id}):{step} {error.get('code')}: {' '.join(str(error.get('message')).split())}")
        if error.get("hint"):
            line(f"  hint: {error['hint']}")
    if len(failed) > MOST_ERRORS:
        line(f"… and {len(failed) - MOST_ERRORS} more; `agent-env runs list --status failed` has them all")
