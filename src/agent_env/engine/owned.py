"""One run while this process owns it: from the claim of its lease to its teardown and release."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Self

from agent_env.agents.settings import AgentSettings
from agent_env.clock import Clock
from agent_env.config.values import ModelConfig
from agent_env.defaults import DEFAULT_LIMITS, Limits
from agent_env.documents.outcomes import Kind, Status, kind_of
from agent_env.documents.task import parse_task
from agent_env.documents.updates import Json
from agent_env.engine import control, lease
from agent_env.engine.adoption import adopt_all
from agent_env.engine.context import Fold
from agent_env.engine.events import EGRESS_REFUSED, RUN_FINISHED, RUN_STARTED, TEARDOWN, Event, EventStream, Observer
from agent_env.engine.execution import Execution
from agent_env.engine.graph import Graph
from agent_env.engine.history import fold_of
from agent_env.engine.installation import Installation
from agent_env.engine.options import Providers, Stores
from agent_env.engine.outcome import RunOutcome, described, scores_at_end, word_of
from agent_env.engine.plan import TaskPlan, read_steps
from agent_env.engine.prefetch import prefetching
from agent_env.engine.preflight import PRIVILEGES_KEY
from agent_env.engine.resume import Resumption, recover
from agent_env.engine.sandboxes import Sandboxes
from agent_env.engine.scheduler import Drive, Rule, Scheduler, first_error
from agent_env.engine.shared import Shared
from agent_env.engine.signals import Cancellation
from agent_env.engine.teardown import DEFAULT_PROVIDER, KEPT_NOTE, TeardownReport
from agent_env.environments.settings import EnvironmentSettings
from agent_env.errors import InfrastructureError, StorageError, SupersededError, UsageError
from agent_env.stores.handover import STOP_NOTE
from agent_env.stores.records import DURATION_NOTE, Lease, StoredRun

if TYPE_CHECKING:
    from agent_env.config import Config
    from agent_env.redaction import Redactor
    from agent_env.steps.contract import Step


@dataclass(frozen=True)
class House:
    """What every run of one engine has in common."""

    stores: Stores
    providers: Providers
    installation: Installation
    default_provider: str
    redactor: Redactor
    clock: Clock
    limits: Limits
    quiesce: str | None = None
    """What verifiers do with what still runs while they look, where a step does not say (`run.quiesce`)."""
    privileges: frozenset[str] = frozenset()
    """What this user grants the containers of tasks (`sandbox.container_privileges`)."""
    environments: EnvironmentSettings = field(default_factory=EnvironmentSettings)
    agents: AgentSettings = field(default_factory=AgentSettings)
    models: ModelConfig = field(default_factory=ModelConfig)

    @classmethod
    def of(
        cls,
        config: Config,
        stores: Stores,
        providers: Providers,
        installation: Installation,
        *,
        redactor: Redactor,
        clock: Clock,
        limits: Limits | None = None,
    ) -> Self:
        """As a configuration says."""
        return cls(
            stores,
            providers,
            installation,
            config.sandbox.default or DEFAULT_PROVIDER,
            redactor,
            clock,
            limits or config.limits or DEFAULT_LIMITS,
            config.run.quiesce,
            frozenset(config.get(PRIVILEGES_KEY) or ()),
            EnvironmentSettings.of(config.get),
            AgentSettings.of(config),
            config.model,
        )

    def sandboxes(
        self, held: Lease, stored: StoredRun, *, refused: Callable[[str, Mapping[str, object]], None] = lambda *_: None
    ) -> Sandboxes:
        """The sandboxes of a stored run, for whoever acts under that lease; `refused` is told what a sandbox must not reach."""
        return Sandboxes(
            held,
            journal=self.stores.journal,
            providers=self.providers,
            installation=self.installation,
            default_provider=self.default_provider,
            limits=self.limits,
            clock=self.clock,
            rows=stored.resources,
            refused=refused,
            secrets=self.stores.secrets,
        )


@dataclass(frozen=True)
class Ending:
    """How the steps of a run ended."""

    status: Status
    kind: Kind
    error: Mapping[str, Json] | None


class OwnedRun:
    """A run that this process owns."""

    def __init__(
        self,
        house: House,
        held: Lease,
        cancellation: Cancellation,
        *,
        observer: Observer | None,
        asked: Resumption,
        overrides: Mapping[str, Json],
        plan: TaskPlan | None = None,
    ) -> None:
        self._plan = plan
        self.cancellation = cancellation
        self._house = house
        self._lease = held
        self._asked = asked
        self._overrides = overrides
        self._journal = house.stores.journal
        self._events = EventStream(held, self._journal, house.redactor, house.clock, [observer] if observer else [])
        self._shared: Shared | None = None
        self._execution: Execution | None = None

    async def run(self) -> RunOutcome:
        """Runs it to its end, and gives it up.

        Raises:
            SupersededError: Another process owns it now; nothing was torn down.
            AgentEnvError: It could not be begun (a decision is needed, a place is gone).
        """
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(
                    lease.keep(self._lease, self._journal, over=over, tick=self._tick, clock=self._house.clock, limits=self._house.limits)
                )
                group.create_task(self._listen(over))
                try:
                    return await self._go()
                finally:
                    over.set_result(None)
                    await self._leave()
                    self._events.close()  # last: who follows the run sees its end, and finds all of it stored
        except BaseExceptionGroup as errors:
            raise first_error(errors) from None

    async def _listen(self, over: asyncio.Future[None]) -> None:
        """Serves the control socket, unless the run is over before anybody could have asked for it."""
        limits = self._house.limits
        folder = control.run_folder(self._house.installation.state_root, self._lease.run_id)
        control.discard(folder)
        await asyncio.wait({over}, timeout=limits.control_delay_seconds)
        if not over.done():
            async with control.listening(folder, self._handle, limits=limits):
                await self._tick()  # what was asked through the database while nobody listened
                await asyncio.wait({over})

    async def _leave(self) -> None:
        if self._shared is not None:
            await self._shared.let_go()
        try:
            await self._journal.release(self._lease)
        except StorageError as error:
            # The database is gone: nobody can be told. The lease runs out by itself, and this process is seen to be dead later.
            self._house.redactor.redact(str(error))

    async def _go(self) -> RunOutcome:
        house, begun = self._house, self._house.clock.monotonic()
        stored = self._journal.load(self._lease.run_id)
        todo = partial(self._todo, stored)
        if await adopt_all(stored.context or {}, self._lease, house.stores, house.providers, house.installation, steps=todo):
            stored = self._journal.load(self._lease.run_id)
        shared, execution, graph = self._prepare(stored)
        recovered = await recover(execution, shared, graph, stored.attempts, self._asked.of(stored.run))
        done = recovered.done
        await self._journal.set_run(self._lease, status="running", notes={STOP_NOTE: None, KEPT_NOTE: None, DURATION_NOTE: None})
        told: dict[str, Json] = {"steps": len(graph.order), "done": len(done)}
        if recovered.again:
            told["again"] = list(recovered.again)
        self._events.emit(RUN_STARTED, None, epoch=self._lease.epoch, task_id=shared.task_id, **told)
        try:
            async with prefetching(execution.plan, done, shared, house.providers, house.default_provider):
                ending = self._ending(execution, await self._scheduler(execution, graph, done).drive())
        except SupersededError:
            raise
        except InfrastructureError as error:
            ending = Ending("failed", kind_of(error), described(error, None))
        return await self._finish(stored, execution, ending, begun)

    def _todo(self, stored: StoredRun) -> Iterator[Step]:
        """The steps of the run's part of its task."""
        plan = self._plan or plan_of(stored, self._house.stores)
        return (plan.steps[step_id] for step_id in plan.graph.part(*part_of(stored.run.options)).order)

    def _prepare(self, stored: StoredRun) -> tuple[Shared, Execution, Graph]:
        plan = self._plan or plan_of(stored, self._house.stores)
        shared = self._share(stored)
        numbers: dict[str, int] = {}
        for row in stored.attempts:
            numbers[row.step_id] = max(row.number, numbers.get(row.step_id, 0))
        execution = Execution(plan, shared, fold_of(stored), numbers=numbers)
        execution.errors.update({row.attempt_id: {**row.error, "kind": row.kind} for row in stored.attempts if row.error})
        self._execution = execution
        return shared, execution, plan.graph.part(*part_of(stored.run.options))

    def _share(self, stored: StoredRun) -> Shared:
        house, run = self._house, stored.run
        metadata = (stored.context or {}).get("metadata") or {}
        self._shared = Shared(
            run_id=run.run_id,
            task_id=run.task_id,
            instance_id=run.instance_id,
            lease=self._lease,
            stores=house.stores,
            sandboxes=house.sandboxes(self._lease, stored, refused=self._tell_refused),
            events=self._events,
            redactor=house.redactor,
            limits=house.limits,
            clock=house.clock,
            quiesce=house.quiesce,
            privileges=house.privileges,
            environments=house.environments,
            agents=house.agents,
            model_settings=house.models,
            state_root=house.installation.state_root,
            context=lambda: self._folded().context,
            overrides={**(metadata.get("user_overrides") or {}), **self._overrides},
        )
        return self._shared

    def _tell_refused(self, sandbox_id: str, refused: Mapping[str, object]) -> None:
        self._events.emit(EGRESS_REFUSED, None, sandbox_id=sandbox_id, **refused)

    def _folded(self) -> Fold:
        return self._execution.fold if self._execution is not None else Fold.of({})

    def _scheduler(self, execution: Execution, graph: Graph, done: set[str]) -> Scheduler:
        rules = {step_id: rule_of(execution.plan, step_id) for step_id in graph.order}
        retries = {step_id: execution.fold.retries_of(step_id) for step_id in graph.order if rules[step_id].retry_from}
        return Scheduler(graph, rules, execution, self.cancellation, done=done, retries=retries)

    def _ending(self, execution: Execution, drive: Drive) -> Ending:
        """A tolerated failure lets the task go on, and still fails the run (as in the reference)."""
        if drive.cancelled:
            reason = self.cancellation.reason or "cancelled"
            return Ending("cancelled", Kind.CANCELLED, {"code": "cancelled", "message": reason, "step_id": None})
        failed = [attempt for attempt in execution.fold.attempts if attempt.failure is not None and not attempt.superseded]
        fatal = drive.fatal.attempt_id if drive.fatal is not None else None
        failed.sort(key=lambda attempt: attempt.attempt_id != fatal)
        if not failed:
            return Ending("completed", Kind.COMPLETED, None)
        error = execution.errors[failed[0].attempt_id]
        shown = {key: value for key, value in error.items() if key not in ("failed_step", "kind")}
        return Ending("failed", Kind(error["kind"]), shown)

    async def _finish(self, stored: StoredRun, execution: Execution, ending: Ending, begun: float) -> RunOutcome:
        seconds = self._house.clock.monotonic() - begun
        scores = scores_at_end(ending.kind, self._todo(stored), execution.fold.scores)
        kept = self._keeps(stored.run.options, ending)
        word = word_of(ending.status, scores)
        safe_error = self._house.redactor.redact(dict(ending.error)) if ending.error else None
        told: dict[str, Json] = {"status": ending.status, "kind": str(ending.kind), "word": word, "scores": scores, "error": safe_error}
        self._events.emit(RUN_FINISHED, None, duration_seconds=seconds, **told)
        places = self._shared.sandboxes.notes() if self._shared else {}
        notes = {"sandboxes": places, KEPT_NOTE: kept or None, DURATION_NOTE: seconds}
        recorded = await self._record(ending, word, scores, safe_error, notes)
        report = None
        if recorded and not kept:
            report = await self._tear_down()
        return RunOutcome(
            run_id=stored.run.run_id,
            instance_id=stored.run.instance_id,
            task_id=stored.run.task_id,
            task_version=stored.run.task_version,
            status=ending.status,
            kind=ending.kind,
            scores=scores,
            duration_seconds=seconds,
            error=safe_error,
            context=execution.fold.context,
            teardown=report,
        )

    async def _record(
        self, ending: Ending, word: str, scores: Mapping[str, float | None], error: Mapping[str, Json] | None, notes: Mapping[str, Json]
    ) -> bool:
        """Whether the ending could be stored. When not, the places stay: a resume goes on in them once there is space again."""
        try:
            await self._journal.set_run(
                self._lease, status=ending.status, kind=str(ending.kind), word=word, scores=scores, error=error, notes=notes
            )
        except StorageError:
            return False
        return True

    def _keeps(self, options: Mapping[str, Json], ending: Ending) -> bool:
        if ending.status == "cancelled":
            return False
        pauses = self._asked.pause_on_failure or bool(options.get("pause_on_failure")) or ending.kind is Kind.STORAGE
        return (ending.status == "failed" and pauses) or self._asked.keep or bool(options.get("keep"))

    async def _tear_down(self) -> TeardownReport:
        if self._shared is None:
            return TeardownReport()
        sandboxes = self._shared.sandboxes
        report = await sandboxes.destroy([row.id for row in sandboxes.rows()], stop=self.cancellation.stop)
        self._events.emit(TEARDOWN, **report.to_json())
        return report

    async def _tick(self) -> None:
        """After each renewal: what other processes left in the database."""
        if self._shared is not None:
            for step_id in list(self._shared.reviews):
                self._shared.look_for_answer(step_id)
        asked_by = self._journal.run(self._lease.run_id).notes.get(STOP_NOTE)
        if asked_by and not self.cancellation.asked:
            self.cancellation.ask(f"cancelled by {asked_by}")

    async def _handle(self, request: Mapping[str, Json]) -> AsyncIterator[Mapping[str, Json]]:
        match request.get("do"):
            case "cancel":
                self.cancellation.ask(str(request.get("reason") or "cancelled"))
                yield {"ok": True, "insisted": self.cancellation.insisted}
            case "review":
                yield await self.decide(str(request["step_id"]), str(request["decision"]), str(request.get("by") or ""))
            case "events":
                async for event in self.events(int(request.get("after") or 0)):
                    yield event.to_json()
            case other:
                raise UsageError(f"a run does not know the request {other!r}", hint="cancel, events, review")

    async def decide(self, step_id: str, decision: str, by: str) -> Mapping[str, Json]:
        """Answers a review that waits in this run."""
        await self._journal.decide(self._lease.run_id, step_id, decision, by)
        if self._shared is not None:
            self._shared.look_for_answer(step_id)
        return {"ok": True}

    async def events(self, after: int) -> AsyncIterator[Event]:
        """Events past `after`: what is stored, then what happens."""
        async with self._events.following() as live:
            await self._journal.flush(self._lease)
            last = after
            while rows := self._journal.events(self._lease.run_id, last):
                for row in rows:
                    last = row.seq
                    yield Event(row.run_id, row.seq, row.at, row.kind, row.step_id, row.payload)
            async for event in live:
                if event.seq > last:
                    yield event


def plan_of(stored: StoredRun, stores: Stores) -> TaskPlan:
    """The plan that a run was stored with, whatever became of its files since."""
    task = stored.task
    document = parse_task(task["steps"], source=task["source"], task_id=task["id"])
    steps, graph, _ = read_steps(document, source=task["source"])
    return TaskPlan(task["id"], task["version"], task["source"], document.steps, steps, graph, stores.artifacts)


def part_of(options: Mapping[str, Json]) -> tuple[int, int | None]:
    """The positions of the first step to run, and of the first not to run."""
    return int(options.get("start_step") or 0), options.get("end_step")


def rule_of(plan: TaskPlan, step_id: str) -> Rule:
    """What the scheduler needs to know of a step."""
    step = plan.steps[step_id]
    retry = step.retry_config
    return Rule(
        tolerated=not step.fail_task_on_error,
        always_run=step.always_run,
        retry_from=retry.retry_from_step_id if retry else None,
        max_retries=retry.max_retries if retry else 0,
    )
