"""What a judge is asked about an answer, and how its verdicts become rows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, ClassVar, Final

from pydantic import BaseModel, ConfigDict, Field, field_validator

from agent_env.documents.updates import Json
from agent_env.errors import Problem
from agent_env.steps.contract import apart
from agent_env.steps.fields import Number

_SILENT: Final = frozenset({"id", "weight", "pass_threshold"})
"""Keys of a criterion that a judge is not shown: they say how much depends on it, not what it asks."""
_PASS_THRESHOLD: Final = 0.5


class Format(StrEnum):
    """What a judge says of each criterion."""

    BINARY = "rubric_binary"
    """Met or not."""
    PARTIAL = "rubric_partial"
    """How far: a number from 0 to 1, or within the criterion's `outcomes`."""
    EVIDENCE = "rubric_evidence"
    """Met or not, with the places of the evidence that show it, which have to exist."""


class Output(StrEnum):
    """What a judge is asked for: a rubric in one of the formats, the mistakes that the agent made, or both."""

    BINARY = "rubric_binary"
    PARTIAL = "rubric_partial"
    EVIDENCE = "rubric_evidence"
    MISTAKES = "trajectory_mistakes"
    EVIDENCE_WITH_MISTAKES = "rubric_evidence_with_mistakes"

    @property
    def rubric(self) -> Format | None:
        """What is said of each criterion; None where only mistakes are asked for."""
        match self:
            case Output.MISTAKES:
                return None
            case Output.EVIDENCE_WITH_MISTAKES:
                return Format.EVIDENCE
            case _:
                return Format(self.value)

    @property
    def mistakes(self) -> bool:
        """Mistakes are asked for."""
        return self in {Output.MISTAKES, Output.EVIDENCE_WITH_MISTAKES}

    @property
    def points_at_evidence(self) -> bool:
        """The judge says where it saw that."""
        return self not in {Output.BINARY, Output.PARTIAL}


class RubricCriterion(BaseModel):
    """One thing that is asked of an answer. Free keys (`title`, `description` …) are shown to the judge and come back in its row."""

    model_config = ConfigDict(frozen=True, extra="allow", defer_build=True)

    free_keys: ClassVar[bool] = True

    id: str = Field(min_length=1)
    """Unique among the criteria."""
    weight: Number | None = None
    """Its share in a weighted average, 1 when absent; negative: what takes score away when it fails. Not shown to the judge."""
    outcomes: dict[str, Number] | tuple[Number, ...] | None = None
    """Of a partial score: the range `{"min": 0, "max": 5}`, or the values that it may have. Absent: 0 to 1."""
    pass_threshold: Number = _PASS_THRESHOLD
    """From which score on (of 0 to 1) a partially met criterion counts as met."""

    @field_validator("outcomes")
    @classmethod
    def _a_range(cls, value: Any) -> Any:
        if isinstance(value, dict) and not (set(value) == {"min", "max"} and value["min"] < value["max"]):
            raise ValueError('a range is {"min": …, "max": …}, and min is less than max')
        if isinstance(value, tuple) and len(set(value)) < 2:
            raise ValueError("needs at least two different values")
        return value

    def as_written(self) -> dict[str, Json]:
        """The criterion as its author wrote it."""
        return self.model_dump(mode="json", exclude_unset=True)

    def shown(self) -> dict[str, Json]:
        """What the judge sees of it."""
        return {key: value for key, value in self.as_written().items() if key not in _SILENT}

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the greatest score that a judge may give."""
        if isinstance(self.outcomes, dict):
            return self.outcomes["min"], self.outcomes["max"]
        return (min(self.outcomes), max(self.outcomes)) if self.outcomes else (0.0, 1.0)

    def normal(self, said: float, format: Format) -> float:
        """A judge's score as one from 0 to 1."""
        if format is not Format.PARTIAL:
            return float(said == 1)
        least, most = self.bounds
        value = min(self.outcomes, key=lambda each: abs(each - said)) if isinstance(self.outcomes, tuple) else said
        return min(max((value - least) / (most - least), 0.0), 1.0)

    def passed(self, score: float, format: Format) -> bool:
        """Whether that score, from 0 to 1, meets it."""
        return score >= self.pass_threshold if format is Format.PARTIAL else score == 1.0


def rubric_problems(criteria: Sequence[RubricCriterion], output: Output | None) -> Iterator[Problem]:
    """What is wrong with a list of criteria, by paths relative to the step. Without an output, what has nothing to do with it."""
    if not criteria:
        yield Problem("there is nothing to judge", path=".criteria")
    seen: set[str] = set()
    for index, each in enumerate(criteria):
        path = f".criteria[{index}]"
        yield from apart(_listed_once(each, path, seen), _asks_something(each, path), _outcomes_mean_something(each, path, output))


def _listed_once(criterion: RubricCriterion, path: str, seen: set[str]) -> Iterator[Problem]:
    if criterion.id in seen:
        yield Problem(f"the criterion {criterion.id!r} is listed twice", path=f"{path}.id")
    seen.add(criterion.id)


def _asks_something(criterion: RubricCriterion, path: str) -> Iterator[Problem]:
    if not criterion.shown():
        yield Problem("says nothing about what is asked", path=path, hint='add a "title" or a "description"')


def _outcomes_mean_something(criterion: RubricCriterion, path: str, output: Output | None) -> Iterator[Problem]:
    if output not in {None, Output.PARTIAL} and criterion.outcomes is not None:
        yield Problem(f"outcomes mean nothing to {output}", path=f"{path}.outcomes", hint="output_format: rubric_partial")


def read_score(value: Json) -> float | None:
    """A judge's score as a number; None when it is none."""
    if isinstance(value, bool):
        return float(value)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def verdict_row(
    criterion: RubricCriterion, score: float, format: Format, *, justification: str, more: Mapping[str, Json]
) -> dict[str, Json]:
    """The criterion's row as the context keeps it."""
    return {
        **criterion.as_written(),
        "score": score,
        "result": criterion.passed(score, format),
        "justification": justification,
        "skipped": False,
        **more,
    }
