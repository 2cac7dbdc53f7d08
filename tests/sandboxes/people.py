"""Lets a scenario act as root or as an ordinary user: in a forked process that gives up its rights, with a home of its own."""

from __future__ import annotations

import asyncio
import concurrent.futures.thread  # imported now: where the interpreter is, an ordinary user may not look
import ctypes
import os
import pickle
import shutil
import signal
import stat
import sys
import tempfile
import traceback
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agent_env.defaults import DEFAULT_LIMITS
from agent_env.places import helper
from agent_env.sandboxes import SandboxSpec
from agent_env.sandboxes.confined import probe
from agent_env.sandboxes.local import provider

ORDINARY = 65534
MINE = f"local-{os.getpid()}"
"""What the ids of these sandboxes begin with: processes are found, and ended, by the id, those of another worker's tests as well."""
QUICKLY_SETTLED = replace(DEFAULT_LIMITS, network_settle_seconds=0.5)
"""A test's networks are nobody else's, who would still have to join them."""
assert concurrent.futures.thread

WAYS = (
    ("root", "user with bubblewrap", "user without bubblewrap")
    if os.geteuid() == 0
    else ("user with bubblewrap", "user without bubblewrap")
)
SECRET = "canary-7d1f4c2e"


@dataclass(frozen=True)
class World:
    """A person's own folders."""

    way: str
    home: Path
    work: Path
    state: Path

    def provider(self, **options: object) -> provider.LocalProvider:
        """A provider as a new process of this person would make it."""
        environ = {**os.environ, "HOME": str(self.home), "AGENT_ENV_LOCAL_SANDBOX_DIR": str(self.work)}
        chosen = {"confiner": "helper"} if self.way == "user without bubblewrap" else {}
        return provider.LocalProvider(self.state, options={**chosen, **options}, environ=environ, limits=QUICKLY_SETTLED)

    def left(self) -> list[str]:
        """What is left of sandboxes in these folders."""
        return [str(path) for folder in (self.work, self.state / "sandboxes") if folder.exists() for path in folder.iterdir()]


def spec(sandbox_id: str, **changes: Any) -> SandboxSpec:
    """A sandbox with limits that a test machine can bear."""
    given = {
        "memory_bytes": 512 << 20,
        "disk_bytes": 1 << 30,
        "processes": 64,
        "token": "t-" + sandbox_id,
        "labels": {"agentenv.home": "h"},
    }
    return SandboxSpec(sandbox_id=sandbox_id, **{**given, **changes})


@contextmanager
def world(way: str) -> Iterator[World]:
    """Fresh folders, owned by whoever acts."""
    top = Path(tempfile.mkdtemp(prefix="people-"))
    try:
        top.chmod(0o755)
        made = World(way, *(top / name for name in ("home", "work", "state")))
        for folder in (made.home, made.work, made.state):
            folder.mkdir(mode=0o700)
            if way != "root" and os.geteuid() == 0:
                os.chown(folder, ORDINARY, ORDINARY)
        yield made
    finally:
        shutil.rmtree(top, ignore_errors=True)


def act(way: str, scenario: Callable[..., Awaitable[Any]], *arguments: object, prepare: Callable[[], None] = lambda: None) -> Any:
    """Runs the scenario as that person, in a process of its own. Its first argument is the world.

    Args:
        way: Who acts, and with what.
        scenario: What is done.
        arguments: Further arguments of it.
        prepare: Runs in that process before it gives up its rights.

    Returns:
        What it returned.
    """
    with world(way) as made:

        def work() -> Any:
            return asyncio.run(scenario(made, *arguments))  # type: ignore[arg-type]

        return in_child(work, ordinary=way != "root", prepare=prepare)


def open_tunnels() -> None:
    """In a mount namespace of this process alone, lets everybody open the tunnel device, as most machines do."""
    libc = ctypes.CDLL(None, use_errno=True)
    new_mount_namespace, private, bind = 0x20000, 0x44000, 0x1000
    node = Path(tempfile.mkdtemp()) / "tun"
    os.mknod(node, 0o600 | stat.S_IFCHR, os.makedev(10, 200))
    node.chmod(0o666)
    assert libc.unshare(new_mount_namespace) == 0
    assert libc.mount(b"none", b"/", None, private, None) == 0
    assert libc.mount(os.fsencode(node), b"/dev/net/tun", None, bind, None) == 0
    shutil.rmtree(node.parent)


def in_child(work: Callable[[], Any], *, ordinary: bool, prepare: Callable[[], None] = lambda: None) -> Any:
    """Runs the work in a forked process and brings its result, or its error as text, back."""
    binary = helper.binary_path()
    with tempfile.TemporaryDirectory() as folder:
        # The checkout may be where an ordinary user can't go.
        Path(folder).chmod(0o755)
        copy = shutil.copy(binary, Path(folder) / "helper")
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            os.close(reader)
            _child(lambda: (prepare(), _give_up(ordinary), work())[-1], writer, Path(copy))
        os.close(writer)
        with open(reader, "rb") as pipe:
            answer = pipe.read()
        _, status = os.waitpid(child, 0)
    assert answer, f"the acting process ended with status {status}"
    ok, value = pickle.loads(answer)
    assert ok, value
    return value


def _give_up(ordinary: bool) -> None:
    if ordinary and os.geteuid() == 0:
        os.setgroups([])
        os.setgid(ORDINARY)  # of root's, these two change the real and the saved ids as well
        os.setuid(ORDINARY)
    probe.survey.cache_clear()


def _child(work: Callable[[], Any], writer: int, binary: Path) -> None:
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        provider.binary_path = lambda architecture=None: binary  # type: ignore[assignment]
        os.environ["CANARY"] = SECRET
        answer = (True, work())
    except BaseException:  # noqa: BLE001 (it travels to the parent as text)
        answer = (False, traceback.format_exc())
    try:
        with open(writer, "wb") as pipe:
            pickle.dump(answer, pipe)
    finally:
        sys.stderr.flush()
        os._exit(0)
