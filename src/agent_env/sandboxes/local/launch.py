"""Starts a confined place and tells what was started. Blocking: called from a worker thread, bounded by its own deadline."""

from __future__ import annotations

import os
import select
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from agent_env.clock import SystemClock
from agent_env.errors import InfrastructureError, UnsupportedError
from agent_env.sandboxes.local.processes import Identity

_CLOCK = SystemClock()
_REPORT_BYTES = 2048
_LOG_TAIL_BYTES = 2000
_NO_NAMESPACES = "can't make namespaces"


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that the start needs."""

    helper: Path
    own: Sequence[str]
    """Options of `helper confine` itself."""
    view: Sequence[str]
    """Options that bubblewrap understands too."""
    payload: Sequence[str]
    environment: dict[str, str]
    log: Path
    keep: Sequence[int]
    """Descriptors that the payload inherits."""
    network: bool
    """Networking is started, and its readiness is to be waited for."""
    limited: bool
    """Control groups are joined, and that is to be waited for."""


@dataclass(slots=True)
class Started:
    """What runs now."""

    first: Identity
    guardian: Identity
    waits: dict[str, int] = field(default_factory=dict)
    """`network` and `limits` → descriptor that gives one byte when it is ready, and ends without one when it failed."""


def start(plan: Plan, *, seconds: float) -> Started:
    """Starts the place.

    Raises:
        UnsupportedError: This machine does not let its users make namespaces.
        InfrastructureError: It did not start; the message says what went wrong.
    """
    until = _CLOCK.monotonic() + seconds
    with _Pipes() as pipes:
        words = [str(plan.helper), "confine", *pipes.open("report", "--report-fd")]
        if plan.network:
            words += pipes.open("network", "--slirp-ready-fd")
        if plan.limited:
            words += pipes.open("limits", "--limited-fd")
        for kept in plan.keep:
            words += ["--keep-fd", str(kept)]
        _spawn([*words, *plan.own, *plan.view, "--", *plan.payload], plan, [*pipes.ends, *plan.keep], until)
        pipes.close_ends()
        first, guardian = _started(_report(pipes.readers["report"], until), plan.log)
        return Started(first, guardian, pipes.keep_all_but("report"))


class _Pipes:
    """Pipes whose writing ends go to the new processes. What is not kept is closed."""

    def __init__(self) -> None:
        self.readers: dict[str, int] = {}
        self.ends: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close_ends()
        for reader in self.readers.values():
            os.close(reader)

    def open(self, name: str, option: str) -> list[str]:
        """Makes a pipe, and gives the words that tell its writing end."""
        self.readers[name], end = os.pipe()
        self.ends.append(end)
        return [option, str(end)]

    def close_ends(self) -> None:
        """Only the new processes write now, so that a reader sees their end."""
        while self.ends:
            os.close(self.ends.pop())

    def keep_all_but(self, name: str) -> dict[str, int]:
        """Hands the other readers over to the caller."""
        kept = {other: reader for other, reader in self.readers.items() if other != name}
        self.readers = {name: self.readers[name]}
        return kept


def _spawn(words: list[str], plan: Plan, descriptors: list[int], until: float) -> None:
    """Runs the first process, which forks and ends at once."""
    with plan.log.open("ab") as log:
        process = subprocess.Popen(
            words,
            env=plan.environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=descriptors,
            start_new_session=True,
        )
    started = Identity.of(process.pid)
    if started is not None and not started.wait_gone(until - _CLOCK.monotonic()):
        process.kill()
        process.wait()
        raise InfrastructureError("the sandbox's guardian did not start in time")
    process.wait()


def _report(descriptor: int, until: float) -> str:
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    text = b""
    while b"\n" not in text:
        if not poller.poll(max(until - _CLOCK.monotonic(), 0.0) * 1000):
            raise InfrastructureError("the sandbox did not start in time")
        piece = os.read(descriptor, _REPORT_BYTES)
        if not piece:
            break
        text += piece
    return text.decode(errors="replace").strip()


def _started(report: str, log: Path) -> tuple[Identity, Identity]:
    match report.split():
        case ["ok", first, guardian]:
            identities = Identity.of(int(first)), Identity.of(int(guardian))
            if identities[0] is not None and identities[1] is not None:
                return identities[0], identities[1]
            report = "error it ended at once"
    problem = report.removeprefix("error ") or "its guardian ended without a word"
    if problem.startswith(_NO_NAMESPACES):
        raise UnsupportedError(
            f"this machine does not let this user make namespaces ({problem})",
            hint="install bubblewrap, or allow user namespaces; --unsafe-host runs without a sandbox, on a machine you can lose",
        )
    raise InfrastructureError(f"the sandbox did not start: {problem}{log_tail(log)}")


def log_tail(log: Path) -> str:
    """The end of a message about a sandbox: what its own log said last, if anything."""
    try:
        text = log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace").strip()
    except OSError:
        return ""
    return f"; its log says: {text}" if text else ""
