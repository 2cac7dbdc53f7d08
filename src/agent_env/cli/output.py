"""Writing for people and for programs. A reader who went away is quiet; what a task wrote can't steer the terminal."""

from __future__ import annotations

import errno
import os
import re
import select
import shutil
import sys
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from typing import IO, Any, TextIO, TypeVar

import click

from agent_env.cli.state import state_of
from agent_env.errors import AgentEnvError, StorageError

F = TypeVar("F", bound=Callable[..., Any])

OUTPUT_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""What a write to a full disk, or to `/dev/full`, answers."""
SHOWN_CHARACTERS = 500
"""Of a message that has one line; `runs show` and `--json` have all of it."""
_CUT = " … "
_GAP = "  "
_LEAST_WIDTH = 12
"""A column of a table is not made narrower than this for a narrow terminal."""
_MARKS = "/:,-_.="
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def json_option(function: F) -> F:
    """Adds `--json`: one object on standard output and nothing else there."""

    def remember(ctx: click.Context, _param: click.Parameter, value: bool) -> bool:
        state_of(ctx).json = value
        return value

    option = click.option(
        "--json", "as_json", is_flag=True, is_eager=True, callback=remember, help="Print one JSON object and nothing else."
    )
    return option(function)


def line(text: str = "") -> None:
    """One line for people on standard output."""
    _write(sys.stdout, clean(text) + "\n")


def note(text: str) -> None:
    """One line on standard error that is no error: what goes on, what was skipped."""
    _write(sys.stderr, clean(text) + "\n")


def warn(warnings: Iterable[object]) -> None:
    """Warnings on standard error, each on a line."""
    for warning in warnings:
        note(f"warning: {warning}")


def error_line(text: str) -> None:
    """One or more lines on standard error, with the words `error` and `hint` coloured on a terminal."""
    shown = clean(text)
    if coloured(sys.stderr):
        shown = re.sub(r"^error:", "\x1b[1;31merror:\x1b[0m", re.sub(r"^hint:", "\x1b[1;36mhint:\x1b[0m", shown))
    _write(sys.stderr, shown + "\n")


def write_json(value: Any) -> None:
    """One JSON document on standard output. NaN can't stand in JSON, so it is an error of ours if one arrives here."""
    import json

    _write(sys.stdout, json.dumps(value, ensure_ascii=False, indent=2, allow_nan=False) + "\n")


def write_bytes(data: bytes, *, to_stderr: bool = False) -> None:
    """Passes a program's own bytes on, untouched."""
    _pass_on(sys.stderr if to_stderr else sys.stdout, data)


def reader_left() -> bool:
    """Standard output was closed by its reader; a command that follows something should end."""
    return _Gone.stdout


def moment(text: str) -> str:
    """A stored time as people read it: to the second, in UTC."""
    return text[:19].replace("T", " ")


def clean(text: str) -> str:
    """Text without control characters but for newline and tab: names and messages of a task must not move the cursor, nor turn a line
    around (Unicode's bidirectional controls).
    """
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}" if found[0] > "\xff" else f"\\x{ord(found[0]):02x}", text)


def coloured(stream: IO[str]) -> bool:
    """Colour only on a terminal, and not against `NO_COLOR`."""
    return stream.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def redrawable(stream: IO[str]) -> bool:
    """Whether a live display can be drawn: on a terminal that can move its cursor."""
    return stream.isatty() and os.environ.get("TERM", "") not in {"", "dumb", "unknown"}


def one_line(text: str, longest: int = SHOWN_CHARACTERS) -> str:
    """A text on one line. Of a long one both ends stay: a message begins with what it is about, a traceback ends with the cause."""
    text = " ".join(text.split())
    half = (longest - len(_CUT)) // 2
    return text if len(text) <= longest else f"{text[:half]}{_CUT}{text[-half:]}"


def table(headings: Sequence[str], rows: Iterable[Sequence[object]], *, right: Iterable[int] = ()) -> None:
    """Aligned columns separated by two spaces: readable, and easy for `awk`. Nothing is cut: what is too wide for a terminal goes on in
    the next line of its column, and elsewhere a row is a line.

    Args:
        headings: One for each column.
        rows: Values; None is shown as `-`.
        right: Indexes of the columns that are aligned to the right.
    """
    shown = [list(headings), *([_cell(value) for value in row] for row in rows)]
    widths = [max(width_of(row[i]) for row in shown) for i in range(len(headings))]
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() else sum(widths) + len(_GAP) * len(widths)
    widths = fitting(widths, room - len(_GAP) * (len(widths) - 1), [max(width_of(heading), _LEAST_WIDTH) for heading in headings])
    rights = set(right)
    for row in shown:
        parts = [folded(cell, width) for cell, width in zip(row, widths, strict=True)]
        for cells in zip_longest(*parts, fillvalue=""):
            padded = [_pad(cell, width, right=i in rights) for i, (cell, width) in enumerate(zip(cells, widths, strict=True))]
            line(_GAP.join(padded).rstrip())


