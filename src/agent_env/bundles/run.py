"""Running a bundle: every selected task, attempt and seed through one engine, some at once, told as it happens."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from agent_env.bundles.calls import Call, Earlier, earlier_call
from agent_env.bundles.locks import bundle_locks
from agent_env.bundles.materialising import WriteStores, Written, materialise
from agent_env.bundles.plan import plan_folder
from agent_env.bundles.planned import BundlePlan, PlannedEval
from agent_env.bundles.sources import source_of
from agent_env.bundles.verdict import Result, Verdict
from agent_env.bundles.work import WorkItem, default_concurrency, plan_work
from agent_env.diagnostics import Diagnostics
from agent_env.documents.scoring import counts
from agent_env.documents.updates import Json
from agent_env.engine.events import Event
from agent_env.engine.options import RunOptions
from agent_env.engine.outcome import RunOutcome, not_run
from agent_env.errors import AgentEnvError
from agent_env.ids import new_group_id, new_run_id
from agent_env.waiting import together

if TYPE_CHECKING:
    from agent_env.config import Config
    from agent_env.engine import Engine
    from agent_env.stores import Journal, RunRow


@dataclass(frozen=True)
class BundleRunRequest:
    """What is asked for. Nothing in it depends on the current folder once the bundle was found."""

    folder: Path | str
    id_root: str | None = None
    """For an installed bundle."""
    name: str | None = None
    tasks: Sequence[str] = ()
    evals: Sequence[str] = ()
    attempts: int = 1
    """Runs of each task and seed."""
    seeds: Sequence[Mapping[str, Json]] = ()
    """Placeholder values; a run for each."""
    seeds_file: Path | None = None
    """The same from a CSV file, which is checked against the tasks' placeholders."""
    seed: int | None = None
    """Fills `<seed>`, differently in each run, the same in each call."""
    concurrency: int | None = None
    """Runs at once; None is the configured number, else one derived from cores and memory."""
    keep: bool = False
    pause_on_failure: bool = False
    resume: bool = False
    """Go on with the newest unfinished call for exactly the same work, or else begin a new one. A run that ended, in a way that says
    something about the task, is not done again."""
    redeploy: bool = False
    """With `resume`: make places that were lost again; see `Engine.resume`."""
    model: str | None = None
    overrides: Mapping[str, Json] = field(default_factory=dict)
    """`user_overrides` of every run."""
    models: Mapping[str, Json] = field(default_factory=dict)
    """`record`, `replay` and `model_budget` of every run; see `RunOptions`."""
    metadata: Mapping[str, Json] = field(default_factory=dict)
    strict: bool = False


@dataclass(frozen=True)
class TaskRun:
    """One run of a call."""

    item: WorkItem
    outcome: RunOutcome
    reused: bool = False
    """It had ended in an earlier call, and was not done again."""

    @property
    def task(self) -> str:
        """`tasks/hello.json`"""
        return self.item.task.name

    @property
    def result(self) -> Result:
        """The run under its task's name."""
        return Result.of(self.task, self.outcome, self.item.label)


@dataclass(frozen=True)
class BundleRun:
    """A call that came to its end."""

    group_id: str
    written: Written
    runs: tuple[TaskRun, ...]
    """In the order of the plan, whatever order they ended in."""

    @property
    def plan(self) -> BundlePlan:
        """What was planned."""
        return self.written.plan

    def verdict(self, fail_under: float | None = None) -> Verdict:
        """What the runs come to, with a mark for their mean score or without."""
        return Verdict([run.result for run in self.runs], fail_under, self.group_id)

    def of_eval(self, evaluation: PlannedEval) -> list[TaskRun]:
        """The runs of an eval's tasks."""
        wanted = {id(self.plan.tasks[index]) for index in evaluation.tasks}
        return [run for run in self.runs if id(run.item.task) in wanted]


class BundleObserver(Protocol):
    """Whoever watches a call. Everything is called on the event loop and must not block."""

    def on_written(self, written: Written) -> None:
        """The documents are there."""
        ...

    def on_earlier(self, earlier: Earlier) -> None:
        """What there is to go on with; only asked where the call is to go on."""
        ...

    def on_work(self, items: Sequence[WorkItem], concurrency: int, group_id: str) -> None:
        """What will be run, how many at once, and what the runs have in common."""
        ...

    def on_started(self, item: WorkItem, run_id: str) -> None:
        """A run begins, or goes on."""
        ...

    def on_event(self, event: Event) -> None:
        """Something happened in a run."""
        ...

    def on_outcome(self, run: TaskRun) -> None:
        """A run has ended."""
        ...

    def on_wait(self, bundle_id: str) -> None:
        """Another process is writing the same bundle."""
        ...


