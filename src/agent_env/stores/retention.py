"""What is kept and what may go: the rows of a run, and the objects that anything stored still refers to."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from agent_env.errors import NotFoundError, StorageError
from agent_env.stores.connection import Connection, Params, Row
from agent_env.stores.records import OPEN_STATES

if TYPE_CHECKING:
    from agent_env.stores.database import Database
    from agent_env.stores.objects import Objects

OPEN_SQL = f"({', '.join(repr(state) for state in OPEN_STATES)})"
_RUN_TABLES = (
    *("run_inputs", "resets", "attempts", "scores", "used_documents", "resources", "events", "reviews"),
    *("model_calls", "model_grants", "model_accounts", "runs"),
)
_REFERENCE = re.compile(r"@?sha256:([0-9a-f]{64})")
_PAGE = 1000
_TEXTS = (
    ("documents", "body", "collection, id, version"),
    ("run_inputs", "task", "run_id"),
    ("run_inputs", "context", "run_id"),
    ("attempts", "updates", "attempt_id"),
    ("attempts", "error", "attempt_id"),
    ("resets", "reset", "run_id, seq"),
    ("reviews", "upstream", "run_id, step_id, attempt_id"),
    ("runs", "options", "run_id"),
    ("runs", "notes", "run_id"),
    ("resources", "facts", "resource_id"),
    ("events", "payload", "run_id, seq"),
)
"""Columns that may refer to objects, with the keys that page through them."""


def delete_rows(tx: Connection, run_id: str) -> None:
    """Removes everything of a run."""
    for table in _RUN_TABLES:
        tx.change(f"DELETE FROM {table} WHERE run_id = :run", {"run": run_id})


def live_objects(db: Database, objects: Objects) -> set[str]:
    """Digests of every object that a document or a run refers to, also from within large results that are objects themselves.

    A `sha256:<hex>` anywhere in their text counts: too much is kept rather than too little.

    Raises:
        StorageError: The database can't be read, and so nothing may be collected.
    """
    live: set[str] = set()
    packed: set[str] = set()
    for text in _texts(db):
        _note(text, live, packed)
    for sha256 in packed:
        _note_within(objects, sha256, live)
    return live


def _note(text: str, live: set[str], packed: set[str]) -> None:
    for found in _REFERENCE.finditer(text):
        live.add(found.group(1))
        if found.start() == 0 and found.group().startswith("@"):
            packed.add(found.group(1))


def _note_within(objects: Objects, sha256: str, live: set[str]) -> None:
    try:
        text = objects.read(sha256).decode("ascii", "replace")
    except (NotFoundError, StorageError):  # it is lost already, and so is what only it referred to
        return
    live.update(found.group(1) for found in _REFERENCE.finditer(text))


def _texts(db: Database) -> Iterator[str]:
    for table, column, keys in _TEXTS:
        yield from _column(db, table, column, keys)


def _column(db: Database, table: str, column: str, keys: str) -> Iterator[str]:
    """The column's texts that hold a reference, page by page: a long history is never in memory at once."""
    names = keys.split(", ")
    after: dict[str, object] | None = None
    while True:
        params: dict[str, object] = {"pattern": "%sha256:%", "limit": _PAGE, **(after or {})}
        beyond = f" AND ({keys}) > ({', '.join(f':{name}' for name in names)})" if after else ""
        sql = f"SELECT {keys}, {column} AS text FROM {table} WHERE {column} LIKE :pattern{beyond} ORDER BY {keys} LIMIT :limit"
        rows = db.read(partial(_page, sql, params))
        yield from (row["text"] for row in rows)
        if len(rows) < _PAGE:
            return
        after = {name: rows[-1][name] for name in names}


def _page(sql: str, params: Params, tx: Connection) -> list[Row]:
    return tx.execute(sql, params)
