"""Whole commands: start-up, the hello task, many tasks, a large dry run."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measure import AGENT_ENV, Figure, command, home, median_seconds, peak_memory_mib

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
        write_bundle(Path(folder), 100)
        one = median_seconds(lambda: command([AGENT_ENV, "run", folder, "--task", "t0000", "--quiet"], env), repeat=3)
        hundred = median_seconds(lambda: command([AGENT_ENV, "run", folder, "--quiet"], env), repeat=3)
        yield Figure("100 three-step tasks in one run, whole process", hundred * 1000, "ms", None, hundred / bare)
        yield Figure("  of that, beyond one task's run", (hundred - one) * 1000, "ms", 1500, (hundred - one) / bare)
        few = peak_memory_mib([AGENT_ENV, "run", folder, "--task", "t0000", "--quiet"], env)
        many = peak_memory_mib([AGENT_ENV, "run", folder, "--concurrency", "50", "--quiet"], env)
        yield Figure("memory of each further concurrent run", (many - few) / 49, "MiB", 1)


def _dry_run(bare: float) -> Iterator[Figure]:
    with home() as env, tempfile.TemporaryDirectory(dir=env["HOME"]) as folder:
        write_bundle(Path(folder), 3000)
        seconds = median_seconds(lambda: command([AGENT_ENV, "run", folder, "--dry-run", "--quiet"], env), repeat=3)
        yield Figure("dry run of 3000 tasks", seconds * 1000, "ms", 1500, seconds / bare)
