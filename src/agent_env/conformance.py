"""What the conformance kits of servers and agents share: named checks in gates, how they end, and what they come to.

A kit says what its gates are and what a check is given (its subject); the rest is here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any, Generic, Protocol, TypeVar

from agent_env.clock import Clock, SystemClock
from agent_env.errors import AgentEnvError, DeadlineError, InfrastructureError
from agent_env.waiting import deadline

MISSING = "agentenv-capability-missing"
"""Begins the reason of every skip; what is missing follows."""


class Reachable(Protocol):
    """What can go away while it is checked."""

    async def unreachable(self) -> str | None:
        """Why nobody can be reached any more; None where somebody answers, whatever it is."""


S = TypeVar("S", bound=Reachable)
"""What a kit's checks are given."""

Work = Callable[[S], Awaitable[str | None]]
"""Raises `AssertionError` with what does not hold; may return a remark."""


class Result(StrEnum):
    """How a check ended."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    NOT_RUN = "not_run"
    """Nobody could be reached, so there was nobody to check."""


class SkippedError(AgentEnvError):
    """What a check needs is not there."""

    code = "skipped"

    def __init__(self, missing: str) -> None:
        super().__init__(f"{MISSING}: {missing}")


@dataclass(frozen=True, slots=True)
class Check(Generic[S]):
    """One behaviour of everything that a kit is for."""

    id: str
    """`<gate>/<sentence with underscores>`"""
    gate: StrEnum
    title: str
    about: Sequence[str]
    """Ids of the specification and of field cases."""
    advisory: bool
    """Told, and never counted against what is checked."""
    work: Work[S]


@dataclass(frozen=True, slots=True)
class Verdict:
    """A check that was run."""

    check: Check[Any]
    result: Result
    seconds: float
    detail: str = ""

    @property
    def counts(self) -> bool:
        """It speaks against what was checked."""
        return self.result in {Result.FAILED, Result.NOT_RUN} and not self.check.advisory

    def to_json(self) -> dict[str, object]:
        """The verdict as data."""
        return {
            "id": self.check.id,
            "gate": str(self.check.gate),
            "title": self.check.title,
            "about": list(self.check.about),
            "advisory": self.check.advisory,
            "result": str(self.result),
            "seconds": round(self.seconds, 3),
            "detail": self.detail,
        }


class Area(Generic[S]):
    """Collects the checks of one gate."""

    def __init__(self, gate: StrEnum) -> None:
        self.gate = gate
        self.checks: list[Check[S]] = []

    def check(self, *about: str, advisory: bool = False) -> Callable[[Work[S]], Work[S]]:
        """Makes a check of a coroutine function: its name is the id, the first line of its docstring the title."""

        def collect(work: Work[S]) -> Work[S]:
            title = (work.__doc__ or "").strip().partition("\n")[0]
            self.checks.append(Check(f"{self.gate}/{work.__name__}", self.gate, title, about, advisory, work))
            return work

        return collect


@dataclass(frozen=True, slots=True)
class Findings:
    """What checks came to, gate by gate."""

    verdicts: Sequence[Verdict]
    required: Sequence[StrEnum]
    """Gates that count."""

    @property
    def failed(self) -> list[StrEnum]:
        """Required gates with a check that speaks against what was checked."""
        against = {verdict.check.gate for verdict in self.verdicts if verdict.counts}
        return [gate for gate in self.required if gate in against]

    @property
    def skipped(self) -> list[StrEnum]:
        """Required gates of which nothing could be checked."""
        ran = {verdict.check.gate for verdict in self.verdicts if verdict.result is not Result.SKIPPED}
        return [gate for gate in self.required if gate not in ran]


async def run_each(subject: S, checks: Sequence[Check[S]], *, seconds: float, clock: Clock | None = None) -> AsyncIterator[Verdict]:
    """Runs checks one after the other. Where nobody can be reached, before the first or after one that failed, the others are not run.

    Args:
        subject: What each is given.
        checks: In their order.
        seconds: The deadline of each.
        clock: What durations are taken from.
    """
    clock = clock or SystemClock()
    lost = await _lost(subject, seconds)
    for check in checks:
        if lost is not None:
            yield Verdict(check, Result.NOT_RUN, 0.0, lost)
            continue
        begun = clock.monotonic()
        result, detail, in_doubt = Result.PASSED, "", False
        try:
            async with deadline(seconds, f"the check {check.id}"):
                detail = await check.work(subject) or ""
        except SkippedError as error:
            result, detail = Result.SKIPPED, error.message
        except (AssertionError, AgentEnvError) as error:
            result, detail, in_doubt = Result.FAILED, str(error), isinstance(error, InfrastructureError)
        except Exception as error:  # noqa: BLE001 - what is checked may answer anything, and a check that breaks over it is one that failed
            result, detail = Result.FAILED, f"{type(error).__name__}: {error}"
        yield Verdict(check, result, clock.monotonic() - begun, detail)
        if in_doubt:
            lost = await _lost(subject, seconds)


async def _lost(subject: Reachable, seconds: float) -> str | None:
    try:
        async with deadline(seconds, "asking whether anybody is there"):
            return await subject.unreachable()
    except DeadlineError:  # somebody is, and says nothing
        return None


class Named(Protocol):
    """What can be chosen by its id, its first or second half, or what it is about."""

    @property
    def id(self) -> str: ...
    @property
    def about(self) -> Sequence[str]: ...


def matches(named: Named, pattern: str) -> bool:
    """Whether a pattern chooses it: an id, an area or gate, a name, a row or case such as `EX-01`, or a glob over ids."""
    area, _, name = named.id.partition("/")
    return pattern in (named.id, area, name, *named.about) or fnmatchcase(named.id, pattern)


def holds(condition: object, what: str) -> None:
    """Raises `AssertionError` with the sentence when it does not hold. (`assert` is silent under `python -O`.)"""
    if not condition:
        raise AssertionError(what)
