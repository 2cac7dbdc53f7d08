"""Staying a run's owner: the lease is renewed while the run goes on, and whoever has lost it stops acting."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from agent_env.clock import Clock
from agent_env.defaults import Limits
from agent_env.errors import StorageError, SupersededError

if TYPE_CHECKING:
    from agent_env.stores import Journal, Lease


async def keep(
    lease: Lease,
    journal: Journal,
    *,
    over: asyncio.Future[None],
    tick: Callable[[], Awaitable[None]],
    clock: Clock,
    limits: Limits,
) -> None:
    """Renews the lease until `over` is done.

    A database that can't be reached for a moment is borne until the lease itself has run out; then somebody else may own the run.

    Args:
        lease: What is renewed.
        journal: Where.
        over: Completed when the run no longer needs the lease.
        tick: Called after every renewal, for what may have arrived through the database.
        clock: Measures how long the database was away.
        limits: `lease_renew_seconds` between renewals, `lease_seconds` until it has run out.

    Raises:
        SupersededError: Another process owns the run now.
    """
    renewed = clock.monotonic()
    while not over.done():
        await asyncio.wait({over}, timeout=limits.lease_renew_seconds)
        if over.done():
            return
        try:
            await journal.renew(lease)
            renewed = clock.monotonic()
            await tick()
        except StorageError as error:
            if clock.monotonic() - renewed >= limits.lease_seconds:
                raise SupersededError(
                    f"run {lease.run_id} could not renew its lease for {limits.lease_seconds:g} s, so another process may own it",
                    hint="resume it when the run database can be reached again",
                ) from error