@dataclass(frozen=True)
class DryRun:
    """What a call would do."""

    written: Written
    runs: int
    """How many runs it would have."""
    earlier: Earlier | None = None
    """What it would go on with; None where it is not to go on."""

    @property
    def plan(self) -> BundlePlan:
        """What was planned."""
        return self.written.plan


def plan_request(request: BundleRunRequest, stores: WriteStores) -> BundlePlan:
    """Reads, resolves and plans what is asked for. Raises `ProblemsError` with everything wrong."""
    return plan_folder(
        request.folder,
        stores,
        tasks=request.tasks,
        evals=request.evals,
        id_root=request.id_root,
        name=request.name,
        overrides=request.overrides,
        strict=request.strict,
        seeds=request.seeds_file,
        numbered=request.seed is not None,
        given=frozenset(name for seed in request.seeds for name in seed),
    )


def seeds_of(request: BundleRunRequest, plan: BundlePlan) -> Sequence[Mapping[str, Json]]:
    """The placeholder values of a call, each a run of each task; empty without any."""
    return [*request.seeds, *(plan.seeds.rows if plan.seeds is not None else ())]


def dry_run(request: BundleRunRequest, stores: WriteStores, journal: Journal | None = None) -> DryRun:
    """Everything that a call would find out before it starts anything. Writes nothing.

    Raises:
        ProblemsError: Everything wrong, in one round.
    """
    return predicted(request, plan_request(request, stores), stores, journal)


def predicted(request: BundleRunRequest, plan: BundlePlan, stores: WriteStores, journal: Journal | None = None) -> DryRun:
    """What a call would do with a plan that is sound. Writes nothing.

    Args:
        request: What is asked for.
        plan: Its plan.
        stores: What is stored of documents.
        journal: The runs, where `request.resume` is to be looked into.
    """
    from agent_env.bundles.named_agents import with_agents

    written = materialise(plan, stores, dry_run=True)
    runs = len(written.plan.tasks) * request.attempts * max(1, len(seeds_of(request, written.plan)))
    if journal is None or not request.resume:
        return DryRun(written, runs)
    named = with_agents([task.plan for task in written.plan.tasks], request.overrides, stores, default_id=None, dry_run=True)
    request = replace(request, overrides=named)
    call = _call_of(request, written, _work(request, written))
    return DryRun(written, runs, earlier_call(journal, call, bundle=written.plan.bundle.id_root))


async def run_bundle(request: BundleRunRequest, engine: Engine, *, config: Config, observer: BundleObserver | None = None) -> BundleRun:
    """Plans, writes and runs.

    Cancelling it cancels every run that is under way; each tears its places down, unless it is cancelled again.

    Raises:
        NotFoundError: The agent that the request names is not there, and nothing else is wrong; nothing was written or run.
        ProblemsError: Everything wrong with the bundle, and all that can't be done of it here; nothing was written or run.
        StorageError: The stores can't be used.
    """
    from agent_env.bundles.named_agents import needs_of, refuse_unknown

    stores, found = engine.stores, Diagnostics()
    found.of(lambda: refuse_unknown(request.overrides, stores), given="--agent")
    plan = await asyncio.to_thread(found.of, partial(plan_request, request, stores))
    if plan is not None:
        needs, replayed = needs_of(plan.writes, stores), bool(request.models.get("replay"))
        refused = await engine.preflight(plan.plans, request.overrides, needs=needs, replayed=replayed)
        found.of(refused.refuse)
    found.tell()
    assert plan is not None
    on_wait = observer.on_wait if observer else None
    bundles = {write.bundle_id for write in plan.writes}
    async with bundle_locks(config.state_root / "locks", bundles, limits=config.limits, on_wait=on_wait):
        written = await asyncio.to_thread(materialise, plan, stores, pin=partial(_pinned, config))
        overrides = await asyncio.to_thread(_with_agents, written, request, stores, config)
    request = replace(request, overrides=overrides)
    if observer is not None:
        observer.on_written(written)
    items = _work(request, written)
    concurrency = request.concurrency or config.run.concurrency or default_concurrency(config.limits)
    call = _call_of(request, written, items)
    return await _Running(request, engine, written, call, observer).run(items, max(1, concurrency))


def _with_agents(written: Written, request: BundleRunRequest, stores: WriteStores, config: Config) -> Mapping[str, Json]:
    """The request's overrides, once the agents that installed bundles have are written."""
    from agent_env.bundles.named_agents import with_agents

    return with_agents([task.plan for task in written.plan.tasks], request.overrides, stores, default_id=config.default_agent_id)


