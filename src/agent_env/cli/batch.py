"""Several runs of stored tasks at once: what `task run`, `task run-batch` and `run TASK` have in common."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_env_sdk.wire.encoding import json_bytes

from agent_env.bundles.verdict import Result, Verdict, Wanted
from agent_env.cli.boundary import CutShortError, InterruptionError
from agent_env.cli.files import RESULTS, check_writable, put_aside, write_private
from agent_env.cli.output import error_line, line, note, write_json
from agent_env.cli.progress import Watcher, watching
from agent_env.cli.results import show
from agent_env.cli.session import asked_configuration, opened_engine, opened_stores, run_async, stores_of
from agent_env.diagnostics import Diagnostics
from agent_env.errors import AgentEnvError, UsageError
from agent_env.wording import counted

if TYPE_CHECKING:
    from agent_env.config import Config
    from agent_env.engine import Engine, RunOptions, RunOutcome, TaskPlan
    from agent_env.engine.options import Stores
    from agent_env.stores import RunRow


@dataclass(frozen=True, slots=True)
class Job:
    """One run that is wanted."""

    name: str
    """How its user calls the task."""
    plan: TaskPlan
    options: RunOptions
    label: str = ""
    """What tells it from the other runs of its task."""
    stem: str | None = None
    """Start of its context file's name; None takes the task's id."""
    before: RunRow | None = None
    """The run of an earlier call that this is to go on with."""
    redeploy: bool = False
    """Going on makes places that were lost again."""

    @property
    def wanted(self) -> Wanted:
        """The run as its user asked for it."""
        return Wanted(self.name, self.options.attempt_index + 1, self.label or self.name)

    @property
    def ended(self) -> bool:
        """The earlier run has ended in a way that says something about the task: it is not done again."""
        from agent_env.documents.scoring import counts

        return self.before is not None and counts(self.before)

    @property
    def to_run(self) -> TaskPlan:
        """As far as the steps that this run does are concerned: what others would need may be missing."""
        return self.plan.between(self.options.start_step, self.options.end_step)


Prepare = Callable[["Stores", Diagnostics], Sequence[Job]]
"""Gives the runs that are wanted; those of a task with something wrong, which goes to the findings, are asked about and not run."""


@dataclass(slots=True)
class Agenda:
    """What a command is to do and what came of it, so that one which is cut short can say both."""

    group_id: str | None = None
    """What its runs have in common."""
    not_started: dict[int, Wanted] = field(default_factory=dict)
    """What has not begun yet, by any key."""
    begun: dict[str, Wanted] = field(default_factory=dict)
    """What has, by run."""
    results: list[Result] = field(default_factory=list)
    """Of the runs that ended."""
    contexts: dict[str, str] = field(default_factory=dict)
    """Run → name of the file that its context was written to."""
    kept: set[str] = field(default_factory=set)
    """Runs that ended and whose sandboxes were left up, as was asked for."""

    def begin(self, key: int, run_id: str) -> None:
        """One of them has begun."""
        if (wanted := self.not_started.pop(key, None)) is not None:
            self.begun[run_id] = wanted

    def end(self, outcome: RunOutcome) -> None:
        """One has ended just now."""
        if outcome.teardown is None and outcome.status != "cancelled":
            self.kept.add(outcome.run_id)


@dataclass(frozen=True, slots=True)
class Presentation:
    """How results are shown."""

    as_json: bool
    quiet: bool
    output: Path | None = None
    """A file (`….json`) for the results, or a folder for them and the runs' contexts."""
    fail_under: float | None = None

    def __post_init__(self) -> None:
        """Finds out before anything runs whether the output can be written.

        Raises:
            UsageError: It can't; names the file and the reason.
        """
        if self.output is not None:
            check_writable(self.results_file)

    @property
    def results_file(self) -> Path:
        """Where the results go."""
        return Path(self.output or ".") if self.contexts is None else self.contexts / RESULTS

    @property
    def contexts(self) -> Path | None:
        """The folder for contexts, if there is to be one."""
        return self.output if self.output is not None and self.output.suffix != ".json" else None


def run_jobs(
    prepare: Prepare, concurrency: int | None, how: Presentation | None, group_id: str, wrong: Diagnostics, *, again: str | None = None
) -> int:
    """Runs them all, shows what became of them, and returns the exit code.

    Args:
        prepare: Reads and plans with the engine's stores; what is wrong is told before anything runs, with what can't be done here.
        concurrency: How many at once; None is the configured number, else one derived from cores and memory.
        how: What is shown and written; None where something is wrong with it.
        group_id: What the jobs have in common, unless they go on with another group.
        wrong: What is wrong with the options.
        again: What goes on with all of them, where they are cut short; None is a resume of each run.

    Raises:
        InterruptionError: By a signal, after what is known was shown.
        CutShortError: By an error, after what is known was shown.
    """
    from agent_env.bundles.work import default_concurrency

    config = asked_configuration(wrong)
    if wrong:
        _look_for_more(prepare, config, wrong)
    assert how is not None
    at_once = concurrency or config.run.concurrency or default_concurrency(config.limits)
    agenda = Agenda(group_id)
    with watching(quiet=how.quiet or how.as_json) as watcher:
        cut = cut_short_by(lambda: _run_all(prepare, at_once, how, watcher, agenda))
    return conclude(agenda, watcher, how, cut, again=again)


