"""`aggregate_verifiers`: rows of several verifiers, one score."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agent_env.errors import NotFoundError
from tests.steps.bench import BenchRun, on_bench

PASSED = {"result": True, "score": 1.0, "weight": 3, "skipped": False}
FAILED = {"result": False, "score": 0.0, "skipped": False}
RECORDED: dict[str, Any] = {
    "good": {"results": [PASSED, {"skipped": True}], "score": 1.0},
    "bad": {"results": [FAILED], "score": 0.0},
    "unscored": {"results": [{"skipped": True}], "score": None},
    "bare": {"score": 0.5},
    "validator": {"passed": True},
}


@pytest.mark.parametrize(
    ("sources", "aggregator", "score"),
    [
        (["good", "bad"], "weighted_average", 0.75),
        (["good", "bad"], "all_pass", 0.0),
        (["good", "bad"], "any_pass", 1.0),
        (["good", "unscored"], "weighted_average", 1.0),
        (["unscored"], "weighted_average", None),
        (["unscored", "validator"], "all_pass", None),
        ([], "weighted_average", None),
        (["good", "bare"], "weighted_average", 0.875),
    ],
)
def test_rows_are_taken_together_and_unscored_sources_are_no_zeros(
    tmp_path: Path, sources: list[str], aggregator: str, score: float | None
) -> None:
    async def body(run: BenchRun) -> None:
        run.context["metadata"]["verifications"] = dict(RECORDED)
        step = {"id": "total", "type": "aggregate_verifiers", "verifier_ids": sources, "score_aggregator": aggregator}
        result = await run.do(step)
        assert run.metadata["verifications"]["total"] == {"score": score, "source_verifier_ids": sources}
        assert dict(result.scores()) == {"total": score}

    on_bench(tmp_path, body, deployed=False)


def test_a_verifier_that_recorded_nothing_is_an_error_that_names_the_others(tmp_path: Path) -> None:
    async def body(run: BenchRun) -> None:
        run.context["metadata"]["verifications"] = dict(RECORDED)
        with pytest.raises(NotFoundError, match=r"verifier 'goood' has recorded nothing .*did you mean 'good'"):
            await run.do({"type": "aggregate_verifiers", "verifier_ids": ["goood"]})
        with pytest.raises(NotFoundError, match="recorded: bad, bare, good, unscored, validator"):
            await run.do({"type": "aggregate_verifiers", "verifier_ids": ["another"]})

    on_bench(tmp_path, body, deployed=False)
