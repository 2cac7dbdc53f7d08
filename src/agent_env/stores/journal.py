"""The journal: what a run does, written before or together with the doing, so that a kill at any moment loses nothing.

Every write of a run proves its lease in its own transaction. Writes are awaited until they are durable; events ride along with
the next of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from agent_env.documents.updates import Update, encode
from agent_env.errors import ConcurrentModificationError, InternalError, NotFoundError, UserError
from agent_env.ids import new_attempt_id
from agent_env.stores import leases, retention
from agent_env.stores.connection import Connection
from agent_env.stores.leased import LeasedWriter
from agent_env.stores.owners import Owner
from agent_env.stores.packing import dump
from agent_env.stores.records import Json, Lease, NewRun, Resource, ResourceState, RunRow, RunStatus

_TERMINAL = {"completed", "failed", "cancelled"}


class Journal(LeasedWriter):
    """Runs, attempts, resources, events and reviews of one database.

    Args:
        db: The run database.
        objects: Where values larger than `Limits.inline_result_bytes` go; None keeps them in their rows.
    """

    # Runs

    async def create_run(self, new: NewRun) -> RunRow:
        """Stores a run as queued, owned by nobody.

        Raises:
            ConcurrentModificationError: There is one of that id already.
        """
        task, context = await self._packing.apack(new.task), await self._packing.apack(new.context)
        values = {
            **{name: getattr(new, name) for name in _PLAIN},
            **{name: dump(dict(getattr(new, name))) for name in ("seed", "options", "notes")},
            "created_at": self._now(),
        }
        columns, places = ", ".join(values), ", ".join(f":{name}" for name in values)
        insert = f"INSERT INTO runs ({columns}, status) VALUES ({places}, 'queued') ON CONFLICT DO NOTHING"

        def create(tx: Connection) -> RunRow:
            if not tx.change(insert, values):
                raise ConcurrentModificationError(f"there is a run {new.run_id!r} already", concerns=new.run_id)
            tx.change(
                "INSERT INTO run_inputs (run_id, task, context) VALUES (:run, :task, :context)",
                {"run": new.run_id, "task": task, "context": context},
            )
            return self._run(tx, new.run_id)

        return await self._db.awrite(create)

    async def set_run(
        self,
        lease: Lease,
        *,
        status: RunStatus | None = None,
        kind: str | None = None,
        word: str | None = None,
        scores: Mapping[str, float | None] | None = None,
        error: Mapping[str, Json] | None = None,
        notes: Mapping[str, Json] | None = None,
    ) -> None:
        """Changes a run's record; None leaves a field as it is.

        `running` stamps the first start and clears what an earlier ending left (kind, word, scores, error, end); the endings stamp
        the end. `notes` are merged key by key.
        """
        plain: dict[str, Json] = {"status": status, "kind": kind, "word": word}
        packed: dict[str, Json] = {"scores": scores, "error": error}
        params = {name: value for name, value in plain.items() if value is not None}
        params |= {name: dump(dict(value)) for name, value in packed.items() if value is not None}
        sets = [f"{name} = :{name}" for name in params]
        if status == "running":
            sets += ["started_at = COALESCE(started_at, :now)", "finished_at = NULL"]
            sets += [f"{name} = NULL" for name in ("kind", "word", "scores", "error") if name not in params]
        elif status in _TERMINAL:
            sets.append("finished_at = :now")
        if any(":now" in each for each in sets):
            params["now"] = self._now()

        def change(tx: Connection) -> None:
            if notes is not None:
                row = tx.execute("SELECT notes FROM runs WHERE run_id = :run", {"run": lease.run_id})[0]
                merged = dump({**self._packing.unpack(row.notes, {}), **notes})
                tx.change("UPDATE runs SET notes = :notes WHERE run_id = :run", {"notes": merged, "run": lease.run_id})
            if sets:
                tx.change(f"UPDATE runs SET {', '.join(sets)} WHERE run_id = :run", {**params, "run": lease.run_id})

        await self._commit(lease, change)

    def delete_run(self, run_id: str, *, spared: Callable[[Mapping[str, str]], bool] = lambda _: False) -> None:
        """Removes a run's rows; its objects become collectable.

        Args:
            run_id: The run.
            spared: Whether a resource with these labels may be left: it is not ours to remove.

        Raises:
            NotFoundError: There is no such run.
            RunOwnedError: A live process owns it.
            UserError: It still has resources; tear it down first.
        """
        me, seconds = Owner.this_process(), self._db.limits.lease_seconds

        def delete(tx: Connection) -> None:
            leases.claim(tx, run_id, me, takeover=False, lease_seconds=seconds)
            rows = tx.execute(f"SELECT * FROM resources WHERE run_id = :run AND state IN {retention.OPEN_SQL}", {"run": run_id})
            left = [row for row in map(self._resource_row, rows) if not spared(row.labels)]
            if left:
                what = ", ".join(f"{row.kind} {row.name}" for row in left[:3])
                raise UserError(f"run {run_id} still has {what}", concerns=run_id, hint=f"agent-env runs teardown {run_id}")
            retention.delete_rows(tx, run_id)

        self._db.write(delete)

    # Attempts

    async def start_attempt(self, lease: Lease, step_id: str, *, number: int, attempt_id: str | None = None) -> str:
        """Notes that a step begins. Returns the attempt's id, the idempotency key of everything it does."""
        values = {
            "attempt": attempt_id or new_attempt_id(),
            "run": lease.run_id,
            "step": step_id,
            "number": number,
            "epoch": lease.epoch,
            "now": self._now(),
        }
        await self._commit(lease, lambda tx: tx.change(_START_ATTEMPT, values))
        return str(values["attempt"])

    async def finish_attempt(
        self,
        lease: Lease,
        attempt_id: str,
        *,
        state: str,
        updates: Sequence[Update | Sequence[Json]] = (),
        scores: Mapping[str, float | None] | None = None,
        kind: str | None = None,
        error: Mapping[str, Json] | None = None,
        duration_seconds: float | None = None,
        used: Iterable[tuple[str, str, int, str]] = (),
    ) -> int:
        """Commits what a step did: from now on it is done, and it is never done again.

        Args:
            lease: The run's.
            attempt_id: The attempt.
            state: How it ended, such as `succeeded` or `failed`.
            updates: What it adds to the run's context.
            scores: Verifier id → score; None is unscored.
            kind: `documents.outcomes.Kind`.
            error: `{code, message, …}` of a failure.
            duration_seconds: How long it took.
            used: Documents that it depended on: collection, id, version, digest.

        Returns:
            Its position among the run's commits, which is its place in the fold.

        Raises:
            SupersededError: This process owns the run no more.
            ConcurrentModificationError: The attempt has ended already.
            StorageError: It could not be stored; nothing of it was.
        """
        scores = dict(scores or {})
        bad = [name for name, score in scores.items() if score is not None and not math.isfinite(score)]
        if bad:
            raise InternalError(f"the score of {bad[0]!r} is no finite number", concerns=attempt_id)
        values = {
            "attempt": attempt_id,
            "run": lease.run_id,
            "state": state,
            "kind": kind,
            "now": self._now(),
            "duration": duration_seconds,
            "updates": await self._packing.apack(_encoded(updates)),
            "scores": dump(scores),
            "error": None if error is None else await self._packing.apack(dict(error)),
        }
        of_attempt = {"run": lease.run_id, "attempt": attempt_id}
        score_rows = [{**of_attempt, "verifier": name, "score": score} for name, score in scores.items()]
        used_rows = [{**of_attempt, "collection": c, "id": i, "version": v, "digest": d} for c, i, v, d in used]

        def finish(tx: Connection) -> int:
            if not tx.change(_FINISH_ATTEMPT, values):
                raise ConcurrentModificationError(f"attempt {attempt_id} of run {lease.run_id} has ended already", concerns=attempt_id)
            if score_rows:
                tx.executemany(_INSERT_SCORE, score_rows)
            if used_rows:
                tx.executemany(_INSERT_USED, used_rows)
            return int(tx.execute("SELECT ended FROM attempts WHERE attempt_id = :attempt", {"attempt": attempt_id})[0].ended)

        return await self._commit(lease, finish)

    async def supersede(self, lease: Lease, attempt_ids: Iterable[str], *, reset: Mapping[str, Json]) -> None:
        """Takes attempts back, and keeps the entry that says why. Their rows stay as evidence."""
        rows = [{"attempt": attempt_id, "run": lease.run_id} for attempt_id in attempt_ids]
        text = await self._packing.apack(dict(reset))

        def take_back(tx: Connection) -> None:
            if rows:
                tx.executemany("UPDATE attempts SET superseded = 1 WHERE attempt_id = :attempt AND run_id = :run", rows)
            tx.change(
                "INSERT INTO resets (run_id, seq, reset) SELECT run_id, commits, :reset FROM runs WHERE run_id = :run",
                {"reset": text, "run": lease.run_id},
            )

        await self._commit(lease, take_back)

    # Resources

    async def intend(self, lease: Lease, resource: Resource) -> None:
        """Notes that something is about to be made, before it is. Said again for the same id, it is about to be made anew."""
        values = {
            "id": resource.id,
            "run": lease.run_id,
            "attempt": resource.attempt_id,
            "epoch": lease.epoch,
            "kind": resource.kind,
            "provider": resource.provider,
            "name": resource.name,
            "labels": dump(dict(resource.labels)),
            "facts": dump(dict(resource.facts)),
            "expires": resource.expires_at,
            "now": self._now(),
        }
        await self._commit(lease, lambda tx: tx.change(_INTEND, values))

    async def opened(
        self, lease: Lease, resource_id: str, facts: Mapping[str, Json] | None = None, *, expires_at: str | None = None
    ) -> None:
        """Notes that it exists, and what was learnt of it (merged key by key with what was known)."""

        def update(tx: Connection) -> None:
            rows = tx.execute(
                "SELECT facts FROM resources WHERE resource_id = :id AND run_id = :run", {"id": resource_id, "run": lease.run_id}
            )
            if not rows:
                raise InternalError(f"resource {resource_id} was made without having been intended", concerns=resource_id)
            merged = dump({**self._packing.unpack(rows[0].facts, {}), **(facts or {})})
            tx.change(
                "UPDATE resources SET state = 'live', facts = :facts, expires_at = COALESCE(:expires, expires_at), changed_at = :now"
                " WHERE resource_id = :id",
                {"facts": merged, "expires": expires_at, "now": self._now(), "id": resource_id},
            )

        await self._commit(lease, update)

    async def closing(self, resource_id: str) -> None:
        """Notes that it is being removed. Needs no lease; harmless when it is gone already."""
        await self._ended([resource_id], "closing")

    async def closed(self, resource_id: str) -> None:
        """Notes that it is gone. Needs no lease, and may be said twice."""
        await self._ended([resource_id], "closed")

    async def lost(self, resource_ids: Iterable[str]) -> None:
        """Notes that these went without our doing (a reboot, somebody else's removal)."""
        await self._ended(list(resource_ids), "lost")

    async def _ended(self, resource_ids: Sequence[str], state: ResourceState) -> None:
        rows = [{"id": resource_id, "state": state, "now": self._now()} for resource_id in resource_ids]
        if rows:
            await self._db.awrite(lambda tx: tx.executemany(_CHANGE_RESOURCE, rows))

    # Reviews

    async def ask(self, lease: Lease, step_id: str, attempt_id: str, *, label: str | None, upstream: Json) -> None:
        """Publishes a question to a person; asking again for the same attempt changes nothing."""
        values = {
            "run": lease.run_id,
            "step": step_id,
            "attempt": attempt_id,
            "label": label,
            "upstream": await self._packing.apack(upstream),
            "now": self._now(),
        }
        await self._commit(lease, lambda tx: tx.change(_ASK, values))

    async def decide(self, run_id: str, step_id: str, decision: str, by: str) -> None:
        """Answers the open question of a step, from any process.

        Raises:
            NotFoundError: The step has asked nothing.
            ConcurrentModificationError: Somebody has answered already.
        """
        values = {"run": run_id, "step": step_id, "decision": decision, "by": by, "now": self._now()}

        def answer(tx: Connection) -> None:
            if tx.change(_DECIDE, values):
                return
            asked = tx.execute("SELECT decided_by FROM reviews WHERE run_id = :run AND step_id = :step", {"run": run_id, "step": step_id})
            if not asked:
                raise NotFoundError(f"step {step_id!r} of run {run_id} waits for no review", concerns=run_id, hint="agent-env runs list")
            raise ConcurrentModificationError(
                f"the review of step {step_id!r} was already decided by {asked[-1].decided_by}", concerns=run_id
            )

        await self._db.awrite(answer)


