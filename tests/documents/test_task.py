"""A task's graph holds together, or everything that is wrong with it is said at once."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_env.documents.reading import parse_json
from agent_env.documents.task import parse_task
from agent_env.errors import ProblemsError
from tests.documents.fuzzing import problems_of
from tests.documents.test_reading import JSON_VALUES

HELLO = [
    {"id": "box", "type": "deploy_sandbox", "sandbox_name": "box"},
    {"id": "load", "type": "load_artifact", "depends_on": ["box"]},
    {"id": "check", "type": "verify_sandbox", "depends_on": [{"task_step_id": "load"}], "retry_config": {"go_to_step_id": "box"}},
]


def said(data: Any, **options: Any) -> list[tuple[str | None, str]]:
    with pytest.raises(ProblemsError) as error:
        parse_task(data, source="t.json", task_id="t", **options)
    assert all(problem.file == "t.json" for problem in error.value.problems)
    return [(problem.path, problem.message) for problem in error.value.problems]


def test_the_list_form_and_the_stored_form_give_the_same_steps() -> None:
    listed = parse_task(HELLO, source="t.json", task_id="demo")
    stored = parse_task({"id": "demo", "type": "task", "version": 4, "steps": HELLO}, source="store")
    assert listed.steps == stored.steps
    assert (listed.id, stored.version) == ("demo", 4)
    assert stored.to_json()["steps"] == HELLO


def test_envelopes_read_both_spellings_of_dependencies_and_retries() -> None:
    task = parse_task(HELLO, source="t.json", task_id="demo")
    assert [envelope.depends_on for envelope in task.envelopes] == [None, ("box",), ("load",)]
    assert task.envelopes[2].retry_from_step_id == "box"
    assert task.ancestors("check") == {"box", "load"}


def test_a_step_without_dependencies_follows_all_earlier_ones() -> None:
    steps = [{"id": "a", "type": "x"}, {"id": "b", "type": "x", "depends_on": []}, {"id": "c", "type": "x"}]
    task = parse_task(steps, source="t", task_id="t")
    assert task.ancestors("b") == set()
    assert task.ancestors("c") == {"a", "b"}


def test_all_problems_are_found_at_once_with_their_paths() -> None:
    found = said(
        [
            {"id": "alpha", "type": "x", "depends_on": ["beta", "alpha", "nope"]},
            {"id": "alpha", "type": 3, "fail_task_on_error": "no"},
            {"type": "q", "retry_config": {"max_retries": True}},
            {"id": "beta", "type": "x", "depends_on": "alpha", "version": 1.5},
            7,
        ]
    )
    paths = {path for path, _ in found}
    assert paths == {
        "$[0].depends_on[0]",
        "$[0].depends_on[1]",
        "$[0].depends_on[2]",
        "$[1].id",
        "$[1].type",
        "$[1].fail_task_on_error",
        "$[2]",
        "$[2].retry_config",
        "$[2].retry_config.max_retries",
        "$[3].depends_on",
        "$[3].version",
        "$[4]",
    }


@pytest.mark.parametrize(
    ("data", "path", "word"),
    [
        ([], "$", "no steps"),
        ({"id": "t", "steps": []}, "$.steps", "no steps"),
        ({"id": "t"}, "$.steps", "list of steps"),
        ("text", "$", "list of steps"),
        (None, "$", "list of steps"),
        ({"id": "t", "type": "tusk", "steps": HELLO}, "$.type", "tusk"),
        ({"id": "t", "version": True, "steps": HELLO}, "$.version", "whole number"),
        ({"id": "t", "step": HELLO, "steps": HELLO}, "$.step", "unknown key"),
        ([{"id": "a", "type": "x", "depends_on": [3]}], "$[0].depends_on[0]", "step id"),
        ([{"id": " ", "type": "x"}], "$[0].id", "text"),
        ([{"id": "a", "type": "x", "retry_config": []}], "$[0].retry_config", "object"),
        ([{"id": "a", "type": "x", "retry_config": {"retry_from_step_id": "z"}}], "$[0].retry_config", "no step"),
        ([{"id": "a", "type": "x", "f": float("nan")}], "$[0].f", "number"),
        ([{"id": "a", "type": "x", "f": {1: 2}}], "$[0].f", "key"),
        ([{"id": "a", "type": "x", "f": {"x", "y"}}], "$[0].f", "JSON type"),
    ],
)
def test_each_malformed_task_is_refused_with_its_path(data: Any, path: str, word: str) -> None:
    assert any(where == path and word in message for where, message in said(data))


def test_a_step_without_an_id_is_not_offered_among_the_steps_before() -> None:
    steps = [{"id": "a", "type": "x"}, {"type": "x"}, 7, {"id": "b", "type": "x", "depends_on": ["zebra"]}]
    with pytest.raises(ProblemsError) as raised:
        parse_task(steps, source="t", task_id="t")
    assert [problem.hint for problem in raised.value.problems if "zebra" in problem.message] == ["steps before it: a"]


def test_a_retry_goes_back_to_an_ancestor_or_to_itself() -> None:
    steps = [
        {"id": "a", "type": "x"},
        {"id": "b", "type": "x", "depends_on": []},
        {"id": "c", "type": "x", "depends_on": ["b"], "retry_config": {"retry_from_step_id": "a"}},
        {"id": "d", "type": "x", "retry_config": {"retry_from_step_id": "d", "max_retries": 0}},
    ]
    assert said(steps) == [("$[2].retry_config", "the retry goes back to 'a', which the step does not depend on")]


def test_unknown_keys_of_the_stored_form_are_kept_with_a_warning_and_refused_when_strict() -> None:
    data = {"id": "t", "steps": HELLO, "labels": {"a": 1}}
    task = parse_task(data, source="t.json")
    assert task.to_json()["labels"] == {"a": 1}
    assert [warning.path for warning in task.warnings] == ["$.labels"]
    assert said(data, strict=True)[0][0] == "$.labels"


def test_a_task_without_or_with_an_illegal_id_is_refused() -> None:
    for task_id in (None, "@other/x", ""):
        with pytest.raises(ProblemsError, match="id"):
            parse_task(HELLO, source="t.json", task_id=task_id)


def test_a_long_sequential_task_is_read_without_quadratic_cost() -> None:
    steps = [{"id": f"s{i}", "type": "x", "retry_config": {"retry_from_step_id": "s0"}} for i in range(20_000)]
    assert len(parse_task(steps, source="t", task_id="t").steps) == 20_000


STEPS = st.fixed_dictionaries(
    {},
    optional={
        "id": st.sampled_from(["a", "b", "c", ""]) | JSON_VALUES,
        "type": st.just("x") | JSON_VALUES,
        "depends_on": st.lists(st.sampled_from(["a", "b", "c"]), max_size=3) | JSON_VALUES,
        "retry_config": st.fixed_dictionaries({}, optional={"retry_from_step_id": st.sampled_from(["a", "b"]) | JSON_VALUES}) | JSON_VALUES,
        "fail_task_on_error": JSON_VALUES,
        "version": JSON_VALUES,
    },
)


@given(st.lists(STEPS | JSON_VALUES, max_size=4) | JSON_VALUES | st.fixed_dictionaries({"steps": st.lists(STEPS, max_size=3)}))
def test_any_json_ends_in_a_task_or_in_problems_with_file_and_path(data: Any) -> None:
    found = problems_of(lambda: parse_task(data, source="t.json", task_id="t"))
    assert all(problem.file == "t.json" and (problem.path or "").startswith("$") for problem in found)
    if not found:
        task = parse_task(data, source="t.json", task_id="t")
        ids = [envelope.id for envelope in task.envelopes]
        assert len(set(ids)) == len(ids) > 0
        assert all(task.ancestors(id) <= set(ids[:i]) for i, id in enumerate(ids))


@given(st.text(alphabet='[]{}":,idtypexa0 ', max_size=60))
def test_any_text_ends_in_a_task_or_in_problems(text: str) -> None:
    found = problems_of(lambda: parse_task(parse_json(text, source="t.json"), source="t.json", task_id="t", checked=True))
    assert all(problem.file == "t.json" for problem in found)
