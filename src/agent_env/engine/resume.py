"""Where a run goes on: what is done, what was cut, what is gone, and what a person must decide first.

Nothing that a committed attempt did is done again, unless its place is gone: by the run's own end, or otherwise, where redeploying was
asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from agent_env.documents.outcomes import Kind
from agent_env.documents.updates import AppendRecord, Json
from agent_env.engine.context import Committed
from agent_env.engine.execution import DEPLOYED, Execution
from agent_env.engine.graph import Graph
from agent_env.engine.history import CANCELLED, COMPLETED
from agent_env.engine.names import FORGIVING
from agent_env.engine.shared import Shared
from agent_env.engine.teardown import KEPT_NOTE, sandbox_ids
from agent_env.errors import ContainerNotRunningError, PlaceLostError, ResumeRefusedError, SandboxUnavailableError
from agent_env.steps.contract import OnResume
from agent_env.stores.records import OPEN_STATES
from agent_env.waiting import deadline

if TYPE_CHECKING:
    from agent_env.stores.records import AttemptRow, RunRow


class Choice(StrEnum):
    """What a person decides about a step that was cut half-way and can't be resumed safely by itself."""

    REPEAT = "repeat"
    """Do it again: whatever it did before does no harm, or was undone."""
    DONE = "done"
    """It had done its work: go on after it, without results of its own."""


@dataclass(frozen=True)
class Resumption:
    """What a resume was asked to do."""

    redeploy: bool = False
    choices: Mapping[str, Choice] | None = None
    keep: bool = False
    pause_on_failure: bool = False

    def of(self, run: RunRow) -> Resumption:
        """What it comes to for a run. One that was cancelled or failed, and kept nothing, removed its places: they are made again."""
        return replace(self, redeploy=self.redeploy or (run.status in {"cancelled", "failed"} and not run.notes.get(KEPT_NOTE)))


@dataclass(frozen=True)
class Recovered:
    """Where a run goes on."""

    done: set[str]
    """Steps whose work is kept."""
    again: Sequence[str] = ()
    """Steps that were done and are done again, because their places are gone, in list order."""


async def recover(execution: Execution, shared: Shared, graph: Graph, rows: Sequence[AttemptRow], asked: Resumption) -> Recovered:
    """Brings a run whose last owner is gone to a point from which it can go on.

    Raises:
        ResumeRefusedError: A person must decide first.
        PlaceLostError: A place that is still needed is gone, and redeploying was not asked for.
    """
    half_done = [row for row in rows if row.ended is None and not row.superseded]
    refuse_undecided(execution, shared.run_id, half_done, asked)
    lost = await shared.sandboxes.take_over()
    again = await _settle_lost(execution, shared, graph, lost, asked)
    for row in half_done:
        await _settle_half_done(execution, shared, row, (asked.choices or {}).get(row.step_id))
    await _take_back_unfinished(execution, graph)
    return Recovered(done_steps(execution, graph), again)


def refuse_undecided(execution: Execution, run_id: str, half_done: Sequence[AttemptRow], asked: Resumption) -> None:
    """Raises `ResumeRefusedError` when a half-done step needs a person's decision that was not given."""
    undecided = [
        row.step_id
        for row in half_done
        if (step := execution.plan.steps.get(row.step_id)) is not None
        and step.on_resume is OnResume.REFUSE
        and row.step_id not in (asked.choices or {})
    ]
    if undecided:
        options = " ".join(f"--decide {step_id}=repeat|done" for step_id in undecided)
        raise ResumeRefusedError(
            f"run {run_id} was cut in the middle of {', '.join(map(repr, undecided))}, and doing that twice may do harm",
            concerns=run_id,
            hint=f"look at its place, then say whether to do it again or to take it as done: agent-env resume {run_id} {options}",
        )


def done_steps(execution: Execution, graph: Graph) -> set[str]:
    """Steps whose standing attempt lets others go on."""
    done = set()
    for step_id in graph.order:
        standing = execution.fold.standing(step_id)
        if standing is not None and (standing.failure is None or not execution.plan.steps[step_id].fail_task_on_error):
            done.add(step_id)
    return done


