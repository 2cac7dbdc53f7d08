"""Versioned documents: tasks, environments, agents, artifacts, evals.

Versions of an id are 1, 2, 3 … and never change. The newest of each id is kept in a table of its own, so that lists, pages and
counts cost the same in a collection of ten and of a hundred thousand.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from agent_env.clock import timestamp
from agent_env.errors import ConcurrentModificationError, NotFoundError, StorageError, UserError
from agent_env.stores.connection import Connection, Row
from agent_env.stores.packing import dump

if TYPE_CHECKING:
    from agent_env.stores.database import Database

Json = Any
Order = Literal["created", "changed", "id"]
_ORDERS: Mapping[Order, str] = {
    "created": "h.created_at DESC, h.id DESC",
    "changed": "h.changed_at DESC, h.id DESC",
    "id": "h.id",
}


@dataclass(frozen=True, slots=True)
class Document:
    """One version of one document."""

    collection: str
    id: str
    version: int
    type: str
    body: dict[str, Json]
    digest: str
    """`sha256:<hex>` of the body as canonical JSON; the same for the same content under any id or version."""
    created_at: str


@dataclass(frozen=True, slots=True)
class Head:
    """The newest version of an id, without its body."""

    version: int
    digest: str


@dataclass(frozen=True, slots=True)
class Page:
    """Some documents of a longer list."""

    items: tuple[Document, ...]
    more: bool
    """Whether the list goes on."""


class Documents:
    """Documents of one database. Every method is synchronous and may be called from any thread."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def get(self, collection: str, id: str, version: int | None = None) -> Document | None:
        """A version, or the newest one; None when there is none."""
        if version is None:
            sql = f"{_SELECT} JOIN document_heads h USING (collection, id, version) WHERE d.collection = :collection AND d.id = :id"
        else:
            sql = f"{_SELECT} WHERE d.collection = :collection AND d.id = :id AND d.version = :version"
        params = {"collection": collection, "id": id, **({"version": version} if version is not None else {})}
        rows = self._db.read(lambda tx: tx.execute(sql, params))
        return _document(rows[0]) if rows else None

    def named(self, collection: str, id: str, version: int | None = None) -> Document:
        """A version, or the newest one, that somebody named.

        Raises:
            NotFoundError: See `absent`.
        """
        found = self.get(collection, id, version)
        if found is None:
            raise self.absent(collection, id, version)
        return found

    def absent(self, collection: str, id: str, version: int | None = None) -> NotFoundError:
        """What is said of a document that was named and is not there; the hint has its newest version, or an id of near spelling."""
        from agent_env.documents.spelling import near

        what, command = _CALLED[collection]
        newest = self.heads(collection, [id]).get(id)
        if newest is not None:
            message, hint = f"there is no version {version} of {what} {id!r}", f"its newest version is {newest.version}"
        else:
            meant = near(id, self.ids(collection))
            message, hint = f"there is no {what} {id!r}", f"did you mean {meant!r}?" if meant else f"agent-env {command} list"
        return NotFoundError(message, concerns=id, hint=hint)

    def put(self, collection: str, id: str, type: str, body: Mapping[str, Json], *, version: int | None = None) -> Document:
        """Stores the next version.

        Args:
            collection: The kind of document.
            id: Its id.
            type: Its type within the collection.
            body: Its content.
            version: The number that it must get: the newest one's plus 1. None takes whatever is next.

        Raises:
            ConcurrentModificationError: `version` is not the next one.
            UserError: It is larger than `Limits.document_bytes`.
        """
        text = dump(dict(body))
        if len(text) > self._db.limits.document_bytes:
            raise UserError(
                f"{type} {id!r} is {len(text)} bytes large, more than the {self._db.limits.document_bytes} that a document may have",
                concerns=id,
                hint="put large content into artifacts, or raise limits.document_bytes",
            )
        values = {
            "collection": collection,
            "id": id,
            "folded": id.casefold(),
            "type": type,
            "body": text,
            "digest": digest_of(body),
            "now": timestamp(self._db.clock.now()),
        }

        def insert(tx: Connection) -> int:
            number = _next_version(tx, values, version)
            tx.change(_INSERT, {**values, "version": number})
            return number

        number = self._db.write(insert)
        return Document(collection, id, number, type, json.loads(text), values["digest"], values["now"])

    def latest(
        self,
        collection: str,
        *,
        type: str | None = None,
        id_contains: str | None = None,
        limit: int = 50,
        offset: int = 0,
        order: Order = "created",
    ) -> Page:
        """The newest version of each id, page by page.

        Args:
            collection: The kind of document.
            type: Only those whose newest version has this type.
            id_contains: Only those whose id contains this text, in any case.
            limit: Page size.
            offset: How many to pass over.
            order: Newest id first, last changed first, or by id.
        """
        where, params = ["h.collection = :collection", "h.version > 0"], {"collection": collection, "limit": limit + 1, "offset": offset}
        if type is not None:
            where.append("h.type = :type")
            params["type"] = type
        if id_contains is not None:
            where.append("h.folded_id LIKE :pattern ESCAPE '!'")
            params["pattern"] = _contains(id_contains)
        # The page is chosen among the small rows; only its own bodies are read.
        page = (
            f"SELECT h.collection, h.id, h.version FROM document_heads h WHERE {' AND '.join(where)}"
            f" ORDER BY {_ORDERS[order]} LIMIT :limit OFFSET :offset"
        )
        heads = "JOIN document_heads h USING (collection, id)"
        sql = f"{_SELECT} JOIN ({page}) p USING (collection, id, version) {heads} ORDER BY {_ORDERS[order]}"
        rows = self._db.read(lambda tx: tx.execute(sql, params))
        return Page(tuple(_document(row) for row in rows[:limit]), len(rows) > limit)

    def versions(self, collection: str, id: str) -> list[int]:
        """The version numbers that exist, oldest first."""
        sql = "SELECT version FROM documents WHERE collection = :collection AND id = :id ORDER BY version"
        return [row.version for row in self._db.read(lambda tx: tx.execute(sql, {"collection": collection, "id": id}))]

    def heads(self, collection: str, ids: Iterable[str]) -> dict[str, Head]:
        """The newest version of each id that has one: for whoever asks about many at once, without their bodies."""
        wanted = list(ids)
        found: dict[str, Head] = {}
        for start in range(0, len(wanted), _HEADS_AT_ONCE):
            params = {f"i{index}": id for index, id in enumerate(wanted[start : start + _HEADS_AT_ONCE])}
            sql = f"{_HEADS} AND h.id IN ({', '.join(f':{name}' for name in params)})"
            rows = self._db.read(lambda tx, sql=sql, params=params: tx.execute(sql, {**params, "collection": collection}))  # type: ignore[misc]
            found.update((row.id, Head(row.version, row.digest)) for row in rows)
        return found

    def ids(self, collection: str, *, limit: int = 10_000) -> list[str]:
        """Ids in order: for near spellings and completion."""
        sql = "SELECT id FROM document_heads WHERE collection = :collection AND version > 0 ORDER BY id LIMIT :limit"
        return [row.id for row in self._db.read(lambda tx: tx.execute(sql, {"collection": collection, "limit": limit}))]

    def count(self, collection: str) -> int:
        """How many ids the collection holds."""
        sql = "SELECT ids FROM document_counts WHERE collection = :collection"
        rows = self._db.read(lambda tx: tx.execute(sql, {"collection": collection}))
        return int(rows[0].ids) if rows else 0

    def delete(self, collection: str, id: str, version: int | None = None) -> int:
        """Removes a version, or all of an id. Returns how many. A number that was given once is never given again."""
        which = {"collection": collection, "id": id}

        def remove(tx: Connection) -> int:
            if not tx.change(_LOCK_HEAD, which):
                return 0
            if version is None:
                removed = tx.change("DELETE FROM documents WHERE collection = :collection AND id = :id", which)
            else:
                removed = tx.change(
                    "DELETE FROM documents WHERE collection = :collection AND id = :id AND version = :version",
                    {**which, "version": version},
                )
            if removed:
                _set_head(tx, which)
            return removed

        return self._db.write(remove)


