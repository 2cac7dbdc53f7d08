"""JSON as text: where the members of an object stand, so that a message can be routed and marked without rewriting the rest of it.

Nothing here builds a value from what is only passed on: numbers, escapes, order and white space arrive as they were sent.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from json import decoder

_SPACE = re.compile(r"[ \t\n\r]*")
_SCALAR = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?|true|false|null|NaN|-?Infinity")
_TOKEN = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"|[\[\]{}]')
_SCAN_STRING: Callable[[str, int, bool], tuple[str, int]] = vars(decoder)["scanstring"]  # typeshed leaves it out
_DECODE = json.JSONDecoder().raw_decode


class JsonTextError(ValueError):
    """The text is not JSON, or says the same thing twice where that decides what happens."""


@dataclass(frozen=True, slots=True)
class Member:
    """One member of an object: its decoded key, and where key and value stand in the text."""

    key: str
    key_start: int
    start: int
    end: int


def decode_utf8(body: bytes) -> str:
    """The body as text.

    Raises:
        JsonTextError: It is not UTF-8.
    """
    try:
        return body.decode("utf-8-sig" if body[:1] == b"\xef" else "utf-8")
    except UnicodeDecodeError as error:
        raise JsonTextError(f"not UTF-8: {error.reason} at byte {error.start}") from error


def object_members(text: str, start: int = 0, *, exact: Collection[str] = ()) -> tuple[list[Member], int]:
    """The members of the object that begins at or after `start`, and where it ends.

    Args:
        text: The text that holds it.
        start: Where to look; white space before the object is skipped.
        exact: Keys that decide what happens. One that is repeated, or that stands beside a spelling which a lenient parser would take for
            it, is refused: two readers of the same text must not see different things.

    Raises:
        JsonTextError: There is no well-formed object.
    """
    position = _skip(text, start)
    if text[position : position + 1] != "{":
        raise JsonTextError(f"expected an object at character {position}")
    members: list[Member] = []
    position = _skip(text, position + 1)
    if text[position : position + 1] == "}":
        return members, position + 1
    while True:
        key_start = position
        if text[position : position + 1] != '"':
            raise JsonTextError(f"expected a key at character {position}")
        key, position = _string(text, position)
        position = _skip(text, position)
        if text[position : position + 1] != ":":
            raise JsonTextError(f"expected ':' at character {position}")
        value_start = _skip(text, position + 1)
        value_end = value_ends(text, value_start)
        members.append(Member(key, key_start, value_start, value_end))
        position = _skip(text, value_end)
        mark = text[position : position + 1]
        if mark == "}":
            if exact:
                _refuse_ambiguous(members, exact)
            return members, position + 1
        if mark != ",":
            raise JsonTextError(f"expected ',' or '}}' at character {position}")
        position = _skip(text, position + 1)


def array_items(text: str, start: int = 0) -> Iterator[tuple[int, int]]:
    """Where each item of the array at `start` stands.

    Raises:
        JsonTextError: There is no well-formed array.
    """
    position = _skip(text, start)
    if text[position : position + 1] != "[":
        raise JsonTextError(f"expected an array at character {position}")
    position = _skip(text, position + 1)
    if text[position : position + 1] == "]":
        return
    while True:
        end = value_ends(text, position)
        yield position, end
        position = _skip(text, end)
        mark = text[position : position + 1]
        if mark == "]":
            return
        if mark != ",":
            raise JsonTextError(f"expected ',' or ']' at character {position}")
        position = _skip(text, position + 1)


def value_ends(text: str, start: int) -> int:
    """Where the value that begins at `start` ends.

    Raises:
        JsonTextError: No value begins there.
    """
    first = text[start : start + 1]
    if first == '"':
        return _string(text, start)[1]
    if first not in ("{", "["):
        match = _SCALAR.match(text, start)
        if match is None:
            raise JsonTextError(f"expected a value at character {start}")
        return match.end()
    try:
        return _DECODE(text, start)[1]
    except json.JSONDecodeError as error:
        raise JsonTextError(f"{error.msg} at character {error.pos}") from error
    except (RecursionError, ValueError):  # deeper, or with longer numbers, than this interpreter would build
        return _balanced(text, start)


def whole_object(text: str, *, exact: Collection[str] = ()) -> dict[str, Member]:
    """The members of the object that is all of the text; of a repeated key the last one, as readers take it.

    Raises:
        JsonTextError: It is not one object.
    """
    members, end = object_members(text, exact=exact)
    if _skip(text, end) != len(text):
        raise JsonTextError(f"text after the object's end at character {end}")
    return {member.key: member for member in members}


def string_value(text: str, member: Member | None) -> str | None:
    """The member's text, or None where it is absent or no string."""
    if member is None or text[member.start] != '"':
        return None
    return _string(text, member.start)[0]


def raw(text: str, member: Member | None) -> str | None:
    """The member's value as it is written."""
    return text[member.start : member.end] if member is not None else None


def value_of(text: str) -> object:
    """The value, built. For what is looked at, not passed on: too deep or too long a number gives the text itself."""
    try:
        return json.loads(text)
    except (RecursionError, ValueError):
        return text


def _skip(text: str, start: int) -> int:
    match = _SPACE.match(text, start)
    return match.end() if match else start


def _string(text: str, start: int) -> tuple[str, int]:
    try:
        return _SCAN_STRING(text, start + 1, True)
    except json.JSONDecodeError as error:
        raise JsonTextError(f"{error.msg} at character {error.pos}") from error


def _balanced(text: str, start: int) -> int:
    """The end by counting brackets. What is between them is checked by whoever builds the value."""
    opened: list[str] = []
    position = start
    while True:
        match = _TOKEN.search(text, position)
        if match is None:
            raise JsonTextError(f"a bracket is not closed from character {start}")
        token, position = match[0], match.end()
        if token in ("{", "["):
            opened.append("}" if token == "{" else "]")
        elif token in ("}", "]") and (not opened or opened.pop() != token):
            raise JsonTextError(f"unexpected {token!r} at character {match.start()}")
        if not opened:
            return position


def _refuse_ambiguous(members: list[Member], exact: Collection[str]) -> None:
    folded = {key.casefold(): key for key in exact}
    seen: set[str] = set()
    for member in members:
        meant = folded.get(member.key.casefold())
        if meant is None:
            continue
        if meant != member.key:
            raise JsonTextError(f"the key {member.key!r} could be taken for {meant!r}")
        if meant in seen:
            raise JsonTextError(f"the key {meant!r} is given twice")
        seen.add(meant)
