"""A container engine of one test alone, which may be killed and started again: the engine that all tests share may not."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from agent_env.containers import EngineEndpoint
from tests.container_engine import MISSING, answering

PATIENCE = 60


@dataclass
class OwnEngine:
    """Docker's daemon with folders of its own, in a network of its own: one without a bridge removes that of the engine beside it."""

    folder: Path
    keeps_containers: bool
    process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> EngineEndpoint:
        """Where it listens."""
        return EngineEndpoint(f"unix://{self.folder}/docker.sock")

    def start(self) -> None:
        """Starts it, and waits for its first answer."""
        daemon = shutil.which("dockerd") or "/usr/sbin/dockerd"
        folders = [f"--data-root={self.folder}/data", f"--exec-root={self.folder}/exec", f"--pidfile={self.folder}/pid"]
        apart = ["--bridge=none", "--iptables=false", "--ip-forward=false", "--ip-masq=false"]
        more = ["--live-restore"] if self.keeps_containers else []
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                # In a network of its own: a daemon without a bridge removes the one that another daemon has.
                ["unshare", "--net", daemon, "-H", self.endpoint.url, *folders, *apart, *more],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        if why := asyncio.run(answering(self.endpoint)):
            said = (self.folder / "log").read_text(errors="replace")[-2000:]
            self.stop()
            pytest.skip(f"{MISSING} (a second one does not start: {why} {said})")

    def kill(self) -> None:
        """Ends it as a crash does. What runs in it goes on until it is started again."""
        assert self.process is not None
        children = psutil.Process(self.process.pid).children()  # its own containerd, which ends with the daemon's service
        self.process.kill()
        self.process.wait(PATIENCE)
        for child in children:
            with suppress(psutil.NoSuchProcess):
                child.kill()
        psutil.wait_procs(children, timeout=PATIENCE)
        (self.folder / "pid").unlink(missing_ok=True)

    def stop(self) -> None:
        """Ends it with all its containers."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(PATIENCE)


@contextmanager
def own_engine(*, keeps_containers: bool) -> Iterator[OwnEngine]:
    """One that runs, and of which nothing is left."""
    if os.geteuid() != 0 or not (shutil.which("dockerd") or Path("/usr/sbin/dockerd").exists()):
        pytest.skip(MISSING)
    folder = Path(tempfile.mkdtemp(prefix="engine-"))  # its sockets' paths may not be long
    made = OwnEngine(folder, keeps_containers)
    try:
        made.start()
        yield made
    finally:
        made.stop()
        _unmount(folder)
        shutil.rmtree(folder, ignore_errors=True)


def _unmount(folder: Path) -> None:
    """What a daemon that was killed has left mounted below its folders."""
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for mount in sorted((each for each in mounts if each.startswith(f"{folder}/")), reverse=True):
        subprocess.run(["umount", "-l", mount], check=False, capture_output=True)
