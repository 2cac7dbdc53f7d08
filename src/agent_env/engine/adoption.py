"""Sandboxes that a run did not make and goes on with: those that the context it starts with names.

Their rows move to the new run, so that neither the run that made them nor a collection removes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from agent_env.documents.updates import Json
from agent_env.engine.installation import EPOCH_LABEL, EXPIRES_LABEL, HOME_LABEL, SANDBOX_LABEL, Installation
from agent_env.engine.options import Providers, Stores
from agent_env.engine.sandbox_records import EPOCH_BASE, RESOURCE_KIND
from agent_env.engine.teardown import Removal, removals_of, rows_beside
from agent_env.errors import PlaceLostError, PlacementError, RunOwnedError
from agent_env.stores import handover
from agent_env.stores.records import OPEN_STATES, Lease, Resource, ResourceRow

if TYPE_CHECKING:
    from agent_env.sandboxes.contract import SandboxInfo

UNKNOWN_EPOCHS = 1_000_000
"""Added to the epoch of a sandbox whose run this database does not know: more than any number of owners that it had."""


async def adopt_all(context: Mapping[str, Json], lease: Lease, stores: Stores, providers: Providers, installation: Installation) -> bool:
    """Takes over every sandbox that the context names and that this run does not have yet. Returns whether it names any.

    Raises:
        RunOwnedError: A live run still uses one.
        PlaceLostError: One no longer exists.
        PlacementError: One belongs to another installation.
    """
    wanted = list(removals_of(context))
    if not wanted:
        return False
    for removal in wanted:
        row = stores.journal.resource(removal.sandbox_id)
        if row is None:
            await _adopt_unknown(removal, lease, stores, providers, installation)
        elif row.run_id != lease.run_id:
            await _adopt_known(row, lease, stores)
    return True


async def _adopt_known(row: ResourceRow, lease: Lease, stores: Stores) -> None:
    if row.state not in OPEN_STATES:
        raise PlaceLostError(
            f"sandbox {row.name!r} ({row.id}) of run {row.run_id} was removed",
            concerns=row.id,
            hint="runs remove their sandboxes when they end; keep them with --keep",
        )
    if stores.journal.is_owned(row.run_id):
        raise RunOwnedError(f"sandbox {row.name!r} ({row.id}) is in use by run {row.run_id}, which goes on", concerns=row.run_id)
    owner = stores.journal.run(row.run_id)
    base = int(row.facts.get(EPOCH_BASE, 0)) + owner.epoch
    await handover.adopt(stores.db, lease, row.id, {EPOCH_BASE: base})
    for beside in rows_beside(stores.journal, row.id):
        await handover.adopt(stores.db, lease, beside.id, {})


async def _adopt_unknown(removal: Removal, lease: Lease, stores: Stores, providers: Providers, installation: Installation) -> None:
    found = await _found(removal, providers)
    if found is None:
        raise PlaceLostError(f"sandbox {removal.sandbox_id} of the given context does not exist", concerns=removal.sandbox_id)
    if found.labels.get(HOME_LABEL) != installation.home:
        raise PlacementError(
            f"sandbox {removal.sandbox_id} belongs to another installation of agent-env",
            concerns=removal.sandbox_id,
            hint="go on with it where it was made, or use that state folder",
        )
    base = int(found.labels.get(EPOCH_LABEL, "0")) + UNKNOWN_EPOCHS
    facts = {**found.facts, EPOCH_BASE: base}
    expires = found.labels.get(EXPIRES_LABEL)
    resource = Resource(
        removal.sandbox_id, RESOURCE_KIND, removal.provider, removal.sandbox_id, labels=found.labels, facts=facts, expires_at=expires
    )
    await stores.journal.intend(lease, resource)
    await stores.journal.opened(lease, removal.sandbox_id, facts)


async def _found(removal: Removal, providers: Providers) -> SandboxInfo | None:
    async for info in providers(removal.provider).list({SANDBOX_LABEL: removal.sandbox_id}):
        if info.alive:
            return info
    return None
