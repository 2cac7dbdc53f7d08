"""Another process that works on a run: `python -m tests.engine.child STATE_ROOT run|resume|teardown|gc …` prints one JSON object."""

from __future__ import annotations

import asyncio
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent_env.engine import RunOptions
from agent_env.errors import AgentEnvError
from tests.busy import within
from tests.engine.parts import engine_at, marks, planned

PATIENCE_SECONDS = 60.0
ROOT = Path(__file__).resolve().parents[2]


def shown(outcome: Any) -> dict[str, Any]:
    return {"run_id": outcome.run_id, "status": outcome.status, "error": outcome.error, "scores": outcome.scores}


async def work(state: Path, verb: str, argument: str, options: dict[str, Any]) -> dict[str, Any]:
    limits = options.pop("limits", {})
    async with engine_at(state, **limits) as engine:
        match verb:
            case "run":
                steps = json.loads(argument)
                run_id = await engine.submit(planned(engine, steps, preset=options.get("context")), RunOptions(**options))
                return shown(await engine.execute(run_id))
            case "resume":
                return shown(await engine.resume(argument, **options))
            case "teardown":
                return (await engine.teardown(argument)).to_json()
            case "teardown_context":
                return (await engine.teardown_context(json.loads(argument))).to_json()
            case "gc":
                return (await engine.gc(**options)).to_json()
    raise SystemExit(verb)


def main() -> None:
    state, verb, argument, options = sys.argv[1:5]
    try:
        answer = asyncio.run(work(Path(state), verb, argument, json.loads(options)))
    except AgentEnvError as error:
        answer = {"refused": error.code, "message": str(error)}
    print(json.dumps(answer))


def start(state: Path, verb: str, argument: Any, *, cwd: Path | None = None, **options: Any) -> subprocess.Popen[str]:
    text = argument if isinstance(argument, str) else json.dumps(argument)
    command = [sys.executable, "-m", "tests.engine.child", str(state), verb, text, json.dumps(options)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, cwd=cwd or ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finished(process: subprocess.Popen[str]) -> dict[str, Any] | None:
    """What it printed; None when it was killed."""
    out, err = process.communicate(timeout=within(PATIENCE_SECONDS))
    if process.returncode < 0:
        return None
    assert process.returncode == 0, err
    answer: dict[str, Any] = json.loads(out)
    return answer


def until_marked(log: Path, expected: list[str], process: subprocess.Popen[str]) -> None:
    """Waits until the steps of a process that goes on have left these marks."""
    begun = time.monotonic()
    while marks(log) != expected:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() - begun < within(PATIENCE_SECONDS), marks(log)
        select.select([], [], [], 0.01)


def first_ended(processes: Sequence[subprocess.Popen[str]]) -> None:
    """Waits until one of them has ended."""
    begun = time.monotonic()
    while all(process.poll() is None for process in processes):
        assert time.monotonic() - begun < within(PATIENCE_SECONDS), "they go on"
        select.select([], [], [], 0.01)


def child(state: Path, verb: str, argument: Any, *, cwd: Path | None = None, **options: Any) -> dict[str, Any] | None:
    return finished(start(state, verb, argument, cwd=cwd, **options))


if __name__ == "__main__":
    main()
