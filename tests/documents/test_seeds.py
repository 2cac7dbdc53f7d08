"""Seeds fill texts in one pass, and their files hold no `nan`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_env.documents.seeds import read_seeds, substitute
from agent_env.errors import ProblemsError
from tests.documents.fuzzing import problems_of
from tests.documents.test_reading import JSON_VALUES


def test_every_text_leaf_is_filled_and_keys_and_numbers_are_not() -> None:
    value = {"<n>": "Sort <n> by <key>", "list": ["<n>", 3, None, {"x": "<<n>>"}]}
    assert substitute(value, {"n": 7, "key": "size"}) == {"<n>": "Sort 7 by size", "list": ["7", 3, None, {"x": "<7>"}]}


def test_a_filled_value_is_not_searched_again() -> None:
    assert substitute("<a> <b>", {"a": "<b>", "b": "<a>"}) == "<b> <a>"


def test_a_backslash_keeps_a_key_as_text() -> None:
    assert substitute(r"<\a> <\\a> \<a> <\other>", {"a": "1"}) == r"<a> <\a> \1 <\other>"


def test_of_two_keys_the_longer_one_wins_and_odd_keys_are_plain_text() -> None:
    assert substitute("<a.b> <a> <(x)>", {"a": 1, "a.b": 2, "(x)": 3}) == "2 1 3"


def test_what_has_nothing_to_fill_is_not_copied() -> None:
    value = {"rows": [{"text": "no key <here>"}]}
    assert substitute(value, {"n": 1}) is value
    assert substitute(value, {}) is value


@given(JSON_VALUES, st.dictionaries(st.text(min_size=1), JSON_VALUES, max_size=3))
def test_filling_keeps_the_structure(value: Any, seed: dict[str, Any]) -> None:
    def shape(item: Any) -> Any:
        if isinstance(item, dict):
            return {key: shape(member) for key, member in item.items()}
        return [shape(member) for member in item] if isinstance(item, list) else type(item)

    assert shape(substitute(value, seed)) == shape(value)


def test_tp11_empty_cells_and_nulls_are_absent(tmp_path: Path) -> None:
    (tmp_path / "s.csv").write_text("\ufeffname, note ,\nAda,,\n,\n\nBob, hi ,\n", encoding="utf-8")
    assert read_seeds(tmp_path / "s.csv") == [{"name": "Ada"}, {"name": "Bob", "note": " hi "}]
    (tmp_path / "s.json").write_text('[{"name": "Ada", "note": null, "n": 0}]')
    assert read_seeds(tmp_path / "s.json") == [{"name": "Ada", "n": 0}]
    (tmp_path / "s.jsonl").write_text('{"a": null}\n\n{"a": 1}\n')
    assert read_seeds(tmp_path / "s.jsonl") == [{}, {"a": 1}]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("s.csv", "a,a\n1,2\n", "two columns"),
        ("s.csv", "a,b\n1,2,3\n", "line 2: cell 3"),
        ("s.csv", 'a\n"open', "not valid CSV"),
        ("s.json", "{}", "list of objects"),
        ("s.json", "[1, {}]", r"\$\[0\]: a seed is an object"),
        ("s.jsonl", '{"a": 1}\n{"a"', "line 2"),
        ("s.xlsx", "", "are read from"),
    ],
)
def test_a_malformed_file_is_named_with_the_place(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ProblemsError, match=said) as error:
        read_seeds(tmp_path / name)
    assert all(problem.file == str(tmp_path / name) for problem in error.value.problems)


@settings(max_examples=60)
@given(st.binary(max_size=40), st.sampled_from([".csv", ".json", ".jsonl"]))
def test_any_bytes_end_in_seeds_or_in_problems(tmp_path_factory: pytest.TempPathFactory, data: bytes, suffix: str) -> None:
    path = tmp_path_factory.getbasetemp() / f"fuzz{suffix}"
    path.write_bytes(data)
    found = problems_of(lambda: read_seeds(path))
    assert all(problem.file == str(path) for problem in found)
