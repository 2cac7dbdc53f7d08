"""A slip of the finger is told from a word of its own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_env.documents.spelling import near, unknown_key_problems

KEYS = ["depends_on", "id", "type", "paths", "timeout_seconds", "env_id", "description"]


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("dependsOn", "depends_on"),
        ("depend_on", "depends_on"),
        ("timeout-seconds", "timeout_seconds"),
        ("timout_secnds", "timeout_seconds"),
        ("ID", "id"),
        ("path", "paths"),
        ("pahts", "paths"),
        ("env", None),
        ("ix", None),
        ("note", None),
        ("x_description_of_mine", None),
    ],
)
def test_near_spellings(word: str, meant: str | None) -> None:
    assert near(word, KEYS) == meant


def test_a_near_spelling_is_an_error_and_another_unknown_key_a_warning() -> None:
    problems, warnings = unknown_key_problems({"id": 1, "path": [], "note": 1}, KEYS, source="t.json", path="$[3]")
    assert [(problem.path, problem.hint) for problem in problems] == [("$[3].path", "did you mean 'paths'?")]
    assert [warning.path for warning in warnings] == ["$[3].note"]


def test_strict_refuses_every_unknown_key_and_lists_the_accepted_ones() -> None:
    problems, warnings = unknown_key_problems({"note": 1}, KEYS, source="t.json", strict=True)
    assert "depends_on" in (problems[0].hint or "")
    assert not warnings


@given(st.sampled_from(["depends_on", "timeout_seconds", "description"]), st.data())
def test_one_slip_in_a_long_word_is_always_found(word: str, data: st.DataObject) -> None:
    position = data.draw(st.integers(0, len(word) - 1))
    letter = data.draw(st.characters(min_codepoint=ord("a"), max_codepoint=ord("z")))
    slips = {word[:position] + word[position + 1 :], word[:position] + letter + word[position:]}
    for slip in slips - set(KEYS):
        assert near(slip, KEYS) == word
