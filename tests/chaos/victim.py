"""What a process that is going to be killed does, and how the last one looks whether everything is as it must be.

Both run in forked children, so that the killer itself never opens a database or starts a thread.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agent_env.config import Config
from agent_env.defaults import DEFAULT_LIMITS
from agent_env.documents.task import parse_task
from agent_env.engine import Engine, RunOptions, plan_task
from agent_env.engine.installation import HOME_LABEL
from agent_env.engine.opening import open_engine
from agent_env.errors import DeadlineError, NotFoundError, ResumeRefusedError
from agent_env.stores.records import OPEN_STATES
from agent_env.waiting import poll
from tests.chaos.ground import Ground
from tests.chaos.steps import SCORES, outbox, task

RUNS = ("run-chaos0000001", "run-chaos0000002")

COLLECTIONS = 10_000
"""More than anybody waits for."""
ENDING_SECONDS = 10.0
"""After which a process of a case that is over counts as left."""


@dataclass(frozen=True)
class Scene:
    """One case: its folder, its database, and where its sandboxes are."""

    root: Path
    url: str
    ground: Ground

    def config(self) -> Config:
        """The configuration of every process of the case."""
        os.environ["AGENT_ENV_LOCAL_SANDBOX_DIR"] = str(self.root / "sandboxes")
        limits = replace(DEFAULT_LIMITS, lease_renew_seconds=0.05, keeper_idle_seconds=0.2)
        impls = [f"{kind.__module__}:{kind.__qualname__}" for kind in self.ground.kinds]
        return Config(state_root=self.root / "state", database_url=self.url, limits=limits, values={"task_steps.impls": impls})

    def prepare(self) -> None:
        """Makes what is there before anything runs."""
        for run_id in RUNS:
            outbox(self.root, run_id).mkdir(parents=True)
        (self.root / "sandboxes").mkdir()
        self.root.chmod(0o711)

    def task(self, run_id: str) -> list[dict[str, Any]]:
        """The document of a run."""
        return task(self.root, run_id, self.ground.box(run_id == RUNS[0]), self.ground.further)


async def live(scene: Scene) -> None:
    """Begins two runs at once, or goes on with them wherever they were cut."""
    async with open_engine(scene.config()) as engine, asyncio.TaskGroup() as group:
        for run_id in RUNS:
            group.create_task(_live(engine, scene, run_id))


async def _live(engine: Engine, scene: Scene, run_id: str) -> None:
    """One run; decides as a person would who looks at the ledger."""
    try:
        engine.stores.journal.run(run_id)
    except NotFoundError:
        plan = plan_task(parse_task(scene.task(run_id), source="chaos.json", task_id="chaos"), artifacts=engine.stores.artifacts)
        await engine.submit(plan, RunOptions(run_id=run_id))
    try:
        outcome = await engine.resume(run_id)
    except ResumeRefusedError:
        outcome = await engine.resume(run_id, choices={"pay": "done" if _paid(scene.root, run_id) else "repeat"})
    if outcome.status != "completed":
        raise AssertionError(f"run {run_id} ended as {outcome.status}: {outcome.error}")


async def collect(scene: Scene) -> None:
    """Collects what nobody owns, again and again, beside the runs: until it is killed, or the runs are gone for long."""
    async with open_engine(scene.config()) as engine:
        for _ in range(COLLECTIONS):
            report = await engine.gc()
            if report.sandboxes.failed or report.unreachable:
                raise AssertionError(f"a collection failed: {report.to_json()}")


async def judge(scene: Scene) -> dict[str, Any]:
    """Everything that must hold in the end; what does not is named."""
    wrong: list[str] = []
    root = scene.root
    async with open_engine(scene.config()) as engine:
        for run_id in RUNS:
            outcome = engine.outcome(run_id)
            results = dict(outcome.context["metadata"].get("script_results") or {})
            decided = {"pay": scene.ground.results["pay"], **results}
            _check(wrong, f"{run_id} status", outcome.status, "completed")
            _check(wrong, f"{run_id} scores", dict(outcome.scores), SCORES)
            _check(wrong, f"{run_id} results", decided, scene.ground.results)
            _check(wrong, f"{run_id} paid", _paid(root, run_id), 1)
            _check(wrong, f"{run_id} sent", len(list(outbox(root, run_id).iterdir())), 1)
            _attempts(engine, run_id, [step["id"] for step in scene.task(run_id)], wrong)
            await engine.teardown(run_id)
        report = await engine.gc(include_kept=True)
        _check(wrong, "collected", report.clean, True)
        _check(wrong, "open rows", [row.id for row in engine.stores.journal.resources(state=OPEN_STATES)], [])
        _check(
            wrong,
            "sandboxes",
            [info.sandbox_id async for info in engine.provider("local").list({HOME_LABEL: engine.installation.home})],
            [],
        )
    _check(wrong, "run folders", [path.name for path in (root / "state" / "runs").glob("*")], [])
    if scene.ground.decoys:
        from tests.chaos.containers import SANDBOX_ID, left_over

        _check(wrong, "left in the engine", await left_over(root), [])
        ours = [path.name for path in (root / "sandboxes").glob("agent-env-*") if SANDBOX_ID not in path.name]
        _check(wrong, "work folders", ours, [])
    _check(wrong, "processes", await _lasting(root), [])
    return {"wrong": wrong}


async def _lasting(root: Path) -> list[str]:
    """Processes of the case that do not end by themselves; a keeper with nothing to carry does."""

    async def none() -> bool | None:
        return True if not processes_of(root) else None

    with suppress(DeadlineError):
        await poll(none, within_seconds=ENDING_SECONDS, what="the end of the case's processes")
    return processes_of(root)


def _paid(root: Path, run_id: str) -> int:
    """How often a run has paid."""
    ledger = root / "ledger"
    return ledger.read_text().count(run_id) if ledger.exists() else 0


def _attempts(engine: Engine, run_id: str, steps: list[str], wrong: list[str]) -> None:
    """Finished work is never done again: of every step one attempt was completed, and none began after it."""
    rows = engine.stores.journal.load(run_id).attempts
    for step in steps:
        own = sorted((row for row in rows if row.step_id == step), key=lambda row: row.number)
        _check(wrong, f"{run_id} {step} completed", [row.state for row in own].count("completed"), 1)
        _check(wrong, f"{run_id} {step} ended with", own[-1].state if own else "never begun", "completed")


def _check(wrong: list[str], what: str, found: Any, expected: Any) -> None:
    if found != expected:
        wrong.append(f"{what}: {found!r} instead of {expected!r}")


def processes_of(root: Path) -> list[str]:
    """Command lines of processes other than this one and its parent that name the folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) not in (os.getpid(), os.getppid()):
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if str(root) in line:
                found.append(line)
    return found