_CALLED: Mapping[str, tuple[str, str]] = {
    "agents": ("agent", "agent"),
    "artifacts": ("artifact", "artifact"),
    "envs": ("environment", "env"),
    "tasks": ("task", "task"),
}
"""Collection → what one of it is called, and the group of commands that is about such."""
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


def digest_of(body: Mapping[str, Json]) -> str:
    """`sha256:<hex>` of a JSON object, whatever the order of its keys."""
    text = _CANONICAL.encode(body)
    return f"sha256:{hashlib.sha256(text.encode('ascii')).hexdigest()}"


def _next_version(tx: Connection, values: Mapping[str, Any], wanted: int | None) -> int:
    which = {"collection": values["collection"], "id": values["id"]}
    if tx.change(_NEW_HEAD, values):
        assigned, is_new = 0, True
    else:
        tx.change(_LOCK_HEAD, which)
        head = tx.execute("SELECT assigned, version FROM document_heads WHERE collection = :collection AND id = :id", which)[0]
        assigned, is_new = int(head.assigned), not head.version
    if wanted is not None and wanted != assigned + 1:
        raise ConcurrentModificationError(
            f"version {wanted} of {values['id']!r} can't be stored: the next one is {assigned + 1}",
            concerns=values["id"],
            hint="read the newest version and try again",
        )
    tx.change(
        "UPDATE document_heads SET version = :version, assigned = :version, type = :type, changed_at = :now"
        " WHERE collection = :collection AND id = :id",
        {**which, "version": assigned + 1, "type": values["type"], "now": values["now"]},
    )
    if is_new:
        _count(tx, values["collection"], 1)
    return assigned + 1


