"""What runs come to, over any mix of endings: a crash is never worth more than the worst score, and a fault of the world is no number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import fmean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_env.documents.outcomes import OUTCOMES, Kind
from agent_env.documents.scoring import counts, score_of, tally
from agent_env.engine.outcome import scores_at_end, word_of


@dataclass(frozen=True)
class Run:
    status: str
    kind: str | None
    scores: Mapping[str, float | None]

    @property
    def word(self) -> str:
        return word_of(self.status, self.scores) if self.status in ("completed", "failed", "cancelled") else self.status  # type: ignore[arg-type]


SCORES = st.dictionaries(st.sampled_from("abc"), st.none() | st.floats(0, 1))
ENDED = st.builds(lambda kind, scores: Run(OUTCOMES[kind].status, kind, scores), st.sampled_from(Kind), SCORES)
GOING_ON = st.builds(Run, st.sampled_from(["queued", "running"]), st.none(), SCORES)
RUNS = st.lists(ENDED | GOING_ON, max_size=12)


@given(RUNS)
def test_any_mix_of_endings_has_the_mean_and_error_of_what_the_table_lets_count(runs: list[Run]) -> None:
    came = tally(runs)
    counted = [run for run in runs if run.kind is not None and OUTCOMES[Kind(run.kind)].counts]
    assert (came.runs, came.counted, came.not_counted) == (len(runs), len(counted), len(runs) - len(counted))
    assert came.passed == sum(run.word == "passed" for run in counted)
    numbers = [score for run in counted if (score := score_of(run)) is not None]
    assert len(counted) - len(numbers) == sum(run.word == "unscored" for run in counted), "only what completed can be unscored"
    assert came.mean == (pytest.approx(fmean(numbers)) if numbers else None)
    error = pytest.approx(stdev(numbers) / len(numbers) ** 0.5, abs=1e-9) if len(numbers) > 1 else None
    assert came.standard_error == error


@given(RUNS, ENDED)
def test_a_fault_of_the_world_moves_no_number_and_is_told(runs: list[Run], run: Run) -> None:
    before, after = tally(runs), tally([*runs, run])
    if not counts(run):
        assert (after.mean, after.standard_error, after.passed, after.counted) == (
            before.mean,
            before.standard_error,
            before.passed,
            before.counted,
        )
        assert (after.not_counted, score_of(run)) == (before.not_counted + 1, None)


@given(
    st.sampled_from([Kind.TASK, Kind.STEP_TIMEOUT, Kind.LIMIT]),
    st.dictionaries(st.sampled_from("abc"), st.floats(0, 1), min_size=1),
    st.data(),
)
def test_crashing_before_any_of_the_verifiers_never_gains(kind: Kind, scores: dict[str, float], data: st.DataObject) -> None:
    whole = Run("completed", Kind.COMPLETED, scores)
    reached = data.draw(st.sets(st.sampled_from(sorted(scores))))
    found = {name: scores[name] for name in reached}
    crashed = Run("failed", kind, scores_at_end(kind, [Planned(name) for name in scores], found))  # type: ignore[misc]
    worth, full = score_of(crashed), score_of(whole)
    assert worth is not None
    assert full is not None
    assert worth <= full + 1e-12
    assert score_of(replace(crashed, scores={})) == 0
    assert tally([whole, crashed]).passed == (whole.word == "passed")


@dataclass(frozen=True)
class Planned:
    verifier_id: str


def test_only_a_failure_that_counts_names_what_was_not_reached() -> None:
    steps = [Planned("a"), Planned(""), object()]
    assert scores_at_end(Kind.TASK, steps, {"b": 1.0}) == {"b": 1.0, "a": None}  # type: ignore[arg-type]
    for kind in (Kind.COMPLETED, Kind.PLACE_LOST, Kind.CANCELLED):
        assert scores_at_end(kind, steps, {"b": 1.0}) == {"b": 1.0}  # type: ignore[arg-type]
