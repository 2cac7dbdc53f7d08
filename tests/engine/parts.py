"""Small real parts for tests of the engine: step types that leave marks in files, and an engine over a real database.

The step types come in through the registry's plug-in path, as anybody's would.
"""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from agent_env.config import Config
from agent_env.defaults import Limits
from agent_env.documents.task import parse_task
from agent_env.documents.updates import AppendRecord, SetMetadata
from agent_env.engine import Engine, RunOptions, plan_task
from agent_env.engine.opening import open_engine
from agent_env.errors import RunCodeExecutionError, SandboxUnavailableError
from agent_env.places import Command, Deed
from agent_env.steps.contract import OnResume, SandboxRequest, Step, StepResult
from agent_env.steps.registry import configure
from agent_env.steps.targets import SandboxTarget
from agent_env.waiting import poll
from tests.busy import within

LIMITS = Limits(retry_backoff_seconds=0.01, cleanup_seconds=5.0)


@dataclass(frozen=True, slots=True)
class Noted(StepResult):
    made: tuple[Any, ...] = ()
    given: dict[str, float | None] = field(default_factory=dict)

    def updates(self):
        return self.made

    def scores(self):
        return self.given


def appended(path: Path, line: str) -> int:
    """Appends a line; returns how many lines of that step there are now."""
    with path.open("a") as stream:
        stream.write(f"{line}\n")
    return sum(1 for other in path.read_text().splitlines() if other.split()[0] == line.split(maxsplit=1)[0])


async def there(path: Path) -> None:
    """Waits for a file that another process makes."""

    async def seen() -> bool | None:
        return await asyncio.to_thread(path.exists) or None

    await poll(seen, within_seconds=within(60), what=f"that {path} is there")


class Note(Step, type="t_note"):
    """Appends a line to a file, and returns a value, after failing `fails` times."""

    log: str
    value: Any = None
    fails: int = 0
    infra: bool = False
    score: float | None = None
    message: str = "asked to fail"

    def _mark(self, run) -> int:
        return appended(Path(self.log), f"{self.id} {run.attempt_id}")

    async def execute(self, run):
        if self._mark(run) <= self.fails:
            raise (SandboxUnavailableError if self.infra else RunCodeExecutionError)(self.message)
        scores = {} if self.score is None else {self.id: self.score}
        return Noted((SetMetadata(("script_results", self.id), self.value),), scores)


class Die(Note, type="t_die"):
    """Kills its own process in the first attempt, after leaving its mark."""

    async def execute(self, run):
        if self._mark(run) == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return Noted((SetMetadata(("script_results", self.id), run.attempt_number),))


class DieOnceAdopted(Die, type="t_reattach"):
    on_resume: ClassVar[OnResume] = OnResume.REATTACH


class DieOnceRefused(Die, type="t_refuse"):
    on_resume: ClassVar[OnResume] = OnResume.REFUSE


class Hold(Note, type="t_hold"):
    """Waits until a file is there; without one, for ever."""

    until: str | None = None

    async def execute(self, run):
        self._mark(run)
        run.progress("holding")
        if self.until is None:
            await asyncio.Event().wait()
        await there(Path(self.until))
        return Noted()


class Look(Step, type="t_look"):
    """Records what the context holds under `script_results`, and tries to write into it."""

    async def execute(self, run):
        seen = dict(run.metadata.get("script_results") or {})
        refused = False
        try:
            run.context["metadata"]["x"] = 1
        except TypeError:
            refused = True
        return Noted((SetMetadata(("looks", self.id), {"seen": seen, "refused": refused, "overrides": dict(run.overrides())}),))


class Deploy(Step, type="t_deploy"):
    """Deploys a sandbox with the provider that is named, and may fail afterwards."""

    provider: str
    log: str = ""
    fails: int = 0

    async def execute(self, run):
        record = await run.deploy_sandbox(SandboxRequest(self.id, "vm", provider=self.provider))
        if self.log and appended(Path(self.log), f"{self.id} {record.sandbox_id}") <= self.fails:
            raise RunCodeExecutionError("after deploying")
        return Noted((AppendRecord("deployed_sandboxes", record.to_json()),))


class Beat(Step, type="t_beat"):
    """Runs short commands in a sandbox's machine, one after the other, each of which leaves its attempt's id there."""

    on: str
    log: str
    times: int

    async def execute(self, run):
        place = await run.place(SandboxTarget(self.on), Deed.RUN_CODE)
        for number in range(self.times):
            script = f"echo {run.attempt_id} >> /app/beats"
            done = await place.run(Command(["sh", "-c", script], attempt=run.attempt_id))
            if number == 0:
                appended(Path(self.log), f"{self.id} {run.attempt_id} {done.exit_code}")
        done = await place.run(Command(["cat", "/app/beats"], attempt=run.attempt_id))
        return Noted((SetMetadata(("script_results", self.id), done.stdout.decode().split()),))


class Tell(Step, type="t_tell"):
    """Uses a secret, and lets it slip in every way that a step can."""

    secret: str
    fail: bool = False

    async def execute(self, run):
        value = run.secret(self.secret)
        run.progress(f"the key is {value}")
        if self.fail:
            error = RunCodeExecutionError(f"denied for {value}", hint=f"check {value}")
            error.evidence = [SetMetadata(("script_logs", self.id), {"stderr": f"key={value}"})]
            raise error
        return Noted((SetMetadata(("script_results", self.id), {"out": f"key={value}", "token": "harmless"}),))


KINDS = (Note, Die, DieOnceAdopted, DieOnceRefused, Hold, Look, Deploy, Beat, Tell)


IMPLS = [f"{kind.__module__}:{kind.__qualname__}" for kind in KINDS]


def register() -> None:
    """Installs the step types of this file beside the built-in ones, as `[task_steps] impls` does."""
    configure(IMPLS)


def config_at(root: Path, **limits: Any) -> Config:
    root.mkdir(parents=True, exist_ok=True)
    url = os.environ.get("AGENT_ENV_TEST_DATABASE") or f"sqlite:///{root / 'runs.db'}"
    return Config(state_root=root, database_url=url, limits=replace(LIMITS, **limits), values={"task_steps.impls": IMPLS})


@asynccontextmanager
async def engine_at(root: Path, **limits: Any):
    register()
    async with open_engine(config_at(root, **limits)) as engine:
        yield engine


def planned(engine: Engine, steps: list[dict[str, Any]], task_id: str = "demo", **options: Any):
    register()
    return plan_task(
        parse_task(steps, source="demo.json", task_id=task_id), source="demo.json", artifacts=engine.stores.artifacts, **options
    )


async def started(engine: Engine, steps, *, observer=None, **options: Any):
    """Submits and executes; returns the outcome."""
    run_id = await engine.submit(planned(engine, steps), RunOptions(**options))
    return await engine.execute(run_id, observer)


class Watcher:
    """Remembers events, and lets a test wait for one."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self._changed = asyncio.Event()

    def on_event(self, event) -> None:
        self.events.append(event)
        self._changed.set()

    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]

    async def until(self, kind: str, step_id: str | None = None):
        async with asyncio.timeout(60):
            while True:
                for event in self.events:
                    if event.kind == kind and step_id in (None, event.step_id):
                        return event
                self._changed.clear()
                await self._changed.wait()


def marks(log: Path) -> list[str]:
    """Which steps left a mark, in order."""
    return [line.split()[0] for line in log.read_text().splitlines()] if log.exists() else []


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 120))
