"""Sandboxes that a run did not make and goes on with: those that the context it starts with names.

Their rows move to the new run, so that neither the run that made them nor a collection removes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from agent_env.documents.updates import Json
from agent_env.engine.installation import EPOCH_LABEL, EXPIRES_LABEL, HOME_LABEL, SANDBOX_LABEL, Installation
from agent_env.engine.names import PRESET, may_use
from agent_env.engine.options import Providers, Stores
from agent_env.engine.sandbox_records import EPOCH_BASE, KEEPING, RESOURCE_KIND
from agent_env.engine.teardown import Removal, removals_of, rows_beside, sandbox_ids
from agent_env.errors import PlaceLostError, PlacementError, RunOwnedError
from agent_env.stores import handover
from agent_env.stores.records import OPEN_STATES, Lease, Resource, ResourceRow

if TYPE_CHECKING:
    from agent_env.sandboxes.contract import SandboxInfo
    from agent_env.steps.contract import Step

    Steps = Callable[[], Iterable[Step]]

UNKNOWN_EPOCHS = 1_000_000
"""Added to the epoch of a sandbox whose run this database does not know: more than any number of owners that it had."""


async def adopt_all(
    context: Mapping[str, Json], lease: Lease, stores: Stores, providers: Providers, installation: Installation, *, steps: Steps
) -> bool:
    """Takes over every sandbox that the context names and that this run does not have yet. Returns whether it names any.

    One that is gone is left out when no step that will run can act in it: answers can be judged again, and scores summed up anew.

    Args:
        context: What the run starts with.
        lease: The run's.
        stores: Its memory.
        providers: Where sandboxes are looked for that this database does not know.
        installation: Whose sandboxes may be taken over.
        steps: Gives the steps that will run; asked only when a sandbox is gone.

    Raises:
        RunOwnedError: A live run still uses one.
        PlaceLostError: One no longer exists, and a step needs it.
        PlacementError: One belongs to another installation.
    """
    wanted = list(removals_of(context))
    lost: dict[str, PlaceLostError] = {}
    for removal in wanted:
        row = stores.journal.resource(removal.sandbox_id)
        try:
            if row is None:
                await _adopt_unknown(removal, lease, stores, providers, installation)
            elif row.run_id != lease.run_id:
                installation.ownership.refuse(row)
                await _adopt_known(row, lease, stores)
        except PlaceLostError as error:
            lost[removal.sandbox_id] = error
    todo = list(steps()) if lost else []
    for sandbox_id, why in lost.items():
        names = _names(context, sandbox_id)
        if any(may_use(step, names) for step in todo):
            raise why
    return bool(wanted)


def _names(context: Mapping[str, Json], sandbox_id: str) -> set[tuple[str, str]]:
    """The `(kind, name)` of what the context says is in a sandbox."""
    return {
        (kind, str(record.get(field, "")))
        for kind, (collection, field) in PRESET.items()
        for record in context.get(collection) or ()
        if any(found == sandbox_id for found, _ in sandbox_ids(record))
    }


async def _adopt_known(row: ResourceRow, lease: Lease, stores: Stores) -> None:
    if row.state not in OPEN_STATES:
        raise PlaceLostError(
            f"sandbox {row.name!r} ({row.id}) of run {row.run_id} was removed",
            concerns=row.id,
            hint=KEEPING,
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
