"""What one call has to do with a task that is run alone: its runs, each with the seed that fills it and a key of its content."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent_env.bundles.calls import Call
from agent_env.bundles.work import content_digest, derived_seed
from agent_env.documents.seeds import SEED_KEY
from agent_env.documents.updates import Json

if TYPE_CHECKING:
    from agent_env.engine.plan import TaskPlan


@dataclass(frozen=True)
class SingleWork:
    """The runs of a call."""

    call: Call
    runs: Sequence[tuple[Mapping[str, Json], str]]
    """The seed and the key of each, attempt by attempt."""
    stored: Mapping[str, Json]
    """What each run keeps of the call."""


def single_work(
    name: str,
    task: TaskPlan,
    *,
    rows: Sequence[Mapping[str, Json]] = (),
    attempts: int = 1,
    seed: int | None = None,
    options: Mapping[str, Json] | None = None,
) -> SingleWork:
    """The runs of a task.

    Args:
        name: How its user calls it, which `<seed>` depends on.
        task: The task, not yet filled.
        rows: Placeholder values; a run for each, or one run without any.
        attempts: Runs of each row.
        seed: Fills `<seed>` with a number of its own for each run.
        options: Overrides and what is asked of models: part of what the work is.
    """
    content = content_digest(list(task.documents))
    each = rows or [{}]
    runs: list[tuple[Mapping[str, Json], str]] = []
    for number in range(attempts * len(each)):
        row = each[number % len(each)]
        filled = row if seed is None else {SEED_KEY: derived_seed(seed, name, number), **row}
        runs.append((filled, content_digest([content, dict(filled), number])))
    call = Call(tuple(key for _, key in runs), {"": content}, rows, seed, attempts, options or {})
    return SingleWork(call, runs, {**call.stored(), "content": content})
