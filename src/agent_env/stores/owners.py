"""Who owns a run: one process of one boot of one machine, named so that others can tell whether it still lives.

A process id alone says nothing: ids are reused, containers have their own, machines reboot and are renamed.
"""

from __future__ import annotations

import os
import sys
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, Self

from agent_env import host

_FIRST_PID_NAMESPACE = "pid:[4026531836]" if host.IS_LINUX else ""
"""The kernel's fixed name of the namespace that every machine boots into (PROC_PID_INIT_INO); other systems have none."""
_TICKS = 100
"""(proc(5), USER_HZ) A second's clock ticks, in which Linux tells when a process started."""


class Life(StrEnum):
    """What is known of an owner."""

    ALIVE = "alive"
    DEAD = "dead"
    UNKNOWN = "unknown"
    """It runs where this process can't look: only its heartbeat tells."""


@dataclass(frozen=True, slots=True)
class Owner:
    """One process, told apart from every other one."""

    pid: int
    start: int
    """Start time of the process, as `host.start_time` tells it: on Linux in clock ticks since the boot."""
    boot: str
    """The kernel's id of this boot."""
    machine: str
    """The machine's own id, which a change of the host name leaves alone; empty when it has none."""
    namespace: str
    """The process id namespace: a container's ids are its own."""
    host: str
    """For people. Never compared."""
    command: str
    """For people. Never compared."""

    @classmethod
    def this_process(cls) -> Self:
        """The calling process."""
        pid = os.getpid()
        return cls(
            pid=pid,
            start=_own_start_time(pid),
            boot=host.boot_id(),
            machine=host.machine_id(),
            namespace=_namespace(),
            host=os.uname().nodename,
            command=_command(),
        )

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """The inverse of `to_json`."""
        return cls(**data)

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)

    def life(self) -> Life:
        """Whether the process still runs, as far as this one can tell at once."""
        me = Owner.this_process()
        if self.boot and (self.boot, self.namespace) == (me.boot, me.namespace):
            return Life.ALIVE if host.start_time(self.pid) == self.start else Life.DEAD
        # Machine ids are often baked into container images, so another boot is only certain outside of containers.
        on_machines = self.namespace == me.namespace == _FIRST_PID_NAMESPACE
        if on_machines and self.machine and self.machine == me.machine:
            return Life.DEAD
        return Life.UNKNOWN

    def seconds_since_start(self) -> float | None:
        """How long ago it started, by a clock that nobody sets; None for what another boot or another machine started."""
        if not (host.IS_LINUX and self.boot and self.boot == host.boot_id()):
            return None
        return max(host.boot_seconds() - self.start / _TICKS, 0.0)

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} ({self.command})"


@cache
def _own_start_time(pid: int) -> int:
    """Of the calling process, which does not change while it lives. A forked child has another id."""
    return host.start_time(pid) or 0


def _namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def _command() -> str:
    """The program and its verb. Never more: a command line may hold secrets."""
    program = Path(sys.argv[0] if sys.argv and sys.argv[0] else sys.executable).name
    verb = sys.argv[1] if len(sys.argv) > 1 else ""
    return f"{program} {verb}" if verb.isalpha() else program
