"""Searching files for regular expressions, with a time limit.

Expressions come from tasks and texts from agents; together they can take for ever, and Python can't be interrupted in the middle of a
search. So whatever can backtrack is searched by a child process that is killed at the limit. It runs nothing but Python's `re`.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agent_env.defaults import KIB
from agent_env.errors import DeadlineError, InfrastructureError, TaskError
from agent_env.waiting import deadline

_BACKTRACKS = re.compile(r"[*+?{(|]")

_SHORT_BYTES = 256 * KIB

_SEARCHER = """
import json, re, sys
for line in sys.stdin.buffer:
    pattern, path, flags = json.loads(line)
    with open(path, "rb") as file:
        data = file.read()
    text = data.decode("utf-8", "replace")
    found = re.search(pattern, text, flags) is not None
    print(json.dumps([found, text.encode("utf-8") != data]), flush=True)
"""

_LINE_SEARCHER = """
import json, re, sys
pattern, lines = json.load(sys.stdin)
search = re.compile(pattern).search
json.dump([index for index, line in enumerate(lines) if search(line)], sys.stdout)
"""


@dataclass(frozen=True, slots=True)
class Search:
    """One expression in one file of this machine."""

    pattern: str
    file: Path
    flags: int = 0
    """Of `re`."""


@dataclass(frozen=True, slots=True)
class Found:
    """The answer."""

    matched: bool
    lossy: bool = False
    """The file is not UTF-8: what could not be decoded was replaced."""
    timed_out: bool = False


async def search(searches: Sequence[Search], *, timeout_seconds: float) -> list[Found]:
    """Answers every search, in order. Each may take `timeout_seconds`."""
    answers: dict[int, Found] = {index: _at_once(each) for index, each in enumerate(searches) if _is_quick(each)}
    left = [index for index in range(len(searches)) if index not in answers]
    while left:
        told = await _in_child([searches[index] for index in left], timeout_seconds)
        answers.update(zip(left, told, strict=False))
        left = left[len(told) :]
    return [answers[index] for index in range(len(searches))]


def lines_that_match(pattern: str, lines: Sequence[str], *, timeout_seconds: float) -> frozenset[int]:
    """Which of some lines an expression is found in, by their numbers from 0. Blocks; call it in a worker thread.

    Raises:
        TaskError: The expression takes too long.
        InfrastructureError: The child ended early.
    """
    if not lines:
        return frozenset()
    argv = [sys.executable, "-I", "-S", "-c", _LINE_SEARCHER]
    try:
        found = subprocess.run(argv, input=json.dumps([pattern, lines]).encode(), capture_output=True, timeout=timeout_seconds, check=True)
    except subprocess.TimeoutExpired:
        raise TaskError(f"the expression {pattern!r} takes longer than {timeout_seconds:g} s", hint="a plainer expression") from None
    except (subprocess.CalledProcessError, OSError) as error:
        raise InfrastructureError(f"searching for {pattern!r} broke off: {error}") from error
    return frozenset(json.loads(found.stdout))


def _is_quick(search: Search) -> bool:
    """Without repetition and alternatives a search takes time in proportion to the text; a short text may be searched here."""
    return not _BACKTRACKS.search(search.pattern) and search.file.stat().st_size <= _SHORT_BYTES


def _at_once(search: Search) -> Found:
    data = search.file.read_bytes()
    text = data.decode("utf-8", "replace")
    return Found(re.search(search.pattern, text, search.flags) is not None, lossy=text.encode() != data)


async def _in_child(searches: Sequence[Search], timeout_seconds: float) -> list[Found]:
    """The answers up to and including the first search that outlived its time."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-S", "-c", _SEARCHER, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    answers: list[Found] = []
    try:
        if child.stdin is None or child.stdout is None:
            raise InfrastructureError("the searching process has no streams")
        child.stdin.write(b"".join(json.dumps([each.pattern, str(each.file), each.flags]).encode() + b"\n" for each in searches))
        child.stdin.close()
        for each in searches:
            try:
                async with deadline(timeout_seconds, f"searching for {each.pattern!r}"):
                    line = await child.stdout.readline()
            except DeadlineError:
                answers.append(Found(matched=False, timed_out=True))
                break
            if not line:
                raise InfrastructureError(f"searching for {each.pattern!r} broke off (a process of this machine ended early)")
            matched, lossy = json.loads(line)
            answers.append(Found(matched, lossy))
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()
    return answers
