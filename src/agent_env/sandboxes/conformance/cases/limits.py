"""Limits: what a provider says that it holds, it holds, and a place outlives what hit its limit."""

from __future__ import annotations

from agent_env.defaults import MIB
from agent_env.errors import InfrastructureError
from agent_env.places import Ending
from agent_env.sandboxes.conformance.bench import Bench, Room
from agent_env.sandboxes.conformance.case import Area, CapabilityMissingError, equal, holds
from agent_env.sandboxes.conformance.cases.life import LIMITS
from agent_env.sandboxes.contract import Level
from agent_env.waiting import poll

AREA = Area("limits")
case = AREA.case

_BEST = (Level.NONE, Level.WATCHED, Level.HARD)
_TTL = 3.0
_FORKING = 4.0
_HOG = "tail /dev/zero >/dev/null"
"""Keeps everything that it reads."""


@case()
async def a_sandbox_says_how_each_limit_holds(bench: Bench) -> None:
    """The levels of a sandbox are complete, and not better than its provider's."""
    told = (await bench.capabilities()).limits
    async with bench.sandbox() as room:
        equal(set(room.sandbox.levels), LIMITS, "the limits that have a level")
        holds(all(isinstance(level, Level) for level in room.sandbox.levels.values()), "levels are `hard`, `watched` or `none`")
        if await bench.beside():
            worse = {name: level for name, level in room.sandbox.levels.items() if _BEST.index(level) > _BEST.index(told[name])}
            equal(worse, {}, "levels better than the provider's")
        else:
            equal(dict(room.sandbox.levels), dict(told), "the levels")


async def _survives(room: Room) -> None:
    equal(await room.text("echo lives"), "lives", "the place's next command")


@case("LC-05", needs=["limits.memory"], patience=2)
async def memory_is_limited_and_the_place_survives(bench: Bench) -> None:
    """A command that takes more memory than the sandbox has does not succeed, and the next one does."""
    async with bench.sandbox(memory_bytes=256 * MIB) as room:
        done = await room.sh(_HOG, timeout_seconds=bench.limits.conformance_case_seconds / 2)
        holds(
            not done.ok and done.ending is not Ending.TIMED_OUT, f"a command that took all memory ended with {done.ending} {done.exit_code}"
        )
        await _survives(room)


@case(needs=["limits.processes"], patience=2)
async def processes_are_limited_and_the_place_survives(bench: Bench) -> None:
    """A command that forks without end runs into the limit, and the next command runs."""
    async with bench.sandbox(processes=64) as room:
        done = await room.sh("i=0; while [ $i -lt 400 ]; do sleep 30 & i=$((i+1)); done; wait", timeout_seconds=_FORKING, attempt="forking")
        said = done.stderr.lower()
        holds(done.ending is not Ending.EXITED or done.exit_code or b"fork" in said, f"400 processes were started: {done.ending}")
        await room.place.stop_attempt("forking")
        await _survives(room)


@case("D5", needs=["limits.disk"], patience=3)
async def disk_space_is_limited(bench: Bench) -> None:
    """A command that writes more than the sandbox may hold does not succeed."""
    async with bench.sandbox(disk_bytes=64 * MIB) as room:
        if room.sandbox.levels["disk"] is Level.NONE:
            raise CapabilityMissingError("limits.disk of a container beside a machine")
        script = "i=0; while [ $i -lt 600 ]; do head -c 1048576 /dev/zero > f$i || exit 9; i=$((i+1)); sleep 0.02; done"
        done = await room.sh(script, timeout_seconds=bench.limits.conformance_case_seconds)
        holds(not done.ok, "600 MiB were written into 64 MiB")


@case(needs=["limits.ttl"], patience=2)
async def a_sandbox_ends_at_its_time(bench: Bench) -> None:
    """After its time a sandbox gives no more results, is not told as alive, and can be removed."""
    async with bench.sandbox(ttl_seconds=_TTL) as room:

        async def over() -> bool | None:
            try:
                done = await room.sh("true")
            except InfrastructureError:
                return True
            return True if done.ending is Ending.LOST else None

        await poll(over, within_seconds=bench.limits.conformance_case_seconds, what="the end of the sandbox")

        async def told() -> bool | None:
            alive = [info.alive async for info in bench.make().list(room.spec.labels)]
            return None if any(alive) else True

        await poll(told, within_seconds=bench.limits.cleanup_seconds, what="the end of the sandbox in the provider's list")
