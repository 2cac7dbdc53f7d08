"""Removing what runs made: idempotent, bounded, in parallel, and safe from any process. Nothing here raises for a sandbox that resists."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agent_env.defaults import DEFAULT_LIMITS, Limits
from agent_env.documents.updates import Json
from agent_env.waiting import deadline

if TYPE_CHECKING:
    from agent_env.engine.options import Providers

DEFAULT_PROVIDER = "local"


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

    @property
    def clean(self) -> bool:
        """Nothing is left."""
        return not self.failed and not self.left

    def to_json(self) -> dict[str, Json]:
        """The report as data."""
        return {"removed": list(self.removed), "absent": list(self.absent), "failed": dict(self.failed), "left": list(self.left)}


async def remove_all(
    removals: Iterable[Removal],
    providers: Providers,
    *,
    limits: Limits = DEFAULT_LIMITS,
    closed: Callable[[Removal], Awaitable[None]] | None = None,
    stop: asyncio.Future[None] | None = None,
) -> TeardownReport:
    """Removes sandboxes, all at once, each within `limits.teardown_seconds`.

    Args:
        removals: What to remove.
        providers: Name → provider.
        limits: How long one may take.
        closed: Called for each one that is certainly gone.
        stop: When it completes, what is not removed yet is left and reported.
    """
    wanted = {removal.sandbox_id: removal for removal in removals}
    outcomes: dict[str, bool | str] = {}

    async def remove(removal: Removal) -> None:
        try:
            async with deadline(limits.teardown_seconds, f"removing sandbox {removal.sandbox_id}"):
                outcomes[removal.sandbox_id] = await providers(removal.provider).destroy(removal.sandbox_id)
            if closed is not None:
                await closed(removal)
        except Exception as error:  # noqa: BLE001 - a provider may be anybody's code, and the other sandboxes must still be removed
            outcomes[removal.sandbox_id] = str(error) or type(error).__name__

    async with asyncio.TaskGroup() as group:
        tasks: set[asyncio.Future[None]] = {group.create_task(remove(removal)) for removal in wanted.values()}
        pending = tasks
        while pending and not (stop is not None and stop.done()):
            _, pending = await asyncio.wait({*pending, *([stop] if stop else [])}, return_when=asyncio.FIRST_COMPLETED)
            pending -= {stop} if stop else set()
        for task in pending:
            task.cancel()
    return TeardownReport(
        removed=tuple(name for name in wanted if outcomes.get(name) is True),
        absent=tuple(name for name in wanted if outcomes.get(name) is False),
        failed={name: why for name, why in outcomes.items() if isinstance(why, str)},
        left=tuple(name for name in wanted if name not in outcomes),
    )


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
    if providers is None:
        providers = _installed()
    if timeout_seconds is not None:
        from dataclasses import replace

        limits = replace(limits, teardown_seconds=timeout_seconds)
    return await remove_all(removals_of(context), providers, limits=limits)


def _installed() -> Providers:
    """The providers of this user's installation, each made once."""
    from functools import cache

    from agent_env.config import state_root
    from agent_env.sandboxes import provider

    root, _ = state_root(os.environ)
    return cache(lambda name: provider(name, state_root=root))


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
