"""A run's context is the fold of its committed attempts: lossless, shared, read only, and undone by leaving attempts out."""

from __future__ import annotations

import copy
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_env.documents.updates import AppendRecord, ExtendMetadata, SetField, SetMetadata
from agent_env.engine.context import Committed, Fold, FrozenDict, extended, frozen, thawed
from tests.folding import apply

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=3), below, max_size=3),
    max_leaves=6,
)
paths = st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=3).map(tuple)
updates = st.one_of(
    st.builds(
        AppendRecord, st.sampled_from(["deployed_envs", "prompt_responses"]), st.dictionaries(st.text(max_size=2), json_values, max_size=3)
    ),
    st.builds(SetMetadata, paths, json_values),
    st.builds(ExtendMetadata, paths, st.lists(json_values, max_size=3)),
    st.builds(SetField, st.sampled_from(["agent_model", "agent_harness"]), json_values),
)


def attempts_of(groups):
    return [Committed(f"a{index}", f"s{index}", tuple(group)) for index, group in enumerate(groups)]


@given(st.lists(st.lists(updates, max_size=4), max_size=5))
def test_the_fold_equals_applying_every_update_in_order_to_a_plain_dictionary(groups):
    plain = {"metadata": {"seed": {"n": 1}}}
    for group in groups:
        apply(plain, copy.deepcopy(group))
    fold = Fold.of({"metadata": {"seed": {"n": 1}}}, attempts_of(groups))
    assert fold.context == plain


@given(st.lists(st.lists(updates, max_size=4), max_size=5))
def test_committing_one_by_one_equals_folding_the_whole_history(groups):
    attempts = attempts_of(groups)
    fold = Fold.of({})
    for attempt in attempts:
        fold = fold.committed(attempt)
    assert fold.context == Fold.of({}, attempts).context


@given(st.lists(st.lists(updates, max_size=4), min_size=1, max_size=5), st.data())
def test_a_rollback_equals_a_history_without_the_attempts(groups, data):
    attempts = attempts_of(groups)
    gone = data.draw(st.sets(st.sampled_from([attempt.attempt_id for attempt in attempts])))
    kept = [attempt for attempt in attempts if attempt.attempt_id not in gone]
    assert Fold.of({}, attempts).rolled_back(gone, None).context == Fold.of({}, kept).context


@given(st.lists(updates, max_size=6))
def test_an_older_context_is_never_changed_by_what_comes_after_it(group):
    older = frozen({"metadata": {"a": {"b": [1]}}, "deployed_envs": [{"env_id": "e"}]})
    before = thawed(older)
    extended(older, group)
    assert older == before


def test_duplicates_and_empty_values_survive_the_fold():
    fold = Fold.of({}).committed(
        Committed("a1", "s", (SetMetadata(("script_results", "s"), [1, 1, 2]), SetMetadata(("x",), {}), ExtendMetadata(("y",), [])))
    )
    assert fold.context["metadata"] == {"script_results": {"s": [1, 1, 2]}, "x": {}, "y": []}


def test_rs05_a_step_that_writes_into_the_context_is_told_to_return_updates():
    context = Fold.of({"metadata": {"list": [1], "dict": {"a": 1}}}).context
    for write in (
        lambda: context.__setitem__("x", 1),
        lambda: context["metadata"].update(x=1),
        lambda: context["metadata"]["list"].append(2),
        lambda: context["metadata"]["dict"].setdefault("b", 2),
        context["metadata"]["list"].sort,
    ):
        with pytest.raises(TypeError, match="returns updates"):
            write()


def test_a_copy_of_the_context_is_plain_and_may_be_changed():
    context = Fold.of({"metadata": {"list": [1]}}).context
    plain = copy.deepcopy(context)
    plain["metadata"]["list"].append(2)
    assert type(plain["metadata"]) is dict
    assert context["metadata"]["list"] == [1]
    assert json.loads(json.dumps(context)) == {"metadata": {"list": [1]}}


def test_a_step_that_keeps_changing_what_it_returned_does_not_change_the_record():
    result = {"rows": [1]}
    fold = Fold.of({}).committed(Committed("a1", "s", (SetMetadata(("script_results", "s"), result),)))
    result["rows"].append(2)
    assert fold.context["metadata"]["script_results"]["s"] == {"rows": [1]}


def test_failed_attempts_are_listed_and_marked_once_they_were_retried():
    failure = {"step_id": "s", "error": "no", "is_fatal": True}
    fold = Fold.of({}).committed(Committed("a1", "s", (SetMetadata(("half",), 1),), failure=failure))
    assert fold.context["metadata"]["failed_steps"] == [failure]
    reset = {"attempt": 2, "step_id": "s", "retry_from_step_id": "s", "replayed": ["s"]}
    fold = fold.rolled_back(["a1"], reset)
    assert fold.context["metadata"] == {"failed_steps": [{**failure, "retried": True}], "retry_resets": [reset]}
    assert fold.retries_of("s") == 1
    assert fold.standing("s") is None


def test_scores_of_attempts_that_were_taken_back_do_not_count():
    fold = Fold.of({}).committed(Committed("a1", "v", scores={"v": 0.0})).committed(Committed("a2", "w", scores={"w": None}))
    assert fold.scores == {"v": 0.0, "w": None}
    assert fold.rolled_back(["a1"], None).scores == {"w": None}


def test_a_commit_costs_what_it_adds_however_large_the_context_is():
    def seconds(context: Fold) -> float:
        best = 1.0
        for _ in range(5):
            begun = time.thread_time()
            context.committed(Committed("b", "t", (SetMetadata(("script_results", "t"), 1),)))
            best = min(best, time.thread_time() - begun)
        return best

    small = Fold.of({})
    large = small.committed(Committed("a", "s", (SetMetadata(("script_results", "s"), {f"k{i}": {"v": [i] * 5} for i in range(20_000)}),)))
    assert isinstance(large.context, FrozenDict)
    assert seconds(large) < 20 * seconds(small) + 0.001
