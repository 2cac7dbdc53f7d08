"""The provider `unsafe_host`: commands run on the bare host, as this user, with nothing between them and the machine.

For machines that are themselves thrown away, and only by explicit opt-in. What stays of a sandbox: a work folder, an environment from
the allow-list, and the ending of everything that was started.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from agent_env.documents.network import NetworkMode, NetworkPolicy
from agent_env.errors import InfrastructureError
from agent_env.places import Shape
from agent_env.places.helper import binary_path
from agent_env.sandboxes.contract import Capabilities, Level, SandboxSpec
from agent_env.sandboxes.local import limits as control
from agent_env.sandboxes.local import link
from agent_env.sandboxes.local.processes import MARKER, Identity
from agent_env.sandboxes.local.provider import LocalProvider, listening
from agent_env.sandboxes.local.records import HOST, Facts, write_labels
from agent_env.sandboxes.local.view import Network, host_environment

WARNING = "NOT A SANDBOX: commands run on this machine as this user and can read, change and delete whatever it can"


class UnsafeHostProvider(LocalProvider):
    """Bare-host execution behind the same contract."""

    name = "unsafe_host"

    async def capabilities(self) -> Capabilities:
        """What it can do here, loudly."""
        return Capabilities(
            shape=Shape.MACHINE_BACKED, egress=frozenset({NetworkMode.ALLOW_ALL}), limits=self._levels(), notes=[WARNING, *self._notes()]
        )

    def problems(self, spec: SandboxSpec, capabilities: Capabilities) -> Sequence[str]:  # noqa: ARG002 (the contract's)
        """Why this spec can't be run on the bare host."""
        found = [] if spec.mode == "vm" else [f"the bare host runs no sandbox_mode {spec.mode!r}"]
        if spec.network is not None and spec.network.restricts_egress:
            found.append("the bare host can't restrict the network; the provider 'local' can")
        return found

    def _levels(self) -> dict[str, Level]:
        return control.levels(self.machine, confined=False)

    def _notes(self) -> Sequence[str]:
        return [f"{name} is not limited" for name, level in self._levels().items() if level is Level.NONE]

    def _network(self, policy: NetworkPolicy | None) -> Network:  # noqa: ARG002 (overrides)
        return Network("allow_all", "machine")

    def _first_facts(self, spec: SandboxSpec) -> Facts:
        return replace(super()._first_facts(spec), confiner=HOST, base_uid=None, notes=(WARNING, *self._notes()))

    def _make(self, facts: Facts, spec: SandboxSpec, waits: dict[str, int]) -> Facts:  # noqa: ARG002 (overrides)
        folder = self._records.folder(spec.sandbox_id)
        work_dir = Path(facts.work_dir)
        try:
            work_dir.mkdir(mode=0o700, parents=True)
            (work_dir / ".agentenv").mkdir()
            write_labels(work_dir, spec.sandbox_id, spec.labels)
            groups = [control.make(group) for group in control.groups(self.machine, spec)]
        except OSError as error:
            raise InfrastructureError(f"can't prepare {error.filename or work_dir}: {error.strerror}", concerns=spec.sandbox_id) from error
        environment = host_environment(self._environ, work_dir, spec.sandbox_id) | dict(spec.env)
        with (
            listening(folder / "helper.sock") as listener,
            link.config(spec, environment, cwd=work_dir) as config,
            (folder / "helper.log").open("ab") as log,
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
            raise InfrastructureError("the helper ended at once", concerns=spec.sandbox_id, hint=f"see {folder / 'helper.log'}")
        for group in groups:
            group.write_text(str(process.pid))
        running = replace(facts, phase="running", first=first.dump())
        self._records.write(running)
        return running
