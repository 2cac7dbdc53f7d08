"""Processes of this machine as identities: a number alone may be somebody else's by the time one acts on it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

MARKER = "AGENTENV_SANDBOX"
"""Stands in the environment of everything that belongs to a sandbox, with the sandbox's id."""


@cache
def boot_id() -> str:
    """Which boot of this machine this is: after another one, no recorded process exists."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@dataclass(frozen=True, slots=True)
class Identity:
    """A process: its number and when it started, in clock ticks since boot."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> Identity | None:
        """The process that has this number now; None when there is none, or only what is left of one (a zombie)."""
        try:
            with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
                stat = file.read()
        except OSError:
            return None
        # The program's name stands in brackets and may hold anything, so fields are counted from the last bracket.
        fields = stat[stat.rindex(b")") + 2 :].split()
        return None if fields[0] in {b"Z", b"X"} else cls(pid, int(fields[19]))

    @classmethod
    def load(cls, data: object) -> Identity | None:
        """Reads what `dump` wrote; anything else is None."""
        match data:
            case {"pid": int(pid), "started": int(started)}:
                return cls(pid, started)
        return None

    def dump(self) -> dict[str, int]:
        """Plain data for a record."""
        return {"pid": self.pid, "started": self.started}

    @property
    def alive(self) -> bool:
        """Whether this very process still runs."""
        return Identity.of(self.pid) == self

    def kill(self, signal_number: int = signal.SIGKILL) -> bool:
        """Signals it, and nobody else. Returns whether it was there."""
        try:
            handle = os.pidfd_open(self.pid)
        except OSError:
            return False
        try:
            if not self.alive:
                return False
            signal.pidfd_send_signal(handle, signal_number)
        except ProcessLookupError:
            return False
        finally:
            os.close(handle)
        return True

    def wait_gone(self, seconds: float) -> bool:
        """Waits for its end. Returns whether it ended in time."""
        try:
            handle = os.pidfd_open(self.pid)
        except OSError:
            return True
        try:
            if not self.alive:
                return True
            poller = select.poll()
            poller.register(handle, select.POLLIN)
            return bool(poller.poll(max(seconds, 0.0) * 1000)) or not self.alive
        finally:
            os.close(handle)


def marked(sandbox_id: str) -> Iterator[Identity]:
    """Every process of this machine whose environment carries the sandbox's id, as far as this user may look."""
    entry = f"{MARKER}={sandbox_id}".encode()
    with os.scandir("/proc") as listing:  # a Path for each of thousands of entries would cost more than the rest
        names = [found.name for found in listing if found.name.isdigit() and int(found.name) != os.getpid()]
    for name in names:
        with contextlib.suppress(OSError):
            identity = Identity.of(int(name))
            if identity is not None and entry in Path(f"/proc/{name}/environ").read_bytes().split(b"\0") and identity.alive:
                yield identity
