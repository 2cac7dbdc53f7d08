"""A turn's processes: started in a session of their own, heard line by line, and ended whole, also what left their group."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from .hands import pipe, read_until

LONGEST_LINE: Final = 64 * 1024 * 1024
"""Bytes of one event of a program: an answer of a tool may be within it."""
SHOWN_CHARACTERS: Final = 1500
"""Of what a program wrote to its error stream, told when it fails."""
MARK: Final = "AGENTENV_TURN"
"""The variable that every process of a turn has, by which those are found that left its group."""
MODEL_VARIABLES: Final = ("LITELLM_BASE_URL", "LITELLM_API_KEY", "LITELLM_EXTRA_HEADERS")
"""What the server alone reads, and no program inherits."""


@dataclass(frozen=True, slots=True)
class Launch:
    """How a turn's process is started."""

    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    stdin: str = field(default="", repr=False)


async def lines(launch: Launch, home: Path, workspace: Path, task_id: str, complaints: IO[bytes]) -> AsyncIterator[bytes | int]:
    """Each line as the process writes it, and last its exit code, below 0 for a signal. Whoever stops listening ends all of it.

    Args:
        launch: What is started.
        home: The program's `HOME`.
        workspace: The folder that it works in.
        task_id: Of the turn: marks all of its processes.
        complaints: Gets what it writes to its error stream.
    """
    environ = {name: value for name, value in os.environ.items() if name not in MODEL_VARIABLES}
    environ |= {"HOME": str(home), MARK: task_id, "TERM": "dumb", **launch.env}
    async with pipe(LONGEST_LINE) as (reader, writing):
        with tempfile.TemporaryFile() as stdin:
            stdin.write(launch.stdin.encode())
            stdin.seek(0)
            try:
                running = await asyncio.create_subprocess_exec(
                    *launch.argv, cwd=workspace, env=environ, start_new_session=True, stdin=stdin, stdout=writing, stderr=complaints
                )
            finally:
                os.close(writing)
        finished = False
        try:
            async for line in _read(reader, running):
                yield line
            code = await running.wait()
            finished = True
            yield code
        finally:
            if not finished:
                await asyncio.to_thread(_end_all, running.pid, task_id)
                await running.wait()


async def _read(reader: asyncio.StreamReader, running: asyncio.subprocess.Process) -> AsyncIterator[bytes]:
    """Lines until the process's end; what processes that it left behind write later isn't waited for."""
    ended = asyncio.create_task(running.wait())
    try:
        while True:
            try:
                line = await read_until(ended, reader.readline())
            except ValueError:  # longer than any event may be: passed over
                continue
            if not line:
                return
            yield line
    finally:
        ended.cancel()


def _end_all(group: int, task_id: str) -> None:
    """Ends a turn's processes: its group, and those that left it, which the turn's variable tells."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
    mark, own = f"{MARK}={task_id}".encode(), os.getpid()
    for _ in range(5):  # one that was just starting others may have been passed
        found = [pid for pid in _processes() if pid != own and mark in _environment(pid)]
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not found:
            return


def _processes() -> list[int]:
    return [int(path.name) for path in Path("/proc").glob("[0-9]*")] if Path("/proc").is_dir() else []


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def tail(complaints: IO[bytes]) -> str:
    """The end of what a program complained of."""
    complaints.seek(0, os.SEEK_END)
    complaints.seek(max(0, complaints.tell() - 4 * SHOWN_CHARACTERS))
    return complaints.read().decode(errors="replace").strip()[-SHOWN_CHARACTERS:]
