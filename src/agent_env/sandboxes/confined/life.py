"""The life of confined sandboxes of this machine between their making and their end: ports, ways out, removal, listing.

It knows their records and their processes, and nothing of what their root is made of.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from agent_env import keeper
from agent_env.clock import SystemClock
from agent_env.defaults import Limits
from agent_env.documents.network import NetworkPolicy
from agent_env.errors import InfrastructureError
from agent_env.places.ports import candidates, is_free
from agent_env.sandboxes.confined import limits as control
from agent_env.sandboxes.confined import link, removal
from agent_env.sandboxes.confined.ending import found_gone
from agent_env.sandboxes.confined.network import KEEPER, MACHINE, NONE, SLIRP
from agent_env.sandboxes.confined.probe import survey
from agent_env.sandboxes.confined.processes import boot_id
from agent_env.sandboxes.confined.publish import publish
from agent_env.sandboxes.confined.records import CONTAINER, EVENTS, HELPER_SOCKET, SLIRP_SOCKET, Facts, Records, read_labels, work_dirs
from agent_env.sandboxes.confined.sandbox import info_of
from agent_env.sandboxes.contract import SandboxInfo, SandboxSpec
from agent_env.waiting import deadline, poll, shielded

if TYPE_CHECKING:
    from agent_env.places.helper.connection import Connection

_CUT_OFF = frozenset({KEEPER, NONE})
"""Networks by which nothing reaches a place: its ports are led to by the keeper."""


@dataclass(frozen=True, slots=True)
class Life:
    """The sandboxes of one kind below one state folder."""

    state_root: Path
    records: Records
    work_root: Path
    limits: Limits
    allow_private: Sequence[str] = ()

    async def publish(self, facts: Facts, spec: SandboxSpec, log: Path) -> Facts:
        """Makes ports of the place reachable on this machine's loopback, and writes down where.

        Raises:
            InfrastructureError: No port could be had.
        """
        how, wanted, folder = facts.network["how"], [*dict.fromkeys(spec.ports)], self.records.folder(facts.sandbox_id)
        published: dict[int, int] = {}
        if how == MACHINE:
            published = {port: port for port in wanted}
        elif how in _CUT_OFF:
            published = dict(zip(wanted, filter(is_free, candidates()), strict=False))
        elif how == SLIRP:
            await link.wake_network(folder / HELPER_SOCKET, log, spec, self.limits)
            published = await publish(folder / SLIRP_SOCKET, wanted, limits=self.limits)
        facts = replace(facts, ports={str(served): port for served, port in published.items()})
        self.records.write(facts)
        return facts

    async def relay(self, facts: Facts) -> None:
        """The way out of a place whose network is an allow-list, and the ways in and out of its loopback; asking again changes nothing."""
        relays: list[keeper.Egress | keeper.ToHost | keeper.FromHost] = []
        if facts.network["how"] == KEEPER:
            relays.append(keeper.egress_of(NetworkPolicy.model_validate(facts.network["policy"]), self.allow_private))
        if facts.network["how"] in _CUT_OFF:
            relays += [keeper.FromHost(port, int(served)) for served, port in facts.ports.items()]
        relays += [keeper.ToHost(int(listen), port) for listen, port in facts.leads.items()]
        relays += [keeper.FromHost(port, int(served)) for served, port in facts.answers.items()]
        if relays:
            reach = keeper.at_socket(self.records.folder(facts.sandbox_id) / HELPER_SOCKET)
            await keeper.carry(self.state_root, keeper.Carried(facts.sandbox_id, reach, tuple(relays)), limits=self.limits)

    async def lead(self, sandbox_id: str, *, leads: Mapping[int, int] | None = None, answers: Mapping[int, int] | None = None) -> None:
        """Has ports of a place's own loopback lead to this machine's, or be led to. A place that shares this one's has none of its own.

        Args:
            sandbox_id: The place.
            leads: Port of its loopback → port of this machine's, that it leads to.
            answers: Port of its loopback → port of this machine's, that leads there.
        """
        facts = self.records.read(sandbox_id)
        if facts is None or facts.network["how"] == MACHINE:
            return
        further = {"leads": leads or {}, "answers": answers or {}}
        ports = {name: {**getattr(facts, name), **{str(port): at for port, at in more.items()}} for name, more in further.items()}
        changed = replace(facts, leads=ports["leads"], answers=ports["answers"])
        await self.relay(changed)
        await asyncio.to_thread(self.records.write, changed)

    async def reach(self, facts: Facts, *, epoch: int, token: str) -> tuple[Connection, keeper.Watch | None]:
        """A connection to the helper of a place that was found alive, and what it was refused to reach, where that can be told.

        Raises:
            SandboxUnavailableError: It is gone, or the token does not fit.
            SupersededError: A later owner has it.
            DeadlineError: It does not answer.
        """
        socket = self.records.folder(facts.sandbox_id) / HELPER_SOCKET
        connection = await link.connect(socket, sandbox_id=facts.sandbox_id, epoch=epoch, token=token, limits=self.limits)
        carried = facts.network["how"] == KEEPER or facts.leads or facts.answers
        watch = keeper.Watch(self.state_root, facts.sandbox_id, limits=self.limits).start() if carried else None
        return connection, watch

    async def check(self, facts: Facts) -> None:
        """Makes sure that a recorded sandbox lives.

        Raises:
            PlaceLostError: It doesn't; says how it ended.
        """
        lost = await found_gone(facts, self.records.folder(facts.sandbox_id) / EVENTS, seconds=self.limits.kill_grace_seconds)
        if lost is not None:
            raise lost

    async def undo(self, remove: Callable[[str], Coroutine[object, object, bool]], sandbox_id: str) -> None:
        """Removes what is half made, whatever happens meanwhile."""
        with contextlib.suppress(InfrastructureError):  # the first error is the one to tell; `gc` finds what is left
            await shielded(remove(sandbox_id), seconds=self.limits.teardown_seconds, what="removing the sandbox")

    async def remove(self, sandbox_id: str) -> bool:
        """Removes a sandbox whole: relays, processes, groups, folders, and its record last. Returns whether there was anything.

        Raises:
            InfrastructureError: Something can't be removed; the record stays, so that it can be tried again.
            DeadlineError: It took too long; the record stays.
        """
        facts = self.records.read(sandbox_id)
        folders = [path for _, path in work_dirs(self.work_root, sandbox_id)]
        if facts is None and not folders:
            return False
        facts = facts or Facts(sandbox_id, "", boot=boot_id())
        if not facts.cgroups:  # there are none, or their record is lost
            facts = replace(facts, cgroups=control.standing(survey(), sandbox_id, self.records.home))
        async with deadline(self.limits.teardown_seconds, f"removing sandbox {sandbox_id}"):
            how = facts.network.get("how")
            carried = how == KEEPER or (how == NONE and facts.ports) or facts.leads or facts.answers
            if carried or facts.confiner == CONTAINER:
                await keeper.drop(self.state_root, sandbox_id, limits=self.limits)
            if not await asyncio.to_thread(self._removed, facts, folders):
                await self._remove_groups(facts)
                await asyncio.to_thread(self._remove_folders, facts, folders)
        return True

    async def list(self, labels: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        """Every sandbox that carries these labels, also half-made ones and those whose record is lost."""
        for facts in self.recorded(labels):
            yield info_of(facts)
        for sandbox_id, path, found in self.unrecorded():
            if found and labels.items() <= dict(found).items():
                yield SandboxInfo(sandbox_id, found, alive=False, facts={"work_dir": str(path)})

    def recorded(self, labels: Mapping[str, str]) -> Iterator[Facts]:
        """The records of the sandboxes that carry these labels."""
        for sandbox_id in [*self.records.ids()]:
            facts = self.records.read(sandbox_id)
            if facts is not None and labels.items() <= dict(facts.labels).items():
                yield facts

    def unrecorded(self) -> Iterator[tuple[str, Path, Mapping[str, str]]]:
        """Folders of sandboxes whose record is lost: id, folder, and the labels that stand in it."""
        known = {*self.records.ids()}
        for sandbox_id, path in [*work_dirs(self.work_root)]:
            if sandbox_id not in known:
                yield sandbox_id, path, read_labels(path)

    def _removed(self, facts: Facts, folders: Sequence[Path]) -> bool:
        """Removes all in one go, and nothing but the processes where the kernel still holds on to their control groups."""
        removal.stop(facts, limits=self.limits)
        if control.remove(facts.cgroups):
            return False
        self._remove_folders(facts, folders)
        return True

    async def _remove_groups(self, facts: Facts) -> None:
        async def removed() -> bool | None:
            return None if control.remove(facts.cgroups) else True

        what = "emptying the sandbox's control groups"
        await poll(removed, within_seconds=self.limits.cleanup_seconds, what=what, limits=self.limits)

    def _remove_folders(self, facts: Facts, folders: Sequence[Path]) -> None:
        until = SystemClock().monotonic() + self.limits.teardown_seconds
        recorded = Path(facts.work_dir) if facts.work_dir else None
        if recorded is not None and recorded.name.startswith(f"agent-env-{facts.sandbox_id}-"):
            folders = [*folders, recorded]
        for folder in dict.fromkeys(folders):
            removal.remove_tree(folder, until=until)
        removal.remove_record(self.records, facts.sandbox_id, until=until)
