"""Docker's ignore files. Their patterns look like Git's and differ in most of what matters, so each is translated for `pathspec` by itself.

A pattern is anchored at the context's root; `*` and `?` stop at `/`, `**` does not; a match of a folder is a match of all below it; `!`
takes back what an earlier line ignored, also below an ignored folder; the last line that matches decides. As in moby's `patternmatcher` and
BuildKit. (The classic command line did not look for `!**/name` below ignored folders; the documentation never said so.)
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from pathspec import PathSpec
from pathspec.pattern import RegexPattern

from agent_env.errors import Problem

IGNORE_FILE = ".dockerignore"
_BOM = "\ufeff"


class _BadPatternError(ValueError):
    """A pattern that Docker refuses."""


@dataclass(frozen=True)
class Ignore:
    """The rules of one ignore file."""

    patterns: tuple[str, ...] = ()
    """Cleaned, `!` included, in their order."""

    @classmethod
    def parse(cls, text: str, *, file: str = IGNORE_FILE) -> tuple[Ignore, list[Problem]]:
        """Reads an ignore file; what Docker would refuse comes back as problems."""
        patterns, problems = [], []
        for number, line in enumerate(text.removeprefix(_BOM).splitlines(), start=1):
            pattern = _cleaned(line)
            if pattern is None:
                continue
            try:
                _regex(pattern.removeprefix("!"))
                patterns.append(pattern)
            except (_BadPatternError, re.error) as error:
                problems.append(Problem(f"the pattern {line.strip()!r} can't be read: {error}", f"{file}:{number}"))
        return cls(tuple(patterns)), problems

    def ignores(self, name: str) -> bool:
        """A path below the context's root, written with `/`, is left out."""
        return self._spec.match_file(name)

    def may_take_back_below(self, folder: str) -> bool:
        """Something below an ignored folder may be taken back, so it must be walked."""
        parts = folder.split("/")
        return any(_reaches(pattern[1:].split("/"), parts) for pattern in self.patterns if pattern.startswith("!"))

    @cached_property
    def _spec(self) -> PathSpec[RegexPattern]:
        return PathSpec(
            [RegexPattern(re.compile(_regex(p.removeprefix("!")), re.DOTALL), not p.startswith("!")) for p in self.patterns],
            backend="simple",
        )


def _cleaned(line: str) -> str | None:
    """A line as Docker prepares it, or None when it says nothing. `.` is ignored, for historical reasons (Docker's documentation)."""
    if line.startswith("#"):
        return None
    pattern = line.strip()
    mark = "!" if pattern.startswith("!") else ""
    pattern = pattern.removeprefix("!").strip()
    if not pattern:
        return "!" if mark else None
    pattern = posixpath.normpath(pattern).lstrip("/")
    return None if pattern in {"", "."} else mark + pattern


def _regex(pattern: str) -> str:
    """The pattern, or any folder above, equals a path."""
    if not pattern:
        raise _BadPatternError("it takes nothing back")
    return rf"\A{_translated(pattern)}(?:/.*)?\Z"


def _translated(pattern: str) -> str:
    made, at = [], 0
    while at < len(pattern):
        character = pattern[at]
        at += 1
        if character == "*" and pattern[at : at + 1] == "*":
            at += 1
            if pattern[at : at + 1] == "/":
                at += 1
            made.append(".*" if at >= len(pattern) else "(?:.*/)?")
        elif character == "*":
            made.append("[^/]*")
        elif character == "?":
            made.append("[^/]")
        elif character == "[":
            text, at = _class(pattern, at)
            made.append(text)
        elif character == "\\":
            if at >= len(pattern):
                raise _BadPatternError("a backslash ends it")
            made.append(re.escape(pattern[at]))
            at += 1
        else:
            made.append(re.escape(character))
    return "".join(made)


def _class(pattern: str, at: int) -> tuple[str, int]:
    """`[a-z]` or `[^a-z]`, as Go's `filepath.Match` reads it; `!` does not negate."""
    negated = pattern[at : at + 1] == "^"
    at += negated
    members: list[str] = []
    while pattern[at : at + 1] != "]" or not members:
        low, at = _member(pattern, at)
        high = low
        if pattern[at : at + 1] == "-":
            high, at = _member(pattern, at + 1)
        if high < low:
            raise _BadPatternError(f"the range {low}-{high} runs backwards")
        members.append(f"{re.escape(low)}-{re.escape(high)}")
    return f"[{'^' if negated else ''}{''.join(members)}]", at + 1


def _member(pattern: str, at: int) -> tuple[str, int]:
    escaped = pattern[at : at + 1] == "\\"
    at += escaped
    if at >= len(pattern):
        raise _BadPatternError("a [ is never closed")
    if not escaped and pattern[at] in "]-":
        raise _BadPatternError(f"{pattern[at]!r} stands where a character of [ ] must")
    return pattern[at], at + 1


def _reaches(pattern: Iterable[str], folder: Iterable[str]) -> bool:
    for wanted, name in zip(pattern, folder, strict=False):
        if "**" in wanted:
            return True
        if not re.fullmatch(_translated(wanted), name, re.DOTALL):
            return False
    return True
