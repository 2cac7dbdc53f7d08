"""How far judgements of the same things agree: among themselves, and with labels. Pure arithmetic.

Krippendorff's alpha is 1 for full agreement, 0 for what chance would give, and less for worse; it takes any number of judgements a thing.
Where all judgements are the same one, chance would agree too: there is nothing to tell, and the answer is None.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import permutations
from statistics import fmean, median
from typing import Any

Distance = Callable[[float, float], float]
PASSES_AT = 0.5
"""From here on a score counts as passed where only passed or not is asked."""


def nominal(one: float, other: float) -> float:
    """The same or not."""
    return float(one != other)


def interval(one: float, other: float) -> float:
    """The further apart, the worse."""
    return (one - other) ** 2


def alpha(units: Sequence[Sequence[float]], distance: Distance) -> float | None:
    """Krippendorff's alpha.

    Args:
        units: For each thing, its judgements. Things with fewer than two are left out.
        distance: Between two judgements; 0 for equal ones.

    Returns:
        None when no thing has two judgements, or no two judgements of any things differ.
    """
    paired = [unit for unit in units if len(unit) > 1]
    values = [value for unit in paired for value in unit]
    count = len(values)
    if count < 2:
        return None
    observed = sum(sum(distance(a, b) for a, b in permutations(unit, 2)) / (len(unit) - 1) for unit in paired) / count
    tally = Counter(values)
    expected = sum(distance(a, b) * tally[a] * tally[b] for a, b in permutations(tally, 2)) / (count * (count - 1))
    return None if expected == 0 else 1 - observed / expected


def pairwise(units: Sequence[Sequence[float]]) -> float | None:
    """The share of pairs of judgements of one thing that are equal; None without pairs."""
    pairs = [float(a == b) for unit in units for a, b in permutations(unit, 2)]
    return fmean(pairs) if pairs else None


def settled(judgements: Sequence[float], *, binary: bool) -> float:
    """What several judgements of one thing come to: the majority's, or for scores the middle one. An even split is the lower one."""
    if not binary:
        return median(judgements)
    return float(sum(each >= PASSES_AT for each in judgements) * 2 > len(judgements))


@dataclass(frozen=True, slots=True)
class Agreement:
    """Of several samples of one judge."""

    samples: int
    """Of which each criterion has a judgement."""
    pairwise: float | None
    """Share of equal pairs."""
    alpha: float | None
    """Krippendorff's."""
    position_effect: float | None
    """Mean score of what stood in the first half of the list, less that of the second half: far from 0, the order decides."""

    def to_json(self) -> dict[str, Any]:
        """As the context keeps it."""
        return {name: round(value, 4) if isinstance(value, float) else value for name, value in asdict(self).items()}


def agreement(units: Sequence[Sequence[float]], placed: Sequence[tuple[float, float]], *, binary: bool) -> Agreement:
    """The statistics of samples.

    Args:
        units: For each criterion, the score of each sample.
        placed: For each judgement, where its criterion stood (from 0 to 1), and its score less the mean of its criterion.
        binary: Scores are passed or not.
    """
    first = [score for position, score in placed if position < PASSES_AT]
    second = [score for position, score in placed if position >= PASSES_AT]
    samples = min((len(unit) for unit in units), default=0)
    effect = fmean(first) - fmean(second) if samples > 1 and first and second else None
    return Agreement(samples, pairwise(units), alpha(units, nominal if binary else interval), effect)


@dataclass(frozen=True, slots=True)
class Labelled:
    """A judge against labels: each judgement passed or not, as it should or not."""

    right_passes: int = 0
    right_fails: int = 0
    false_passes: int = 0
    """Passed what should fail."""
    false_fails: int = 0
    """Failed what should pass."""

    @classmethod
    def of(cls, pairs: Sequence[tuple[float, float]]) -> Labelled:
        """From pairs of a judgement and its label."""
        tally = Counter((said >= PASSES_AT, label >= PASSES_AT) for said, label in pairs)
        return cls(tally[True, True], tally[False, False], tally[True, False], tally[False, True])

    @property
    def count(self) -> int:
        """Judgements."""
        return self.right_passes + self.right_fails + self.false_passes + self.false_fails

    @property
    def accuracy(self) -> float | None:
        """Share of right ones."""
        return (self.right_passes + self.right_fails) / self.count if self.count else None

    @property
    def kappa(self) -> float | None:
        """Cohen's: agreement beyond what chance would give; None where judge and labels only ever say one thing."""
        accuracy = self.accuracy
        if accuracy is None:
            return None
        said, labelled = (self.right_passes + self.false_passes) / self.count, (self.right_passes + self.false_fails) / self.count
        chance = said * labelled + (1 - said) * (1 - labelled)
        return None if chance == 1 else (accuracy - chance) / (1 - chance)

    def to_json(self) -> dict[str, Any]:
        """As the context keeps it."""
        rates = {"accuracy": self.accuracy, "kappa": self.kappa}
        shown = {name: None if value is None else round(value, 4) for name, value in rates.items()}
        return {"judgements": self.count, **asdict(self), **shown}
