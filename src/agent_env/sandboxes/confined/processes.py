"""Processes of this machine as identities: a number alone may be somebody else's by the time one acts on it."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from agent_env import host
from agent_env.host import boot_id

__all__ = ["MARKER", "Identity", "boot_id", "marked"]

MARKER = "AGENTENV_SANDBOX"
"""Stands in the environment of everything that belongs to a sandbox, with the sandbox's id."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A process: its number and when it started, as `host.start_time` tells it."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> Identity | None:
        """The process that has this number now; None when there is none, or only what is left of one (a zombie)."""
        started = host.start_time(pid)
        return None if started is None else cls(pid, started)

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
        return host.send_signal(self.pid, self.started, signal_number)

    def wait_gone(self, seconds: float) -> bool:
        """Waits for its end. Returns whether it ended in time."""
        return host.wait_gone(self.pid, self.started, seconds)


def marked(sandbox_id: str) -> Iterator[Identity]:
    """Every process here whose environment carries the sandbox's id, as far as this user may look. None where no place is confined."""
    if not host.IS_LINUX:
        return
    entry = f"{MARKER}={sandbox_id}".encode()
    with os.scandir("/proc") as listing:  # a Path for each of thousands of entries would cost more than the rest
        names = [found.name for found in listing if found.name.isdigit() and int(found.name) != os.getpid()]
    for name in names:
        with contextlib.suppress(OSError):
            identity = Identity.of(int(name))
            if identity is not None and entry in Path(f"/proc/{name}/environ").read_bytes().split(b"\0") and identity.alive:
                yield identity
