"""What providers of confined sandboxes of this machine begin with: their options, this machine, and the life of what they make."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, ClassVar

from agent_env.defaults import DEFAULT_LIMITS, Limits
from agent_env.errors import PlacementError
from agent_env.sandboxes.confined.life import Life
from agent_env.sandboxes.confined.options import Options
from agent_env.sandboxes.confined.probe import Machine, survey
from agent_env.sandboxes.confined.records import Records, work_root
from agent_env.sandboxes.contract import Level
from agent_env.stores.identity import HOME_LABEL, identity_of

if TYPE_CHECKING:
    from agent_env.images import Keyring


class Confining:
    """The common half of such a provider.

    Args:
        state_root: The state folder.
        limits: Waits and limits.
        options: What configuration says; see `options_type`.
        environ: Names the folder of sandboxes, engines, proxies and credentials; None is this process's own.
        machine: What this machine can do; None looks.
    """

    name = ""
    options_type: ClassVar[type[Options]] = Options
    room: ClassVar[str] = ""
    """The folder below the state folder, and below that of all sandboxes, which is its own; empty where it was there first."""

    def __init__(
        self,
        state_root: Path,
        *,
        limits: Limits = DEFAULT_LIMITS,
        options: Mapping[str, object] | None = None,
        environ: Mapping[str, str] | None = None,
        machine: Machine | None = None,
    ) -> None:
        self._options = self.options_type.parse(self.name, options or {})
        self._state_root = state_root
        self._records = Records(state_root / self.room)
        self._limits = limits
        self._environ = dict(os.environ if environ is None else environ)
        self._known_machine = machine
        self._keyring: Callable[[], Keyring] = self._left_by_docker

    def ask_as(self, keyring: Callable[[], Keyring]) -> None:
        """Registries are asked with these credentials from now on."""
        self._keyring = keyring

    def _left_by_docker(self) -> Keyring:
        from agent_env.images import DockerKeyring

        return DockerKeyring.of_user(self._environ)

    def _refuse_another_ones(self, sandbox_id: str) -> None:
        """Raises `PlacementError` where the record of a sandbox came here in a copy of the state folder of the installation that has it."""
        facts, identity = self._records.read(sandbox_id), identity_of(self._state_root)
        origin = identity.origin(facts.labels.get(HOME_LABEL, "")) if facts is not None else None
        if origin is not None and origin.path is not None:
            why = f"sandbox {sandbox_id} belongs to the installation in {origin.path}, of which this state folder is a copy"
            raise PlacementError(why, concerns=sandbox_id, hint=f"remove it there: AGENT_ENV_STATE_ROOT={quote(str(origin.path))}")

    @property
    def machine(self) -> Machine:
        """What this machine can do, looked at once."""
        if self._known_machine is None:
            self._known_machine = survey()
        return self._known_machine

    @cached_property
    def _work_root(self) -> Path:
        return work_root(self._environ, self._state_root / "work") / self.room

    @cached_property
    def _life(self) -> Life:
        return Life(self._state_root, self._records, self._work_root, self._limits, self._options.allow_private)


def weak(levels: Mapping[str, Level]) -> Sequence[str]:
    """What a person should know about limits that don't hold by themselves."""
    how = {Level.WATCHED: "watched", Level.NONE: "not limited"}
    return [f"{name} is {how[level]}" for name, level in levels.items() if level in how]
