"""A user of the product: the real command, a home of its own, and a look at what is left on the machine afterwards."""

from __future__ import annotations

import json
import os
import random
import secrets
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.busy import within
from tests.cli.conftest import AGENT_ENV, Answer, Cli

PATIENCE = 80.0
"""Only ever reached by what would otherwise wait for ever."""

SETTLED = 0.5
"""Nobody joins a home's network while the home is collected: a fresh one need not be waited for."""

Steps = list[dict[str, Any]]

BOX = {"id": "box", "type": "deploy_sandbox", "sandbox_name": "box", "sandbox_mode": "vm"}


def code(artifact: str, id: str = "work", **fields: Any) -> dict[str, Any]:
    return {"id": id, "type": "run_code", "sandbox_name": "box", "script_artifact_id": artifact, **fields}


def check(*commands: str, id: str = "check", **fields: Any) -> dict[str, Any]:
    criteria = [{"type": "bash_cmd_succeeds", "criterion": command, "bash_cmd": command} for command in commands]
    return {"id": id, "type": "verify_sandbox", "sandbox_name": "box", "criteria": criteria, **fields}


class Home(Cli):
    """A user's home with everything that the product keeps below it."""

    def __init__(self, root: Path) -> None:
        root.mkdir(exist_ok=True)
        super().__init__(root)
        self.root = root
        self.places = root / "places"
        self.state = self.home / "state/agent-env"
        self.env["AGENT_ENV_LOCAL_SANDBOX_DIR"] = str(self.places)
        self.env["AGENT_ENV_LIMIT_NETWORK_SETTLE_SECONDS"] = str(SETTLED)

    def bundle(self, name: str = "b", scripts: dict[str, str] | None = None, **tasks: Steps) -> Path:
        """A bundle with these tasks, and a `run.py` for each script."""
        for script, text in (scripts or {}).items():
            self.write(f"{name}/artifacts/{script}/run.py", text)
        for task, steps in tasks.items():
            self.write(f"{name}/tasks/{task}.json", json.dumps(steps))
        return self.cwd / name

    def runs(self) -> list[dict[str, Any]]:
        """Newest first."""
        return list(self("runs", "list", "--json").json["runs"])

    def show(self, run_id: str) -> dict[str, Any]:
        return dict(self("runs", "show", run_id, "--json").json)

    def context(self, run_id: str) -> dict[str, Any]:
        return dict(self("runs", "show", run_id, "--context").json)

    def sandbox_ids(self, run_id: str) -> list[str]:
        return [each["sandbox_id"] for each in self.context(run_id)["deployed_sandboxes"]]

    def folders(self) -> list[str]:
        """The places that are there, by their folders."""
        return sorted(path.name for path in self.places.glob("agent-env-*"))

    def processes(self, *, but: frozenset[int] = frozenset()) -> dict[int, str]:
        """Every process of the machine that has to do with this home: by its arguments, its environment, or what it has mounted."""
        mark, found = str(self.root).encode(), {}
        for pid in (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()):
            if pid == os.getpid() or pid in but:
                continue
            with suppress(OSError):
                seen = [Path(f"/proc/{pid}/{name}").read_bytes() for name in ("cmdline", "environ", "mountinfo")]
                if any(mark in text for text in seen):
                    found[pid] = seen[0].replace(b"\0", b" ").decode("utf-8", "replace")[:200]
        return found

    def left(self) -> dict[str, Any]:
        """What is on the machine although nobody needs it; empty when all is well. The dying get a moment."""
        until = time.monotonic() + within(10)
        while (left := self.processes()) and time.monotonic() < until:
            select.select([], [], [], 0.05)
        state = self.state / "sandboxes"
        records = sorted(path.name for path in state.iterdir()) if state.is_dir() else []
        sockets = [str(path) for path in self.state.glob("runs/*/control.sock")]
        mounts = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(self.places) in line]
        found = {"processes": left, "folders": self.folders(), "records": records, "sockets": sockets, "mounts": mounts}
        return {name: value for name, value in found.items() if value}


def eventually(true: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
    """Waits for something that another process does; returns it."""
    until = time.monotonic() + seconds
    while True:
        begun = time.monotonic()
        if found := true():
            return found
        asked = time.monotonic()
        assert asked < until, f"never: {what}"
        select.select([], [], [], max(0.02, asked - begun))  # a question that is a command of its own leaves room for the answer


def killed(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=PATIENCE)


def ended(process: subprocess.Popen[bytes]) -> Answer:
    out, err = process.communicate(timeout=PATIENCE)
    return Answer(process.returncode, out.decode(), err.decode())


# A command starts with the peak of whoever spawned it: this small program, not a test worker with a history.
MEASURING = """
import os, sys
pid = os.posix_spawn(sys.argv[2], sys.argv[2:], os.environ)
_, status, usage = os.wait4(pid, 0)
with open(sys.argv[1], "w") as peak:
    peak.write(str(usage.ru_maxrss))
sys.exit(os.waitstatus_to_exitcode(status))
"""


@contextmanager
def measured(home: Home, *argv: str | Path, stdout: Any = subprocess.DEVNULL) -> Iterator[Callable[[], int]]:
    """Starts the command; what is yielded waits until it has succeeded and returns the most memory that it had, in bytes."""
    peak = home.cwd / f"peak-{secrets.token_hex(4)}"
    command = [sys.executable, "-c", MEASURING, str(peak), str(AGENT_ENV), *map(str, argv)]
    process = subprocess.Popen(command, cwd=home.cwd, env=home.environ(), stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.PIPE)

    def wait() -> int:
        assert process.stderr is not None
        said = process.stderr.read()
        assert process.wait(timeout=PATIENCE) == 0, said.decode()
        return int(peak.read_text()) * 1024

    try:
        yield wait
    finally:
        if process.returncode is None:
            killed(process)
        if process.stderr is not None:
            process.stderr.close()


def clean_up(home: Home) -> None:
    """Whatever a failed test left: it is no other test's business."""
    for pid in home.processes():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    home("gc", "--kept")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """A home in which, in the end, no process and no folder may be left."""
    made = Home(tmp_path / "one")
    tmp_path.chmod(0o755)
    yield made
    left = made.left()
    if left:
        clean_up(made)
    assert not left, f"left on the machine: {left}"


@pytest.fixture
def chance() -> random.Random:
    """Chance that can be repeated: `ACCEPTANCE_SEED=… pytest …`."""
    seed = int(os.environ.get("ACCEPTANCE_SEED") or random.SystemRandom().randrange(1 << 30))
    print(f"ACCEPTANCE_SEED={seed}")
    return random.Random(seed)
