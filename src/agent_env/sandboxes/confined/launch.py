"""Starts a confined place and tells what was started. Blocking: called from a worker thread, bounded by its own deadline."""

from __future__ import annotations

import os
import select
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from agent_env.clock import SystemClock
from agent_env.errors import InfrastructureError, UnsupportedError
from agent_env.sandboxes.confined.processes import Identity

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
    lend: Sequence[int]
    """Descriptors that are read while the view is made."""
    guardian: int
    """The guardian's end of the socket to the first process; see `between`."""


@dataclass(frozen=True, slots=True)
class Started:
    """What runs now."""

    first: Identity
    guardian: Identity


def start(plan: Plan, *, seconds: float) -> Started:
    """Starts the place.

    Raises:
        UnsupportedError: This machine does not let its users make namespaces.
        InfrastructureError: It did not start; the message says what went wrong.
    """
    until = _CLOCK.monotonic() + seconds
    report, end = os.pipe()
    try:
        try:
            words = [str(plan.helper), "confine", "--report-fd", str(end), "--first-fd", str(plan.guardian)]
            for kept in plan.keep:
                words += ["--keep-fd", str(kept)]
            _spawn([*words, *plan.own, *plan.view, "--", *plan.payload], plan, [end, plan.guardian, *plan.keep, *plan.lend], until)
        finally:
            os.close(end)  # only the new processes write now, so that their end is seen
        return Started(*_started(_report(report, until), plan.log))
    finally:
        os.close(report)


@contextmanager
def between() -> Iterator[tuple[int, int]]:
    """A socket by which a place's first process and its guardian speak (see `helper/ready.c`): the ends of both, open while they start."""
    first, guardian = socket.socketpair()
    with first, guardian:
        yield first.fileno(), guardian.fileno()


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
