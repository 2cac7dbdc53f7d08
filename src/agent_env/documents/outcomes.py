"""What an ending means. Every ending has one kind, and the kind decides, here and nowhere else: retry it? grade it? does it count?

An infrastructure fault never becomes a number, and what we don't recognise is never held against the agent.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Literal

Status = Literal["completed", "failed", "cancelled"]


class Kind(StrEnum):
    """How a step or a run ended."""

    COMPLETED = "completed"
    TASK = "task"
    STEP_TIMEOUT = "step_timeout"
    LIMIT = "limit"
    LAUNCH = "launch"
    TRANSPORT_LOST = "transport_lost"
    SANDBOX_UNAVAILABLE = "sandbox_unavailable"
    PLACE_LOST = "place_lost"
    TRANSFER = "transfer"
    STORAGE = "storage"
    DEADLINE = "deadline"
    INFRASTRUCTURE = "infrastructure"
    CANCELLED = "cancelled"
    SUPERSEDED = "superseded"
    INVALID = "invalid"
    REVIEW_ABORTED = "review_aborted"
    INTERNAL = "internal"
    UNRECOGNISED = "unrecognised"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What follows from a kind."""

    retry: bool
    """Running it again, unchanged, may end differently."""
    grade: bool
    """Grading may go on: what was found is the agent's or the task's own doing."""
    counts: bool
    """The ending enters statistics: a missing or low score is the agent's."""
    status: Status
    """The run's status when a fatal step ends so."""
    meaning: str
    """One line for people."""


def _row(meaning: str, *, retry: bool = False, grade: bool = False, counts: bool = False, status: Status = "failed") -> Outcome:
    return Outcome(retry, grade, counts, status, meaning)


OUTCOMES: Mapping[Kind, Outcome] = MappingProxyType(
    {
        Kind.COMPLETED: _row("everything ran to its end", grade=True, counts=True, status="completed"),
        Kind.TASK: _row(
            "a program of the task or agent failed: its own exit code, its own time limit, a bad result", grade=True, counts=True
        ),
        Kind.STEP_TIMEOUT: _row("a step outlived the time limit that the task gives it", grade=True, counts=True),
        Kind.LIMIT: _row("a limit of the sandbox was hit: memory, processes or disk", grade=True, counts=True),
        Kind.LAUNCH: _row("a program could not be started: missing program or folder, unknown user"),
        Kind.TRANSPORT_LOST: _row("the connection to a place broke, what ran there is not known", retry=True),
        Kind.SANDBOX_UNAVAILABLE: _row("a sandbox or container is gone, stopped or unreachable", retry=True),
        Kind.PLACE_LOST: _row("a recorded place no longer exists", retry=True),
        Kind.TRANSFER: _row("files could not be moved, or arrived altered", retry=True),
        Kind.STORAGE: _row("the run database or object store can't be read or written"),
        Kind.DEADLINE: _row("a wait of ours outlived its deadline", retry=True),
        Kind.INFRASTRUCTURE: _row("some other fault of a machine, network or service", retry=True),
        Kind.CANCELLED: _row("a person or the caller stopped it", status="cancelled"),
        Kind.SUPERSEDED: _row("another process took the run over"),
        Kind.INVALID: _row("what was asked for can't be done as written: a document, a reference, an option"),
        Kind.REVIEW_ABORTED: _row("a reviewer decided that the run must not go on"),
        Kind.INTERNAL: _row("a mistake of agent-env itself"),
        Kind.UNRECOGNISED: _row("something that we can't attribute"),
    }
)

CODES: Mapping[str, Kind] = MappingProxyType(
    {
        "task": Kind.TASK,
        "step_timeout": Kind.STEP_TIMEOUT,
        "limit_hit": Kind.LIMIT,
        "review_aborted": Kind.REVIEW_ABORTED,
        "launch_failed": Kind.LAUNCH,
        "transport_lost": Kind.TRANSPORT_LOST,
        "sandbox_unavailable": Kind.SANDBOX_UNAVAILABLE,
        "place_lost": Kind.PLACE_LOST,
        "transfer_failed": Kind.TRANSFER,
        "storage": Kind.STORAGE,
        "deadline": Kind.DEADLINE,
        "superseded": Kind.SUPERSEDED,
        "infrastructure": Kind.INFRASTRUCTURE,
        "invalid": Kind.INVALID,
        "internal": Kind.INTERNAL,
    }
)
"""Error code → kind. A class whose code is not listed means what its nearest listed ancestor means."""

_STORAGE_ERRNO = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO})
_FOREIGN: Mapping[str, Kind] = {
    "asyncio.exceptions.CancelledError": Kind.CANCELLED,
    "builtins.KeyboardInterrupt": Kind.CANCELLED,
    "builtins.TimeoutError": Kind.DEADLINE,
    "builtins.ConnectionError": Kind.TRANSPORT_LOST,
}
"""Python's own classes, by name: importing asyncio for one of them would cost every command its start-up time."""
_GRAVITY = (Kind.SUPERSEDED, Kind.INTERNAL, Kind.UNRECOGNISED, Kind.STORAGE)
"""Of several errors at once, these speak first; then whatever does not count, then the rest."""


def kind_of(error: BaseException | None) -> Kind:
    """The kind of an ending, from its error's class and code; message texts are never read.

    Args:
        error: What ended it; None is a completed one. Of a group of errors, the one that forbids counting speaks for all.
    """
    if error is None:
        return Kind.COMPLETED
    if isinstance(error, BaseExceptionGroup):
        return _gravest([kind_of(inner) for inner in error.exceptions])
    for cls in type(error).__mro__:
        kind = CODES.get(cls.__dict__.get("code", ""))
        if kind is not None:
            return kind
    if isinstance(error, OSError) and error.errno in _STORAGE_ERRNO:
        return Kind.STORAGE
    names = (f"{cls.__module__}.{cls.__qualname__}" for cls in type(error).__mro__)
    return next((_FOREIGN[name] for name in names if name in _FOREIGN), Kind.UNRECOGNISED)


def outcome_of(error: BaseException | None) -> Outcome:
    """`OUTCOMES[kind_of(error)]`."""
    return OUTCOMES[kind_of(error)]


def _gravest(kinds: list[Kind]) -> Kind:
    for kind in _GRAVITY:
        if kind in kinds:
            return kind
    uncounted = [kind for kind in kinds if not OUTCOMES[kind].counts and kind is not Kind.CANCELLED]
    others = [kind for kind in kinds if kind is not Kind.CANCELLED]
    return (uncounted or others or kinds)[0]


def outcomes_table() -> str:
    """The table as Markdown, for the documentation."""
    lines = ["| kind | what happened | retried | graded | counts | run status |", "|---|---|---|---|---|---|"]
    for kind, row in OUTCOMES.items():
        marks = " | ".join("yes" if flag else "no" for flag in (row.retry, row.grade, row.counts))
        lines.append(f"| `{kind}` | {row.meaning} | {marks} | {row.status} |")
    return "\n".join(lines) + "\n"