def _look_for_more(prepare: Prepare, config: Config, wrong: Diagnostics) -> None:
    """Raises what is wrong with the configuration together with what is wrong with the tasks."""
    from agent_env.bundles.named_agents import needs_of
    from agent_env.cli.preflight import refuse_unable

    with opened_stores(config) as memory:
        stores = stores_of(memory, config)
        for job in prepare(stores, wrong):
            options, needs = job.options, needs_of((), stores)
            plans, replayed = {job.plan.source: job.to_run}, options.replay is not None
            wrong.of(partial(refuse_unable, config, plans, options.overrides, needs, replayed=replayed))
    wrong.tell()


def cut_short_by(work: Callable[[], Coroutine[object, object, object]]) -> InterruptionError | AgentEnvError | None:
    """Runs `work`; an interruption or an error is given back, so that what is known can be shown first."""
    try:
        run_async(work)
    except (InterruptionError, AgentEnvError) as error:
        return error
    return None


def conclude(
    agenda: Agenda,
    watcher: Watcher,
    how: Presentation,
    cut: InterruptionError | AgentEnvError | None,
    said: Sequence[str] = (),
    *,
    again: str | None = None,
) -> int:
    """Shows and writes everything that is known, and what else there is to say, then says how it ended.

    Args:
        agenda: What the command was to do, and what came of it.
        watcher: Knows of those runs that began and have not ended.
        how: What is shown and written.
        cut: What cut the command short.
        said: What else there is to say.
        again: What goes on with all of it; None is a resume of each run.
    """
    results = [replace(result, context=agenda.contexts.get(result.run_id)) for result in with_unfinished(agenda, watcher)]
    verdict = Verdict(results, how.fail_under, agenda.group_id, tuple(agenda.not_started.values()))
    failure = cut if isinstance(cut, AgentEnvError) else None
    if cut is not None and not (agenda.results if failure else verdict.results):
        raise cut
    if not how.as_json:
        removed = {run.run_id for run in watcher.runs.values() if run.left and not run.left.get("failed") and not run.left.get("left")}
        show(verdict, quiet=how.quiet, said=said if cut is None else [*said, *_going_on(verdict, removed, again)])
    elif failure is None:
        write_json(verdict.to_json())
    if not how.as_json:
        for run_id in (result.run_id for result in verdict.results if result.run_id in agenda.kept):
            note(f"kept: {run_id}  (agent-env shell {run_id} · agent-env runs teardown {run_id})")
    written = how.output is None or _write(verdict, how)
    for run in watcher.runs.values():
        for name, why in (*run.left.get("failed", {}).items(), *((name, "the teardown was stopped") for name in run.left.get("left", ()))):
            note(f"left: sandbox {name} of run {run.run_id}: {why}; agent-env runs teardown {run.run_id}")
    if failure is not None:
        raise CutShortError(failure, verdict.to_json())
    if isinstance(cut, InterruptionError):
        cut.shown = True
        raise cut
    return 0 if verdict.ok and written else 1


def _going_on(verdict: Verdict, removed: Collection[str], again: str | None) -> Iterator[str]:
    """How a command that was cut short is gone on with, what that keeps and what it does again. Of `removed` runs no sandbox is left."""
    cancelled = [result.run_id for result in verdict.results if result.status == "cancelled"]
    if again is not None:
        yield f"{again} goes on; runs that ended are kept"
    if cancelled:
        one = f"agent-env resume {cancelled[0] if len(cancelled) == 1 else 'RUN'}"
        yield f"{one} goes on with {'it' if len(cancelled) == 1 else 'one of them'}" + (" alone" if again else "")
        gone = sum(run_id in removed for run_id in cancelled)
        whose = "a cancelled run's sandboxes" if gone == len(cancelled) else f"the sandboxes of {counted(gone, 'cancelled run')}"
        if gone:
            yield f"{whose} were removed: what was done in them is done again in new ones, other finished steps are kept"


def _shown(value: Any) -> bytes:
    """JSON for a file that people read. Half a character, which an answer may hold, stays the escape that it came as."""
    return json_bytes(value, indent=2) + b"\n"


