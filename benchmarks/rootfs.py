"""Sandboxes of unpacked images: making one, and running a command in it."""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from agent_env.ids import new_sandbox_id
from agent_env.images import ImageStore
from agent_env.places import Command
from agent_env.sandboxes.contract import SandboxSpec
from agent_env.sandboxes.registry import provider
from benchmarks.measure import Figure
from tests.rootfs.images import busybox

SANDBOXES = 30
COMMANDS = 500


def figures(bare: float) -> Iterator[Figure]:
    """Medians and tails of both; beside them, what unpacking the image cost."""
    if shutil.which("busybox") is None:
        yield Figure("a sandbox of an unpacked image", None, "ms", 50, note="needs busybox-static")
        return
    with tempfile.TemporaryDirectory(prefix="agent-env-bench-") as folder:
        Path(folder).chmod(0o711)
        os.environ["AGENT_ENV_LOCAL_SANDBOX_DIR"] = f"{folder}/sandboxes"
        unpacked, made, ran = asyncio.run(_measure(Path(folder)))
    yield Figure("unpacking its image (BusyBox), once", unpacked * 1000, "ms")
    yield Figure("a sandbox of an unpacked image", statistics.median(made) * 1000, "ms", 50, statistics.median(made) / bare)
    yield Figure("  its 90th percentile", sorted(made)[int(len(made) * 0.9)] * 1000, "ms")
    yield Figure("a command in it", statistics.median(ran) * 1000, "ms", 2, statistics.median(ran) / bare)
    yield Figure("  its 99th percentile", sorted(ran)[int(len(ran) * 0.99)] * 1000, "ms", 6)


async def _measure(folder: Path) -> tuple[float, list[float], list[float]]:
    image, made, ran = busybox(folder), list[float](), list[float]()
    started = time.perf_counter()
    await ImageStore(folder / "state").unpacked(image)
    unpacked = time.perf_counter() - started
    rootfs = provider("rootfs", state_root=folder / "state")
    await rootfs.capabilities()
    for turn in range(SANDBOXES):
        labels = {"agentenv.home": "benchmark"}
        spec = SandboxSpec(new_sandbox_id("rootfs"), mode="container", image=image, token="benchmark", labels=labels)
        started = time.perf_counter()
        sandbox = await rootfs.create(spec)
        made.append(time.perf_counter() - started)
        place = await sandbox.machine()
        for _ in range(COMMANDS if turn == 0 else 0):
            started = time.perf_counter()
            await place.run(Command(["/bin/true"]))
            ran.append(time.perf_counter() - started)
        await sandbox.aclose()
        await rootfs.destroy(spec.sandbox_id)
    await rootfs.aclose()
    return unpacked, made, ran[COMMANDS // 10 :]
