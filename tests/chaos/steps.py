"""Steps of each `on_resume` kind whose every effect is counted outside of the run, so that doing something twice shows."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from agent_env.documents.updates import SetMetadata, Update
from agent_env.places import Command, Deed
from agent_env.steps.contract import OnResume, Run, Step, StepResult
from agent_env.steps.targets import SandboxTarget

WORK = "for i in 1 2 3 4 5; do echo line >> /app/count.txt; done; echo done > /app/made.txt"


@dataclass(frozen=True, slots=True)
class Made(StepResult):
    name: str
    value: Any

    def updates(self) -> Iterable[Update]:
        return (SetMetadata(("script_results", self.name), self.value),)


class Work(Step, type="c_work"):
    """Repeats: works in the sandbox, from a clean start each time."""

    async def execute(self, run: Run) -> Made:
        place = await run.place(SandboxTarget("box"), Deed.RUN_CODE)
        script = f"rm -f /app/count.txt; {WORK}; wc -l < /app/count.txt"
        done = await place.run(Command(["sh", "-c", script], attempt=run.attempt_id))
        return Made(self.id, {"exit": done.exit_code, "lines": done.stdout.decode().strip()})


class Send(Step, type="c_send"):
    """Reattaches: sends a message under the attempt's id, once, and fetches its answer by that id."""

    on_resume: ClassVar[OnResume] = OnResume.REATTACH
    outbox: str

    async def execute(self, run: Run) -> Made:
        if put_once(Path(self.outbox) / run.attempt_id, "message"):
            run.progress("sent")
        return Made(self.id, "answer")


class Pay(Step, type="c_pay"):
    """Refuses: does something that must not be done twice and that nobody can look up by an id."""

    on_resume: ClassVar[OnResume] = OnResume.REFUSE
    ledger: str

    async def execute(self, run: Run) -> Made:
        append(Path(self.ledger), f"{run.run_id}\n")
        return Made(self.id, "paid")


def put_once(path: Path, text: str) -> bool:
    """Writes a new file; whether it was new."""
    try:
        with path.open("x") as stream:
            stream.write(text)
    except FileExistsError:
        return False
    return True


def append(path: Path, line: str) -> None:
    """One write: it is there or it is not."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, line.encode())
    os.close(descriptor)


def outbox(root: Path, run_id: str) -> Path:
    """Where a run's messages are left."""
    return root / "outbox" / run_id


def task(root: Path, run_id: str, box: dict[str, Any], further: Sequence[dict[str, Any]] = ()) -> list[dict[str, Any]]:
    """Six steps or more: some that repeat beside each other's kinds, a score, and clean-up that always runs."""
    return [
        {"id": "box", "type": "deploy_sandbox", "sandbox_name": "box", **box},
        {"id": "work", "type": "c_work", "depends_on": ["box"]},
        {"id": "send", "type": "c_send", "depends_on": ["box"], "outbox": str(outbox(root, run_id))},
        {"id": "pay", "type": "c_pay", "depends_on": ["send"], "ledger": str(root / "ledger")},
        *further,
        {
            "id": "check",
            "type": "verify_sandbox",
            "sandbox_name": "box",
            "verifier_id": "check",
            "criteria": [{"type": "probe_file_contains", "criterion": "made", "paths": ["made.txt"], "expected": "done"}],
        },
        {"id": "free", "type": "teardown_sandboxes", "sandbox_names": ["box"], "always_run": True},
    ]


RESULTS = {"work": {"exit": 0, "lines": "5"}, "send": "answer", "pay": "paid"}
SCORES = {"check": 1.0}
KINDS = (Work, Send, Pay)