def fitting(widths: Sequence[int], room: int, least: Sequence[int]) -> list[int]:
    """Widths of columns that fit into a room, if that can be: the widest give way first, none below its least."""
    fitted = [min(width, max(room, narrowest)) for width, narrowest in zip(widths, least, strict=True)]
    while sum(fitted) > room and (givers := [i for i, width in enumerate(fitted) if width > least[i]]):
        fitted[max(givers, key=lambda i: fitted[i])] -= 1
    return fitted


def folded(text: str, width: int) -> list[str]:
    """Text in lines of at most a width: broken after a space, else after a mark that parts names, else anywhere."""
    lines = list[str]()
    while width_of(text) > width:
        most = next(end for end in range(len(text), 0, -1) if end == 1 or width_of(text[:end]) <= width)
        space = text.rfind(" ", 0, most + 1)
        mark = max(text.rfind(mark, 0, most) for mark in _MARKS)
        end = space if space > 0 else mark + 1 if mark > 0 else most
        lines.append(text[:end])
        text = text[end:].lstrip(" ")
    return [*lines, text]


def width_of(text: str) -> int:
    """How many columns of a terminal a text takes: letters of East Asia take two, marks that join the letter before them none."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def _pad(cell: str, width: int, *, right: bool) -> str:
    blank = " " * (width - width_of(cell))
    return blank + cell if right else cell + blank


def close_quietly() -> None:
    """Flushes at the end; a reader who left is no error, and what could not be written was told."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            _silence(stream)


class _Gone:
    stdout = False


def _cell(value: object) -> str:
    return "-" if value is None or value == "" else clean(str(value)).replace("\n", " ").replace("\t", " ")


def _write(stream: TextIO, text: str) -> None:
    encoding = getattr(stream, "encoding", None)
    if hasattr(stream, "buffer") and encoding is not None:
        _pass_on(stream, text.encode(encoding, stream.errors or "strict"))
        return
    try:  # no file: text that a caller of ours collects, or a live display that puts it above what it shows
        stream.write(text)
    except BrokenPipeError:
        _silence(stream)
    except OSError as error:
        _refused(stream, error)


def _pass_on(stream: TextIO, data: bytes) -> None:
    """Writes every byte, also where whoever shares the stream made it one that does not wait: Node does that to pipes."""
    rest = memoryview(data)
    try:
        stream.flush()
        while rest:
            try:
                taken = stream.buffer.write(rest) or 0  # what has no buffer of its own takes a part, or nothing
            except BlockingIOError as full:
                taken = full.characters_written
            rest = rest[taken:]
            if rest:
                select.select([], [stream], [])
        while not _flushed(stream):
            select.select([], [stream], [])
    except BrokenPipeError:
        _silence(stream)
    except OSError as error:
        _refused(stream, error)


def _flushed(stream: TextIO) -> bool:
    try:
        stream.buffer.flush()
    except BlockingIOError:
        return False
    return True


def _refused(stream: IO[str], error: OSError) -> None:
    """The stream takes no more: what it still holds is given up, or the interpreter would try again at its end.

    Raises:
        StorageError: It is the output. Nobody can be told that errors can't be written.
    """
    _silence(stream)
    if stream is sys.stdout:
        _Gone.stdout = False  # nobody left: something is wrong
        raise output_refused(error) from error


def output_refused(error: OSError) -> AgentEnvError:
    """What is said of an output that takes no more."""
    full = error.errno in OUTPUT_FULL
    why = "there is no space left on it" if full else os.strerror(error.errno or errno.EIO)
    return StorageError(f"the output can't be written: {why}", hint="send it elsewhere, or free some" if full else None)


def _silence(stream: IO[str]) -> None:
    """Points a closed stream at nothing, so that the work goes on and the interpreter's last flush succeeds."""
    if stream is sys.stdout:
        _Gone.stdout = True
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, stream.fileno())
    os.close(nothing)
