"""The ledger of bundles: which version of a document was written from which content, so that only changes are written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from agent_env.clock import timestamp
from agent_env.stores.connection import Row
from agent_env.stores.packing import Packing, dump

if TYPE_CHECKING:
    from agent_env.stores.database import Database

Json = Any


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """What was last written for one document."""

    collection: str
    id: str
    bundle: str
    status: Literal["pending", "done"]
    """A pending row with a version is a write that was cut after the document was stored: it can be adopted."""
    digest: str | None
    """Of everything that went into it; None when that changed while it was being written."""
    inputs: Mapping[str, Json] = field(default_factory=dict)
    version: int | None = None
    scheme: int = 1
    at: str = ""
    """When; set by `record`."""


class Ledger:
    """The rows of one database."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._packing = Packing(None, 0)

    def get(self, collection: str, id: str) -> LedgerRow | None:
        """The row of a document, or None."""
        sql = "SELECT * FROM ledger WHERE collection = :collection AND id = :id"
        rows = self._db.read(lambda tx: tx.execute(sql, {"collection": collection, "id": id}))
        return self._row(rows[0]) if rows else None

    def of_bundle(self, bundle: str) -> list[LedgerRow]:
        """All rows that a bundle wrote last."""
        sql = "SELECT * FROM ledger WHERE bundle = :bundle ORDER BY collection, id"
        return [self._row(row) for row in self._db.read(lambda tx: tx.execute(sql, {"bundle": bundle}))]

    def record(self, row: LedgerRow) -> None:
        """Writes a row over the one before it."""
        self.record_all([row])

    def record_all(self, rows: Iterable[LedgerRow]) -> None:
        """Writes rows over the ones before them, in one transaction."""
        now = timestamp(self._db.clock.now())
        values = [
            {
                "collection": row.collection,
                "id": row.id,
                "bundle": row.bundle,
                "status": row.status,
                "scheme": row.scheme,
                "digest": row.digest,
                "inputs": dump(dict(row.inputs)),
                "version": row.version,
                "at": now,
            }
            for row in rows
        ]
        if values:
            self._db.write(lambda tx: tx.executemany(_RECORD, values))

    def forget(self, collection: str, id: str) -> None:
        """Removes a row: the document will be written anew."""
        sql = "DELETE FROM ledger WHERE collection = :collection AND id = :id"
        self._db.write(lambda tx: tx.change(sql, {"collection": collection, "id": id}))

    def _row(self, row: Row) -> LedgerRow:
        return LedgerRow(**{**row, "inputs": self._packing.unpack(row.inputs)})


_RECORD = (
    "INSERT INTO ledger (collection, id, bundle, status, scheme, digest, inputs, version, at)"
    " VALUES (:collection, :id, :bundle, :status, :scheme, :digest, :inputs, :version, :at)"
    " ON CONFLICT (collection, id) DO UPDATE SET bundle = excluded.bundle, status = excluded.status, scheme = excluded.scheme,"
    " digest = excluded.digest, inputs = excluded.inputs, version = excluded.version, at = excluded.at"
)
