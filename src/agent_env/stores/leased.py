"""Writing under a lease: every write of a run proves its lease in its own transaction, and the run's events ride along with it.

What is written is the journal's business.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from agent_env.clock import timestamp
from agent_env.errors import InternalError, StorageError
from agent_env.stores import leases
from agent_env.stores.connection import Connection
from agent_env.stores.history import History
from agent_env.stores.owners import Owner
from agent_env.stores.records import Json, Lease

if TYPE_CHECKING:
    from agent_env.stores.database import Database
    from agent_env.stores.objects import Objects

T = TypeVar("T")
_FLUSH_AT = 256
"""Buffered events that are written without waiting for another commit."""


class _Events:
    """Events of one lease that are not committed yet."""

    __slots__ = ("buffer", "seq")

    def __init__(self, seq: int) -> None:
        self.seq = seq
        self.buffer: list[dict[str, Any]] = []


class LeasedWriter(History):
    """Claims runs, writes under the lease and gives it up.

    Args:
        db: The run database.
        objects: Where values larger than `Limits.inline_result_bytes` go; None keeps them in their rows.
    """

    def __init__(self, db: Database, objects: Objects | None = None) -> None:
        super().__init__(db, objects)
        self._events: dict[tuple[str, int], _Events] = {}

    async def claim(self, run_id: str, *, takeover: bool = False) -> Lease:
        """Makes this process the run's owner.

        Args:
            run_id: The run.
            takeover: Also from an owner that lives (it can't write any more from then on).

        Raises:
            NotFoundError: There is no such run.
            RunOwnedError: Another live process owns it; the message names it.
        """
        me = Owner.this_process()

        def take(tx: Connection) -> tuple[Lease, int]:
            lease = leases.claim(tx, run_id, me, takeover=takeover, lease_seconds=self._db.limits.lease_seconds)
            last = tx.execute("SELECT max(seq) AS seq FROM events WHERE run_id = :run", {"run": run_id})
            return lease, int(last[0].seq or 0)

        lease, seq = await self._db.awrite(take)
        self._events[run_id, lease.epoch] = _Events(seq)
        return lease

    async def renew(self, lease: Lease) -> None:
        """Shows that the owner lives, and writes buffered events.

        Raises:
            SupersededError: It owns the run no more.
        """
        await self._commit(lease, lambda _: None)

    flush = renew

    async def release(self, lease: Lease) -> None:
        """Gives the run up, after writing buffered events. Harmless when somebody else owns it by now."""
        events = self._taken(lease)

        def give_up(tx: Connection) -> None:
            if tx.execute("SELECT 1 AS held FROM runs WHERE run_id = :run AND epoch = :epoch", {"run": lease.run_id, "epoch": lease.epoch}):
                _insert_events(tx, events)
                leases.release(tx, lease)

        await self._db.awrite(give_up)
        self._events.pop((lease.run_id, lease.epoch), None)

    def event(self, lease: Lease, kind: str, step_id: str | None, payload: Json) -> int:
        """Notes an event, in memory until the next commit of the run. Returns its sequence number within the run."""
        events = self._of(lease)
        events.seq += 1
        events.buffer.append(
            {
                "run": lease.run_id,
                "seq": events.seq,
                "at": self._now(),
                "kind": kind,
                "step": step_id,
                "payload": self._packing.pack(payload),
            }
        )
        if len(events.buffer) >= _FLUSH_AT:
            taken = self._taken(lease)

            def write(tx: Connection) -> None:
                leases.hold(tx, lease)
                _insert_events(tx, taken)

            self._db.submit(write)
        return events.seq

    async def _commit(self, lease: Lease, fn: Callable[[Connection], T]) -> T:
        events = self._taken(lease)

        def held(tx: Connection) -> T:
            leases.hold(tx, lease)
            _insert_events(tx, events)
            return fn(tx)

        try:
            return await self._db.awrite(held)
        except StorageError:
            self._of(lease).buffer[:0] = events
            raise

    def _of(self, lease: Lease) -> _Events:
        try:
            return self._events[lease.run_id, lease.epoch]
        except KeyError:
            raise InternalError(f"run {lease.run_id} was not claimed through this journal", concerns=lease.run_id) from None

    def _taken(self, lease: Lease) -> list[dict[str, Any]]:
        events = self._events.get((lease.run_id, lease.epoch))
        if events is None or not events.buffer:
            return []
        taken, events.buffer = events.buffer, []
        return taken

    def _now(self) -> str:
        return timestamp(self._db.clock.now())


def _insert_events(tx: Connection, events: Sequence[Mapping[str, Any]]) -> None:
    if events:
        tx.executemany(_INSERT_EVENT, events)


_INSERT_EVENT = "INSERT INTO events (run_id, seq, at, kind, step_id, payload) VALUES (:run, :seq, :at, :kind, :step, :payload)"
