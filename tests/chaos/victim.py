"""What a process that is going to be killed does, and how the last one looks whether everything is as it must be.

Both run in forked children, so that the killer itself never opens a database or starts a thread.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent_env.config import Config
from agent_env.defaults import DEFAULT_LIMITS
from agent_env.documents.task import parse_task
from agent_env.engine import Engine, RunOptions, plan_task
from agent_env.engine.installation import HOME_LABEL
from agent_env.engine.opening import open_engine
from agent_env.errors import NotFoundError, ResumeRefusedError
from agent_env.stores.records import OPEN_STATES
from tests.chaos.steps import KINDS, RESULTS, SCORES, task

RUN = "run-chaos0000001"


def config(root: Path, url: str) -> Config:
    limits = replace(DEFAULT_LIMITS, lease_renew_seconds=0.05)
    impls = [f"{kind.__module__}:{kind.__qualname__}" for kind in KINDS]
    return Config(state_root=root / "state", database_url=url, limits=limits, values={"task_steps.impls": impls})


async def live(root: Path, url: str) -> None:
    """Begins the run, or goes on with it wherever it was cut; decides as a person would who looks at the ledger."""
    async with open_engine(config(root, url)) as engine:
        try:
            engine.stores.journal.run(RUN)
        except NotFoundError:
            plan = plan_task(parse_task(task(root), source="chaos.json", task_id="chaos"), artifacts=engine.stores.artifacts)
            await engine.submit(plan, RunOptions(run_id=RUN))
        try:
            outcome = await engine.resume(RUN)
        except ResumeRefusedError:
            paid = (root / "ledger").exists()
            outcome = await engine.resume(RUN, choices={"pay": "done" if paid else "repeat"})
        if outcome.status != "completed":
            raise AssertionError(f"the run ended as {outcome.status}: {outcome.error}")


async def judge(root: Path, url: str) -> dict[str, Any]:
    """Everything that must hold in the end; what does not is named."""
    wrong: list[str] = []
    async with open_engine(config(root, url)) as engine:
        outcome = engine.outcome(RUN)
        results = dict(outcome.context["metadata"].get("script_results") or {})
        decided = {"pay": RESULTS["pay"], **results}
        _check(wrong, "status", outcome.status, "completed")
        _check(wrong, "scores", dict(outcome.scores), SCORES)
        _check(wrong, "results", decided, RESULTS)
        _check(wrong, "paid", (root / "ledger").read_text().count(RUN), 1)
        _check(wrong, "sent", len(list((root / "outbox").iterdir())), 1)
        _attempts(engine, wrong)
        await engine.teardown(RUN)
        report = await engine.gc(include_kept=True)
        _check(wrong, "collected", report.sandboxes.clean, True)
        _check(wrong, "open rows", [row.id for row in engine.stores.journal.resources(state=OPEN_STATES)], [])
        _check(
            wrong,
            "sandboxes",
            [info.sandbox_id async for info in engine._provider("local").list({HOME_LABEL: engine.installation.home})],
            [],
        )
    _check(wrong, "run folders", [path.name for path in (root / "state" / "runs").glob("*")], [])
    _check(wrong, "processes", processes_of(root), [])
    return {"wrong": wrong}


def _attempts(engine: Engine, wrong: list[str]) -> None:
    """Finished work is never done again: of every step one attempt was completed, and none began after it."""
    rows = engine.stores.journal.load(RUN).attempts
    for step in ("box", "work", "send", "pay", "check", "free"):
        own = sorted((row for row in rows if row.step_id == step), key=lambda row: row.number)
        _check(wrong, f"{step} completed", [row.state for row in own].count("completed"), 1)
        _check(wrong, f"{step} ended with", own[-1].state, "completed")


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
