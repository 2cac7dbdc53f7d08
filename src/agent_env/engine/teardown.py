"""Removing what runs made: idempotent, bounded, in parallel, and safe from any process. Nothing here raises for a sandbox that resists."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from agent_env.defaults import DEFAULT_LIMITS, Limits
from agent_env.documents.updates import Json
from agent_env.engine.installation import SANDBOX_LABEL
from agent_env.engine.ownership import Elsewhere, Ownership
from agent_env.errors import DeadlineError, RunOwnedError
from agent_env.stores.records import OPEN_STATES, Lease, ResourceRow
from agent_env.waiting import back_off, deadline

if TYPE_CHECKING:
    from agent_env.engine.options import Providers
    from agent_env.engine.sandboxes import Sandboxes
    from agent_env.sandboxes.contract import Provider
    from agent_env.stores import Journal

DEFAULT_PROVIDER = "local"
CONTAINER_KIND = "container"
"""Of rows of containers that steps started beside a sandbox's machine."""
PROMPT_KIND = "prompt"
"""Of rows of prompts that agents work on."""
KEPT_NOTE = "kept"
"""Note of a run whose places were left on purpose."""


@dataclass(frozen=True)
class Removal:
    """A sandbox to remove."""

    sandbox_id: str
    provider: str
    resource_id: str | None = None
    """Its journal row, when this database has one."""


@dataclass(frozen=True)
class TeardownReport:
    """What a teardown did."""

    removed: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    """Gone already."""
    failed: Mapping[str, str] = field(default_factory=dict)
    """Sandbox → why it is still there."""
    left: tuple[str, ...] = ()
    """Not tried any more, because the teardown was stopped."""
    elsewhere: Mapping[str, Elsewhere] = field(default_factory=dict)
    """Sandbox → the installation that it belongs to, where that is not this one. Nothing of it was touched."""

    @property
    def names(self) -> tuple[str, ...]:
        """Every sandbox that was to go, whatever became of it."""
        return (*self.removed, *self.absent, *self.failed, *self.left)

    @property
    def clean(self) -> bool:
        """Nothing is left."""
        return not self.failed and not self.left and not self.elsewhere

    @property
    def why(self) -> str:
        """Of each sandbox that is left, the reason."""
        return "; ".join([*(f"{name}: {why}" for name, why in self.failed.items()), *(f"{name}: not tried" for name in self.left)])

    def to_json(self) -> dict[str, Json]:
        """The report as data."""
        return {
            "removed": list(self.removed),
            "absent": list(self.absent),
            "failed": dict(self.failed),
            "left": list(self.left),
            "elsewhere": {name: {"why": found.why, "path": found.path and str(found.path)} for name, found in self.elsewhere.items()},
        }


async def remove_all(
    removals: Iterable[Removal],
    providers: Providers,
    *,
    limits: Limits = DEFAULT_LIMITS,
    closed: Callable[[Removal], Awaitable[None]] | None = None,
    stop: asyncio.Future[None] | None = None,
) -> TeardownReport:
    """Removes sandboxes, all at once, each within `limits.teardown_seconds`.

    One may keep another: an agent's container is on the network of the environment that it uses. So what could not be removed while
    others went is tried once more when they are gone; so is what failed for a moment's fault, unless it took all of its time.

    Args:
        removals: What to remove.
        providers: Name → provider.
        limits: How long one may take.
        closed: Called for each one that is certainly gone.
        stop: When it completes, what is not removed yet is left and reported.
    """
    wanted = {removal.sandbox_id: removal for removal in removals}
    outcomes: dict[str, bool | str] = {}
    slow: set[str] = set()

    async def remove(removal: Removal) -> None:
        outcomes.pop(removal.sandbox_id, None)
        try:
            async with deadline(limits.teardown_seconds, f"removing sandbox {removal.sandbox_id}"):
                outcomes[removal.sandbox_id] = await providers(removal.provider).destroy(removal.sandbox_id)
            if closed is not None:
                await closed(removal)
        except Exception as error:  # noqa: BLE001 - a provider may be anybody's code, and the other sandboxes must still be removed
            outcomes[removal.sandbox_id] = str(error) or type(error).__name__
            if isinstance(error, DeadlineError):
                slow.add(removal.sandbox_id)

    async def together(these: Iterable[Removal]) -> None:
        async with asyncio.TaskGroup() as group:
            pending: set[asyncio.Future[None]] = {group.create_task(remove(removal)) for removal in these}
            while pending and not (stop is not None and stop.done()):
                _, pending = await asyncio.wait({*pending, *([stop] if stop else [])}, return_when=asyncio.FIRST_COMPLETED)
                pending -= {stop} if stop else set()
            for task in pending:
                task.cancel()

    await together(wanted.values())
    kept = [removal for name, removal in wanted.items() if isinstance(outcomes.get(name), str)]
    if len(kept) == len(outcomes):  # so none of them stood in another's way
        kept = [removal for removal in kept if removal.sandbox_id not in slow]
        if kept:
            await back_off(2, limits=limits)
    if not (stop is not None and stop.done()):
        await together(kept)
    return TeardownReport(
        removed=tuple(name for name in wanted if outcomes.get(name) is True),
        absent=tuple(name for name in wanted if outcomes.get(name) is False),
        failed={name: why for name, why in outcomes.items() if isinstance(why, str)},
        left=tuple(name for name in wanted if name not in outcomes),
    )


