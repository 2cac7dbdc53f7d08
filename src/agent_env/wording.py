"""Counts, kinds and values as they stand in sentences for people. It knows nothing of what the sentences are about."""

from __future__ import annotations

import stat
from typing import Any

_VALUE_CHARACTERS = 60
_NAME_CHARACTERS = 80
_VOWELS = ("a", "e", "i", "o", "u")
_JSON_KINDS = {
    dict: "an object",
    list: "a list",
    str: "text",
    bool: "true or false",
    int: "a number",
    float: "a number",
    type(None): "null",
}
_FILE_KINDS = (
    (stat.S_ISDIR, "folder"),
    (stat.S_ISFIFO, "pipe"),
    (stat.S_ISSOCK, "socket"),
    (stat.S_ISCHR, "device"),
    (stat.S_ISBLK, "device"),
)


def counted(number: int, word: str) -> str:
    """`1 file`, `2 files`, `0 entries`, `2 deploys`."""
    return f"{number} {word if number == 1 else _plural(word)}"


def _plural(word: str) -> str:
    return f"{word[:-1]}ies" if word.endswith("y") and word[-2:-1] not in _VOWELS else f"{word}s"


def json_kind(value: Any) -> str:
    """What a JSON value is: `an object`, `text`; of anything else its type's name."""
    return _JSON_KINDS.get(type(value), type(value).__name__)


def file_kind(mode: int) -> str:
    """What a file that is no plain one is, by its mode: `folder`, `pipe`, …, `special file`."""
    return next((name for test, name in _FILE_KINDS if test(mode)), "special file")


def shown(value: Any) -> str:
    """A value as Python writes it, cut to what a sentence can hold."""
    text = repr(value)
    return text if len(text) <= _VALUE_CHARACTERS else f"{text[: _VALUE_CHARACTERS - 3]}…"


def quoted(name: str) -> str:
    """A name in quotes, cut like `shown`; letters beyond ASCII are spelled out, so that those that only look alike are told apart."""
    return ascii(name) if len(name) <= _NAME_CHARACTERS else f"{name[: _NAME_CHARACTERS - 3]!a}…"
