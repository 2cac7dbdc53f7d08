"""What the runs of two commands came to, task by task: two agents, two models, before and after a change."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_env.cli.files import RESULTS
from agent_env.cli.output import line, table
from agent_env.cli.session import find_run
from agent_env.documents.scoring import Tally, tally
from agent_env.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from agent_env.stores import Journal, RunRow
    from agent_env.stores.opening import Memory

ALL = "all tasks"


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


def compared_run(stores: Memory, text: str) -> RunRow:
    """The run of that id, or whose id starts so.

    Raises:
        NotFoundError: There is none.
        UsageError: Several start so, or a folder is meant that tells no results.
    """
    try:
        return find_run(stores, text)
    except NotFoundError as error:
        if not Path(text).is_dir():
            raise
        hint = "what `agent-env run --output` or `--json` wrote is meant"
        raise UsageError(f"the folder {text!r} has no {RESULTS}, and no run is called so", concerns=text, hint=hint) from error


def runs_of_group(journal: Journal, group_id: str) -> list[RunRow]:
    """Every run of a group, by its id, or by the first letters of that where no run begins so; none when there is no such group."""
    if not (found := list(journal.runs_of_group(group_id))):
        try:
            journal.find_run(group_id)
        except NotFoundError:
            if whole := journal.find_group(group_id):
                found = list(journal.runs_of_group(whole))
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


def show_compared(found: dict[str, dict[str, Any]], left: str, right: str) -> None:
    """The comparison for people."""
    line(f"left   {left}")
    line(f"right  {right}")
    line()
    rows = []
    for task, pair in found.items():
        sides = [_shown(pair[side]) if pair[side] else (None, None, None) for side in ("left", "right")]
        rows.append((task, *sides[0], *sides[1], None if pair["change"] is None else f"{pair['change']:+.3f}"))
    side = ("MEAN", "NOT COUNTED")
    table(("TASK", "LEFT PASSED", *side, "RIGHT PASSED", *side, "CHANGE"), rows, right=(1, 2, 3, 4, 5, 6, 7))


def _pair(left: Tally | None, right: Tally | None) -> dict[str, Any]:
    means = [side.mean if side else None for side in (left, right)]
    change = None if means[0] is None or means[1] is None else means[1] - means[0]
    return {"left": _json(left) if left else None, "right": _json(right) if right else None, "change": change}


def _json(side: Tally) -> dict[str, Any]:
    return {**asdict(side), "not_counted": side.not_counted}


def _shown(side: dict[str, Any]) -> tuple[str, str | None, int | None]:
    """Passed, mean and what was not counted, for people."""
    error = "" if side["standard_error"] is None else f" ± {side['standard_error']:.3f}"
    mean = None if side["mean"] is None else f"{side['mean']:.3f}{error}"
    return f"{side['passed']} of {side['counted']}", mean, side["not_counted"] or None
