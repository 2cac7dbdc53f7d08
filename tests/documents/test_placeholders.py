"""Seeds and placeholders that miss each other are said, with both places."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from agent_env.documents.placeholders import seed_remarks
from agent_env.documents.seeds import SeedTable, read_csv, row_name, substitute


def table(tmp_path: Path, text: str) -> SeedTable:
    path = tmp_path / "rows.csv"
    path.write_text(text)
    return read_csv(path)


def said(tmp_path: Path, csv: str, step: dict[str, Any], numbered: str | None = None) -> list[str]:
    return [
        str(remark).removeprefix(f"{tmp_path}/") for remark in seed_remarks(table(tmp_path, csv), {"t.json": [step]}, numbered=numbered)
    ]


def test_a_column_that_no_text_names_is_said_with_its_file_and_the_near_placeholder(tmp_path: Path) -> None:
    remarks = said(tmp_path, "unit,colour\na,b\n", {"id": "s", "text": "<unit> <color>"})
    assert remarks == [
        "t.json: $[0].text: nothing fills <color>, so it stays as it is written (did you mean <colour>?)",
        "rows.csv: line 1: the column 'colour' fills nothing: no task has <colour> (did you mean 'color'?)",
    ]


def test_a_placeholder_that_no_column_fills_is_said_once_with_its_json_path(tmp_path: Path) -> None:
    remarks = said(tmp_path, "unit\na\n", {"id": "s", "args": {"deep": ["<unit>", "<size> <size>"]}, "more": "<size>"})
    assert len(remarks) == 1
    assert remarks[0].startswith("t.json: $[0].args.deep[1]: nothing fills <size>")
    (hint,) = re.findall(r"its value is (<.*>)", remarks[0])
    assert said(tmp_path, f"unit,size\na,{hint}\n", {"id": "s", "text": "<unit> <size>"}) == []
    assert substitute("<unit> <size>", {"unit": "a", "size": hint}) == "a <size>"


@pytest.mark.parametrize("text", ["<answer>42</answer>", r"<\size>", "a < b > c", "<stdio.h>", "<a href='x'>", "</b>", "<1>"])
def test_markup_and_what_is_kept_as_text_is_no_placeholder(tmp_path: Path, text: str) -> None:
    assert said(tmp_path, "unit\na\n", {"id": "s", "text": f"<unit> {text}"}) == []


def test_rows_without_a_value_are_said_with_the_line_of_the_first(tmp_path: Path) -> None:
    remarks = said(tmp_path, "unit,size\na,1\nb,\n\nc, \n", {"id": "s", "text": "<unit> <size>"})
    assert remarks == [
        "rows.csv: line 3: this row and 1 more have no value for 'size' (<size> stays as it is written there (t.json: $[0].text))"
    ]


def test_naming_columns_and_columns_that_a_field_reads_fill_something(tmp_path: Path) -> None:
    step = {"id": "s", "type": "collect_artifacts", "artifacts_key": "wanted", "text": "<unit>"}
    assert said(tmp_path, "id,name,wanted,unit\n1,ada,x,a\n", step) == []


def test_a_number_that_fills_nothing_is_said(tmp_path: Path) -> None:
    assert [str(remark) for remark in seed_remarks(None, {"t.json": [{"id": "s"}]}, numbered="seed")] == [
        "--seed: no task has <seed>, so the number fills nothing"
    ]
    assert seed_remarks(None, {"t.json": [{"id": "<seed>"}]}, numbered="seed") == []


def test_a_number_that_is_not_given_is_asked_for_by_its_option() -> None:
    (said,) = seed_remarks(None, {"t.json": [{"id": "s", "text": "<seed>"}]})
    assert (said.hint or "").startswith("--seed N fills it")
    assert "--seeds would fill it too" in (said.hint or "")


def test_where_nothing_is_filled_each_name_is_said_once_for_all_tasks() -> None:
    texts = ["<unit>", "reply in <unit> to <user>", "<unit>"]
    said = [str(remark) for remark in seed_remarks(None, {f"{n}.json": [{"id": "s", "text": text}] for n, text in enumerate(texts)})]
    assert said == [
        "0.json: $[0].text: nothing fills <unit>, so it stays as it is written (also in 1.json and 1 more)"
        " (a column 'unit' of a file that is given with --seeds would fill it)",
        "1.json: $[0].text: nothing fills <user>, so it stays as it is written"
        " (a column 'user' of a file that is given with --seeds would fill it)",
    ]
    assert seed_remarks(None, {"t.json": [{"id": "s", "text": "<unit>"}]}, given={"unit"}) == []


@pytest.mark.parametrize("text", ["List<int>", r"(?P<year>\d+)", "(?<year>x)", "one<br>two"])
def test_generics_groups_of_expressions_and_line_breaks_are_no_placeholders_unless_one_is_nearly_meant(tmp_path: Path, text: str) -> None:
    assert seed_remarks(None, {"t.json": [{"id": "s", "text": text}]}) == []
    assert said(tmp_path, "unit\na\n", {"id": "s", "text": f"<unit> {text}"}) == []
    assert len(said(tmp_path, "version,unit\n1,a\n", {"id": "s", "text": "<unit> <version> v<versoin>"})) == 1


def test_any_suffix_is_read_as_csv_and_rows_keep_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "rows.txt"
    path.write_text('a,b\n"1\n2",x\n\n3,\n')
    found = read_csv(path)
    assert (found.columns, found.rows, found.places) == (("a", "b"), ({"a": "1\n2", "b": "x"}, {"a": "3"}), ("line 3", "line 5"))


def test_a_row_is_named_by_its_position_and_its_naming_column() -> None:
    assert [row_name(1, {}), row_name(2, {"name": "ada"}), row_name(3, {"id": "x", "name": "ada"})] == ["row 1", "row 2 ada", "row 3 x"]
    assert [row_name(1, {"id": " \n"}), row_name(2, {"id": "a\nb"}), len(row_name(3, {"id": "x" * 5000}))] == ["row 1", "row 2 a b", 87]