async def _settle_lost(
    execution: Execution, shared: Shared, graph: Graph, gone: Mapping[str, SandboxUnavailableError], asked: Resumption
) -> Sequence[str]:
    """Checks that every place which unfinished steps may need still exists, or takes back what made it. Returns which steps were done."""
    again: set[str] = set()
    names: list[str] = []
    unmakeable: list[str] = []
    done, elsewhere = done_steps(execution, graph), shared.sandboxes.elsewhere()
    for sandbox_id, record, step_id in _recorded(execution, _again(execution, graph)):
        row = shared.sandboxes.row(sandbox_id)
        if sandbox_id not in gone and (row is None or row.state in OPEN_STATES):
            continue
        name = str(record.get("sandbox_name") or record.get("agent_name") or record.get("env_id"))
        span = graph.span(step_id) if step_id is not None else graph.order
        if all(other in done or execution.plan.steps[other].type_name in FORGIVING for other in span):
            continue
        if sandbox_id in elsewhere:
            stopped = f"; {elsewhere[sandbox_id].why}"
        else:
            stopped = f"; {gone[sandbox_id]}" if isinstance(gone.get(sandbox_id), ContainerNotRunningError) else ""
        names.append(f"{name!r} ({sandbox_id}{stopped})")
        if step_id is None or step_id not in graph.position:
            unmakeable.append(name)
        again.update(span)
    if not names:
        return ()
    replayed = [step_id for step_id in graph.order if step_id in again]
    if unmakeable or not asked.redeploy:
        hint = (
            "it was made outside of this run, so it can't be made again here"
            if unmakeable
            else f"agent-env resume {shared.run_id} --redeploy does again: {', '.join(replayed)}"
        )
        what = "can't be used here" if elsewhere else "no longer exist"
        raise PlaceLostError(f"places of run {shared.run_id} {what}: {', '.join(names)}", concerns=shared.run_id, hint=hint)
    await execution.take_back(replayed, {"attempt": 1, "step_id": replayed[0], "retry_from_step_id": replayed[0], "redeployed": True})
    await shared.sandboxes.destroy([sandbox_id for sandbox_id in gone if shared.sandboxes.row(sandbox_id) is not None])
    return [step_id for step_id in replayed if step_id in done]


def _recorded(execution: Execution, again: Sequence[str]) -> Iterator[tuple[str, Mapping[str, Json], str | None]]:
    """Sandboxes of the context that no step has torn down: `(id, record, the step that recorded it)`.

    A step that is done again does not count: clean-up that always runs took places away before the work that still needs them.
    """
    standing = [attempt for step_id in again if (attempt := execution.fold.standing(step_id)) is not None]
    passed = execution.fold.rolled_back([attempt.attempt_id for attempt in standing], None).context
    torn_down = set((passed.get("metadata") or {}).get("torn_down_sandbox_ids") or ())
    by_step: dict[str, str] = {}
    for attempt in execution.fold.attempts:
        if not attempt.superseded:
            for update in attempt.updates:
                if isinstance(update, AppendRecord):
                    by_step.update((sandbox_id, attempt.step_id) for sandbox_id, _ in sandbox_ids(update.record))
    for name in DEPLOYED:
        for record in execution.fold.context.get(name) or ():
            for sandbox_id, _ in sandbox_ids(record):
                if sandbox_id not in torn_down:
                    yield sandbox_id, record, by_step.get(sandbox_id)


async def _settle_half_done(execution: Execution, shared: Shared, row: AttemptRow, choice: Choice | None) -> None:
    step = execution.plan.steps.get(row.step_id)
    if step is not None and step.on_resume is OnResume.REATTACH:
        execution.reattach(row.step_id, row.attempt_id, row.number)
        return
    journal, lease = shared.stores.journal, shared.lease
    if choice is Choice.DONE:
        await journal.finish_attempt(
            lease,
            row.attempt_id,
            state=COMPLETED,
            updates=[],
            scores={},
            kind=str(Kind.COMPLETED),
            error=None,
            duration_seconds=0.0,
            used=[],
        )
        execution.fold = execution.fold.committed(Committed(row.attempt_id, row.step_id))
        return
    async with deadline(shared.limits.cleanup_seconds, f"stopping what step {row.step_id!r} left running"):
        await shared.sandboxes.stop_attempt(row.attempt_id)
    await shared.sandboxes.remove_containers(shared.sandboxes.beside(attempts=[row.attempt_id]))
    await shared.sandboxes.destroy([resource.id for resource in shared.sandboxes.rows(attempts=[row.attempt_id])])
    await journal.finish_attempt(
        lease,
        row.attempt_id,
        state=CANCELLED,
        updates=[],
        scores={},
        kind=str(Kind.CANCELLED),
        error=None,
        duration_seconds=0.0,
        used=[],
    )


async def _take_back_unfinished(execution: Execution, graph: Graph) -> None:
    """A fatal failure is what a resume is for: it is tried again. So is clean-up that ran before the work that it follows."""
    if again := _again(execution, graph):
        await execution.take_back(again, {"attempt": 1, "step_id": again[0], "retry_from_step_id": again[0], "resumed": True})


def _again(execution: Execution, graph: Graph) -> list[str]:
    """The steps that ended and are done again: those that failed, and those that ended before the work that they follow."""
    done = done_steps(execution, graph)
    failed = {step_id for step_id in graph.order if step_id not in done and execution.fold.standing(step_id) is not None}
    unfinished = {step_id for step_id in graph.order if step_id not in done}
    early = {step_id for step_id in graph.order if step_id in done and unfinished.intersection(graph.before(step_id))}
    return [step_id for step_id in graph.order if step_id in failed | early]
