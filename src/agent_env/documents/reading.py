"""Reading what a user wrote: JSON and TOML files, strictly, with every failure as a `Problem` that names the place.

Files are opened without blocking and must be regular, so a pipe or a device planted under a document's name can't hang a run.
"""

from __future__ import annotations

import errno
import json
import math
import os
import stat
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agent_env.defaults import DEFAULT_LIMITS
from agent_env.errors import Problem, ProblemsError
from agent_env.wording import file_kind

Json = Any
MAX_DEPTH = 100
"""How deep lists and objects may nest: deeper ones are mistakes or attacks, and would overflow whoever walks them."""

_BOM = b"\xef\xbb\xbf"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_TOO_LONG = f"it holds a whole number of more than {sys.get_int_max_str_digits()} digits"


def at(path: str, key: str | int) -> str:
    """The JSON path of a member: `$.steps[2].id`, with quotes where a key is no plain word."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    return f"{path}.{key}" if key.isidentifier() and key.isascii() else f"{path}[{json.dumps(key, ensure_ascii=False)}]"


def read_file(path: Path | str, *, limit_bytes: int = DEFAULT_LIMITS.bundle_file_bytes) -> bytes:
    """The bytes of one regular file.

    Raises:
        ProblemsError: It is missing, no regular file, unreadable, or larger than `limit_bytes`.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            raise _refused(path, f"is a {file_kind(mode)}, not a file")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            data = file.read(limit_bytes + 1)
    except OSError as error:
        raise _unreadable(path, error) from error
    finally:
        os.close(descriptor)
    if len(data) > limit_bytes:
        raise _refused(path, f"is larger than the {limit_bytes} bytes that such a file may have")
    return data


def read_json(path: Path | str, *, limit_bytes: int = DEFAULT_LIMITS.bundle_file_bytes) -> Json:
    """A JSON file's value; see `parse_json`."""
    return parse_json(read_file(path, limit_bytes=limit_bytes), source=str(path))


def read_toml(path: Path | str, *, limit_bytes: int = DEFAULT_LIMITS.bundle_file_bytes) -> dict[str, Any]:
    """A TOML file's table; see `parse_toml`."""
    return parse_toml(read_file(path, limit_bytes=limit_bytes), source=str(path))


