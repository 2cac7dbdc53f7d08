"""What a run's score is, and what many come to: the only place that computes a mean, a pass rate or a standard error of runs.

A run whose ending counts by the table of `documents.outcomes` enters them; any other is left out and told by its number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from agent_env.documents.outcomes import OUTCOMES

SCORING = """\
## What a run's score is

A run's score is the mean of its verifiers' scores, each with the same weight; one that `aggregate_verifiers` makes is one more beside its
sources. A verifier that scored nothing (`null`) is left out. A run that completed without any score is *unscored*: no mean has it.

## How a crash counts

A run that failed, and whose ending counts by the table above, is the agent's or the task's own failure: each verifier of its task that was
not reached counts as 0, and a failed run without any verifier's score counts as 0. So nobody gains by crashing: of four runs of which two
score 1 and two crash, the mean is 0.5. This holds for each mean, standard error and pass rate: in the table of results, in `--json`, for
`--fail-under` and in `runs diff`. The `score` of a run in `--json` is also its reward for training.

A run whose ending does not count has no score (`null`), whatever its verifiers said before, and neither has one that was cancelled or has
not ended. It is left out of all of these, and how many there are is told: NOT COUNTED, `not_counted`.
"""
"""For the documentation."""


class Ended(Protocol):
    """A run as far as statistics are concerned."""

    @property
    def status(self) -> str:
        """completed, failed, cancelled; any other has not ended."""
        ...

    @property
    def kind(self) -> str | None:
        """The kind of its ending; None while there is none."""
        ...

    @property
    def word(self) -> str | None:
        """`passed`, or another word for it."""
        ...

    @property
    def scores(self) -> Mapping[str, float | None]:
        """Verifier → 0 to 1; None where nothing was scored."""
        ...


def counts(run: Ended) -> bool:
    """Its ending may enter statistics: no fault of the world, nothing cancelled or unfinished."""
    if run.status not in ("completed", "failed"):
        return False
    return run.kind in _COUNTED


def score_of(run: Ended) -> float | None:
    """A run's score from 0 to 1: the mean of its verifiers'. None when it is unscored or does not count.

    Of a failed run that counts, what was not scored is 0: it is the failure that kept the verifier from it.
    """
    if not counts(run):
        return None
    if run.status == "failed":
        numbers = [score or 0.0 for score in run.scores.values()] or [0.0]
    else:
        numbers = [score for score in run.scores.values() if score is not None]
    return sum(numbers) / len(numbers) if numbers else None


@dataclass(frozen=True, slots=True)
class Tally:
    """What runs came to."""

    runs: int
    counted: int
    """Those whose ending may enter statistics."""
    passed: int
    """Of those that are counted."""
    mean: float | None
    """The mean score of those that are counted and not unscored; None when there is none."""
    standard_error: float | None
    """Of that mean: what another such group may differ by through chance alone. None below two scores."""

    @property
    def not_counted(self) -> int:
        """Those whose ending is no evidence about the agent."""
        return self.runs - self.counted


def tally(runs: Iterable[Ended]) -> Tally:
    """What some runs came to."""
    runs = list(runs)
    counted = [run for run in runs if counts(run)]
    numbers = [score for run in counted if (score := score_of(run)) is not None]
    mean = sum(numbers) / len(numbers) if numbers else None
    error = None
    if mean is not None and len(numbers) > 1:
        error = (sum((number - mean) ** 2 for number in numbers) / (len(numbers) - 1) / len(numbers)) ** 0.5
    return Tally(len(runs), len(counted), sum(run.word == "passed" for run in counted), mean, error)


_COUNTED = frozenset(str(kind) for kind, row in OUTCOMES.items() if row.counts)
