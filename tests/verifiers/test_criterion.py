"""Criteria as written, and the rows that they become."""

from __future__ import annotations

from typing import Any

import pytest

from agent_env.errors import ProblemsError
from agent_env.steps import parse_step
from agent_env.steps.reading import read_fields
from agent_env.verifiers.criterion import Verdict, row
from agent_env.verifiers.verify_sandbox import Verification, VerifySandbox


def step_with(*criteria: dict[str, Any]) -> VerifySandbox:
    step = parse_step({"id": "v", "type": "verify_sandbox", "sandbox_name": "box", "criteria": list(criteria)}, source="t.json")
    assert isinstance(step, VerifySandbox)
    return step


def problems_of(*criteria: dict[str, Any]) -> list[str]:
    return [str(problem) for problem in step_with(*criteria).problems(None)]


def test_a_row_is_the_criterion_as_written_and_the_verdict() -> None:
    written = {"type": "probe_file_contains", "criterion": "greets", "paths": ["hello.txt"], "expected": "hello", "points": {"a": [1]}}
    assert row(step_with(written).criteria[0], 4, Verdict(passed=True, justification="contains 'hello'")) == {
        **written, "criterion_index": 4, "score": 1.0, "result": True, "justification": "contains 'hello'", "skipped": False,
    }  # fmt: skip


def test_a_kind_that_is_not_scored_here_keeps_its_row_and_is_skipped() -> None:
    made = row(step_with({"type": "rubric", "text": "nice"}).criteria[0], 0, Verdict(None, "not scored here"))
    assert made == {"type": "rubric", "text": "nice", "criterion_index": 0, "justification": "not scored here", "skipped": True}


def test_a_near_spelling_of_a_kind_is_a_mistake_and_another_word_is_not() -> None:
    assert problems_of({"type": "probe_file_exist"}) == [
        ".criteria[0].type: unknown criterion type 'probe_file_exist' (did you mean 'probe_file_exists'?)"
    ]
    assert problems_of({"type": "rubric"}, {"type": "judge"}) == []


@pytest.mark.parametrize("field", ["expected", "value"])
@pytest.mark.parametrize("pattern", ["(", "[z-a]", "a{2,1}", "(?P<x>a)(?P<x>b)", "*"])
def test_an_invalid_expression_is_found_before_anything_starts(pattern: str, field: str) -> None:
    found = problems_of({"type": "probe_dir_exists", "paths": ["x"]}, {"type": "probe_file_contains", "paths": ["x"], field: pattern})
    assert found[0].startswith(f".criteria[1].{field}: is no regular expression")


def test_value_is_another_name_of_expected_which_wins() -> None:
    assert step_with({"type": "probe_file_contains", "paths": ["x"], "value": "b"}).criteria[0].pattern == "b"
    assert step_with({"type": "probe_file_contains", "paths": ["x"], "value": "b", "expected": "a"}).criteria[0].pattern == "a"
    assert step_with({"type": "probe_file_contains", "paths": ["x"]}).criteria[0].pattern == ""


def test_a_kind_that_nothing_scores_is_told_of_while_planning_and_refused_where_all_is() -> None:
    step = {"id": "v", "type": "verify_sandbox", "sandbox_name": "box", "criteria": [{"type": "rubric"}, {"type": "probe_file_exist"}]}
    _, warnings = read_fields(VerifySandbox, step, source="t.json", path="$[0]")
    told = ["t.json: $[0].criteria[0].type: criteria of type 'rubric' are kept and not scored"]
    assert [str(warning).split(" (scored")[0] for warning in warnings] == told
    with pytest.raises(ProblemsError, match="type 'rubric' are kept and not scored"):
        read_fields(VerifySandbox, step, source="t.json", strict=True)
    with pytest.raises(ProblemsError) as raised:
        read_fields(VerifySandbox, {**step, "criteria": [{"type": 5}, {}]}, source="t.json")
    assert [problem.path for problem in raised.value.problems] == ["$.criteria[0].type", "$.criteria[1]"]


def test_a_summary_counts_what_was_scored() -> None:
    rows = ({"result": True, "skipped": False}, {"result": False, "skipped": False}, {"skipped": True})
    assert Verification("v", 0.5, rows).summary() == "0.5 (1 of 2 passed, 1 not scored)"
