"""What the run database holds, as frozen values: runs, attempts, resources, events, reviews."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, NamedTuple

from agent_env.stores.owners import Owner

Json = Any
RunStatus = Literal["queued", "running", "completed", "failed", "cancelled"]
ResourceState = Literal["intended", "live", "closing", "closed", "lost"]

OPEN_STATES: tuple[ResourceState, ...] = ("intended", "live", "closing")
"""States in which something may exist that somebody has to remove."""
DURATION_NOTE = "duration_seconds"
"""Note of an ended run: how long it took, by the clock of the process that ended it."""


@dataclass(frozen=True, slots=True)
class NewRun:
    """A run that is to be stored. What it starts from is kept with it, so that a resume needs nothing else."""

    run_id: str
    instance_id: str
    task_id: str
    task_version: int | None = None
    task_digest: str | None = None
    task: Json = None
    """The task as it will run (its document, with overrides and seeds applied or not, as the engine likes)."""
    context: Json = None
    """The context that it starts with."""
    bundle_id: str | None = None
    bundle_path: str | None = None
    group_id: str | None = None
    attempt_index: int = 0
    attempt_count: int = 1
    seed: Mapping[str, Json] = field(default_factory=dict)
    options: Mapping[str, Json] = field(default_factory=dict)
    notes: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run, without what it started from and what its steps did (`Journal.load` has those)."""

    run_id: str
    instance_id: str
    task_id: str
    task_version: int | None
    task_digest: str | None
    bundle_id: str | None
    bundle_path: str | None
    group_id: str | None
    attempt_index: int
    attempt_count: int
    status: RunStatus
    kind: str | None
    """`documents.outcomes.Kind` of its ending; None while there is none."""
    word: str | None
    """passed, scored below 1, unscored, failed, cancelled; None while it goes on."""
    scores: Mapping[str, float | None]
    error: Mapping[str, Json] | None
    created_at: str
    started_at: str | None
    finished_at: str | None
    seed: Mapping[str, Json]
    options: Mapping[str, Json]
    notes: Mapping[str, Json]
    """What the run record must say beside: levels of limits, network, provider."""
    owner: Owner | None
    """The process that runs it; None when it was released."""
    epoch: int
    heartbeat_at: float | None
    """When the owner last showed itself: seconds since 1970 on the database server's clock."""

    @property
    def duration_seconds(self) -> float | None:
        """How long it took, as the command that ran it said; None while it goes on."""
        if self.started_at is None or self.finished_at is None:
            return None
        noted = self.notes.get(DURATION_NOTE)
        if noted is not None:
            return float(noted)
        return (datetime.fromisoformat(self.finished_at) - datetime.fromisoformat(self.started_at)).total_seconds()


@dataclass(frozen=True, slots=True)
class GroupRow:
    """The runs of one group, counted."""

    group_id: str
    newest_run: str
    """The run of it that was created last."""
    created_at: str
    """When that was."""
    endings: Mapping[tuple[RunStatus, str | None], int]
    """Status and kind of ending → how many of its runs are so."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How a run stands at a moment."""

    status: RunStatus
    notes: Mapping[str, Json]
    owned: bool
    """A live process owns it."""
    silent_seconds: float | None
    """Since its last owner's last sign of life, by the database server's clock, and no more than since that process started where that was
    in this boot; None when it never had an owner."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to write a run's records, until somebody takes it over with a higher epoch."""

    run_id: str
    epoch: int
    owner: Owner


class UsedDocument(NamedTuple):
    """A document that a run depended on."""

    collection: str
    id: str
    version: int
    digest: str


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """One attempt at one step."""

    attempt_id: str
    run_id: str
    step_id: str
    number: int
    epoch: int
    state: str
    """`running`, or what `finish_attempt` was told."""
    kind: str | None
    started_at: str
    finished_at: str | None
    ended: int | None
    """Position among the run's commits: attempts that ended are folded in this order."""
    duration_seconds: float | None
    updates: Sequence[Json]
    """Rows as `documents.updates.encode` writes them."""
    scores: Mapping[str, float | None]
    error: Mapping[str, Json] | None
    superseded: bool
    """Taken back by a retry: its updates and scores count no more."""


@dataclass(frozen=True, slots=True)
class Resource:
    """Something that is about to be made and will have to be removed: a container, a network, a VM, a folder."""

    id: str
    kind: str
    provider: str
    name: str
    attempt_id: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Json] = field(default_factory=dict)
    """What is needed to find and remove it in another process."""
    expires_at: str | None = None


@dataclass(frozen=True, slots=True)
class ResourceRow:
    """A resource as stored."""

    id: str
    run_id: str
    attempt_id: str | None
    epoch: int
    kind: str
    provider: str
    name: str
    state: ResourceState
    labels: Mapping[str, str]
    facts: Mapping[str, Json]
    expires_at: str | None
    created_at: str
    changed_at: str


@dataclass(frozen=True, slots=True)
class EventRow:
    """One event of a run."""

    run_id: str
    seq: int
    """1, 2, 3 … within the run."""
    at: str
    kind: str
    step_id: str | None
    payload: Json


@dataclass(frozen=True, slots=True)
class ReviewRow:
    """A question to a person, and the answer once there is one."""

    run_id: str
    step_id: str
    attempt_id: str
    label: str | None
    upstream: Json
    asked_at: str
    decision: str | None
    decided_by: str | None
    decided_at: str | None


@dataclass(frozen=True, slots=True)
class StoredRun:
    """All that is stored of a run, but its events."""

    run: RunRow
    task: Json
    context: Json
    """What it started with."""
    attempts: tuple[AttemptRow, ...]
    """In the order in which they ended; those that have not ended come last, in the order in which they started."""
    resets: tuple[Mapping[str, Json], ...]
    """Retries that took attempts back, oldest first."""
    resources: tuple[ResourceRow, ...]
    used: tuple[UsedDocument, ...]
