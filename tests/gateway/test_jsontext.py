"""Where things stand in a JSON text: checked against the standard parser."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_env.gateway import jsontext

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.text(max_size=8), VALUES, max_size=6), st.sampled_from([None, 1, "\t"]), st.booleans())
def test_each_member_stands_where_the_standard_parser_finds_it(value: dict[str, object], indent: str | int | None, ascii: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii)
    members = jsontext.whole_object(text)
    assert {key: json.loads(text[m.start : m.end]) for key, m in members.items()} == value


@given(st.lists(VALUES, max_size=6))
def test_each_item_stands_where_the_standard_parser_finds_it(value: list[object]) -> None:
    text = json.dumps(value, indent=2)
    assert [json.loads(text[start:end]) for start, end in jsontext.array_items(text)] == value


@pytest.mark.parametrize("depth", [10, 5_000, 100_000])
def test_a_value_of_any_depth_and_a_number_of_any_length_is_stepped_over(depth: int) -> None:
    text = '{"deep":' + "[" * depth + "]" * depth + ',"long":' + "7" * depth + ',"odd":["' + "1" * depth + '",' + "8" * 5000 + "]}"
    members = jsontext.whole_object(text)
    assert members["deep"].end - members["deep"].start == 2 * depth
    assert members["long"].end - members["long"].start == depth


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"a"}',
        '{"a":}',
        '{"a":1,}',
        '{"a":1}x',
        '{"a":1 "b":2}',
        "{'a':1}",
        '{"a":"\n"}',
        '{"a":[1}',
        '{"a":01}',
        '{"a":tru}',
    ],
)
def test_what_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(jsontext.JsonTextError):
        jsontext.whole_object(text)


@pytest.mark.parametrize(
    "text",
    [
        '{"name":"a","name":"b"}',
        '{"name":"a","n\\u0061me":"b"}',
        '{"name":"a","NAME":"b"}',
        '{"Name":"b"}',
        '{"_meta":{},"_META":{}}',
        '{"name":"a","arguments":{},"argument\\u017f":{}}',
    ],
)
def test_a_key_that_decides_must_be_said_once_and_exactly(text: str) -> None:
    with pytest.raises(jsontext.JsonTextError):
        jsontext.whole_object(text, exact=("name", "arguments", "_meta"))


def test_repeated_keys_that_decide_nothing_pass() -> None:
    assert jsontext.whole_object('{"x":1,"x":2}', exact=("name",))["x"].start == 11


def test_bytes_that_are_not_utf_8_are_refused_and_a_byte_order_mark_is_not_text() -> None:
    with pytest.raises(jsontext.JsonTextError, match="UTF-8"):
        jsontext.decode_utf8(b'{"a":"\xff"}')
    assert jsontext.decode_utf8(b"\xef\xbb\xbf{}") == "{}"
