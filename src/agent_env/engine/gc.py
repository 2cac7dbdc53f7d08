"""Removing what belongs to no live run: only this installation's, and never what a live run has or an interrupted one needs.

A run is live while the process that owns it lives (process id, start time and boot decide). An interrupted run can be resumed, so its
places stay for a stated time; what was kept on purpose stays until it expires. A run's things are removed under its lease, so that no
resume begins meanwhile.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from agent_env import keeper
from agent_env.clock import Clock
from agent_env.defaults import Limits
from agent_env.documents.updates import Json
from agent_env.engine.installation import HOME_LABEL, RUN_LABEL, Installation, has_expired
from agent_env.engine.options import Providers, Stores
from agent_env.engine.sandbox_records import RESOURCE_KIND
from agent_env.engine.teardown import DEFAULT_PROVIDER, KEPT_NOTE, Removal, TeardownReport, close_rows, remove_all
from agent_env.errors import AgentEnvError, NotFoundError, RunOwnedError
from agent_env.sandboxes.contract import Sweeps
from agent_env.stores.records import OPEN_STATES
from agent_env.stores.retention import live_objects
from agent_env.waiting import deadline

if TYPE_CHECKING:
    from agent_env.config import Config
    from agent_env.images.collecting import FreedImages
    from agent_env.stores import Freed

GOING_ON = frozenset({"queued", "running"})
"""Statuses of a run that has not ended: without an owner it was interrupted, and can be resumed."""


class Claim(StrEnum):
    """Why something is left."""

    LIVE = "live"
    """A process is at work on its run."""
    KEPT = "kept"
    """It was left on purpose."""
    RESUMABLE = "resumable"
    """Its run was interrupted, and can be resumed in it."""
    ELSEWHERE = "elsewhere"
    """It is recorded here, and belongs to the installation whose state folder this one is a copy of."""


@dataclass(frozen=True)
class GcReport:
    """What a collection removed, or would remove."""

    dry_run: bool
    sandboxes: TeardownReport
    folders: tuple[str, ...] = ()
    """Folders of ended runs on this machine, with scratch and dead control sockets; and the keeper's records of an earlier boot."""
    objects: int = 0
    objects_bytes: int = 0
    left: Mapping[str, Claim] = field(default_factory=dict)
    """Sandbox that was left → why."""
    runs: Mapping[str, str] = field(default_factory=dict)
    """Sandbox that was found → its run, where that is known."""
    unreachable: Mapping[str, str] = field(default_factory=dict)
    """Provider → why it could not be asked; `images` for those of the container engine."""
    images: FreedImages | None = None
    """Of those that this installation built or unpacked, above their budgets."""

    @property
    def resumable(self) -> tuple[str, ...]:
        """Interrupted runs of which something was left, so that they can be resumed."""
        return self.runs_left(Claim.RESUMABLE)

    def runs_left(self, claim: Claim) -> tuple[str, ...]:
        """Runs of which something was left for that reason."""
        return tuple(sorted({self.runs.get(name, name) for name, why in self.left.items() if why is claim}))

    @property
    def kept(self) -> tuple[str, ...]:
        """Sandboxes that were left: of live or interrupted runs, or kept on purpose."""
        return tuple(sorted(self.left))

    @property
    def clean(self) -> bool:
        """Nothing that should go is left."""
        return self.sandboxes.clean and not self.unreachable

    def to_json(self) -> dict[str, Json]:
        """The report as data."""
        return {
            "dry_run": self.dry_run,
            "sandboxes": self.sandboxes.to_json(),
            "folders": list(self.folders),
            "objects": {"count": self.objects, "bytes": self.objects_bytes},
            "images": self.images.to_json() if self.images is not None else None,
            "kept": list(self.kept),
            "left": {name: {"why": str(why), "run_id": self.runs.get(name)} for name, why in sorted(self.left.items())},
            "unreachable": dict(self.unreachable),
        }


@dataclass(frozen=True)
class _Found:
    """A sandbox of this installation."""

    sandbox_id: str
    provider: str
    run_id: str
    labels: Mapping[str, str]


