"""`agent_prompt_response_verifier`: what an answer contains, and what is no answer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent_env.errors import NotFoundError
from tests.steps.bench import BenchRun, on_bench

ANSWER = "The sum is 42.\nAll of it is Done."


def _grade(tmp_path: Path, answer: dict[str, Any], criteria: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    """The verification that an answer comes to."""
    kept: dict[str, Any] = {}

    async def body(run: BenchRun) -> None:
        run.limits = replace(run.limits, verify_shell_seconds=fields.pop("seconds", 60.0))
        run.context["prompt_responses"] = [{"prompt_id": "p", "response": ANSWER, **answer}]
        step = {"id": "v", "type": "agent_prompt_response_verifier", "prompt_id": "p", "criteria": criteria, **fields}
        result = await run.do(step)
        kept.update(run.metadata["verifications"]["v"], told=dict(result.scores()))

    on_bench(tmp_path, body, deployed=False)
    return kept


@pytest.mark.parametrize(
    ("criterion", "passes"),
    [
        ({"type": "response_contains", "needles": ["42", "Done"]}, True),
        ({"type": "response_contains", "needles": ["42", "done"]}, False),
        ({"type": "response_regex_present", "pattern": "sum.*Done"}, True),
        ({"type": "response_regex_present", "pattern": "sum.*Done", "flags": ["IGNORECASE"]}, False),
        ({"type": "response_regex_present", "pattern": "sum.*done", "flags": ["IGNORECASE", "S", "DOTALL"]}, True),
        ({"type": "response_regex_present", "pattern": "^All", "flags": ["MULTILINE"]}, True),
        ({"type": "response_regex_present", "pattern": "^All"}, False),
    ],
)
def test_a_criterion_looks_at_the_answers_text(tmp_path: Path, criterion: dict[str, Any], passes: bool) -> None:
    seen = _grade(tmp_path, {}, [criterion])
    assert [row["result"] for row in seen["results"]] == [passes]
    assert seen["score"] == float(passes) == seen["told"]["v"]


def test_weights_make_the_score_and_rows_keep_what_their_author_wrote(tmp_path: Path) -> None:
    criteria = [
        {"type": "response_contains", "needles": ["42"], "weight": 3, "title": "the sum"},
        {"type": "response_contains", "needles": ["43"], "weight": 1},
    ]
    seen = _grade(tmp_path, {}, criteria, score_aggregator="weighted_average")
    assert seen["score"] == 0.75
    assert seen["results"][0]["title"] == "the sum"
    assert seen["results"][1]["justification"] == "Missing: ['43']"


@pytest.mark.parametrize(
    ("error_type", "score", "skipped"), [("agent_error", 0.0, False), ("infra_error", None, True), ("something_new", None, True)]
)
def test_an_agents_failure_scores_0_and_a_fault_of_the_world_scores_nothing(
    tmp_path: Path, error_type: str, score: float | None, skipped: bool
) -> None:
    failed = {"error_type": error_type, "error_code": "x.y", "error_message": "it broke", "response": "42"}
    seen = _grade(tmp_path, failed, [{"type": "response_contains", "needles": ["42"]}])
    assert seen["score"] is score or seen["score"] == score
    (row,) = seen["results"]
    assert (row["type"], row["skipped"]) == ("prompt_error", skipped)
    assert "x.y: it broke" in row["justification"]


def test_an_answer_without_text_is_an_empty_one(tmp_path: Path) -> None:
    seen = _grade(tmp_path, {"response": None}, [{"type": "response_regex_present", "pattern": "^$"}])
    assert seen["score"] == 1.0


def test_an_expression_that_never_ends_fails_at_the_limit(tmp_path: Path) -> None:
    hostile = {"type": "response_regex_present", "pattern": "(a+)+$"}
    seen = _grade(tmp_path, {"response": "a" * 60 + "b"}, [hostile], seconds=0.3)
    assert seen["score"] == 0.0
    assert seen["results"][0]["justification"].startswith("timed out after 0.3s")


def test_a_prompt_without_an_answer_is_an_error_and_no_score(tmp_path: Path) -> None:
    async def body(run: BenchRun) -> None:
        run.context["prompt_responses"] = [{"prompt_id": "first", "response": ""}]
        with pytest.raises(NotFoundError, match=r"no answer to the prompt 'frist' .*did you mean 'first'"):
            await run.do({"type": "agent_prompt_response_verifier", "prompt_id": "frist"})
        assert "verifications" not in run.metadata

    on_bench(tmp_path, body, deployed=False)


@pytest.mark.parametrize(
    ("criterion", "message"),
    [
        ({"type": "response_contain", "needles": ["x"]}, "unknown criterion type 'response_contain' (did you mean 'response_contains'?)"),
        ({"type": "probe_file_exists", "paths": ["x"]}, "unknown criterion type 'probe_file_exists'"),
        ({"type": "response_contains", "needles": [""]}, ".criteria[0].needles: holds an empty text"),
        ({"type": "response_regex_present", "pattern": "("}, ".criteria[0].pattern: is no regular expression"),
        ({"type": "response_regex_present", "pattern": "x", "flags": ["IGNORCASE"]}, "did you mean 'IGNORECASE'?"),
        ({"type": "response_regex_present", "pattern": "x", "flags": ["DEBUG"]}, "unknown flag 'DEBUG'"),
    ],
)
def test_what_is_wrong_with_a_criterion_is_told_before_anything_starts(criterion: dict[str, Any], message: str, tmp_path: Path) -> None:
    async def body(run: BenchRun) -> None:
        step = run.step({"type": "agent_prompt_response_verifier", "prompt_id": "p", "criteria": [criterion]})
        (problem,) = step.problems(None)  # type: ignore[arg-type]
        assert message in str(problem)

    on_bench(tmp_path, body, deployed=False)
