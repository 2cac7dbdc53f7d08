"""Reading what the journal holds. Every question is answered from an index, and lists are read page by page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from agent_env.errors import NotFoundError, UsageError
from agent_env.stores.connection import Connection, Row
from agent_env.stores.leases import is_alive, owner_of
from agent_env.stores.packing import Packing
from agent_env.stores.records import (
    AttemptRow,
    EventRow,
    GroupRow,
    ResourceRow,
    ResourceState,
    ReviewRow,
    RunRow,
    RunStatus,
    Standing,
    StoredRun,
    UsedDocument,
)

if TYPE_CHECKING:
    from agent_env.stores.database import Database
    from agent_env.stores.objects import Objects

_RUN_COLUMNS = (
    "run_id, instance_id, task_id, task_version, task_digest, bundle_id, bundle_path, group_id, attempt_index, attempt_count,"
    " status, kind, word, scores, error, created_at, started_at, finished_at, seed, options, notes, owner, epoch, heartbeat_at"
)
_RUN_JSON: Mapping[str, Any] = {"scores": {}, "error": None, "seed": {}, "options": {}, "notes": {}}
_NEWEST_FIRST = "ROW_NUMBER() OVER (PARTITION BY group_id, status, kind ORDER BY created_at DESC, run_id DESC)"
_ALIKE = "COUNT(*) OVER (PARTITION BY group_id, status, kind)"
_LAST_CHARACTER = "\U0010ffff"
_PAGE = 200
"""Runs that are read at once, where all of them are wanted."""
_AMBIGUOUS = 5
"""How many runs a message lists when a prefix fits several."""


class History:
    """The reading half of the journal. Every method is synchronous and may be called from any thread."""

    def __init__(self, db: Database, objects: Objects | None = None) -> None:
        self._db = db
        self._packing = Packing(objects, db.limits.inline_result_bytes)

    def run(self, run_id: str) -> RunRow:
        """One run, without its attempts.

        Raises:
            NotFoundError: There is none of that id.
        """
        return self._db.read(lambda tx: self._run(tx, run_id))

    def load(self, run_id: str) -> StoredRun:
        """Everything stored of a run but its events.

        Raises:
            NotFoundError: There is none of that id.
            StorageError: A large result's object is missing or damaged.
        """
        return self._db.read(lambda tx: self._stored(tx, run_id))

    def attempt(self, attempt_id: str) -> AttemptRow:
        """One attempt at a step.

        Raises:
            NotFoundError: There is none of that id.
        """
        rows = self._db.read(lambda tx: tx.execute("SELECT * FROM attempts WHERE attempt_id = :attempt", {"attempt": attempt_id}))
        for attempt in self._attempt_rows(rows):
            return attempt
        raise NotFoundError(f"there is no attempt {attempt_id!r}", concerns=attempt_id)

    def list_runs(
        self,
        *,
        task: str | None = None,
        status: RunStatus | None = None,
        group: str | None = None,
        bundle: str | None = None,
        digest: str | None = None,
        instance: str | None = None,
        limit: int = 50,
        before: str | None = None,
    ) -> list[RunRow]:
        """Runs, newest first.

        Args:
            task: Only those of this task id.
            status: Only those in this status.
            group: Only those of this group.
            bundle: Only those of this bundle id.
            digest: Only those of a task with this digest.
            instance: Only those of this instance id.
            limit: Page size.
            before: The last run id of the page before this one.
        """
        columns = {
            "task_id": task,
            "status": status,
            "group_id": group,
            "bundle_id": bundle,
            "task_digest": digest,
            "instance_id": instance,
        }
        wanted = {column: value for column, value in columns.items() if value is not None}
        where = [f"{column} = :{column}" for column in wanted]
        if before is not None:
            where.append("(created_at, run_id) < (SELECT created_at, run_id FROM runs WHERE run_id = :before)")
        sql = f"SELECT {_RUN_COLUMNS} FROM runs {_where(where)} ORDER BY created_at DESC, run_id DESC LIMIT :limit"
        params = {**wanted, "limit": limit, **({"before": before} if before is not None else {})}
        return [self._run_row(row) for row in self._db.read(lambda tx: tx.execute(sql, params))]

    def runs_of_group(self, group: str) -> Iterator[RunRow]:
        """Every run of a group, newest first, read page by page."""
        before: str | None = None
        while rows := self.list_runs(group=group, limit=_PAGE, before=before):
            yield from rows
            before = rows[-1].run_id

    def groups(self, *, task: str | None = None, bundle: str | None = None) -> list[GroupRow]:
        """Groups of runs, that of the newest run first.

        Args:
            task: Only runs of this task id count.
            bundle: Only those of this bundle id.
        """
        wanted = {column: value for column, value in {"task_id": task, "bundle_id": bundle}.items() if value is not None}
        where = _where(["group_id IS NOT NULL", *(f"{column} = :{column}" for column in wanted)])
        newest = f"SELECT group_id, status, kind, run_id, created_at, {_NEWEST_FIRST} AS place, {_ALIKE} AS runs FROM runs {where}"
        sql = f"SELECT * FROM ({newest}) AS counted WHERE place = 1 ORDER BY created_at DESC, run_id DESC"
        found: dict[str, GroupRow] = {}
        for row in self._db.read(lambda tx: tx.execute(sql, wanted)):
            group = found.setdefault(row.group_id, GroupRow(row.group_id, row.run_id, row.created_at, {}))
            found[row.group_id] = replace(group, endings={**group.endings, (row.status, row.kind): row.runs})
        return list(found.values())

    def find_run(self, prefix: str) -> RunRow:
        """The run whose id begins so, with `run-` before it or without, or whose instance id is this.

        Raises:
            NotFoundError: There is none.
            UsageError: There are several.
        """
        if found := self._beginning("run_id", prefix, "run-", "runs"):
            return self.run(found)
        by_instance = self.list_runs(instance=prefix, limit=1)
        if not by_instance:
            raise NotFoundError(f"there is no run {prefix!r}", concerns=prefix, hint="agent-env runs list")
        return by_instance[0]

    def find_group(self, prefix: str) -> str | None:
        """The group whose id begins so, with `group-` before it or without; None when there is none.

        Raises:
            UsageError: There are several.
        """
        return self._beginning("group_id", prefix, "group-", "groups of runs")

    def _beginning(self, column: str, prefix: str, before: str, what: str) -> str | None:
        """The one id in a column of the runs that begins so, as it is written or with what stands before such ids."""
        sql = f"SELECT DISTINCT {column} AS id FROM runs WHERE {column} >= :low AND {column} < :high ORDER BY {column} LIMIT :limit"
        for start in (prefix, f"{before}{prefix}") if prefix else ():
            params = {"low": start, "high": start + _LAST_CHARACTER, "limit": _AMBIGUOUS}
            found = [row.id for row in self._db.read(partial(_rows, sql, params))]
            if len(found) > 1 and found[0] != start:
                raise UsageError(f"several {what} begin with {prefix!r}: {', '.join(found)} …", hint="write more of the id")
            if found:
                return str(found[0])
        return None

    def is_owned(self, run_id: str) -> bool:
        """Whether a live process owns the run, by the same rule as `claim`."""
        standing = self.standing(run_id)
        return standing is not None and standing.owned

    def standing(self, run_id: str) -> Standing | None:
        """How a run stands at this moment; None when there is none of that id."""

        def look(tx: Connection) -> Standing | None:
            sql = f"SELECT status, notes, owner, {tx.clock_sql} - heartbeat_at AS silent FROM runs WHERE run_id = :run"
            rows = tx.execute(sql, {"run": run_id})
            if not rows:
                return None
            row, owner = rows[0], owner_of(rows[0].owner)
            owned = owner is not None and is_alive(owner, row.silent, self._db.limits.lease_seconds)
            # It can't be silent for longer than it is there, whatever somebody has set the clock to meanwhile.
            known = owner.seconds_since_start() if owner is not None else None
            silent = row.silent if row.silent is None or known is None else min(row.silent, known)
            return Standing(row.status, self._packing.unpack(row.notes, {}), owned=owned, silent_seconds=silent)

        return self._db.read(look)

    def resources(
        self, run_id: str | None = None, *, state: ResourceState | Sequence[ResourceState] | None = None, limit: int | None = None
    ) -> list[ResourceRow]:
        """Resources, in the order in which they were intended.

        Args:
            run_id: Only those of this run.
            state: Only those in this state or one of these; `records.OPEN_STATES` are those that may still exist.
            limit: At most so many.
        """
        states = [state] if isinstance(state, str) else state
        params: dict[str, Any] = {f"state{index}": value for index, value in enumerate(states or ())}
        where = []
        if states is not None:
            where.append(f"state IN ({', '.join(f':{name}' for name in params)})" if params else "1 = 0")
        if run_id is not None:
            where.append("run_id = :run")
            params["run"] = run_id
        sql = f"SELECT * FROM resources {_where(where)} ORDER BY created_at, resource_id"
        if limit is not None:
            sql += " LIMIT :limit"
            params["limit"] = limit
        return [self._resource_row(row) for row in self._db.read(lambda tx: tx.execute(sql, params))]

    def resource(self, resource_id: str) -> ResourceRow | None:
        """One resource, of whichever run."""
        rows = self._db.read(lambda tx: tx.execute("SELECT * FROM resources WHERE resource_id = :id", {"id": resource_id}))
        return self._resource_row(rows[0]) if rows else None

    def events(self, run_id: str, after: int = 0, limit: int = 1000) -> list[EventRow]:
        """A run's committed events past sequence number `after`, in order."""
        sql = "SELECT run_id, seq, at, kind, step_id, payload FROM events WHERE run_id = :run AND seq > :after ORDER BY seq LIMIT :limit"
        rows = self._db.read(lambda tx: tx.execute(sql, {"run": run_id, "after": after, "limit": limit}))
        return [EventRow(row.run_id, row.seq, row.at, row.kind, row.step_id, self._packing.unpack(row.payload)) for row in rows]

    def last_event(self, run_id: str) -> int:
        """The highest committed sequence number; 0 when there is no event."""
        rows = self._db.read(lambda tx: tx.execute("SELECT max(seq) AS seq FROM events WHERE run_id = :run", {"run": run_id}))
        return int(rows[0].seq or 0)

    def review(self, run_id: str, step_id: str) -> ReviewRow | None:
        """The newest question that a step asked, answered or not."""
        sql = "SELECT * FROM reviews WHERE run_id = :run AND step_id = :step ORDER BY asked_at DESC, attempt_id DESC LIMIT 1"
        rows = self._db.read(lambda tx: tx.execute(sql, {"run": run_id, "step": step_id}))
        return self._review_row(rows[0]) if rows else None

    def pending_reviews(self) -> list[ReviewRow]:
        """Questions that nobody has answered, oldest first."""
        sql = "SELECT * FROM reviews WHERE decision IS NULL ORDER BY asked_at, run_id"
        return [self._review_row(row) for row in self._db.read(lambda tx: tx.execute(sql))]

    def _run(self, tx: Connection, run_id: str) -> RunRow:
        rows = tx.execute(f"SELECT {_RUN_COLUMNS} FROM runs WHERE run_id = :run", {"run": run_id})
        if not rows:
            raise NotFoundError(f"there is no run {run_id!r}", concerns=run_id, hint="agent-env runs list")
        return self._run_row(rows[0])

    def _stored(self, tx: Connection, run_id: str) -> StoredRun:
        run = self._run(tx, run_id)
        of_run = {"run": run_id}
        inputs = tx.execute("SELECT task, context FROM run_inputs WHERE run_id = :run", of_run)
        attempts = tx.execute("SELECT * FROM attempts WHERE run_id = :run ORDER BY ended IS NULL, ended, started_at, attempt_id", of_run)
        resets = tx.execute("SELECT reset FROM resets WHERE run_id = :run ORDER BY seq", of_run)
        resources = tx.execute("SELECT * FROM resources WHERE run_id = :run ORDER BY created_at, resource_id", of_run)
        used = tx.execute(
            "SELECT collection, id, version, digest FROM used_documents WHERE run_id = :run ORDER BY collection, id, version", of_run
        )
        return StoredRun(
            run=run,
            task=self._packing.unpack(inputs[0].task) if inputs else None,
            context=self._packing.unpack(inputs[0].context) if inputs else None,
            attempts=tuple(self._attempt_rows(attempts)),
            resets=tuple(self._packing.unpack(row.reset) for row in resets),
            resources=tuple(self._resource_row(row) for row in resources),
            used=tuple(UsedDocument(row.collection, row.id, row.version, row.digest) for row in used),
        )

    def _run_row(self, row: Row) -> RunRow:
        values = dict(row)
        for column, default in _RUN_JSON.items():
            values[column] = self._packing.unpack(values[column], default)
        values["owner"] = owner_of(values["owner"])
        return RunRow(**values)

    def _attempt_rows(self, rows: Iterable[Row]) -> Iterable[AttemptRow]:
        for row in rows:
            values = dict(row)
            values["updates"] = self._packing.unpack(row.updates, [])
            values["scores"] = self._packing.unpack(row.scores, {})
            values["error"] = self._packing.unpack(row.error)
            values["superseded"] = bool(row.superseded)
            yield AttemptRow(**values)

    def _resource_row(self, row: Row) -> ResourceRow:
        values = dict(row)
        values["id"] = values.pop("resource_id")
        values["labels"] = self._packing.unpack(row.labels)
        values["facts"] = self._packing.unpack(row.facts)
        return ResourceRow(**values)

    def _review_row(self, row: Row) -> ReviewRow:
        return ReviewRow(**{**row, "upstream": self._packing.unpack(row.upstream)})


def _rows(sql: str, params: Mapping[str, Any], tx: Connection) -> Sequence[Row]:
    return tx.execute(sql, params)


def _where(conditions: Sequence[str]) -> str:
    return f"WHERE {' AND '.join(conditions)}" if conditions else ""
