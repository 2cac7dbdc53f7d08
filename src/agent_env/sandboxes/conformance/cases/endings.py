"""Endings: limits of time and output, cancellation, and that nothing of a command outlives its ending."""

from __future__ import annotations

import asyncio
import secrets

from agent_env.defaults import MIB
from agent_env.places import Command, Ending, Upload
from agent_env.sandboxes.conformance.bench import Bench, Room
from agent_env.sandboxes.conformance.case import Area, equal, holds
from agent_env.waiting import poll

AREA = Area("endings")
case = AREA.case

_BRIEF = 0.5
_STUBBORN = "trap '' TERM; (setsid sh -c \"trap '' TERM; while :; do sleep 60; done\" &); while :; do sleep 60; done"
"""Ignores SIGTERM, and leaves a grandchild in a session of its own that ignores it too."""
_LIMIT = 10_000


def _tag() -> dict[str, str]:
    return {"CASE_TAG": f"tag-{secrets.token_hex(8)}"}


async def _none_left(bench: Bench, room: Room, tag: dict[str, str]) -> None:
    await room.gone(tag["CASE_TAG"], within_seconds=bench.limits.cleanup_seconds)


async def _began(room: Room, tag: dict[str, str], bench: Bench) -> None:
    async def running() -> bool | None:
        return True if await room.survivors(tag["CASE_TAG"]) else None

    await poll(running, within_seconds=bench.limits.connect_seconds, what="the command's beginning")


@case("EX-01", "EX-02", "C12")
async def a_command_that_times_out_leaves_nothing(bench: Bench) -> None:
    """At its limit a command's whole tree goes, also what ignores SIGTERM and called `setsid`."""
    tag = _tag()
    async with bench.shared() as room:
        done = await room.sh(_STUBBORN, env=tag, timeout_seconds=_BRIEF, kill_grace_seconds=_BRIEF)
        equal(done.ending, Ending.TIMED_OUT, "the ending")
        await _none_left(bench, room, tag)


@case("EX-02")
async def a_time_limit_ends_its_own_command_alone(bench: Bench) -> None:
    """Others that run at the same time are not touched."""
    tag = _tag()
    async with bench.shared() as room:
        other = asyncio.ensure_future(room.sh("sleep 600", env=tag))
        await _began(room, tag, bench)
        await room.sh(_STUBBORN, timeout_seconds=_BRIEF, kill_grace_seconds=_BRIEF)
        holds(await room.survivors(tag["CASE_TAG"]), "the other command still runs")
        other.cancel()
        await asyncio.gather(other, return_exceptions=True)
        await _none_left(bench, room, tag)


@case("EX-04")
async def output_before_the_time_limit_is_kept(bench: Bench) -> None:
    """What a command said before its limit is in the result."""
    async with bench.shared() as room:
        done = await room.sh("echo before; echo err >&2; sleep 600", timeout_seconds=_BRIEF, kill_grace_seconds=_BRIEF)
        equal((done.ending, done.stdout, done.stderr), (Ending.TIMED_OUT, b"before\n", b"err\n"), "the result")


@case("C12")
async def a_time_limit_asks_before_it_kills(bench: Bench) -> None:
    """SIGTERM comes first, and what the command then does within its grace is seen."""
    async with bench.shared() as room:
        script = "trap 'echo asked; exit 9' TERM; echo ready; while :; do sleep 0.05; done"
        done = await room.sh(script, timeout_seconds=_BRIEF)
        equal((done.ending, done.stdout), (Ending.TIMED_OUT, b"ready\nasked\n"), "the result")


@case("EX-01")
async def a_cancelled_command_leaves_nothing(bench: Bench) -> None:
    """Cancelling the caller ends the whole tree in the place."""
    tag = _tag()
    async with bench.shared() as room:
        work = asyncio.ensure_future(room.sh(_STUBBORN, env=tag))
        await _began(room, tag, bench)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        holds(work.cancelled(), "the caller hears of its cancellation")
        await _none_left(bench, room, tag)


@case()
async def a_streamed_command_can_be_killed_whole(bench: Bench) -> None:
    """`kill` reaches the whole tree, and the ending says that it was a signal."""
    tag = _tag()
    async with bench.shared() as room:
        process = await room.place.start(Command(["sh", "-c", _STUBBORN], env=tag))
        await _began(room, tag, bench)
        await process.kill()
        equal((await process.wait()).ending, Ending.SIGNALLED, "the ending")
        await _none_left(bench, room, tag)
        await process.aclose()


@case()
async def letting_go_of_a_streamed_command_ends_it(bench: Bench) -> None:
    """`aclose` of a command that still runs leaves nothing of it."""
    tag = _tag()
    async with bench.shared() as room:
        process = await room.place.start(Command(["sh", "-c", _STUBBORN], env=tag))
        await _began(room, tag, bench)
        await process.aclose()
        await _none_left(bench, room, tag)


