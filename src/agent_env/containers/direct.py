"""The helper's own connection, of a container on this very machine into which this user may step: the engine has no part in it.

Who may not step in, and whose engine is elsewhere, goes by `stream`.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Any

from agent_env.containers import objects
from agent_env.containers.engine import Engine
from agent_env.containers.spec import CAPABILITIES, HELPER
from agent_env.containers.state import life_of, runs
from agent_env.errors import DeadlineError, NotFoundError, UnsupportedError
from agent_env.host import held
from agent_env.places.helper.binary import binary_path
from agent_env.waiting import deadline, poll

_CREDENTIALS = Struct("3i")
"""(unix(7)) `struct ucred`: number, user and group of the process at the other end."""
_NUMBERS = 1 << 22
"""(proc(5), `pid_max`) No process of any machine has a number as high."""
_WORDS = f"{HELPER}\0serve\0".encode()
"""What the helper's command line begins with. Under another kernel (gVisor, Kata), the process that an engine names is not the helper."""


@dataclass(frozen=True, slots=True)
class Reached:
    """A connection to the helper of a container."""

    link: socket.socket
    """Connected; it is the caller's."""
    life: str
    """Which life of the container it leads to: see `state.started_at`."""


async def reach(engine: Engine, container_id: str, listens_on: str) -> Reached | None:
    """Connects to the helper of a container that listens on an abstract name there.

    The process that the engine names is held by a descriptor before it is looked at, so that its number becomes no other one's unseen.
    It is stepped into only if it is the helper in this very container, and what answers must be that process itself.

    Returns:
        None where that can't be done here. The engine's own way tells why, if it can't go either.
    """
    info = await engine.info()
    if not info.on_this_machine or (os.geteuid() and not info.rootless):
        return None
    try:
        said = await objects.inspect(engine, container_id)
    except NotFoundError:
        return None
    state = said.get("State") or {}
    first = state.get("Pid")
    if not isinstance(first, int) or not 0 < first < _NUMBERS or not runs(state) or _may_trace(said.get("HostConfig") or {}):
        return None
    seconds = engine.limits.engine_knows_seconds
    try:
        with held(first) as handle:
            if handle is None:
                return None
            await _is_helper(engine, first, handle, container_id)
            async with deadline(seconds, f"stepping into {container_id[:12]}"):
                return Reached(await _connected(handle, first, listens_on), life_of(said))
    except (OSError, DeadlineError, UnsupportedError):
        return None


def _may_trace(host: Mapping[str, Any]) -> bool:
    """Whether it was granted something by which it could lay hands on what steps into it. An engine's exec is on its guard itself."""
    granted = {str(name).removeprefix("CAP_") for name in host.get("CapAdd") or ()}
    return bool(host.get("Privileged")) or not granted <= set(CAPABILITIES)


async def _is_helper(engine: Engine, number: int, handle: int, container_id: str) -> None:
    """Waits for what may become it, since an engine calls a container started a moment before its program runs.

    Raises:
        OSError: It is gone.
        UnsupportedError: It is another container's, or it cannot be told whose it is, or what is called so never became a helper.
        DeadlineError: It has not become one. What is called so is not waited for again.
    """
    called = b""

    async def become() -> bool | None:
        nonlocal called
        words = _words_of(number, handle, container_id)
        called = words.partition(b"\0")[0]
        if called in engine.strangers:
            raise UnsupportedError(f"the container {container_id} runs under another kernel")
        return words.startswith(_WORDS) or None

    try:
        await poll(become, within_seconds=engine.limits.engine_knows_seconds, what="its helper")
    except DeadlineError:
        engine.strangers.update({called} - {b""})
        raise


def _words_of(number: int, handle: int, container_id: str) -> bytes:
    """The command line of a process of this container."""
    folder = Path(f"/proc/{number}")
    groups, words = (folder / "cgroup").read_bytes(), (folder / "cmdline").read_bytes()
    ended = select.poll()  # `select.select` takes no descriptor above 1023, and there may be thousands of containers
    ended.register(handle, select.POLLIN)
    if ended.poll(0):
        raise ProcessLookupError(number)
    if container_id.encode() not in groups:
        raise UnsupportedError(f"the process {number} is not known to be of the container {container_id}")
    return words


async def _connected(handle: int, first: int, listens_on: str) -> socket.socket:
    """Has the helper's `reach` step in and connect, and takes the connection over.

    Raises:
        OSError: It could not, or what answered is another process.
    """
    loop = asyncio.get_running_loop()
    with _reaching(handle, listens_on) as ours:
        handed = asyncio.Event()
        loop.add_reader(ours, handed.set)
        try:
            await handed.wait()
        finally:
            loop.remove_reader(ours)
        _, descriptors, _, _ = socket.recv_fds(ours, 1, 1)  # which passes no flags on
    if not descriptors:
        raise ConnectionError("nothing was handed over")
    link = socket.socket(fileno=descriptors[0])
    link.set_inheritable(False)
    link.setblocking(False)
    if _CREDENTIALS.unpack(link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))[0] != first:
        link.close()
        raise ConnectionError("another process answers")
    return link


@contextmanager
def _reaching(handle: int, listens_on: str) -> Iterator[socket.socket]:
    """Our end of the socket over which the connection is handed over. Afterwards nothing of it is left in the container."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process: subprocess.Popen[bytes] = subprocess.Popen(
            ["helper", "reach", listens_on, str(handle)],  # the container sees these words, and none of this machine's paths
            executable=binary_path(),
            env={},
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[handle],
            start_new_session=True,  # a Ctrl-C is for us: it would be ended before it has reaped what it has in the container
        )
        theirs.close()
        try:
            yield ours
        finally:
            ours.close()  # which ends it, if it has not ended yet
            process.wait()
