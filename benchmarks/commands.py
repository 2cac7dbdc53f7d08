"""Whole commands: start-up, the hello task, many tasks, a large dry run."""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from agent_env.bundles.work import default_concurrency
from agent_env.defaults import DEFAULT_LIMITS
from agent_env.ids import new_sandbox_id
from agent_env.places import Upload
from agent_env.sandboxes.contract import SandboxSpec
from agent_env.sandboxes.registry import provider
from benchmarks.measure import AGENT_ENV, Figure, command, home, median_seconds, peak_memory_mib

TASKS = 100
STEPS = [
    {"id": "box", "type": "deploy_sandbox", "sandbox_name": "box", "sandbox_mode": "vm", "sandbox_type": "local"},
    {"id": "load", "type": "load_artifact", "sandbox_name": "box", "artifact_id": "inputs", "destination_path": "/app"},
    {
        "id": "check",
        "type": "verify_sandbox",
        "sandbox_name": "box",
        "verifier_id": "check",
        "criteria": [{"type": "probe_file_exists", "criterion": "there", "paths": ["one.txt"]}],
    },
]


def figures(bare: float) -> Iterator[Figure]:
    """Measures them all, each in a state of its own."""
    with home() as env:
        yield _ratio("agent-env --version", [AGENT_ENV, "--version"], env, bare, promise=50)
        yield _ratio("agent-env --help", [AGENT_ENV, "--help"], env, bare, promise=100)
        yield _ratio("run hello, whole process, isolated", [AGENT_ENV, "run", "hello", "--quiet"], env, bare, promise=450)
        yield Figure("memory of run hello", peak_memory_mib([AGENT_ENV, "run", "hello", "--quiet"], env), "MiB", promise=80)
    yield from _many_tasks(bare)
    yield from _dry_run(bare)


def _ratio(what: str, argv: list[str], env: dict[str, str], bare: float, *, promise: float) -> Figure:
    seconds = median_seconds(lambda: command(argv, env), repeat=11)
    return Figure(what, seconds * 1000, "ms", promise, seconds / bare)


def write_bundle(root: Path, tasks: int) -> None:
    """A bundle of equal three-step tasks."""
    (root / "artifacts/inputs").mkdir(parents=True)
    (root / "artifacts/inputs/one.txt").write_text("1\n")
    (root / "artifacts/inputs/two.txt").write_text("2\n")
    (root / "tasks").mkdir()
    for number in range(tasks):
        (root / f"tasks/t{number:04}.json").write_text(json.dumps(STEPS))


def _many_tasks(bare: float) -> Iterator[Figure]:
    with home() as env, tempfile.TemporaryDirectory(dir=env["HOME"]) as folder:
        write_bundle(Path(folder), TASKS)
        one = median_seconds(lambda: command([AGENT_ENV, "run", folder, "--task", "t0000", "--quiet"], env), repeat=3)
        hundred = median_seconds(lambda: command([AGENT_ENV, "run", folder, "--quiet"], env), repeat=3)
        yield Figure(f"{TASKS} three-step tasks in one run, whole process", hundred * 1000, "ms", None, hundred / bare)
        own = statistics.median(asyncio.run(_own_work(Path(folder), TASKS)) for _ in range(3))
        yield Figure("  their own work, with nothing around it", own * 1000, "ms", None, own / bare)
        yield Figure("  beyond their own work", (hundred - own) * 1000, "ms", 1500, (hundred - own) / bare)
        yield Figure("  beyond one task's run", (hundred - one) * 1000, "ms", None, (hundred - one) / bare)
        few = peak_memory_mib([AGENT_ENV, "run", folder, "--task", "t0000", "--quiet"], env)
        many = peak_memory_mib([AGENT_ENV, "run", folder, "--concurrency", "50", "--quiet"], env)
        yield Figure("memory of each further concurrent run", (many - few) / 49, "MiB", 1)


async def _own_work(folder: Path, tasks: int) -> float:
    """Seconds that the tasks' places take by themselves: made, given their files, looked at, removed; no document, engine or journal."""
    local = provider("local", state_root=folder / "own", limits=DEFAULT_LIMITS)
    turns = asyncio.Semaphore(default_concurrency(DEFAULT_LIMITS))
    inputs = folder / "artifacts/inputs"

    async def one() -> None:
        spec = SandboxSpec(sandbox_id=new_sandbox_id("local"), token="benchmark", labels={"agentenv.home": "benchmark"})
        async with turns:
            sandbox = await local.create(spec)
            place = await sandbox.machine()
            try:
                await place.put([Upload(PurePosixPath("/app", each.name), each) for each in sorted(inputs.iterdir())])
                await place.stat([PurePosixPath("/app/one.txt")])
            finally:
                await place.aclose()
                await sandbox.aclose()
                await local.destroy(spec.sandbox_id)

    started = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(tasks)))
    seconds = time.perf_counter() - started
    await local.aclose()
    return seconds


def _dry_run(bare: float) -> Iterator[Figure]:
    with home() as env, tempfile.TemporaryDirectory(dir=env["HOME"]) as folder:
        write_bundle(Path(folder), 3000)
        seconds = median_seconds(lambda: command([AGENT_ENV, "run", folder, "--dry-run", "--quiet"], env), repeat=3)
        yield Figure("dry run of 3000 tasks", seconds * 1000, "ms", 1500, seconds / bare)