@dataclass
class Collector:
    """One collection."""

    stores: Stores
    providers: Providers
    installation: Installation
    limits: Limits
    clock: Clock
    names: Iterable[str] = (DEFAULT_PROVIDER,)
    """Providers to ask, beside those that open rows name."""
    older_than_seconds: float | None = None
    """Beyond this silence of their runs also what was kept or could be resumed goes; None: what was kept stays until it expires, and what
    can be resumed for `Limits.gc_resumable_seconds`."""
    config: Config | None = None
    """Whose images are collected too; None leaves them alone."""
    _left: dict[str, Claim] = field(default_factory=dict)
    _runs: dict[str, str] = field(default_factory=dict)

    async def collect(self, *, dry_run: bool = False) -> GcReport:
        """Collects; `dry_run` only says what would go."""
        found, unreachable = await self._sandboxes()
        folders = _subfolders(self.installation.state_root / "runs")
        of_run: dict[str, list[_Found]] = {folder.name: [] for folder in folders}
        for sandbox in found:
            of_run.setdefault(sandbox.run_id, []).append(sandbox)
        orphans = {run_id: left for run_id, sandboxes in of_run.items() if (left := self._orphans(run_id, sandboxes)) is not None}
        gone: list[str] = []
        async with asyncio.TaskGroup() as group:
            work = [group.create_task(self._orphaned(run_id, left, folders, gone, dry_run=dry_run)) for run_id, left in orphans.items()]
        report = _sum(task.result() for task in work)
        if not dry_run:
            await self._sweep(unreachable)
        gone += [f"keeper/{place}" for place in keeper.stale_records(self.installation.state_root, remove=not dry_run)]
        freed = await asyncio.to_thread(self._objects, dry_run=dry_run)
        images = await self._images(unreachable, dry_run=dry_run)
        return GcReport(
            dry_run, report, tuple(sorted(gone)), freed.objects, freed.size_bytes, dict(self._left), dict(self._runs), unreachable, images
        )

    async def _orphaned(
        self, run_id: str, sandboxes: Iterable[_Found], folders: Collection[Path], gone: list[str], *, dry_run: bool
    ) -> TeardownReport:
        """Removes what one run left, its folder too."""
        async with self._claimed(run_id, dry_run=dry_run) as claimed:
            if not claimed:
                self._left |= {sandbox.sandbox_id: Claim.LIVE for sandbox in sandboxes}
                return TeardownReport()
            report = await self._remove(run_id, sandboxes, dry_run=dry_run)
            folder = self.installation.state_root / "runs" / run_id
            if folder in folders:
                gone.append(run_id)
                if not dry_run:
                    shutil.rmtree(folder, ignore_errors=True)
            return report

    async def _sandboxes(self) -> tuple[list[_Found], dict[str, str]]:
        """Every sandbox of this installation that may exist, by its row or by its label; and the providers that can't be asked."""
        rows = {row.id: row for row in self.stores.journal.resources(state=OPEN_STATES) if row.kind == RESOURCE_KIND}
        home = self.installation.home
        found = [_Found(row.id, row.provider, row.run_id, row.labels) for row in rows.values() if row.labels.get(HOME_LABEL) == home]
        elsewhere = self.installation.ownership.elsewhere
        self._left |= {row.id: Claim.ELSEWHERE for row in rows.values() if elsewhere(row.labels) is not None}
        self._runs |= {row.id: row.run_id for row in rows.values()}
        unreachable: dict[str, str] = {}
        for name in sorted({*self.names, *(row.provider for row in rows.values())}):
            try:
                async with deadline(self.limits.teardown_seconds, f"listing the sandboxes of the provider {name!r}"):
                    async for info in self.providers(name).list({HOME_LABEL: home}):
                        if info.sandbox_id not in rows:
                            found.append(_Found(info.sandbox_id, name, info.labels.get(RUN_LABEL, ""), info.labels))
            except AgentEnvError as error:
                unreachable[name] = str(error)
        self._runs |= {sandbox.sandbox_id: sandbox.run_id for sandbox in found if sandbox.run_id}
        return found, unreachable

    async def _sweep(self, unreachable: dict[str, str]) -> None:
        """What the sandboxes of a provider share goes when none needs it any more."""
        for name in sorted({*self.names} - set(unreachable)):
            provider = self.providers(name)
            if isinstance(provider, Sweeps):
                try:
                    async with deadline(self.limits.teardown_seconds, f"sweeping up after the provider {name!r}"):
                        await provider.sweep()
                except AgentEnvError as error:
                    unreachable[name] = str(error)

    async def _images(self, unreachable: dict[str, str], *, dry_run: bool) -> FreedImages | None:
        if self.config is None:
            return None
        from agent_env.images.collecting import collect_images

        try:
            async with deadline(self.limits.teardown_seconds, "collecting images"):
                return await collect_images(self.config, dry_run=dry_run)
        except AgentEnvError as error:
            unreachable["images"] = str(error)
            return None

    def _orphans(self, run_id: str, sandboxes: Iterable[_Found]) -> list[_Found] | None:
        """Which of a run's sandboxes may go; None when all of it stays, its folder too."""
        claim = self._claim(run_id)
        if claim is None:
            return list(sandboxes)
        orphans = []
        for sandbox in sandboxes:
            if claim is not Claim.LIVE and has_expired(sandbox.labels, self.clock):
                orphans.append(sandbox)
            else:
                self._left[sandbox.sandbox_id] = claim
        return orphans or None

    def _claim(self, run_id: str) -> Claim | None:
        """Why what a run has is to be left, or None."""
        standing = self.stores.journal.standing(run_id)
        if standing is None:
            return None
        if standing.owned:
            return Claim.LIVE
        kept = bool(standing.notes.get(KEPT_NOTE))
        if not kept and standing.status not in GOING_ON:
            return None
        patience = self.older_than_seconds
        if patience is None and not kept:
            patience = self.limits.gc_resumable_seconds
        if patience is not None and (standing.silent_seconds or 0.0) >= patience:
            return None
        return Claim.KEPT if kept else Claim.RESUMABLE

    @asynccontextmanager
    async def _claimed(self, run_id: str, *, dry_run: bool) -> AsyncIterator[bool]:
        """Holds the run, so that nobody resumes it while its things go; False when somebody has begun to."""
        if dry_run:
            yield True
            return
        journal = self.stores.journal
        try:
            lease = await journal.claim(run_id)
        except RunOwnedError:
            yield False
            return
        except NotFoundError:
            yield True
            return
        try:
            yield True
        finally:
            await journal.release(lease)

    async def _remove(self, run_id: str, sandboxes: Iterable[_Found], *, dry_run: bool) -> TeardownReport:
        """Removes sandboxes of a run that is held; what another run has adopted meanwhile is that one's."""
        removals = []
        for sandbox in sandboxes:
            row = self.stores.journal.resource(sandbox.sandbox_id)
            if row is not None and row.run_id != run_id and row.state in OPEN_STATES:
                self._left[sandbox.sandbox_id] = Claim.LIVE
            else:
                removals.append(Removal(sandbox.sandbox_id, sandbox.provider, sandbox.sandbox_id))
        if dry_run:
            return TeardownReport(removed=tuple(removal.sandbox_id for removal in removals))
        return await remove_all(removals, self.providers, limits=self.limits, closed=self._closed)

    async def _closed(self, removal: Removal) -> None:
        await close_rows(self.stores.journal, removal.sandbox_id)

    def _objects(self, *, dry_run: bool) -> Freed:
        live = live_objects(self.stores.db, self.stores.objects)
        return self.stores.objects.collect(live, dry_run=dry_run)


def _sum(reports: Iterable[TeardownReport]) -> TeardownReport:
    """Several reports as one."""
    reports = list(reports)
    return TeardownReport(
        removed=tuple(name for report in reports for name in report.removed),
        absent=tuple(name for report in reports for name in report.absent),
        failed={name: why for report in reports for name, why in report.failed.items()},
        left=tuple(name for report in reports for name in report.left),
    )


def _subfolders(root: Path) -> list[Path]:
    try:
        return sorted(folder for folder in root.iterdir() if folder.is_dir())
    except FileNotFoundError:
        return []