async def remove_run(sandboxes: Sandboxes, lease: Lease, journal: Journal) -> TeardownReport:
    """Removes what a run made, and lets go of the run: from now on nothing of it is kept on purpose.

    Args:
        sandboxes: The run's.
        lease: The hold on it, which is given back.
        journal: Where it is recorded.
    """
    elsewhere = sandboxes.elsewhere()
    report = await sandboxes.destroy([*elsewhere, *(row.id for row in sandboxes.rows())])
    if elsewhere and not sandboxes.installation.ownership.alone:  # then that one reads what is recorded of the run
        await journal.release(lease)
        return report
    await close_prompts(journal, lease.run_id)
    await journal.set_run(lease, notes={KEPT_NOTE: None})
    await journal.release(lease)
    return report


async def remove_context(
    context: Mapping[str, Json], journal: Journal, providers: Providers, ownership: Ownership, *, limits: Limits
) -> TeardownReport:
    """Removes what a context document names, and closes the rows that this database has of it.

    What another installation has made is left to that one while its state folder is there.

    Raises:
        RunOwnedError: A live run uses one of the sandboxes.
    """
    removals, elsewhere = [], dict[str, Elsewhere]()
    for removal in removals_of(context):
        row = journal.resource(removal.sandbox_id)
        found = ownership.elsewhere(row.labels) if row is not None else None
        if found is not None and found.path is not None:
            elsewhere[removal.sandbox_id] = found
            continue
        if row is not None and journal.is_owned(row.run_id):
            raise RunOwnedError(f"sandbox {removal.sandbox_id} is in use by run {row.run_id}", concerns=row.run_id)
        removals.append(removal)

    async def closed(removal: Removal) -> None:
        await close_rows(journal, removal.sandbox_id)

    return replace(await remove_all(removals, providers, limits=limits, closed=closed), elsewhere=elsewhere)


async def close_rows(journal: Journal, sandbox_id: str) -> None:
    """Notes that a sandbox is gone, and with it every container that stood beside its machine, and what agents in it worked on."""
    await journal.closed(sandbox_id)
    for row in journal.resources(state=OPEN_STATES):
        if row.kind in {CONTAINER_KIND, PROMPT_KIND} and row.labels.get(SANDBOX_LABEL) == sandbox_id:
            await journal.closed(row.id)


async def close_prompts(journal: Journal, run_id: str) -> None:
    """Notes that nobody works on a run's prompts any more."""
    for row in journal.resources(run_id, state=OPEN_STATES):
        if row.kind == PROMPT_KIND:
            await journal.closed(row.id)


def rows_beside(journal: Journal, sandbox_id: str) -> list[ResourceRow]:
    """The open rows of containers beside a sandbox's machine, of whichever run."""
    rows = journal.resources(state=OPEN_STATES)
    return [row for row in rows if row.kind == CONTAINER_KIND and row.labels.get(SANDBOX_LABEL) == sandbox_id]


async def teardown_run(
    context: Mapping[str, Json],
    *,
    providers: Providers | None = None,
    timeout_seconds: float | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> TeardownReport:
    """Removes every sandbox that a run's context names, also when this machine's database does not know the run.

    Idempotent; safe from another process and after a restart.

    Args:
        context: The run's context document.
        providers: Name → provider; None takes the installed ones.
        timeout_seconds: For each sandbox; None is `limits.teardown_seconds`.
        limits: The limits of this process.
    """
    if timeout_seconds is not None:
        limits = replace(limits, teardown_seconds=timeout_seconds)
    if providers is not None:
        return await remove_all(removals_of(context), providers, limits=limits)
    async with _installed() as installed:
        return await remove_all(removals_of(context), installed, limits=limits)


@asynccontextmanager
async def _installed() -> AsyncIterator[Providers]:
    """The providers of this user's installation, each made once."""
    from functools import cache

    from agent_env.config import state_root
    from agent_env.sandboxes import provider

    root, _ = state_root(os.environ)
    async with AsyncExitStack() as stack:

        @cache
        def make(name: str) -> Provider:
            made = provider(name, state_root=root)
            stack.push_async_callback(made.aclose)
            return made

        yield make


def removals_of(context: Mapping[str, Json]) -> Iterator[Removal]:
    """The sandboxes that a context names, each once, without those that it says are torn down."""
    metadata = context.get("metadata") or {}
    gone = set(metadata.get("torn_down_sandbox_ids") or ())
    seen: set[str] = set()
    records = [context, *(reset.get("rolled_back_sandboxes") or {} for reset in metadata.get("retry_resets") or ())]
    for source in records:
        for name in ("deployed_sandboxes", "deployed_envs", "deployed_agents"):
            for record in source.get(name) or ():
                for sandbox_id, provider in sandbox_ids(record):
                    if sandbox_id not in gone and sandbox_id not in seen:
                        seen.add(sandbox_id)
                        yield Removal(sandbox_id, provider)


def sandbox_ids(record: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
    """The sandboxes behind one record, as `(id, provider)`: its own, and those of an environment's servers."""
    provider = str(record.get("sandbox_type") or DEFAULT_PROVIDER)
    if record.get("sandbox_id"):
        yield str(record["sandbox_id"]), provider
    for below in (record.get("sandbox_ids") or {}).values():
        for sandbox_id in below.values() if isinstance(below, Mapping) else (below,):
            if isinstance(sandbox_id, str) and sandbox_id:
                yield sandbox_id, provider
