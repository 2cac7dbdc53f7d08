"""A run as its stored record tells of it: what it knew, and how it ended. For whoever does not execute it."""

from __future__ import annotations

from typing import cast

from agent_env.documents.outcomes import Kind, Status
from agent_env.documents.updates import decode
from agent_env.engine.context import Committed, Fold
from agent_env.engine.outcome import RunOutcome
from agent_env.stores.records import AttemptRow, StoredRun

COMPLETED, FAILED, CANCELLED = "completed", "failed", "cancelled"
"""States of attempts and runs that have ended."""
ENDED = (COMPLETED, FAILED, CANCELLED)


def fold_of(stored: StoredRun) -> Fold:
    """What a run knows, by its start and the attempts that are stored."""
    return Fold.of(stored.context or {}, (c for row in stored.attempts if (c := _committed_of(row))), stored.resets)


def outcome_of(stored: StoredRun) -> RunOutcome:
    """How a run ended; one that nobody works on any more counts as cancelled."""
    run, fold = stored.run, fold_of(stored)
    ended: Status = cast("Status", run.status) if run.status in ENDED else "cancelled"
    worked = sum(row.duration_seconds or 0.0 for row in stored.attempts if not row.superseded)
    return RunOutcome(
        run_id=run.run_id,
        instance_id=run.instance_id,
        task_id=run.task_id,
        task_version=run.task_version,
        status=ended,
        kind=Kind(run.kind) if run.kind else Kind.UNRECOGNISED,
        scores=dict(run.scores if run.status in ENDED else fold.scores),
        duration_seconds=worked if run.duration_seconds is None else run.duration_seconds,
        error=run.error,
        context=fold.context,
    )


def _committed_of(row: AttemptRow) -> Committed | None:
    """A stored attempt as the fold needs it; None when it has not ended, or was cut and counts for nothing."""
    if row.ended is None or row.state == CANCELLED:
        return None
    failure = (row.error or {}).get("failed_step")
    return Committed(row.attempt_id, row.step_id, tuple(decode(row.updates)), failure, dict(row.scores), superseded=row.superseded)
