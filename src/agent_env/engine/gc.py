"""Removing what belongs to no live run: only this installation's, and never a live run's.

A run is live while the process that owns it lives (process id, start time and boot decide). A run whose places were kept on purpose
is left until they expire.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from agent_env.clock import Clock, timestamp
from agent_env.defaults import Limits
from agent_env.documents.updates import Json
from agent_env.engine.installation import EXPIRES_LABEL, HOME_LABEL, RUN_LABEL, Installation
from agent_env.engine.options import Providers, Stores
from agent_env.engine.sandboxes import RESOURCE_KIND
from agent_env.engine.teardown import DEFAULT_PROVIDER, Removal, TeardownReport, remove_all
from agent_env.errors import AgentEnvError, NotFoundError
from agent_env.stores.records import OPEN_STATES
from agent_env.stores.retention import live_objects
from agent_env.waiting import deadline

if TYPE_CHECKING:
    from agent_env.stores import Freed

KEPT_NOTE = "kept"
"""Note of a run whose places were left on purpose."""


@dataclass(frozen=True)
class GcReport:
    """What a collection removed, or would remove."""

    dry_run: bool
    sandboxes: TeardownReport
    folders: tuple[str, ...] = ()
    """Folders of ended runs on this machine: scratch and dead control sockets."""
    objects: int = 0
    objects_bytes: int = 0
    kept: tuple[str, ...] = ()
    """Sandboxes that were left: of live runs, or kept on purpose."""
    unreachable: Mapping[str, str] = field(default_factory=dict)
    """Provider → why it could not be asked."""

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
            "kept": list(self.kept),
            "unreachable": dict(self.unreachable),
        }


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
    _live: dict[str, bool] = field(default_factory=dict)

    async def collect(self, *, dry_run: bool = False, include_kept: bool = False) -> GcReport:
        """Collects.

        Args:
            dry_run: Only say what would go.
            include_kept: Also what was kept on purpose.
        """
        found, kept, unreachable = await self._orphans(include_kept=include_kept)
        if dry_run:
            report = TeardownReport(removed=tuple(found))
        else:
            report = await remove_all(found.values(), self.providers, limits=self.limits, closed=self._closed)
        folders = self._folders(dry_run=dry_run)
        freed = await asyncio.to_thread(self._objects, dry_run=dry_run)
        return GcReport(dry_run, report, folders, freed.objects, freed.size_bytes, tuple(sorted(kept)), unreachable)

    async def _orphans(self, *, include_kept: bool) -> tuple[dict[str, Removal], set[str], dict[str, str]]:
        rows = {row.id: row for row in self.stores.journal.resources(state=OPEN_STATES) if row.kind == RESOURCE_KIND}
        found: dict[str, Removal] = {}
        kept: set[str] = set()
        for row in rows.values():
            if row.labels.get(HOME_LABEL) != self.installation.home:
                continue
            if self._protected(row.run_id, row.expires_at, include_kept=include_kept):
                kept.add(row.id)
            else:
                found[row.id] = Removal(row.id, row.provider, row.id)
        unreachable: dict[str, str] = {}
        for name in sorted({*self.names, *(row.provider for row in rows.values())}):
            try:
                async with deadline(self.limits.teardown_seconds, f"listing the sandboxes of the provider {name!r}"):
                    async for info in self.providers(name).list({HOME_LABEL: self.installation.home}):
                        if info.sandbox_id in rows:
                            continue
                        run_id, expires = info.labels.get(RUN_LABEL, ""), info.labels.get(EXPIRES_LABEL)
                        if self._protected(run_id, expires, include_kept=include_kept):
                            kept.add(info.sandbox_id)
                        else:
                            found[info.sandbox_id] = Removal(info.sandbox_id, name)
            except AgentEnvError as error:
                unreachable[name] = str(error)
        return found, kept, unreachable

    def _protected(self, run_id: str, expires_at: str | None, *, include_kept: bool) -> bool:
        if self._is_live(run_id):
            return True
        expired = expires_at is not None and expires_at < timestamp(self.clock.now())
        return not include_kept and not expired and self._was_kept(run_id)

    def _is_live(self, run_id: str) -> bool:
        if run_id not in self._live:
            self._live[run_id] = self.stores.journal.is_owned(run_id)
        return self._live[run_id]

    def _was_kept(self, run_id: str) -> bool:
        try:
            return bool(self.stores.journal.run(run_id).notes.get(KEPT_NOTE))
        except NotFoundError:
            return False

    async def _closed(self, removal: Removal) -> None:
        await self.stores.journal.closed(removal.sandbox_id)

    def _folders(self, *, dry_run: bool) -> tuple[str, ...]:
        root = self.installation.state_root / "runs"
        gone = [folder for folder in _subfolders(root) if not self.stores.journal.is_owned(folder.name)]
        if not dry_run:
            for folder in gone:
                shutil.rmtree(folder, ignore_errors=True)
        return tuple(folder.name for folder in gone)

    def _objects(self, *, dry_run: bool) -> Freed:
        live = live_objects(self.stores.db, self.stores.objects)
        return self.stores.objects.collect(live, dry_run=dry_run)


def _subfolders(root: Path) -> list[Path]:
    try:
        return sorted(folder for folder in root.iterdir() if folder.is_dir())
    except FileNotFoundError:
        return []
