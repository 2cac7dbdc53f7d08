"""Which installation this is, and what it puts on everything that it makes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from agent_env import host
from agent_env.clock import Clock, timestamp
from agent_env.engine.ownership import Ownership
from agent_env.stores import identity
from agent_env.stores.installation import InstallationKey

if TYPE_CHECKING:
    from agent_env.config import Config
    from agent_env.images import Keyring

SANDBOX_LABEL = "agentenv.sandbox"
RUN_LABEL = "agentenv.run"
HOME_LABEL = identity.HOME_LABEL
EPOCH_LABEL = "agentenv.epoch"
EXPIRES_LABEL = "agentenv.expires"
BOOT_LABEL = "agentenv.expires-in-boot"
"""The same moment by a clock that nobody sets: `BOOT.SECONDS`, the boot of the machine that made it and the seconds since then. In another
boot, and for other machines, what `EXPIRES_LABEL` says has to do."""


@dataclass(frozen=True)
class Installation:
    """One user's agent-env on one machine with one state folder."""

    state_root: Path
    home: str
    """Its label, kept in the state folder: two installations never take each other's things for their own."""
    key: InstallationKey
    """Tokens of places are derived from it, so nothing is stored and a resume has them."""
    config: Config
    ownership: Ownership
    """What it may go on in, and remove."""

    def labels(self, run_id: str, sandbox_id: str, *, epoch: int, ttl_seconds: float, clock: Clock) -> Mapping[str, str]:
        """What a sandbox carries from the moment it is made."""
        return {
            SANDBOX_LABEL: sandbox_id,
            RUN_LABEL: run_id,
            HOME_LABEL: self.home,
            EPOCH_LABEL: str(epoch),
            EXPIRES_LABEL: timestamp(clock.now() + timedelta(seconds=ttl_seconds)),
            **({BOOT_LABEL: f"{boot}.{host.boot_seconds() + ttl_seconds:.0f}"} if (boot := host.boot_id()) else {}),
        }

    def token(self, run_id: str, sandbox_id: str) -> str:
        """The token of a sandbox's places."""
        return self.key.derive(run_id, sandbox_id)

    def keyring(self, seen: Callable[[str], object]) -> Keyring:
        """Who we are to registries: as the configuration says, else what `docker login` left.

        Args:
            seen: Told every secret before it is used.

        Raises:
            NotFoundError: A credential is a reference without a value.
        """
        from agent_env.images.opening import keyring_of

        return keyring_of(self.config, environ=os.environ, seen=seen)


def seconds_left(labels: Mapping[str, str], clock: Clock) -> float:
    """Until a sandbox ends, and all that is beside it, as its labels say; 0 where they don't."""
    expires, left = labels.get(EXPIRES_LABEL), _left_of_boot(labels)
    if not expires:
        return 0.0
    if left is None:
        left = (datetime.fromisoformat(expires.replace("Z", "+00:00")) - clock.now()).total_seconds()
    return max(left, 1.0)


def has_expired(labels: Mapping[str, str], clock: Clock) -> bool:
    """Whether a sandbox is past its end, as its labels say, wherever somebody has set this machine's clock meanwhile."""
    expires, left = labels.get(EXPIRES_LABEL), _left_of_boot(labels)
    return left < 0 if left is not None else expires is not None and expires < timestamp(clock.now())


def _left_of_boot(labels: Mapping[str, str]) -> float | None:
    boot, _, until = labels.get(BOOT_LABEL, "").rpartition(".")
    return float(until) - host.boot_seconds() if boot and until.isdecimal() and boot == host.boot_id() else None


def installation_of(config: Config) -> Installation:
    """The installation that a configuration is of."""
    found = identity.identity_of(config.state_root)
    return Installation(config.state_root, found.home, InstallationKey(config.state_root), config, Ownership.of(config, found))
