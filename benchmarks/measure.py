"""Measuring commands and calls: medians, peak memory, and a table."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

AGENT_ENV = str(Path(sys.executable).with_name("agent-env"))


@dataclass(frozen=True)
class Figure:
    """One line of the table."""

    what: str
    value: float | None
    """None where it could not be measured; `note` says why."""
    unit: str
    promise: float | None = None
    """The promised upper bound, in the same unit, on the machine that it was written for."""
    ratio: float | None = None
    """To a bare `python -c pass` of the same run, where it depends on the machine."""
    note: str = ""


def no_engine() -> str | None:
    """Why containers can't be measured here, or None."""
    from agent_env.containers import engine_problem, open_engine
    from agent_env.defaults import DEFAULT_LIMITS
    from agent_env.errors import AgentEnvError

    async def asked() -> str | None:
        try:
            async with open_engine(os.environ, limits=DEFAULT_LIMITS) as engine:
                return await engine_problem(engine)
        except AgentEnvError as error:
            return str(error)

    return asyncio.run(asked())


def left_out(what: str, why: str) -> Figure:
    """A line in place of what can't be measured here."""
    return Figure(what, None, "", note=why)


@contextmanager
def home() -> Iterator[dict[str, str]]:
    """An environment with a state of its own."""
    with tempfile.TemporaryDirectory(prefix="agent-env-bench-") as folder:
        root = Path(folder)
        (root / "home").mkdir()
        root.chmod(0o711)
        # An installation is compiled; where this process must not write bytecode, its commands would compile every source at each start.
        yield {
            **{k: v for k, v in os.environ.items() if not k.startswith(("AGENT_ENV_", "XDG_")) and k != "PYTHONDONTWRITEBYTECODE"},
            "HOME": str(root / "home"),
            "XDG_STATE_HOME": str(root / "state"),
            "XDG_CONFIG_HOME": str(root / "config"),
            "AGENT_ENV_LOCAL_SANDBOX_DIR": str(root / "sandboxes"),
        }


def median_seconds(action: Callable[[], object], *, repeat: int, warm: int = 1) -> float:
    """Median wall time of a call."""
    times = []
    for turn in range(repeat + warm):
        started = time.perf_counter()
        action()
        if turn >= warm:
            times.append(time.perf_counter() - started)
    return statistics.median(times)


def command(argv: Sequence[str], env: dict[str, str], *, ok: Sequence[int] = (0,)) -> subprocess.CompletedProcess[bytes]:
    """Runs a command to its end and insists on its exit code."""
    done = subprocess.run(argv, env=env, capture_output=True, check=False)
    if done.returncode not in ok:
        raise SystemExit(f"{argv} exited {done.returncode}: {done.stderr.decode(errors='replace')[-2000:]}")
    return done


def bare_python() -> float:
    """Seconds of the smallest program: what everything else is compared to."""
    return median_seconds(lambda: subprocess.run([sys.executable, "-c", "pass"], check=True), repeat=15)


def peak_memory_mib(argv: Sequence[str], env: dict[str, str]) -> float:
    """Peak resident memory of a command (its own process), in MiB."""
    probe = (
        "import os,resource,subprocess,sys,json;"
        "pid=os.posix_spawn(sys.argv[1],sys.argv[1:],os.environ,file_actions=[(os.POSIX_SPAWN_OPEN,1,'/dev/null',os.O_WRONLY,0)]);"
        "_,status,usage=os.wait4(pid,0);print(json.dumps([os.waitstatus_to_exitcode(status),usage.ru_maxrss]))"
    )
    done = subprocess.run([sys.executable, "-c", probe, *argv], env=env, capture_output=True, check=True)
    code, kib = json.loads(done.stdout.splitlines()[-1])
    if code != 0:
        raise SystemExit(f"{argv} exited {code}")
    return float(kib) / 1024


@contextmanager
def peak_growth_mib() -> Iterator[Callable[[], float]]:
    """How far this process's resident memory rose in the block above what it was before, in MiB."""
    before = _own_status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the kernel's peak begins anew
    yield lambda: (_own_status("VmHWM") - before) / 1024


def _own_status(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def own_memory_mib() -> float:
    """Peak resident memory of this process, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
