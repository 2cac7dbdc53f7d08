"""What passes between processes and runs through the database: resources that change hands, and requests to stop.

They are kept apart from the journal because neither is written by a run about itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agent_env.clock import timestamp
from agent_env.stores import leases
from agent_env.stores.connection import Connection
from agent_env.stores.packing import dump

if TYPE_CHECKING:
    from agent_env.stores.database import Database
    from agent_env.stores.records import Lease

STOP_NOTE = "stop_asked"
"""Note of a run that somebody asked to stop: who."""


async def adopt(db: Database, lease: Lease, resource_id: str, facts: Mapping[str, Any]) -> None:
    """Moves a resource's row to the lease's run, so that neither its old run nor a collection removes it.

    Args:
        db: The run database.
        lease: The run that takes it.
        resource_id: The resource, of whichever run.
        facts: Merged key by key with what was known.
    """
    now = timestamp(db.clock.now())

    def move(tx: Connection) -> None:
        leases.hold(tx, lease)
        rows = tx.execute("SELECT facts FROM resources WHERE resource_id = :id", {"id": resource_id})
        known = json.loads(rows[0].facts) if rows else {}
        tx.change(
            "UPDATE resources SET run_id = :run, attempt_id = NULL, epoch = :epoch, facts = :facts, changed_at = :now"
            " WHERE resource_id = :id",
            {"run": lease.run_id, "epoch": lease.epoch, "facts": dump({**known, **facts}), "now": now, "id": resource_id},
        )

    await db.awrite(move)


async def ask_to_stop(db: Database, run_id: str, by: str) -> None:
    """Leaves a request for whoever owns the run; it is seen at the next renewal of the lease."""

    def ask(tx: Connection) -> None:
        tx.change("UPDATE runs SET epoch = epoch WHERE run_id = :run", {"run": run_id})
        rows = tx.execute("SELECT notes FROM runs WHERE run_id = :run", {"run": run_id})
        notes = json.loads(rows[0].notes or "{}") if rows else {}
        tx.change("UPDATE runs SET notes = :notes WHERE run_id = :run", {"notes": dump({**notes, STOP_NOTE: by}), "run": run_id})

    await db.awrite(ask)
