"""Which installation this is, and what it puts on everything that it makes."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from pathlib import Path

from agent_env.clock import Clock, timestamp
from agent_env.stores.installation import InstallationKey

SANDBOX_LABEL = "agentenv.sandbox"
RUN_LABEL = "agentenv.run"
HOME_LABEL = "agentenv.home"
EPOCH_LABEL = "agentenv.epoch"
EXPIRES_LABEL = "agentenv.expires"
_MACHINE_ID_FILES = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))


@dataclass(frozen=True)
class Installation:
    """One user's agent-env on one machine with one state folder."""

    state_root: Path
    home: str
    """Derived from machine, user and path: two installations never take each other's things for their own."""
    key: InstallationKey
    """Tokens of places are derived from it, so nothing is stored and a resume has them."""

    def labels(self, run_id: str, sandbox_id: str, *, epoch: int, ttl_seconds: float, clock: Clock) -> Mapping[str, str]:
        """What a sandbox carries from the moment it is made."""
        return {
            SANDBOX_LABEL: sandbox_id,
            RUN_LABEL: run_id,
            HOME_LABEL: self.home,
            EPOCH_LABEL: str(epoch),
            EXPIRES_LABEL: timestamp(clock.now() + timedelta(seconds=ttl_seconds)),
        }

    def token(self, run_id: str, sandbox_id: str) -> str:
        """The token of a sandbox's places."""
        return self.key.derive(run_id, sandbox_id)


def installation_at(state_root: Path) -> Installation:
    """The installation with this state folder."""
    return Installation(state_root, home_of(state_root), InstallationKey(state_root))


def home_of(state_root: Path) -> str:
    """The label of an installation."""
    identity = f"{_machine_id()}\0{os.getuid()}\0{state_root.resolve()}"
    return hashlib.sha256(identity.encode()).hexdigest()[:16]


@lru_cache(maxsize=1)
def _machine_id() -> str:
    for path in _MACHINE_ID_FILES:
        try:
            text = path.read_text().strip()
        except OSError:
            continue
        if text:
            return text
    return socket.gethostname()
