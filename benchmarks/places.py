"""Places: making one, and running a command in a live one."""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from agent_env.defaults import DEFAULT_LIMITS
from agent_env.ids import new_sandbox_id
from agent_env.places import Command, Place
from agent_env.sandboxes.contract import SandboxSpec
from agent_env.sandboxes.registry import provider
from benchmarks.measure import Figure

PLACES = 30
COMMANDS = 500


def figures(bare: float) -> Iterator[Figure]:
    """Medians and tails of both."""
    with tempfile.TemporaryDirectory(prefix="agent-env-bench-") as folder:
        Path(folder).chmod(0o711)
        os.environ["AGENT_ENV_LOCAL_SANDBOX_DIR"] = f"{folder}/sandboxes"
        made, ran, together = asyncio.run(_measure(Path(folder) / "state"))
    yield Figure("a fresh machine place", statistics.median(made) * 1000, "ms", 10, statistics.median(made) / bare)
    yield Figure("a command in a live place", statistics.median(ran) * 1000, "ms", 1, statistics.median(ran) / bare)
    yield Figure("  its 99th percentile", sorted(ran)[int(len(ran) * 0.99)] * 1000, "ms")
    yield Figure("200 commands at once in one place", together * 1000, "ms")


async def _measure(state: Path) -> tuple[list[float], list[float], float]:
    made: list[float] = []
    ran: list[float] = []
    local = provider("local", state_root=state, limits=DEFAULT_LIMITS)
    await local.capabilities()
    together = 0.0
    for turn in range(PLACES):
        spec = SandboxSpec(sandbox_id=new_sandbox_id("local"), token="benchmark", labels={"agentenv.home": "benchmark"})
        started = time.perf_counter()
        sandbox = await local.create(spec)
        place = await sandbox.machine()
        made.append(time.perf_counter() - started)
        try:
            if turn == 0:
                ran, together = await _commands(place)
        finally:
            await place.aclose()
            await sandbox.aclose()
            await local.destroy(spec.sandbox_id)
    await local.aclose()
    return made, ran, together


async def _commands(place: Place) -> tuple[list[float], float]:
    ran = []
    for _ in range(COMMANDS):
        started = time.perf_counter()
        done = await place.run(Command(["/bin/true"]))
        ran.append(time.perf_counter() - started)
        if not done.ok:
            raise SystemExit(f"/bin/true ended as {done}")
    started = time.perf_counter()
    await asyncio.gather(*(place.run(Command(["/bin/true"])) for _ in range(200)))
    return ran[COMMANDS // 10 :], time.perf_counter() - started
