"""What finished runs look like on a terminal: a table, what went wrong, the sum of many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import islice

from agent_env.bundles.verdict import Result, Verdict, Wanted
from agent_env.cli.output import SHOWN_CHARACTERS, line, note, one_line, table
from agent_env.documents.scoring import counts, tally

MOST_ERRORS = 20
MOST_SCORES = 6
"""Named in a cell of a table: a task with hundreds of verifiers would make every row as wide."""


def score_text(scores: Mapping[str, float | None], score: float | None = None) -> str:
    """`verifier 0.5, other -`; a single verifier without its name, and of very many the first ones and the run's `score`."""
    further = len(scores) - MOST_SCORES
    if further > 1:
        mean = "" if score is None else f", mean {score:.3f}"
        return f"{score_text(dict(islice(scores.items(), MOST_SCORES)))} and {further} more{mean}"
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
    """The result table on standard output, then what went wrong, then the sum. Quiet: the sum, and what went wrong on standard error."""
    results = verdict.results
    if not quiet:
        rows = [(r.label or r.task, r.run_id, r.word, score_text(r.scores, r.score), seconds_text(r.duration_seconds)) for r in results]
        table(("TASK", "RUN", "RESULT", "SCORE", "TIME"), rows, right=(4,))
        _show_attempts(results)
        _show_errors(results, line)
        _show_not_started(verdict.not_started)
        for text in said:
            line(text)
        if len(results) > 1 and verdict.group_id:
            note(f"all of them: agent-env runs list --group {verdict.group_id}")
    else:
        _show_errors(results, note)
    line(summary(verdict))


def summary(verdict: Verdict) -> str:
    """One line for everything."""
    words = Counter(result.word for result in verdict.results)
    parts = [f"{count} {word}" for word, count in sorted(words.items(), key=lambda item: _ORDER.index(item[0]))]
    faults = Counter(result.kind for result in verdict.results if result.status == "failed" and not counts(result))
    if faults:
        parts.append(f"not counted: {', '.join(f'{count} {kind}' for kind, count in faults.most_common())}")
    if verdict.not_started:
        parts.append(f"{len(verdict.not_started)} not started")
    if verdict.mean is not None:
        parts.append(f"mean score {verdict.mean:.3f}")
    if verdict.fail_under is not None:
        why = "" if verdict.completed or not verdict.reached else ": not every run completed"
        parts.append(f"{'reaches' if verdict.ok else 'misses'} the mark {verdict.fail_under:g}{why}")
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
        came = tally(runs)
        mean = None if came.mean is None else f"{came.mean:.3f}"
        rows.append((task, f"{came.passed} of {came.counted}", mean, came.not_counted or None))
    line()
    table(("TASK", "PASSED", "MEAN", "NOT COUNTED"), rows, right=(1, 2, 3))


def _show_not_started(owed: Sequence[Wanted]) -> None:
    if owed:
        further = f" and {len(owed) - MOST_ERRORS} more" if len(owed) > MOST_ERRORS else ""
        line(f"not started: {', '.join(wanted.label or wanted.task for wanted in owed[:MOST_ERRORS])}{further}")


def _show_errors(results: Sequence[Result], tell: Callable[[str], None]) -> None:
    failed = [result for result in results if result.error]
    for result in failed[:MOST_ERRORS]:
        error = result.error or {}
        step = f" step {error['step_id']}:" if error.get("step_id") else ""
        message = str(error.get("message"))
        tell(f"{result.label or result.task} ({result.run_id}):{step} {error.get('code')}: {one_line(message)}")
        if len(message) > SHOWN_CHARACTERS:
            tell(f"  all of it: agent-env runs show {result.run_id}")
        if error.get("hint"):
            tell(f"  hint: {error['hint']}")
    if len(failed) > MOST_ERRORS:
        tell(f"… and {len(failed) - MOST_ERRORS} more; `agent-env runs list --status failed` has them all")
