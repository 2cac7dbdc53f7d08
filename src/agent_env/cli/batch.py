"""Several runs of stored tasks at once: what `task run`, `task run-batch` and `run TASK` have in common."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agent_env.bundles.verdict import Result, Verdict
from agent_env.cli.boundary import InterruptionError
from agent_env.cli.files import check_writable, write_private
from agent_env.cli.output import error_line, line, note, write_json
from agent_env.cli.progress import Watcher, watching
from agent_env.cli.results import show
from agent_env.cli.session import opened_engine, run_async
from agent_env.errors import ProblemsError, UsageError

if TYPE_CHECKING:
    from agent_env.engine import Engine, RunOptions, RunOutcome, TaskPlan


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
        return Path(self.output or ".") if self.contexts is None else self.contexts / "results.json"

    @property
    def contexts(self) -> Path | None:
        """The folder for contexts, if there is to be one."""
        return self.output if self.output is not None and self.output.suffix != ".json" else None


def run_jobs(prepare: Callable[[Engine], Sequence[Job]], concurrency: int, how: Presentation) -> int:
    """Runs them all, shows what became of them, and returns the exit code.

    Args:
        prepare: Reads and plans with the engine's stores; its errors end the command before anything runs.
        concurrency: How many at once.
        how: What is shown and written.

    Raises:
        InterruptionError: By a signal, after what is known was shown.
    """
    results: list[Result] = []
    with watching(quiet=how.quiet or how.as_json) as watcher:
        interruption = interrupted_by(lambda: _run_all(prepare, concurrency, how, watcher, results))
    return conclude(results, watcher, how, interruption)


def interrupted_by(work: Callable[[], Coroutine[object, object, object]]) -> InterruptionError | None:
    """Runs `work`; an interruption is given back, so that what is known can be shown first."""
    try:
        run_async(work)
    except InterruptionError as error:
        return error
    return None


def conclude(
    results: Sequence[Result], watcher: Watcher, how: Presentation, interruption: InterruptionError | None, said: Sequence[str] = ()
) -> int:
    """Shows and writes everything that is known, and what else there is to say, then says how it ended."""
    verdict = Verdict(with_unfinished(results, watcher), how.fail_under)
    if interruption is not None and not verdict.results:
        raise interruption
    if how.as_json:
        write_json(verdict.to_json())
    else:
        show(verdict, quiet=how.quiet, said=said)
    written = how.output is None or _write(verdict, how)
    for run in watcher.runs.values():
        for name, why in (*run.left.get("failed", {}).items(), *((name, "the teardown was stopped") for name in run.left.get("left", ()))):
            note(f"left: sandbox {name} of run {run.run_id}: {why}; agent-env runs teardown {run.run_id}")
    if interruption is not None:
        interruption.shown = True
        raise interruption
    return 0 if verdict.ok and written else 1


def _write(verdict: Verdict, how: Presentation) -> bool:
    """Whether the results could be written. They are shown already, so what hindered is told beside them."""
    try:
        write_private(how.results_file, json.dumps(verdict.to_json(), ensure_ascii=False, indent=2).encode() + b"\n")
    except UsageError as error:
        error_line(f"error: {error.message}")
        return False
    if not how.quiet and not how.as_json:
        line(f"written: {how.output}")
    return True


def with_unfinished(results: Sequence[Result], watcher: Watcher) -> list[Result]:
    """The results, and those runs of which an interrupted command knows only events."""
    known = {result.run_id for result in results}
    rest = []
    for run in watcher.runs.values():
        if run.run_id in known:
            continue
        ended = run.ended or {}
        status = str(ended.get("status") or "cancelled")
        rest.append(
            Result(
                run.task,
                run.run_id,
                status,
                str(ended.get("word") or status),
                ended.get("scores") or {},
                ended.get("duration_seconds"),
                ended.get("error"),
                counts=status == "completed",
                kind=str(ended.get("kind") or status),
            )
        )
    return [*results, *rest]


def context_file(folder: Path, stem: str, outcome: RunOutcome) -> Path:
    """Writes a run's context, without secrets, as `<stem>_<8 hex>.json`."""
    import secrets

    from agent_env.documents.context import safe_context
    from agent_env.ids import fs_safe

    path = folder / f"{fs_safe(stem)}_{secrets.token_hex(4)}.json"
    write_private(path, json.dumps(safe_context(outcome.context), ensure_ascii=False, indent=2).encode() + b"\n")
    return path


async def _run_all(
    prepare: Callable[[Engine], Sequence[Job]], concurrency: int, how: Presentation, watcher: Watcher, results: list[Result]
) -> None:
    import asyncio

    from agent_env.waiting import together

    async with opened_engine() as engine:
        jobs = prepare(engine)
        for overrides in {id(job.options.overrides): job.options.overrides for job in jobs}.values():
            of_them = {job.plan.source: job.plan for job in jobs if job.options.overrides is overrides}
            if (found := await engine.preflight(of_them, overrides)).problems:
                raise ProblemsError(found.problems)
        slots = asyncio.Semaphore(concurrency)
        finished: dict[int, Result] = {}

        async def one(number: int, job: Job) -> None:
            async with slots:
                run_id = await engine.submit(job.plan, job.options)
                watcher.begin(run_id, job.label or job.name)
                outcome = await engine.execute(run_id, observer=watcher)
                finished[number] = Result.of(job.name, outcome, job.label)
                if how.contexts is not None:
                    await asyncio.to_thread(context_file, how.contexts, job.stem or job.plan.task_id, outcome)

        try:
            await together([one(number, job) for number, job in enumerate(jobs)])
        finally:
            results += [finished[number] for number in sorted(finished)]
