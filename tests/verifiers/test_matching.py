"""Searching for a task's expressions in an agent's files."""

from __future__ import annotations

import asyncio
from pathlib import Path
from time import monotonic

import pytest

from agent_env.verifiers.matching import Found, Search, search
from tests.busy import lasting, within
from tests.memory import forget_peak, peak_bytes


def answers(*searches: Search, seconds: float = 20) -> list[Found]:
    return asyncio.run(search(searches, timeout_seconds=seconds))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "text"
    path.write_bytes("línea uno\nfoo=42\nünïcode 🙂 end\n".encode())
    return path


@pytest.mark.parametrize(
    ("pattern", "matched"),
    [
        ("foo=42", True),
        ("^foo", False),
        ("(?m)^foo", True),
        (r"foo=\d+", True),
        ("uno|dos", True),
        ("🙂", True),
        ("", True),
        (r"\Alínea", True),
        (r"end$", True),
        ("FOO", False),
        ("(?i)FOO", True),
        ("uno.foo", False),
        ("(?s)uno.foo", True),
    ],
)
def test_expressions_are_searched_as_python_does_without_flags(file: Path, pattern: str, matched: bool) -> None:
    assert answers(Search(pattern, file)) == [Found(matched)]


def test_a_long_text_is_searched_outside_this_process(tmp_path: Path) -> None:
    path = tmp_path / "long"
    path.write_bytes(b"x" * 40_000_000 + b"needle")
    before = forget_peak()
    assert answers(Search("needle", path), Search("^needle", path)) == [Found(matched=True), Found(matched=False)]
    assert peak_bytes() - before < 20_000_000


def test_answers_come_in_the_order_of_the_questions(file: Path) -> None:
    patterns = ["a*b", "foo", "x+y", "42", "f.o+"]
    assert [found.matched for found in answers(*(Search(pattern, file) for pattern in patterns))] == [False, True, False, True, True]


@pytest.mark.parametrize("pattern", ["abc", "a[b]c", "ab+c"])
def test_f19_bytes_that_are_not_utf8_are_searched_and_flagged(tmp_path: Path, pattern: str) -> None:
    path = tmp_path / "bytes"
    path.write_bytes(bytes(range(256)) + b"abc")
    assert answers(Search(pattern, path)) == [Found(matched=True, lossy=True)]


def test_a_search_that_never_ends_is_cut_at_its_limit_and_the_others_are_answered(tmp_path: Path, file: Path) -> None:
    hostile = tmp_path / "hostile"
    hostile.write_text("a" * 64)
    began = monotonic()
    searches = Search("fo+", file), Search(r"(a+)+$\b!", hostile), Search("(a|aa)+$!", hostile), Search("4+2", file)
    limit = lasting(0.5)
    found = answers(*searches, seconds=limit)
    assert [each.timed_out for each in found] == [False, True, True, False]
    assert [each.matched for each in found] == [True, False, False, True]
    assert monotonic() - began < within(10) + 2 * limit
