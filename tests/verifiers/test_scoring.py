"""Scores are the reference's arithmetic; what nothing scored is unscored."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_env.verifiers import Aggregator, aggregate

WEIGHTS = st.none() | st.integers(-5, 5) | st.floats(-100, 100)
ROWS = st.lists(
    st.fixed_dictionaries(
        {"result": st.booleans(), "skipped": st.booleans()}, optional={"weight": WEIGHTS, "score": st.floats(0, 1) | st.none()}
    ),
    max_size=8,
)


def formula(rows: list[dict[str, Any]]) -> float | None:
    """The weighted average as the specification words it."""
    scored = [row for row in rows if not row["skipped"]]
    if not scored:
        return None
    values = [
        (
            1.0 if row.get("weight") is None else row["weight"],
            (1.0 if row["result"] else 0.0) if row.get("score") is None else row["score"],
        )
        for row in scored
    ]
    positive = sum(weight for weight, _ in values if weight > 0)
    if positive <= 0:
        return 0.0
    numerator = sum(score * weight for weight, score in values if weight > 0)
    numerator -= sum((1 - score) * abs(weight) for weight, score in values if weight < 0)
    return max(0.0, min(1.0, numerator / positive))


@given(ROWS)
def test_the_weighted_average_is_the_formula(rows: list[dict[str, Any]]) -> None:
    expected = formula(rows)
    score = aggregate(rows, Aggregator.WEIGHTED_AVERAGE)
    assert (score is None) == (expected is None)
    assert score is None or score == pytest.approx(expected, abs=1e-9)
    assert score is None or 0 <= score <= 1


@given(ROWS)
def test_all_and_any_look_at_results_alone(rows: list[dict[str, Any]]) -> None:
    results = [row["result"] for row in rows if not row["skipped"]]
    assert aggregate(rows, Aggregator.ALL_PASS) == (float(all(results)) if results else None)
    assert aggregate(rows, Aggregator.ANY_PASS) == (float(any(results)) if results else None)


@pytest.mark.parametrize("aggregator", list(Aggregator))
def test_no_scored_row_is_unscored_and_not_zero(aggregator: Aggregator) -> None:
    assert aggregate([], aggregator) is None
    assert aggregate([{"type": "custom", "skipped": True}], aggregator) is None


def test_a_result_that_is_merely_truthy_is_no_pass() -> None:
    assert aggregate([{"result": 1, "skipped": False}], Aggregator.ALL_PASS) == 0.0


@pytest.mark.parametrize(
    ("rows", "score"),
    [
        ([{"result": True, "weight": 3}, {"result": False}], 0.75),
        ([{"result": True, "weight": 2}, {"result": False, "weight": -1}], 0.5),
        ([{"result": True, "weight": 1}, {"result": False, "weight": -5}], 0.0),
        ([{"result": True, "weight": -1}], 0.0),
        ([{"result": True, "weight": 0}, {"result": False, "weight": 1}], 0.0),
        ([{"result": False, "score": 0.25}], 0.25),
    ],
)
def test_weights_by_example(rows: list[dict[str, Any]], score: float) -> None:
    assert aggregate(rows, Aggregator.WEIGHTED_AVERAGE) == pytest.approx(score)
