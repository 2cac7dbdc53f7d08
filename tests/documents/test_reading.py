"""Whatever a user wrote ends in a value or in problems that name the file: never in a traceback."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_env.documents.reading import at, json_problems, parse_json, parse_toml, read_file, read_json, read_toml
from agent_env.errors import ProblemsError
from tests.documents.fuzzing import problems_of

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


def problems(error: pytest.ExceptionInfo[ProblemsError]) -> str:
    return str(error.value)


def test_cl02_a_missing_file_is_named_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ProblemsError, match="does not exist") as error:
        read_json(tmp_path / "nope.json")
    assert str(tmp_path / "nope.json") in problems(error)


def test_cl02_a_folder_a_pipe_a_socket_and_a_loop_of_links_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        for name, word in (("", "is a folder"), ("pipe", "is a pipe"), ("loop", "chain of links"), ("socket", "is a socket")):
            with pytest.raises(ProblemsError, match=word):
                read_file(tmp_path / name)
    with pytest.raises(ProblemsError, match="device"):
        read_file("/dev/zero")
    with pytest.raises(ProblemsError, match="path that no file"):
        read_file("a\0b")


def test_cl02_a_byte_order_mark_is_tolerated(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b"\xef\xbb\xbf[1]")
    (tmp_path / "a.toml").write_bytes(b"\xef\xbb\xbfa = 1\r\n")
    assert read_json(tmp_path / "a.json") == [1]
    assert read_toml(tmp_path / "a.toml") == {"a": 1}


def test_cl02_syntax_errors_carry_line_and_column() -> None:
    with pytest.raises(ProblemsError, match="line 2, column 6"):
        parse_json('{"a": 1,\n "b" 2}', source="t.json")
    with pytest.raises(ProblemsError, match="line 2"):
        parse_toml("a = 1\nb = = 2", source="c.toml")


def test_a_file_beyond_its_limit_is_refused(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(b"x" * 11)
    with pytest.raises(ProblemsError, match="10 bytes"):
        read_file(tmp_path / "big", limit_bytes=10)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"a": 1, "a": 2}', "'a' appears twice"),
        ('[{"x": {"b": 1, "b": 1}}]', r"\$\[0\]\.x: the key 'b'"),
        ("[NaN]", r"\$\[0\]: NaN is not a finite number"),
        ("[-Infinity]", r"\$\[0\]: -Infinity is not a finite"),
        ("[1e999]", r"\$\[0\]: Infinity is not a finite"),
        ('["\\ud800"]', "surrogate"),
        ("[" * 2000, "not valid JSON|nests deeper"),
        ("[" * 200 + "]" * 200, "nests deeper"),
        ("9" * 10000, "more than 4300 digits"),
        ("", "line 1"),
    ],
)
def test_json_is_read_strictly(text: str, said: str) -> None:
    with pytest.raises(ProblemsError, match=said):
        parse_json(text, source="t.json")


@pytest.mark.parametrize("text", ["a = nan", "a = inf", "a = 1\na = 2", "a = " + "[" * 3000, "\x00", "a = 0x" + "f" * 9 + "g"])
def test_toml_is_read_strictly(text: str) -> None:
    with pytest.raises(ProblemsError, match=r"c\.toml"):
        parse_toml(text, source="c.toml")


def test_bytes_that_are_no_utf8_name_the_line() -> None:
    with pytest.raises(ProblemsError, match="0xff in line 2"):
        parse_json(b'{\n"a": "\xff"}', source="t.json")


@given(JSON_VALUES)
def test_every_json_value_is_read_back(value: object) -> None:
    assert parse_json(json.dumps(value), source="t") == value
    assert not list(json_problems(value, source=None))


@given(st.binary(max_size=60) | st.text(max_size=60).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_any_bytes_end_in_a_value_or_in_problems_that_name_the_file(data: bytes) -> None:
    for parse in (parse_json, parse_toml):
        found = problems_of(lambda parse=parse: parse(data, source="some/file"))
        assert all(problem.file == "some/file" for problem in found)


@given(st.text(alphabet="[]{}\",:=.\n #0aén\\u'+-e_T", max_size=40))
def test_text_that_looks_like_a_document_never_ends_in_a_traceback(text: str) -> None:
    for parse in (parse_json, parse_toml):
        problems_of(lambda parse=parse: parse(text, source="f"))


def test_paths_quote_keys_that_are_no_words() -> None:
    assert at(at(at("$", "a"), 2), "b c") == '$.a[2]["b c"]'


def test_cl02_missing_file_names_the_near_one_beside_it(tmp_path: Path) -> None:
    (tmp_path / "first.json").write_text("[]")
    with pytest.raises(ProblemsError, match=f"did you mean '{tmp_path}/first.json'"):
        read_file(tmp_path / "fist.json")
    with pytest.raises(ProblemsError, match="check the spelling"):
        read_file(tmp_path / "other/fist.json")


def test_everything_that_json_has_not_is_told_at_once_with_its_path() -> None:
    with pytest.raises(ProblemsError) as error:
        parse_json('[{"a": NaN, "a": 1}, {"b": 1e999, "c": ["\\ud800"]}]', source="t.json")
    assert {problem.path for problem in error.value.problems} == {"$[0]", "$[1].b", "$[1].c[0]"}
    with pytest.raises(ProblemsError) as error:
        parse_toml("a = nan\n[b]\nc = [inf, 1e999]\n", source="c.toml")
    assert {problem.path for problem in error.value.problems} == {"$.a", "$.b.c[0]", "$.b.c[1]"}
    with pytest.raises(ProblemsError, match="more than 4300 digits"):
        parse_toml("a = " + "9" * 5000, source="c.toml")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "latin-1"])
def test_another_encoding_is_named_or_refused(encoding: str) -> None:
    with pytest.raises(ProblemsError, match=r"UTF-16|UTF-8|valid JSON") as error:
        parse_json('["é"]'.encode(encoding), source="t.json")
    assert len(error.value.problems) == 1
