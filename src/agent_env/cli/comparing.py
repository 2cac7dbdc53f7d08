"""What the runs of two commands came to, task by task: two agents, two models, before and after a change."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_env.cli.files import RESULTS
from agent_env.cli.output import line, table
from agent_env.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from agent_env.stores import Journal, RunRow

_PAGE = 500
ALL = "all tasks"


@dataclass(frozen=True, slots=True)
class Tally:
    """What runs came to, counted as the command that ran them counts."""

    runs: int
    counted: int
    """Those whose ending may enter statistics: no faults of the world, nothing cancelled or unfinished."""
    passed: int
    mean: float | None
    """The mean score of what was counted and scored; None when nothing was."""
    deviation: float | None
    """The standard error of that mean: what another such group may differ by through chance alone. None below two scores."""

    def shown(self) -> tuple[str, str | None]:
        """Passed and mean, for people."""
        error = "" if self.deviation is None else f" ± {self.deviation:.3f}"
        return f"{self.passed} of {self.counted}", None if self.mean is None else f"{self.mean:.3f}{error}"


def named_group(text: str) -> str:
    """The group whose results `run --output` wrote there, a file or a folder; any other text is a name already.

    Raises:
        UsageError: The file tells no group.
    """
    file = Path(text, RESULTS) if Path(text).is_dir() else Path(text)
    if not file.is_file():
        return text
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError):
        found = None
    group = found.get("group_id") if isinstance(found, dict) else None
    if not isinstance(group, str):
        raise UsageError(f"{file} tells no group of runs", concerns=text, hint="what `agent-env run --output` or `--json` wrote is meant")
    return group


def runs_of_group(journal: Journal, group_id: str) -> list[RunRow]:
    """Every run of a group, by its id, or by the first letters of that where no run begins so; none when there is no such group."""
    if not (found := list(chain.from_iterable(_pages(journal, group_id)))):
        try:
            journal.find_run(group_id)
        except NotFoundError:
            if whole := journal.find_group(group_id):
                found = list(chain.from_iterable(_pages(journal, whole)))
        except UsageError:  # several runs, which whoever looks for one is told
            pass
    return found


def compared(left: Sequence[RunRow], right: Sequence[RunRow]) -> dict[str, dict[str, Any]]:
    """Task → `{"left", "right", "change"}`: two tallies as JSON, null where a side has no such run, and the right mean less the left one.

    Of several tasks, the last entry is `ALL`.
    """
    tasks = sorted({run.task_id for run in (*left, *right)})
    sides = {task: [[run for run in side if run.task_id == task] for side in (left, right)] for task in tasks}
    if len(tasks) != 1:
        sides[ALL] = [list(left), list(right)]
    return {task: _pair(*(tally(side) if side else None for side in both)) for task, both in sides.items()}


def tally(runs: Sequence[RunRow]) -> Tally:
    """What some runs came to."""
    counted = [run for run in runs if _counts(run)]
    numbers = [sum(known) / len(known) for run in counted if (known := [score for score in run.scores.values() if score is not None])]
    mean = sum(numbers) / len(numbers) if numbers else None
    deviation = None
    if mean is not None and len(numbers) > 1:
        deviation = (sum((number - mean) ** 2 for number in numbers) / (len(numbers) - 1) / len(numbers)) ** 0.5
    return Tally(len(runs), len(counted), sum(run.word == "passed" for run in counted), mean, deviation)


def show_compared(found: dict[str, dict[str, Any]], left: str, right: str) -> None:
    """The comparison for people."""
    line(f"left   {left}")
    line(f"right  {right}")
    line()
    rows = []
    for task, pair in found.items():
        sides = [Tally(**pair[side]).shown() if pair[side] else (None, None) for side in ("left", "right")]
        rows.append((task, *sides[0], *sides[1], None if pair["change"] is None else f"{pair['change']:+.3f}"))
    table(("TASK", "LEFT PASSED", "MEAN", "RIGHT PASSED", "MEAN", "CHANGE"), rows, right=(1, 2, 3, 4, 5))


def _pages(journal: Journal, group_id: str) -> Iterator[list[RunRow]]:
    before: str | None = None
    while rows := journal.list_runs(group=group_id, limit=_PAGE, before=before):
        yield rows
        before = rows[-1].run_id


def _counts(run: RunRow) -> bool:
    from agent_env.documents.outcomes import OUTCOMES, Kind

    return run.kind is not None and run.status != "cancelled" and OUTCOMES[Kind(run.kind)].counts


def _pair(left: Tally | None, right: Tally | None) -> dict[str, Any]:
    means = [side.mean if side else None for side in (left, right)]
    change = None if means[0] is None or means[1] is None else means[1] - means[0]
    return {"left": asdict(left) if left else None, "right": asdict(right) if right else None, "change": change}
