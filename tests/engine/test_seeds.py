"""Seeds go into text, once, and into nothing else."""

from __future__ import annotations

from agent_env.engine.seeds import substitute


def test_every_text_of_a_step_gets_the_values_and_nothing_else_changes():
    step = {"id": "a-<n>", "args": {"<n>": ["<n>", 3, None, True, "x<n><m>"]}, "count": 3}
    assert substitute([step], {"n": 7, "m": "z"}) == ({"id": "a-7", "args": {"<n>": ["7", 3, None, True, "x7z"]}, "count": 3},)


def test_a_value_that_looks_like_a_key_is_left_as_it_is():
    assert substitute([{"p": "<a> <b>"}], {"a": "<b>", "b": "x"}) == ({"p": "<b> x"},)


def test_the_longest_key_wins_and_unknown_ones_stay():
    assert substitute([{"p": "<a> <ab> <c>"}], {"a": 1, "ab": 2}) == ({"p": "1 2 <c>"},)


def test_no_seed_gives_the_same_steps_and_the_original_is_never_changed():
    step = {"id": "a", "p": "<n>"}
    assert substitute([step], {})[0] is step
    substitute([step], {"n": 1})
    assert step == {"id": "a", "p": "<n>"}