@case("EX-05")
async def a_background_child_does_not_delay_the_result(bench: Bench) -> None:
    """A child that keeps the streams open neither holds the result up nor loses output, and lives on."""
    tag = _tag()
    async with bench.shared() as room:
        done = await room.sh("sleep 600 & head -c 1000000 /dev/zero; echo done", env=tag)
        equal((done.exit_code, len(done.stdout)), (0, 1_000_005), "exit code and length")
        holds(done.duration_seconds < bench.limits.connect_seconds, f"the result came at once, after {done.duration_seconds:.1f} s")
        holds(await room.survivors(tag["CASE_TAG"]), "the child lives on")
        await room.text('kill -9 $(grep -l -- "$1" /proc/[0-9]*/environ | cut -d/ -f3)', tag["CASE_TAG"])


@case("EX-17")
async def orphans_leave_no_zombies(bench: Bench) -> None:
    """Children whose parents are gone are reaped."""
    name = f"orphan-{secrets.token_hex(3)}"  # what the kernel calls a process has at most 15 bytes
    async with bench.shared() as room:
        await room.place.put([Upload(room.folder / name, b"#!/bin/sh\nsleep 0.01\n", mode=0o755)])
        for _ in range(20):
            await room.sh(f"(./{name} >/dev/null 2>&1 &)")

        async def none_left() -> bool | None:
            found = await room.text("cat /proc/[0-9]*/stat 2>/dev/null; true")
            return None if f"({name})" in found else True

        await poll(none_left, within_seconds=bench.limits.cleanup_seconds, what="the reaping of every orphan")


@case("EX-13", "D6")
async def output_is_cut_exactly_at_its_limit_and_says_so(bench: Bench) -> None:
    """Output up to the limit is whole; a byte more is counted as dropped."""
    async with bench.shared() as room:
        for size in (_LIMIT - 1, _LIMIT, _LIMIT + 1, 16_384):
            done = await room.sh(f"head -c {size} /dev/zero", output_limit_bytes=_LIMIT)
            equal((len(done.stdout), done.stdout_dropped_bytes), (min(size, _LIMIT), max(0, size - _LIMIT)), f"kept and dropped of {size}")
            equal(done.truncated, size > _LIMIT, f"whether {size} bytes were cut")


@case("EX-13")
async def the_tail_of_output_can_be_kept(bench: Bench) -> None:
    """With `keep="tail"` the end stays."""
    async with bench.shared() as room:
        done = await room.sh("head -c 50000 /dev/zero; echo the end", output_limit_bytes=8, keep="tail")
        equal((done.stdout, done.stdout_dropped_bytes), (b"the end\n", 50_000), "what was kept and dropped")


@case("D6", "EX-13", patience=3)
async def a_flood_of_output_is_bounded(bench: Bench) -> None:
    """A hundred mebibytes are counted and not kept."""
    async with bench.shared() as room:
        done = await room.sh(f"head -c {100 * MIB} /dev/zero", output_limit_bytes=_LIMIT)
        equal((len(done.stdout), done.stdout_dropped_bytes), (_LIMIT, 100 * MIB - _LIMIT), "what was kept and dropped")


@case("A14")
async def stopping_an_attempt_ends_what_it_left(bench: Bench) -> None:
    """Background children of a finished command belong to its attempt, and no other attempt is touched."""
    tag, other = _tag(), _tag()
    async with bench.shared() as room:
        mine, theirs = f"attempt-{secrets.token_hex(4)}", f"attempt-{secrets.token_hex(4)}"
        await room.sh("sleep 600 >/dev/null 2>&1 &", env=tag, attempt=mine)
        await room.sh("sleep 600 >/dev/null 2>&1 &", env=other, attempt=theirs)
        holds(await room.place.stop_attempt(mine) >= 1, "something was stopped")
        await _none_left(bench, room, tag)
        holds(await room.survivors(other["CASE_TAG"]), "another attempt's command still runs")
        equal(await room.place.stop_attempt(mine), 0, "what is stopped the second time")
        await room.place.stop_attempt(theirs)


@case("A14")
async def the_ledger_tells_what_runs_and_for_whom(bench: Bench) -> None:
    """A running command is in the ledger with its attempt; afterwards it does not run."""
    async with bench.sandbox() as room:
        process = await room.place.start(Command(["sleep", "600"], attempt="attempt-7"))
        equal([(entry.attempt, entry.argv0) for entry in await room.running()], [("attempt-7", "sleep")], "what runs")
        await process.aclose()
        equal(await room.running(), [], "what runs afterwards")


@case()
async def durations_are_measured(bench: Bench) -> None:
    """A command's duration is its own time."""
    async with bench.shared() as room:
        done = await room.sh("sleep 0.3")
        holds(0.3 <= done.duration_seconds < bench.limits.connect_seconds, f"0.3 s took {done.duration_seconds:.3f} s")