def _encoded(updates: Sequence[Any]) -> list[Json]:
    return [row for update in updates for row in ([list(update)] if isinstance(update, list | tuple) else encode([update]))]


_PLAIN = (
    "run_id",
    "instance_id",
    "task_id",
    "task_version",
    "task_digest",
    "bundle_id",
    "bundle_path",
    "group_id",
    "attempt_index",
    "attempt_count",
)
_START_ATTEMPT = (
    "INSERT INTO attempts (attempt_id, run_id, step_id, number, epoch, state, started_at)"
    " VALUES (:attempt, :run, :step, :number, :epoch, 'running', :now)"
)
_FINISH_ATTEMPT = (
    "UPDATE attempts SET state = :state, kind = :kind, finished_at = :now, duration_seconds = :duration, updates = :updates,"
    " scores = :scores, error = :error, ended = (SELECT commits FROM runs WHERE runs.run_id = attempts.run_id)"
    " WHERE attempt_id = :attempt AND run_id = :run AND state = 'running'"
)
_INSERT_SCORE = "INSERT INTO scores (run_id, attempt_id, verifier_id, score) VALUES (:run, :attempt, :verifier, :score)"
_INSERT_USED = (
    "INSERT INTO used_documents (run_id, collection, id, version, digest, attempt_id)"
    " VALUES (:run, :collection, :id, :version, :digest, :attempt) ON CONFLICT DO NOTHING"
)
_INTEND = (
    "INSERT INTO resources (resource_id, run_id, attempt_id, epoch, kind, provider, name, state, labels, facts, expires_at,"
    " created_at, changed_at)"
    " VALUES (:id, :run, :attempt, :epoch, :kind, :provider, :name, 'intended', :labels, :facts, :expires, :now, :now)"
    " ON CONFLICT (resource_id) DO UPDATE SET state = 'intended', attempt_id = excluded.attempt_id, epoch = excluded.epoch,"
    " name = excluded.name, labels = excluded.labels, facts = excluded.facts, expires_at = excluded.expires_at,"
    " changed_at = excluded.changed_at"
)
_CHANGE_RESOURCE = (
    "UPDATE resources SET state = :state, changed_at = :now WHERE resource_id = :id AND state <> :state AND state NOT IN ('closed', 'lost')"
)
_ASK = (
    "INSERT INTO reviews (run_id, step_id, attempt_id, label, upstream, asked_at)"
    " VALUES (:run, :step, :attempt, :label, :upstream, :now) ON CONFLICT DO NOTHING"
)
_DECIDE = (
    "UPDATE reviews SET decision = :decision, decided_by = :by, decided_at = :now"
    " WHERE run_id = :run AND step_id = :step AND decision IS NULL"
)
