"""Confined process trees of this machine that play machines: what they hold here, and how one is made. Of engines nothing is known here."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from agent_env.keeper.wiring import relay_token
from agent_env.places.helper import binary_path
from agent_env.sandboxes.confined import limits as control
from agent_env.sandboxes.confined import link
from agent_env.sandboxes.confined.confining import Confining, weak
from agent_env.sandboxes.confined.launch import Started
from agent_env.sandboxes.confined.making import confine, first_facts, make, own_options
from agent_env.sandboxes.confined.network import SLIRP, Network, choose, why_shared
from agent_env.sandboxes.confined.publish import write_port_map
from agent_env.sandboxes.confined.records import LOG, Facts, labels_file, new_work_dir
from agent_env.sandboxes.contract import Level, SandboxSpec
from agent_env.sandboxes.local.options import Options
from agent_env.sandboxes.local.view import View, write_sudo
from agent_env.waiting import shielded


class ConfinedMachines(Confining):
    """The half of `local` that needs no container engine."""

    options_type = Options
    _options: Options

    def _can_confine(self) -> bool:
        match self._options.confiner:
            case "bwrap":
                return self.machine.bwrap is not None and not self.machine.for_nobody
            case "helper":
                return not self.machine.user_namespaces
        return self.machine.can_confine

    def _levels(self) -> dict[str, Level]:
        return control.levels(self.machine)

    def _bwrap(self) -> str | None:
        """For root always our own confiner, which gives each place private ids; for others bubblewrap, which some machines allow alone."""
        if self._options.confiner == "helper" or (self.machine.is_root and self._options.confiner == "auto"):
            return None
        return self.machine.bwrap

    def _notes(self) -> Sequence[str]:
        notes = []
        if why := why_shared(self._options.network, self.machine):
            notes.append(
                f"places that may use the network use this machine's own, with its loopback and abstract sockets ({why}); "
                "slirp4netns would separate them"
            )
        return [*notes, *weak(self._levels())]

    def _first_facts(self, spec: SandboxSpec) -> Facts:
        network = choose(spec.network_mode, self._options.network, self.machine)
        work_dir, bubblewrapped = new_work_dir(self._work_root, spec.sandbox_id), self._bwrap() is not None
        home, notes = self._records.home, self._notes()
        return first_facts(spec, work_dir, network, self.machine, home=home, notes=notes, bubblewrapped=bubblewrapped)

    async def _made(self, facts: Facts, spec: SandboxSpec) -> Facts:
        """Makes the machine of a record that is open, and publishes its ports; gives the record as it then stands."""
        work = asyncio.to_thread(make, facts, spec, self.machine, self._records, partial(self._start, facts, spec))
        facts = await shielded(work, seconds=self._limits.deploy_seconds, what="making the sandbox")
        if spec.ports:
            facts = await self._life.publish(facts, spec, self._records.folder(spec.sandbox_id) / LOG)
            await asyncio.to_thread(write_port_map, Path(facts.work_dir), {int(served): port for served, port in facts.ports.items()})
        await self._life.relay(facts)
        return facts

    def _start(self, facts: Facts, spec: SandboxSpec, groups: Sequence[Path]) -> Started:
        """Fills the folder and starts the place in it."""
        folder = self._records.folder(spec.sandbox_id)
        view = View(
            machine=self.machine,
            work_dir=Path(facts.work_dir),
            sandbox_id=spec.sandbox_id,
            network=Network(str(facts.network["mode"]), str(facts.network["how"])),
            environ=self._environ,
            extra={**spec.env, **spec.secrets},
            helper=binary_path(),
            sudo=write_sudo(self._records.tools()),
            marks=dict([labels_file(spec.sandbox_id, spec.labels)]),
            base_uid=facts.base_uid,
        )
        view.build()
        told = link.config(
            spec,
            view.environment(),
            counted=facts.levels["processes"] == Level.HARD,
            limited=bool(groups),
            network_seconds=self._limits.connect_seconds if facts.network["how"] == SLIRP else 0.0,
            starter=control.takes_threads(groups),
            relay_token=relay_token(self._state_root, spec.sandbox_id),
        )
        bwrap = self._bwrap()
        own = own_options(facts, spec, self.machine, groups, folder) + (["--bwrap", bwrap] if bwrap else [])
        with view.files() as files:
            view_words, lend, seconds = view.arguments(files), tuple(files.values()), self._limits.deploy_seconds
            return confine(
                spec.sandbox_id, folder, told, groups=groups, own=own, view=view_words, log=folder / LOG, lend=lend, seconds=seconds
            )