def _write(verdict: Verdict, how: Presentation) -> bool:
    """Whether the results could be written. They are shown already, so what hindered is told beside them."""
    try:
        aside = put_aside(how.contexts, verdict.group_id) if how.contexts is not None else None
        write_private(how.results_file, _shown(verdict.to_json()))
    except UsageError as error:
        error_line(f"error: {error.message}")
        return False
    if not how.quiet and not how.as_json:
        line(f"written: {how.output}" + (f" (what an earlier call had written there is in {aside})" if aside is not None else ""))
    return True


def with_unfinished(agenda: Agenda, watcher: Watcher) -> list[Result]:
    """The results, and those runs of which an interrupted command knows only events."""
    known = {result.run_id for result in agenda.results}
    rest = []
    for run in watcher.runs.values():
        if run.run_id in known:
            continue
        ended = run.ended or {}
        wanted = agenda.begun.get(run.run_id, Wanted(run.task))
        status = str(ended.get("status") or "cancelled")
        rest.append(
            Result(
                wanted.task,
                run.run_id,
                status,
                str(ended.get("word") or status),
                ended.get("scores") or {},
                ended.get("duration_seconds"),
                ended.get("error"),
                str(ended.get("kind") or status),
                label=wanted.label,
            )
        )
    return [*agenda.results, *rest]


def context_file(folder: Path, stem: str, outcome: RunOutcome) -> Path:
    """Writes a run's context, without secrets, as `<stem>_<8 hex>.json`.

    A run has one such file, also when a command that goes on with an earlier one tells its outcome again: whoever reads the folder counts
    nothing twice. The file of another run is never overwritten.
    """
    from agent_env.documents.context import safe_context
    from agent_env.ids import fs_safe

    for number in count():
        digits = hashlib.sha256(f"{outcome.run_id} {number}".encode()).hexdigest()[:8]
        path = folder / f"{fs_safe(stem)}_{digits}.json"
        if not path.exists() or _instance(path) == outcome.context.get("instance_id"):
            break
    write_private(path, _shown(safe_context(outcome.context)))
    return path


def _instance(path: Path) -> object:
    """Whose context a file is; None where it is no context."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return found.get("instance_id") if isinstance(found, dict) else None


async def _run_all(
    prepare: Prepare,
    concurrency: int,
    how: Presentation,
    watcher: Watcher,
    agenda: Agenda,
) -> None:
    import asyncio

    from agent_env.bundles.named_agents import needs_of
    from agent_env.waiting import together

    async with opened_engine() as engine:
        found = Diagnostics()
        jobs = prepare(engine.stores, found)
        needs = needs_of((), engine.stores) if found else None  # the agents of sound tasks are stored by now
        for overrides in {id(job.options.overrides): job.options.overrides for job in jobs}.values():
            of_them = {job.plan.source: job.to_run for job in jobs if job.options.overrides is overrides}
            replayed = all(job.options.replay for job in jobs)
            found.of((await engine.preflight(of_them, overrides, needs=needs, replayed=replayed)).refuse)
        found.tell()
        agenda.group_id = next((job.options.group_id for job in jobs), None) or agenda.group_id
        agenda.not_started = {number: job.wanted for number, job in enumerate(jobs)}
        watcher.total = len(jobs)
        slots = asyncio.Semaphore(concurrency)
        finished: dict[int, Result] = {}

        async def one(number: int, job: Job) -> None:
            async with slots:
                outcome = await _brought_to_its_end(job, engine, watcher, partial(agenda.begin, number))
                if not job.ended:
                    agenda.end(outcome)
                finished[number] = Result.of(job.name, outcome, job.label)
                if how.contexts is not None:
                    path = await asyncio.to_thread(context_file, how.contexts, job.stem or job.plan.task_id, outcome)
                    agenda.contexts[outcome.run_id] = path.name

        try:
            await together([one(number, job) for number, job in enumerate(jobs)])
        finally:
            agenda.results += [finished[number] for number in sorted(finished)]


async def _brought_to_its_end(job: Job, engine: Engine, watcher: Watcher, begun: Callable[[str], object]) -> RunOutcome:
    """Runs it, or goes on with an earlier run of it, or takes that as it ended."""
    from agent_env.engine.outcome import not_run

    before = job.before
    run_id = before.run_id if before is not None else await engine.submit(job.plan, job.options)
    begun(run_id)
    if job.ended:
        return engine.outcome(run_id)
    watcher.begin(run_id, job.label or job.name)
    if before is None:
        return await engine.execute(run_id, observer=watcher)
    options = job.options
    try:
        return await engine.resume(
            run_id,
            redeploy=job.redeploy,
            keep=options.keep,
            pause_on_failure=options.pause_on_failure,
            observer=watcher,
            overrides=options.overrides or None,
        )
    except AgentEnvError as error:
        return not_run(run_id, job.plan.task_id, job.plan.version, error)