def parse_json(data: bytes | str, *, source: str) -> Json:
    """Strict JSON: UTF-8 (a byte-order mark is tolerated), no duplicate keys, no NaN or Infinity, no lone surrogates.

    Raises:
        ProblemsError: What is wrong, with line and column, or with the JSON path. Where keys are there twice and all else is sound, the
            value with the last of each is its `readable`.
    """
    text = decode(data, source)
    twice: dict[int, list[str]] = {}

    def once(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
        made = dict(pairs)
        if len(made) != len(pairs):
            names = [name for name, _ in pairs]
            twice[id(made)] = sorted({name for name in names if names.count(name) > 1})
        return made

    endless: list[float] = []

    def number(written: str) -> float:
        value = float(written)
        if not math.isfinite(value):
            endless.append(value)
        return value

    try:
        value = json.loads(text, object_pairs_hook=once, parse_constant=number, parse_float=number)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise _refused(source, f"is not valid JSON: {error.msg[:1].lower()}{error.msg[1:]} at {where}") from error
    except ValueError as error:
        raise _refused(source, f"is not valid JSON: {_TOO_LONG}") from error
    except RecursionError as error:
        raise _refused(source, f"nests deeper than {MAX_DEPTH} levels") from error
    if (
        twice or endless or "\\u" in text or text.count("[") + text.count("{") > MAX_DEPTH
    ):  # else nothing that the walk looks for can be in it
        problems = list(json_problems(value, source=source, duplicates=twice))
        if problems:
            only_twice = next(json_problems(value, source=source), None) is None
            raise ProblemsError(problems, readable=value if only_twice else None)
    return value


def parse_toml(data: bytes | str, *, source: str) -> dict[str, Any]:
    """TOML 1.0: UTF-8 (a byte-order mark is tolerated), no nan or inf.

    Raises:
        ProblemsError: What is wrong, with line and column.
    """
    text = decode(data, source).replace("\r\n", "\n")
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _refused(source, f"is not valid TOML: {str(error)[:1].lower()}{str(error)[1:]}") from error
    except ValueError as error:
        raise _refused(source, f"is not valid TOML: {_TOO_LONG}") from error
    except RecursionError as error:
        raise _refused(source, f"nests deeper than {MAX_DEPTH} levels") from error
    problems = list(json_problems(table, source=source, plain=False))
    if problems:
        raise ProblemsError(problems)
    return table


def json_problems(
    value: Json, *, source: str | None, path: str = "$", duplicates: dict[int, list[str]] | None = None, plain: bool = True
) -> Iterator[Problem]:
    """What makes a value no JSON: duplicate or non-text keys, NaN, infinity, lone surrogates, foreign types, bottomless nesting.

    Args:
        value: What was parsed or handed over.
        source: The file it came from, for the problems.
        path: The value's own JSON path.
        duplicates: By `id` of an object, the keys that its text spelled twice.
        plain: Values of other types (TOML's dates) are problems too.
    """
    pending: list[tuple[Json, str, int]] = [(value, path, 0)]
    while pending:
        item, where, depth = pending.pop()
        if depth > MAX_DEPTH:
            yield Problem(f"nests deeper than {MAX_DEPTH} levels", source, where[:200])
            return
        match item:
            case dict():
                for name in (duplicates or {}).get(id(item), ()):
                    yield Problem(f"the key {name!r} appears twice", source, where, "keep one of them")
                for key, member in item.items():
                    if not isinstance(key, str) or not _encodable(key):
                        yield Problem(f"{key!r} can't be a key", source, where, "keys are text")
                        continue
                    if not isinstance(member, bool | int | None):
                        pending.append((member, at(where, key), depth + 1))
            case list() | tuple():
                pending.extend((member, at(where, i), depth + 1) for i, member in enumerate(item))
            case str():
                if not _encodable(item):
                    yield Problem("the text holds half of a surrogate pair, which is no character", source, where)
            case float() if not math.isfinite(item):
                yield Problem(f"{json.dumps(item)} is not a finite number", source, where)
            case bool() | int() | float() | None:
                pass
            case _ if plain:
                yield Problem(f"{type(item).__name__} is not a JSON type", source, where)


def decode(data: bytes | str, source: str) -> str:
    """UTF-8 text without a byte-order mark.

    Raises:
        ProblemsError: It is another encoding; names the line.
    """
    if isinstance(data, str):
        return data.removeprefix("\ufeff")
    try:
        return data.removeprefix(_BOM).decode()
    except UnicodeDecodeError as error:
        if data.startswith(_UTF16):
            raise ProblemsError([Problem("is UTF-16 text", source, hint="save it as UTF-8")]) from error
        line = data.count(b"\n", 0, error.start) + 1
        hint = "save it as UTF-8"
        raise ProblemsError([Problem(f"is not UTF-8 text (byte 0x{data[error.start]:02x} in line {line})", source, hint=hint)]) from error


def _encodable(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


_CAUSES = {
    errno.ENOENT: ("does not exist", "check the spelling"),
    errno.EACCES: ("may not be read by this user", "check its permissions"),
    errno.EPERM: ("may not be read by this user", "check its permissions"),
    errno.ENOTDIR: ("lies below something that is not a folder", "check the path"),
    errno.ELOOP: ("is a chain of links that never ends", None),
    errno.ENAMETOOLONG: ("has a name that is too long", None),
    errno.ENXIO: ("is a socket or a pipe, not a file", None),
}


def _unreadable(path: Path | str, error: OSError | ValueError) -> ProblemsError:
    if isinstance(error, OSError):
        message, hint = _CAUSES.get(error.errno or 0, (f"can't be read: {error.strerror}", None))
        hint = (_neighbour(Path(path)) if error.errno == errno.ENOENT else None) or hint
    else:
        message, hint = "has a path that no file can have", "remove the NUL character"
    return ProblemsError([Problem(message, str(path), hint=hint)])


def _neighbour(path: Path) -> str | None:
    """A file beside the missing one that was probably meant."""
    from agent_env.documents.spelling import near

    try:
        meant = near(path.name, [entry.name for entry in path.parent.iterdir()])
    except OSError:
        return None
    return f"did you mean '{path.with_name(meant)}'?" if meant is not None else None


def _refused(source: Path | str, message: str) -> ProblemsError:
    return ProblemsError([Problem(message, str(source))])


def last_object(text: str) -> dict[str, Json] | None:
    """The last JSON object of those that stand side by side in a text that may say more."""
    decoder, found, position = json.JSONDecoder(), None, text.find("{")
    while position != -1:
        try:
            value, after = decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            after = position + 1
        else:
            found = value if isinstance(value, dict) else found
        position = text.find("{", after)
    return found
