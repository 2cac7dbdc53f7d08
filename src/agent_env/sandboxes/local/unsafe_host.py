"""The provider `unsafe_host`: commands run on the bare host, as this user, with nothing between them and the machine.

For machines that are themselves thrown away, and only by explicit opt-in. What stays of a sandbox: a work folder, an environment from
the allow-list, and the ending of everything that was started.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from agent_env import host
from agent_env.defaults import DEFAULT_LIMITS, Limits
from agent_env.documents.network import NetworkMode
from agent_env.errors import InfrastructureError
from agent_env.places import Shape
from agent_env.places.helper import binary_path
from agent_env.sandboxes.confined import limits as control
from agent_env.sandboxes.confined import link
from agent_env.sandboxes.confined.descriptors import in_memory
from agent_env.sandboxes.confined.launch import Started
from agent_env.sandboxes.confined.making import listening
from agent_env.sandboxes.confined.processes import MARKER, Identity
from agent_env.sandboxes.confined.records import HELPER_SOCKET, HOST, LOG, Facts, labels_file
from agent_env.sandboxes.contract import Capabilities, Level, SandboxSpec
from agent_env.sandboxes.local.provider import LocalProvider
from agent_env.sandboxes.local.view import host_environment

WARNING = "NOT A SANDBOX: commands run on this machine as this user and can read, change and delete whatever it can"

PERMITTED = "permitted"
"""Option: whether this user lets tasks onto the bare host. Never read from a table of options; see `engine.opening`."""
_NOT_PERMITTED = (
    "a task, a bundle or a name alone can't switch isolation off; `agent-env run --unsafe-host`, sandbox.unsafe_host = true in your own "
    "configuration, or AGENT_ENV_UNSAFE_HOST=1 can"
)


class UnsafeHostProvider(LocalProvider):
    """Bare-host execution behind the same contract."""

    name = "unsafe_host"

    def __init__(self, state_root: Path, *, limits: Limits = DEFAULT_LIMITS, options: Mapping[str, object] | None = None) -> None:
        given = {**(options or {}), "network": "machine"}
        self._permitted = bool(given.pop(PERMITTED, True))
        super().__init__(state_root, limits=limits, options=given)

    def problems(self, spec: SandboxSpec, capabilities: Capabilities) -> Sequence[str]:
        """Why this spec can't be made here."""
        elsewhere = [] if host.IS_LINUX else [f"the provider {self.name!r} needs Linux; this is {host.system_name()}"]
        return [*([] if self._permitted else [_NOT_PERMITTED]), *elsewhere, *super().problems(spec, capabilities)]

    async def capabilities(self) -> Capabilities:
        """What it can do here, loudly."""
        return Capabilities(
            shape=Shape.MACHINE_BACKED,
            egress=frozenset({NetworkMode.ALLOW_ALL}),
            limits=self._levels(),
            own_network=False,
            notes=[WARNING, *self._notes()],
        )

    def _can_confine(self) -> bool:
        return True  # nothing is confined

    def _levels(self) -> dict[str, Level]:
        return control.levels(self.machine, confined=False)

    def _notes(self) -> Sequence[str]:
        return [f"{name} is not limited" for name, level in self._levels().items() if level is Level.NONE]

    def _first_facts(self, spec: SandboxSpec) -> Facts:
        levels = {name: level.value for name, level in self._levels().items()}
        return replace(super()._first_facts(spec), confiner=HOST, base_uid=None, levels=levels, notes=(WARNING, *self._notes()))

    def _start(self, facts: Facts, spec: SandboxSpec, groups: Sequence[Path]) -> Started:
        folder = self._records.folder(spec.sandbox_id)
        work_dir = Path(facts.work_dir)
        name, text = labels_file(spec.sandbox_id, spec.labels)
        (work_dir / name).parent.mkdir()
        (work_dir / name).write_text(text)
        environment = host_environment(self._environ, work_dir, spec.sandbox_id) | {**spec.env, **spec.secrets}
        with (
            listening(folder / HELPER_SOCKET) as listener,
            in_memory(link.config(spec, environment, cwd=work_dir).encode()) as config,
            (folder / LOG).open("ab") as log,
        ):
            process = subprocess.Popen(
                link.payload(str(binary_path()), listener.fileno(), config),
                env={MARKER: spec.sandbox_id},
                cwd=work_dir,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(listener.fileno(), config),
                start_new_session=True,
            )
        first = Identity.of(process.pid)
        if first is None:
            raise InfrastructureError("the helper ended at once", concerns=spec.sandbox_id, hint=f"see {folder / LOG}")
        for group in groups:
            group.write_text(str(process.pid))
        return Started(first, first)
