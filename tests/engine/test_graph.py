"""The graph of a task, held against the plainest model of `depends_on` that can be written down."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent_env.engine.graph import build


@st.composite
def edges(draw: st.DrawFn) -> list[tuple[str, list[str] | None]]:
    names = [f"s{index}" for index in range(draw(st.integers(1, 9)))]
    steps: list[tuple[str, list[str] | None]] = []
    for index, name in enumerate(names):
        earlier = names[:index]
        listed = st.lists(st.sampled_from(earlier), max_size=4) if earlier else st.just([])
        steps.append((name, draw(st.none() | listed)))
    return steps


def model_ancestors(steps: list[tuple[str, list[str] | None]], step_id: str) -> set[str]:
    names = [name for name, _ in steps]
    depends_on = dict(steps)[step_id]
    parents = names[: names.index(step_id)] if depends_on is None else depends_on
    return set(parents).union(*(model_ancestors(steps, parent) for parent in parents))


@given(edges())
def test_before_is_the_transitive_closure_of_depends_on(steps):
    graph = build(steps)
    for name, _ in steps:
        assert set(graph.before(name)) == model_ancestors(steps, name)


@given(edges())
def test_a_span_is_the_step_and_all_that_depend_on_it(steps):
    graph = build(steps)
    for name, _ in steps:
        assert set(graph.span(name)) == {name} | {other for other, _ in steps if name in model_ancestors(steps, other)}


@given(edges(), st.randoms(use_true_random=False))
def test_any_order_of_endings_runs_every_step_once_and_after_all_it_waits_for(steps, chance):
    graph = build(steps)
    settled: list[str] = []
    started: set[str] = set()
    while ready := list(graph.ready(settled, started)):
        assert ready == sorted(ready, key=graph.position.__getitem__)
        step_id = chance.choice(ready)
        assert model_ancestors(steps, step_id) <= set(settled)
        started.add(step_id)
        settled.append(step_id)
    assert sorted(settled) == sorted(name for name, _ in steps)


@given(edges(), st.data())
def test_in_a_part_nothing_waits_for_what_lies_outside_it(steps, data):
    start = data.draw(st.integers(0, len(steps) - 1))
    end = data.draw(st.integers(start + 1, len(steps)))
    part = build(steps).part(start, end)
    inside = [name for name, _ in steps[start:end]]
    assert list(part.order) == inside
    for name in inside:
        assert set(part.before(name)) >= {
            other for other in model_ancestors(steps, name) if other in inside and _direct(steps, name, other)
        }


@given(edges(), st.data())
def test_unhindered_steps_depend_on_nothing_running_or_still_to_come(steps, data):
    graph = build(steps)
    names = [name for name, _ in steps]
    running = set(data.draw(st.lists(st.sampled_from(names), unique=True)))
    over = set(data.draw(st.lists(st.sampled_from(names), unique=True))) - running
    waiting = set(names) - running - over
    free = list(graph.unhindered(running, running | over))
    assert free == [name for name in names if name in waiting and not model_ancestors(steps, name) & (running | waiting)]


def test_a_long_sequential_task_keeps_a_small_graph():
    graph = build((f"s{index}", None) for index in range(3000))
    assert sum(map(len, graph.waits_for.values())) == 2999
    assert len(graph.before("s2999")) == 2999


def _direct(steps, name, other):
    depends_on = dict(steps)[name]
    return depends_on is None or other in depends_on