def _set_head(tx: Connection, which: Mapping[str, Any]) -> None:
    left = tx.execute(
        "SELECT version, type FROM documents WHERE collection = :collection AND id = :id ORDER BY version DESC LIMIT 1", which
    )
    if left:
        tx.change(
            "UPDATE document_heads SET version = :version, type = :type WHERE collection = :collection AND id = :id",
            {**which, "version": left[0].version, "type": left[0].type},
        )
    else:
        tx.change("UPDATE document_heads SET version = 0 WHERE collection = :collection AND id = :id", which)
        _count(tx, which["collection"], -1)


def _count(tx: Connection, collection: str, change: int) -> None:
    values = {"collection": collection, "change": change}
    if not tx.change("UPDATE document_counts SET ids = ids + :change WHERE collection = :collection", values):
        tx.change(
            "INSERT INTO document_counts (collection, ids) VALUES (:collection, :change)"
            " ON CONFLICT (collection) DO UPDATE SET ids = document_counts.ids + excluded.ids",
            values,
        )


def _contains(text: str) -> str:
    escaped = "".join(f"!{character}" if character in "!%_" else character for character in text.casefold())
    return f"%{escaped}%"


def _document(row: Row) -> Document:
    try:
        body = json.loads(row.body)
    except ValueError as error:
        raise StorageError(f"version {row.version} of {row.id!r} is damaged: {error}", concerns=row.id) from error
    return Document(row.collection, row.id, row.version, row.type, body, row.digest, row.created_at)


_SELECT = (
    "SELECT d.collection AS collection, d.id AS id, d.version AS version, d.type AS type, d.body AS body, d.digest AS digest,"
    " d.created_at AS created_at FROM documents d"
)
_HEADS = (
    "SELECT h.id AS id, h.version AS version, d.digest AS digest FROM document_heads h"
    " JOIN documents d USING (collection, id, version) WHERE h.collection = :collection"
)
_HEADS_AT_ONCE = 500
"""Ids in one question: databases bound the parameters of a statement."""
_INSERT = (
    "INSERT INTO documents (collection, id, version, type, body, digest, created_at)"
    " VALUES (:collection, :id, :version, :type, :body, :digest, :now)"
)
_NEW_HEAD = (
    "INSERT INTO document_heads (collection, id, folded_id, type, version, assigned, created_at, changed_at)"
    " VALUES (:collection, :id, :folded, :type, 0, 0, :now, :now) ON CONFLICT DO NOTHING"
)
_LOCK_HEAD = "UPDATE document_heads SET assigned = assigned WHERE collection = :collection AND id = :id"
