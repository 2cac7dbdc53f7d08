"""The supervisor that is forked ahead of the next command: whoever kills or holds it, each command runs once and is itself."""

from __future__ import annotations

import asyncio
import ctypes
import os
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from agent_env.places import Command, Ending
from agent_env.places.helper import HelperConfig, HelperPlace
from agent_env.waiting import poll
from tests.busy import within
from tests.helper.living import ENV, TOKEN, UNSHARE, Living, helper, needs_root, tagged

SEIZE, INTERRUPT, DETACH = 0x4206, 0x4207, 17  # linux/ptrace.h


def sh(script: str, **more: object) -> Command:
    return Command(["sh", "-c", script], **more)  # type: ignore[arg-type]


@asynccontextmanager
async def starting(prefix: tuple[str, ...] = ()) -> AsyncIterator[tuple[Living, HelperPlace]]:
    """A helper whose commands a thread of its own starts, after its first command."""
    async with helper(prefix=prefix, config=HelperConfig(token=TOKEN, env=ENV, starter=True)) as (living, place):
        assert (await place.run(sh("true"))).ok
        yield living, place


def children(pid: int) -> list[int]:
    """What any thread of a process has started."""
    return [int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()]


async def ahead_of(living: Living) -> int:
    """The one process that waits for the next command."""

    async def stands() -> int | None:
        found = children(living.process.pid)
        return found[0] if len(found) == 1 and waits(found[0]) else None

    return await poll(stands, within_seconds=within(10), what="the supervisor ahead")


def waits(pid: int) -> bool:
    """Whether it has let go of all that it does not need: nothing but its pipes is left, and no socket."""
    links = [str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir()]
    return len(links) == 8 and not any(link.startswith("socket:") for link in links)


@contextmanager
def held(pid: int) -> Iterator[None]:
    """Holds a process still so that nobody can wake it; it may be killed meanwhile."""
    ptrace = ctypes.CDLL(None, use_errno=True).ptrace
    ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    if ptrace(SEIZE, pid, None, None):
        pytest.skip("agentenv-capability-missing: ptrace")
    try:
        assert not ptrace(INTERRUPT, pid, None, None)
        assert os.waitpid(pid, 0x40000000)[0] == pid  # __WALL: it has stopped
        yield
    finally:
        if ptrace(DETACH, pid, None, None):
            os.waitpid(pid, 0x40000000)  # it has been killed: its parent hears of it after us


@pytest.mark.parametrize("prefix", [(), UNSHARE], ids=["ordinary process", "pid 1"])
async def test_commands_of_every_kind_follow_one_another(prefix: tuple[str, ...]) -> None:
    async with starting(prefix) as (_, place):
        for turn in range(10):
            assert (await place.run(sh(f"echo {turn}; echo e >&2; exit {turn}"))).exit_code == turn
            assert (await place.run(Command(["cat"], stdin=b"in"))).stdout == b"in"
            large = await place.run(sh('printf %s "$1"', env={"LARGE": "x" * 9000}))
            assert large.ok
            assert (await place.run(Command(["printf", "%s", "y" * 9000]))).stdout == b"y" * 9000
        done = await asyncio.gather(*(place.run(sh(f"echo {turn}")) for turn in range(50)))
        assert [one.stdout for one in done] == [b"%d\n" % turn for turn in range(50)]


async def test_whoever_kills_or_stops_all_that_he_sees_does_not_reach_the_next_command() -> None:
    async with starting(UNSHARE) as (_, place):
        for turn in range(30):
            assert (await place.run(sh("kill -9 -1; exit 3"))).ending in (Ending.SIGNALLED, Ending.EXITED)
            assert (await place.run(sh("echo after"))).stdout == b"after\n"
            await place.run(sh(f"kill -{19 if turn % 2 else 15} -1", timeout_seconds=5, kill_grace_seconds=0))
            assert (await place.run(sh("echo again"))).stdout == b"again\n"


async def test_whoever_kills_all_that_he_sees_before_his_start_is_told_has_ended_by_a_signal_and_was_not_lost() -> None:
    async with starting(UNSHARE) as (_, place):
        for _ in range(25):
            process = await place.start(Command(["bash", "-c", "kill -9 -1; sleep 60"]))
            assert (await process.wait()).ending is Ending.SIGNALLED
            await process.aclose()


@needs_root
async def test_a_command_whose_supervisor_is_killed_before_it_begins_runs_once(tmp_path: Path) -> None:
    async with starting() as (living, place):
        count = tmp_path / "count"
        pid = await ahead_of(living)
        with held(pid):
            running = asyncio.create_task(place.run(sh(f"echo once >> {count}; echo done")))
            await place.ping()
            assert not count.exists()
            os.kill(pid, 9)
            done = await asyncio.wait_for(running, within(10))
        assert done.ok
        assert (done.stdout, count.read_text()) == (b"done\n", "once\n")


@needs_root
async def test_a_command_that_is_out_of_time_before_it_begins_never_does(tmp_path: Path) -> None:
    async with starting() as (living, place):
        tag, ran = secrets.token_hex(8), tmp_path / "ran"
        pid = await ahead_of(living)
        with held(pid):
            done = await place.run(sh(f"touch {ran}", env={"TAG": tag}, timeout_seconds=0.2, kill_grace_seconds=0))
            assert done.ending is Ending.TIMED_OUT
        assert (await place.run(sh("echo next"))).stdout == b"next\n"
        assert tagged(tag) == []
        assert not ran.exists()


@needs_root
async def test_one_that_is_killed_while_it_waits_is_replaced() -> None:
    async with starting() as (living, place):
        for _ in range(3):
            pid = await ahead_of(living)
            os.kill(pid, 9)
            assert (await place.run(sh("echo here"))).stdout == b"here\n"
            assert await ahead_of(living) != pid


async def test_it_keeps_no_pipe_of_a_command_open() -> None:
    async with starting() as (living, place):
        process = await place.start(Command(["cat"]))
        for _ in range(3):
            assert (await place.run(sh("true"))).ok
        ahead = set(children(living.process.pid))
        await process.close_stdin()
        assert (await asyncio.wait_for(process.wait(), within(10))).ok
        assert ahead