def _pinned(config: Config, name: str) -> str:
    """An image's name pinned to what its registry has now. In a thread of its own, which has no event loop yet."""
    from agent_env.images import ImageReference
    from agent_env.images.opening import keyring_of
    from agent_env.images.presence import pinned_now

    keyring = keyring_of(config, environ=os.environ)
    return str(asyncio.run(pinned_now(ImageReference.parse(name), keyring, limits=config.limits)))


def _work(request: BundleRunRequest, written: Written) -> list[WorkItem]:
    shared = {**request.overrides, **({"agent_model": request.model} if request.model else {})}
    return plan_work(written, attempts=request.attempts, seeds=seeds_of(request, written.plan), seed=request.seed, overrides=shared)


def _call_of(request: BundleRunRequest, written: Written, items: Sequence[WorkItem]) -> Call:
    return Call(
        keys=tuple(item.key for item in items),
        contents={item.task.name: item.content for item in items},
        seeds=seeds_of(request, written.plan),
        seed=request.seed,
        attempts=request.attempts,
        options={**request.overrides, **request.models, "agent_model": _model(request, written)},
    )


def _model(request: BundleRunRequest, written: Written) -> str | None:
    return request.model or written.plan.bundle.settings.model


class _Running:
    """The runs of one call."""

    def __init__(self, request: BundleRunRequest, engine: Engine, written: Written, call: Call, observer: BundleObserver | None) -> None:
        self._request = request
        self._engine = engine
        self._written = written
        self._observer = observer
        self._group = new_group_id()
        self._before: Mapping[str, RunRow] = {}
        source = source_of(Path(request.folder), request.id_root, request.name)
        self._call, self._said = call, {**call.stored(), "source": source}
        model = _model(request, written)
        self._context = {"agent_model": model} if model else None

    async def run(self, items: Sequence[WorkItem], concurrency: int) -> BundleRun:
        """Brings all of them to their end."""
        if self._request.resume:
            id_root = self._written.plan.bundle.id_root
            found = await asyncio.to_thread(earlier_call, self._engine.stores.journal, self._call, bundle=id_root)
            self._group, self._before = found.group_id or self._group, found.runs
            if self._observer is not None:
                self._observer.on_earlier(found)
        if self._observer is not None:
            self._observer.on_work(items, concurrency, self._group)
        done: dict[int, TaskRun] = {}
        queue = iter(enumerate(items))
        # A second cancellation must reach every run too: it stops the teardown that the first one began.
        await together(self._worker(queue, done) for _ in range(min(concurrency, len(items))))
        return BundleRun(self._group, self._written, tuple(done[index] for index in range(len(items))))

    async def _worker(self, queue: Iterator[tuple[int, WorkItem]], done: dict[int, TaskRun]) -> None:
        for index, item in queue:
            run = await self._one(item)
            done[index] = _light(run)
            if self._observer is not None:
                self._observer.on_outcome(run)

    async def _one(self, item: WorkItem) -> TaskRun:
        before = self._before.get(item.key)
        if before is not None and counts(before):
            return TaskRun(item, self._engine.outcome(before.run_id), reused=True)
        run_id = before.run_id if before is not None else new_run_id()
        if self._observer is not None:
            self._observer.on_started(item, run_id)
        try:
            if before is None:
                await self._engine.submit(item.task.plan, self._options(item, run_id))
                return TaskRun(item, await self._engine.execute(run_id, observer=self._observer))
            return TaskRun(item, await self._continued(before))
        except AgentEnvError as error:
            return TaskRun(item, not_run(run_id, item.task.id, item.task.version, error))

    async def _continued(self, before: RunRow) -> RunOutcome:
        """Goes on with an unfinished run, as `agent-env resume RUN` does."""
        return await self._engine.resume(
            before.run_id,
            redeploy=self._request.redeploy,
            keep=self._request.keep,
            pause_on_failure=self._request.pause_on_failure,
            observer=self._observer,
            overrides=self._request.overrides or None,
        )

    def _options(self, item: WorkItem, run_id: str) -> RunOptions:
        bundle = self._written.plan.bundle
        return RunOptions(
            seed=item.seed,
            metadata=self._request.metadata,
            context=self._context,
            keep=self._request.keep,
            pause_on_failure=self._request.pause_on_failure,
            group_id=self._group,
            attempt_index=item.attempt,
            attempt_count=item.attempts,
            overrides=self._request.overrides,
            bundle_id=bundle.id_root,
            bundle_path=item.task.name,
            work_key=item.key,
            call={**self._said, "content": item.content},
            run_id=run_id,
            **self._request.models,
        )


def _light(run: TaskRun) -> TaskRun:
    """Without the run's whole context, which the database has: a call of thousands of runs must not keep them all in memory."""
    return replace(run, outcome=replace(run.outcome, context={}))
