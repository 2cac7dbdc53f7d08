"""From rows to a score. Pure arithmetic, the reference's, with one difference: no scored row is None, which is not 0."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from enum import StrEnum

from agent_env.documents.updates import Json


class Aggregator(StrEnum):
    """How the rows of a verifier become its score."""

    ALL_PASS = "all_pass"
    """1 if every row passed, else 0."""
    ANY_PASS = "any_pass"
    """1 if at least one row passed, else 0."""
    WEIGHTED_AVERAGE = "weighted_average"
    """Scores by weight over the sum of the positive weights; a row of negative weight takes off what it failed by."""


def aggregate(rows: Iterable[Mapping[str, Json]], aggregator: Aggregator) -> float | None:
    """The score of some rows, from 0 to 1; None when no row was scored."""
    scored = [row for row in rows if is_scored(row)]
    if not scored:
        return None
    match aggregator:
        case Aggregator.ALL_PASS:
            return float(all(row.get("result") is True for row in scored))
        case Aggregator.ANY_PASS:
            return float(any(row.get("result") is True for row in scored))
        case Aggregator.WEIGHTED_AVERAGE:
            return _weighted(scored)


def is_scored(row: Mapping[str, Json]) -> bool:
    """The row takes part in the score."""
    return not row.get("skipped") and not (row.get("score") is None and row.get("result") is None)


def _weighted(rows: Iterable[Mapping[str, Json]]) -> float:
    total = earned = 0.0
    for row in rows:
        weight, score = _weight(row), _score(row)
        if weight > 0:
            total += weight
            earned += score * weight
        elif weight < 0:
            earned -= (1.0 - score) * -weight
    return min(max(earned / total, 0.0), 1.0) if total > 0 else 0.0


def _weight(row: Mapping[str, Json]) -> float:
    weight = _number(row.get("weight"))
    return 1.0 if weight is None else weight


def _score(row: Mapping[str, Json]) -> float:
    score = _number(row.get("score"))
    return float(row.get("result") is True) if score is None else score


def _number(value: Json) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
