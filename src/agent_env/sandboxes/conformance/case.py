"""What a case is, how it says that something does not hold, and how it ended."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent_env.conformance import MISSING, Result, holds, matches
from agent_env.errors import UnsupportedError, UsageError

if TYPE_CHECKING:
    from agent_env.sandboxes.conformance.bench import Bench

__all__ = ["MISSING", "Area", "CapabilityMissingError", "Case", "Result", "Verdict", "Work", "chosen", "equal", "holds", "raises"]

Work = Callable[["Bench"], Awaitable[None]]


class CapabilityMissingError(UnsupportedError):
    """What a case needs is not there, such as an interpreter in the place: it is skipped, and says so."""

    def __init__(self, capability: str) -> None:
        super().__init__(f"{MISSING}: {capability}")


@dataclass(frozen=True, slots=True)
class Case:
    """One behaviour that every provider must have, or must say that it has not."""

    id: str
    """`<area>/<sentence with underscores>`: stable, and what `--case` matches."""
    title: str
    """What must hold, as a sentence."""
    needs: frozenset[str]
    """Capabilities (`Capabilities.declared`) without which it is skipped."""
    about: Sequence[str]
    """Rows of the placement table and field cases that it proves."""
    patience: float
    """How many times `Limits.conformance_case_seconds` it may take."""
    work: Work

    def missing(self, declared: frozenset[str]) -> str | None:
        """The capability that it needs and that is not declared, if any."""
        return next(iter(sorted(self.needs - declared)), None)


class Area:
    """Collects the cases of one module.

    Args:
        name: The first part of their ids.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.cases: list[Case] = []

    def case(self, *about: str, needs: Sequence[str] = (), patience: float = 1.0) -> Callable[[Work], Work]:
        """Makes a case of a coroutine function: its name is the id, the first line of its docstring the title."""

        def collect(work: Work) -> Work:
            title = (work.__doc__ or "").strip().partition("\n")[0]
            self.cases.append(Case(f"{self.name}/{work.__name__}", title, frozenset(needs), about, patience, work))
            return work

        return collect


@dataclass(frozen=True, slots=True)
class Verdict:
    """A case that was run."""

    case: Case
    result: Result
    seconds: float
    detail: str = ""
    """Why it failed or was skipped."""

    def to_json(self) -> dict[str, object]:
        """The verdict as data."""
        return {
            "id": self.case.id,
            "title": self.case.title,
            "about": list(self.case.about),
            "needs": sorted(self.case.needs),
            "result": self.result.value,
            "seconds": round(self.seconds, 3),
            "detail": self.detail,
        }


def chosen(cases: Sequence[Case], patterns: Sequence[str]) -> list[Case]:
    """The cases that a pattern matches: an id, an area, a row or field case such as `EX-01`, or a glob over ids. None chooses all.

    Raises:
        UsageError: A pattern matches nothing.
    """
    if not patterns:
        return list(cases)
    found = {pattern: [case for case in cases if matches(case, pattern)] for pattern in patterns}
    for pattern, matching in found.items():
        if not matching:
            areas = ", ".join(sorted({case.id.partition("/")[0] for case in cases}))
            raise UsageError(f"no case matches {pattern!r}", hint=f"an id, a glob over ids, or an area: {areas}")
    wanted = {case.id for matching in found.values() for case in matching}
    return [case for case in cases if case.id in wanted]


def equal(found: object, wanted: object, what: str) -> None:
    """Raises `AssertionError` with both values, cut to a readable length, when they differ."""
    if found != wanted:
        raise AssertionError(f"{what}: expected {_short(wanted)}, found {_short(found)}")


@contextmanager
def raises(kinds: type[Exception] | tuple[type[Exception], ...], what: str) -> Iterator[None]:
    """The block must raise one of these.

    Raises:
        AssertionError: It raised nothing; another error passes through.
    """
    try:
        yield
    except kinds:
        return
    names = " or ".join(kind.__name__ for kind in (kinds if isinstance(kinds, tuple) else (kinds,)))
    raise AssertionError(f"{what}: expected {names}, nothing was raised")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 300 else f"{text[:200]}… ({len(text)} characters)"
