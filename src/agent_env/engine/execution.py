"""One run in this process: attempts are recorded before they act, committed with what they returned, and taken back by a retry."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from agent_env.clock import timestamp
from agent_env.documents.context import safe_context
from agent_env.documents.outcomes import Kind, kind_of
from agent_env.documents.updates import AppendRecord, Json, Update, decode, encode
from agent_env.engine.context import Committed, Fold, thawed
from agent_env.engine.events import CLEAN_UP_FAILED, STEP_DONE, STEP_FAILED, STEP_RETRIED, STEP_STARTED
from agent_env.engine.history import CANCELLED, COMPLETED, FAILED
from agent_env.engine.outcome import described, expiry_hint
from agent_env.engine.plan import TaskPlan
from agent_env.engine.run import AttemptRun
from agent_env.engine.scheduler import Ended
from agent_env.engine.shared import Shared
from agent_env.engine.standing import carried_out
from agent_env.engine.teardown import sandbox_ids
from agent_env.errors import AgentEnvError, StepTimeoutError, StorageError
from agent_env.steps.contract import Step, StepResult
from agent_env.stores.records import UsedDocument
from agent_env.waiting import back_off, shielded

if TYPE_CHECKING:
    from agent_env.redaction import Redactor

DEPLOYED = ("deployed_envs", "deployed_agents", "deployed_sandboxes")


@dataclass(frozen=True, slots=True)
class _Attempt:
    """An attempt under way."""

    step: Step
    run: AttemptRun
    begun: float
    started_at: str


class Execution:
    """The scheduler's conductor: holds the fold, writes the journal."""

    def __init__(self, plan: TaskPlan, shared: Shared, fold: Fold, *, numbers: Mapping[str, int] | None = None) -> None:
        self.plan = plan
        self.fold = fold
        self._shared = shared
        self._numbers = dict(numbers or {})
        """Step → how many attempts it has had in this run."""
        self._reattached: dict[str, str] = {}
        self.errors: dict[str, Mapping[str, Json]] = {}
        """Attempt → its error as it is stored."""

    def reattach(self, step_id: str, attempt_id: str, number: int) -> None:
        """The step's next attempt goes on with a half-done one instead of being a new one."""
        self._reattached[step_id] = attempt_id
        self._numbers[step_id] = number

    async def attempt(self, step_id: str, *, retry: int, closing: bool) -> Ended:
        """Runs one attempt to its end and records it."""
        step = self.plan.steps[step_id].under(self._shared.limits)
        await self._pause(step_id, retry)
        attempt_id = self._reattached.pop(step_id, None)
        if attempt_id is None:
            self._numbers[step_id] = self._numbers.get(step_id, 0) + 1
            attempt_id = await self._shared.stores.journal.start_attempt(self._shared.lease, step_id, number=self._numbers[step_id])
        run = AttemptRun(self._shared, step_id, attempt_id, self._numbers.get(step_id, 1))
        clock = self._shared.clock
        attempt = _Attempt(step, run, clock.monotonic(), timestamp(clock.now()))
        self._shared.events.emit(
            STEP_STARTED,
            step_id,
            type=step.type_name,
            attempt_id=attempt_id,
            attempt=run.attempt_number,
            index=self.plan.graph.position[step_id],
            total=len(self.plan.graph.order),
        )
        try:
            return await self._carried_out(attempt, closing=closing)
        finally:
            run.close()

    async def _pause(self, step_id: str, retry: int) -> None:
        if not retry:
            return
        asking = [step for step in self.plan.steps.values() if step.retry_config and step.retry_config.retry_from_step_id == step_id]
        first = max((step.retry_config.backoff_seconds or 0.0 for step in asking if step.retry_config), default=0.0)
        if first:
            limits = self._shared.limits
            ceiling = max(first, limits.retry_backoff_max_seconds)
            await back_off(retry + 1, limits=replace(limits, retry_backoff_seconds=first, retry_backoff_max_seconds=ceiling))

    async def _carried_out(self, attempt: _Attempt, *, closing: bool) -> Ended:
        limits = self._shared.limits
        result: StepResult | None = None
        error: Exception | None = None
        try:
            result = await self._within_deadline(attempt, closing=closing)
            error = result.failure()
        except asyncio.CancelledError:
            await shielded(self._cut(attempt), seconds=limits.drain_seconds, what=f"stopping step {attempt.step.id!r}")
            raise
        except Exception as failure:  # noqa: BLE001 - a step may be anybody's code: whatever it raises ends this step, not the engine
            error = failure
        if error is not None and result is None:
            await self._stop(attempt)
        # What a step achieved is recorded also when the run is being cancelled at this very moment.
        return await shielded(
            self._commit(attempt, result, error), seconds=limits.drain_seconds, what=f"recording step {attempt.step.id!r}"
        )

    async def _within_deadline(self, attempt: _Attempt, *, closing: bool) -> StepResult:
        step, limits = attempt.step, self._shared.limits
        seconds = step.deadline_seconds
        if seconds is None and closing:
            seconds = limits.closing_step_seconds
        scope = asyncio.timeout(seconds)
        try:
            async with scope:
                return await carried_out(step, attempt.run)
        except TimeoutError as error:
            if not scope.expired():
                raise
            raise StepTimeoutError(
                f"step {step.id!r} did not end within its {seconds:g} s", concerns=step.id, hint="raise its timeout_seconds"
            ) from error

    async def _stop(self, attempt: _Attempt) -> None:
        """Kills what a failed attempt may have left running. A place that can't be reached has its own error already."""
        try:
            await shielded(
                attempt.run.stop(), seconds=self._shared.limits.cleanup_seconds, what=f"stopping what step {attempt.step.id!r} left"
            )
        except* AgentEnvError as errors:
            self._shared.events.emit(CLEAN_UP_FAILED, attempt.step.id, message=str(errors.exceptions[0]))

    async def _cut(self, attempt: _Attempt) -> None:
        await self._stop(attempt)
        await self._finish(attempt, CANCELLED, Kind.CANCELLED)
        self._shared.events.emit(STEP_FAILED, attempt.step.id, attempt_id=attempt.run.attempt_id, code="cancelled", message="cancelled")

    async def _commit(self, attempt: _Attempt, result: StepResult | None, error: Exception | None) -> Ended:
        step, run = attempt.step, attempt.run
        try:
            updates, scores = self._returned(result, error)
            described_error = None if error is None else self._described(attempt, error)
            state = FAILED if error else COMPLETED
            await self._finish(attempt, state, kind_of(error), updates=updates, scores=scores, error=described_error)
        except StorageError as storage:
            error, updates, scores = storage, [], {}
            described_error = self._described(attempt, storage)
            await self._finish(attempt, FAILED, Kind.STORAGE, error=described_error)
        seconds = self._shared.clock.monotonic() - attempt.begun
        failure = described_error["failed_step"] if described_error else None
        if described_error is not None:
            self.errors[run.attempt_id] = {**described_error, "kind": str(kind_of(error))}
        committed = Committed(run.attempt_id, step.id, tuple(decode(updates)), failure, scores)
        self.fold = self.fold.committed(committed)
        if described_error is None:
            summary = result.summary() if result is not None else ""
            self._shared.events.emit(
                STEP_DONE, step.id, attempt_id=run.attempt_id, duration_seconds=seconds, summary=summary, scores=dict(scores)
            )
        else:
            self._shared.events.emit(
                STEP_FAILED,
                step.id,
                attempt_id=run.attempt_id,
                duration_seconds=seconds,
                code=described_error["code"],
                message=described_error["message"],
                tolerated=not step.fail_task_on_error,
            )
        return Ended(step.id, run.attempt_id, error)

    def _returned(self, result: StepResult | None, error: Exception | None) -> tuple[list[list[Json]], Mapping[str, float | None]]:
        """What a result, or the evidence of an error, adds, as it is stored: without secrets, by key and by value."""
        evidence = error.evidence if isinstance(error, AgentEnvError) else ()
        rows = safe_context({"updates": encode(evidence if result is None else result.updates())})["updates"]
        return by_value(rows, self._shared.redactor), {} if result is None else dict(result.scores())

    def _described(self, attempt: _Attempt, error: BaseException) -> dict[str, Json]:
        """An error as it is stored, with its `failed_steps` entry."""
        step = attempt.step
        entry = described(error, step.id)
        margin = timedelta(seconds=self._shared.limits.answer_margin_seconds)  # the place's own clock started a little earlier
        if expired := expiry_hint(error, self.fold.context, self._shared.clock.now() + margin):
            entry["hint"] = expired
        entry["failed_step"] = {
            "step_id": step.id,
            "step_type": step.type_name,
            "error": str(error),
            "error_type": type(error).__name__,
            "started_at_utc": attempt.started_at,
            "duration_seconds": self._shared.clock.monotonic() - attempt.begun,
            "is_fatal": step.fail_task_on_error,
        }
        redacted: dict[str, Json] = self._shared.redactor.redact(entry)
        return redacted

    async def _finish(
        self,
        attempt: _Attempt,
        state: str,
        kind: Kind,
        *,
        updates: Sequence[Json] = (),
        scores: Mapping[str, float | None] | None = None,
        error: dict[str, Json] | None = None,
    ) -> None:
        used: list[UsedDocument] = list(attempt.run.used_documents)
        await self._shared.stores.journal.finish_attempt(
            self._shared.lease,
            attempt.run.attempt_id,
            state=state,
            updates=updates,
            scores=scores,
            kind=str(kind),
            error=error,
            duration_seconds=self._shared.clock.monotonic() - attempt.begun,
            used=used,
        )

    async def roll_back(self, failed: Ended, span: Sequence[str], *, retry: int) -> None:
        """Takes the span's attempts back: they stay in the journal, marked, and out of the fold."""
        step = self.plan.steps[failed.step_id]
        config = step.retry_config
        start = config.retry_from_step_id if config is not None else failed.step_id
        taken = await self.take_back(span, {"attempt": retry + 1, "step_id": failed.step_id, "retry_from_step_id": start})
        if config is not None and config.reset_places:
            rows = self._shared.sandboxes.rows(attempts=taken)
            report = await self._shared.sandboxes.destroy([row.id for row in rows])
            if not report.clean:
                self._shared.events.emit(CLEAN_UP_FAILED, failed.step_id, **report.to_json())
        message = str(failed.error)
        self._shared.events.emit(STEP_RETRIED, failed.step_id, retry=retry, retry_from_step_id=start, replayed=list(span), message=message)

    async def take_back(self, span: Sequence[str], entry: Mapping[str, Json]) -> list[str]:
        """Leaves the standing attempts of these steps out of the fold. Returns their ids."""
        standing = [attempt for step_id in span if (attempt := self.fold.standing(step_id)) is not None]
        reset = {
            **entry,
            "replayed": list(span),
            "at_utc": timestamp(self._shared.clock.now()),
            "rolled_back_sandboxes": rolled_back_sandboxes(update for attempt in standing for update in attempt.updates),
        }
        taken = [attempt.attempt_id for attempt in standing]
        await self._shared.stores.journal.supersede(self._shared.lease, taken, reset=reset)
        self.fold = self.fold.rolled_back(taken, reset)
        return taken


def by_value(value: Json, redactor: Redactor) -> Json:
    """The value with known secrets blotted out. Keys decide nothing here: a result may well have a field called `token`."""
    match value:
        case str():
            return redactor.redact(value)
        case dict():
            return {redactor.redact(key): by_value(below, redactor) for key, below in value.items()}
        case list():
            return [by_value(below, redactor) for below in value]
    return value


def rolled_back_sandboxes(updates: Iterable[Update]) -> dict[str, Json]:
    """The sandboxes behind records that are taken back, as `retry_resets` lists them."""
    listed: dict[str, list[Json]] = {name: [] for name in DEPLOYED}
    for update in updates:
        if isinstance(update, AppendRecord) and update.list in listed and any(sandbox_ids(update.record)):
            entry: dict[str, Json] = {"sandbox_id": update.record.get("sandbox_id"), "sandbox_type": update.record.get("sandbox_type")}
            if update.list == "deployed_envs":
                entry["sandbox_ids"] = thawed(update.record.get("sandbox_ids") or {})
            listed[update.list].append(entry)
    return dict(listed)
