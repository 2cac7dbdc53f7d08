"""Leases: a run has one owner at a time, and every write of a run proves that it is still that owner's.

On this machine, whether an owner lives is seen at once and no clock matters. For owners elsewhere, heartbeats on the database
server's clock decide. The check and the write it allows are one transaction.
"""

from __future__ import annotations

import json

from agent_env.errors import NotFoundError, RunOwnedError, SupersededError
from agent_env.stores.connection import Connection
from agent_env.stores.owners import Life, Owner
from agent_env.stores.packing import dump
from agent_env.stores.records import Lease


def claim(tx: Connection, run_id: str, me: Owner, *, takeover: bool, lease_seconds: float) -> Lease:
    """Makes `me` the owner under the next epoch.

    Raises:
        NotFoundError: There is no such run.
        RunOwnedError: Another live process owns it and `takeover` is false.
    """
    # Touching the row first takes its lock: of those that claim at once, the others wait here and then see the winner.
    if not tx.change("UPDATE runs SET epoch = epoch WHERE run_id = :run", {"run": run_id}):
        raise NotFoundError(f"there is no run {run_id!r}", concerns=run_id, hint="agent-env runs list")
    row = tx.execute(
        f"SELECT owner, epoch, {tx.clock_sql} - heartbeat_at AS silent FROM runs WHERE run_id = :run",
        {"run": run_id},
    )[0]
    owner = owner_of(row.owner)
    if owner is not None and not takeover and is_alive(owner, row.silent, lease_seconds):
        raise RunOwnedError(f"run {run_id} belongs to {owner}", concerns=run_id, hint=_how_to_end(run_id, owner, row.silent, lease_seconds))
    tx.change(
        f"UPDATE runs SET owner = :owner, epoch = epoch + 1, heartbeat_at = {tx.clock_sql} WHERE run_id = :run",
        {"owner": dump(me.to_json()), "run": run_id},
    )
    return Lease(run_id, row.epoch + 1, me)


def _how_to_end(run_id: str, owner: Owner, silent_seconds: float | None, lease_seconds: float) -> str:
    """What to do about a run that somebody has. Only of a process that gives no sign of life any more, to kill it."""
    gently = f"wait for it, or stop it: agent-env runs cancel {run_id}, or Ctrl-C where it runs"
    if silent_seconds is None or silent_seconds < lease_seconds:
        return gently
    return (
        f"{gently}; it has given no sign of life for {silent_seconds:.0f} s: where neither helps, it is ended by kill -9 {owner.pid} there"
    )


def hold(tx: Connection, lease: Lease) -> None:
    """Proves that the lease stands, renews it, and locks the run's row until the transaction ends.

    Raises:
        SupersededError: It does not: taken over, released, or the run is gone.
    """
    held = tx.change(
        f"UPDATE runs SET commits = commits + 1, heartbeat_at = {tx.clock_sql}"
        " WHERE run_id = :run AND epoch = :epoch AND owner IS NOT NULL",
        {"run": lease.run_id, "epoch": lease.epoch},
    )
    if not held:
        raise superseded(tx, lease)


def superseded(tx: Connection, lease: Lease) -> SupersededError:
    """The error that says who owns the run now."""
    rows = tx.execute("SELECT owner, epoch FROM runs WHERE run_id = :run", {"run": lease.run_id})
    if not rows:
        why = "was deleted"
    elif rows[0].owner is None:
        why = "was released"
    else:
        why = f"was taken over by {owner_of(rows[0].owner)} (epoch {rows[0].epoch}, here {lease.epoch})"
    return SupersededError(f"run {lease.run_id} {why}, so this process may not act for it any more", concerns=lease.run_id)


def release(tx: Connection, lease: Lease) -> None:
    """Gives the run up. Harmless when somebody else owns it by now."""
    tx.change("UPDATE runs SET owner = NULL WHERE run_id = :run AND epoch = :epoch", {"run": lease.run_id, "epoch": lease.epoch})


def is_alive(owner: Owner, silent_seconds: float | None, lease_seconds: float) -> bool:
    """Whether an owner is to be taken as alive."""
    match owner.life():
        case Life.ALIVE:
            return True
        case Life.DEAD:
            return False
        case Life.UNKNOWN:
            return silent_seconds is not None and silent_seconds < lease_seconds


def owner_of(text: str | None) -> Owner | None:
    """The owner that a row names."""
    return None if text is None else Owner.from_json(json.loads(text))
