"""Fork bomb, memory, disk and time: stopped where the level is hard, stopped soon after where it is watched, and never a score."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from agent_env.clock import SystemClock
from agent_env.errors import PlaceLostError, SandboxUnavailableError
from agent_env.places import Command, Completed, Ending, Place
from agent_env.sandboxes import Level
from agent_env.sandboxes.confined import probe
from agent_env.waiting import poll
from tests.busy import lasting, within
from tests.sandboxes.people import MINE, WAYS, World, act, spec

MIB = 1 << 20
MOST_PROCESSES = 32

BOMB = """
import os, time
while True:
    try:
        os.fork()
    except OSError:
        time.sleep(0.01)
"""
HOGS = {
    "its own": "import time\nheld = []\nwhile True: held.append(bytearray(8 << 20)); time.sleep(0.002)",
    "shared with its children": """
import mmap, time
held = []
while True:
    held.append(mmap.mmap(-1, 8 << 20))
    held[-1].write(bytes(8 << 20))
    time.sleep(0.002)
""",
    "a file that has no name": """
import os, time
held = os.memfd_create("held")
while True:
    os.write(held, bytes(8 << 20))
    time.sleep(0.002)
""",
}
SHARED = """
import mmap, os, time
held = mmap.mmap(-1, 40 << 20)
held.write(bytes(40 << 20))
for _ in range(4):
    if not os.fork():
        held.find(b"x")
        time.sleep(0.5)
        os._exit(0)
for _ in range(4): os.wait()
"""
"""What five processes have in common is there once."""
DISK_HOG = """
def grow(remove=False):
    held = []
    while True:
        try:
            held.append(open(f"f{len(held)}", "wb", buffering=0))
            if remove: os.unlink(held[-1].name)
            held[-1].write(bytes(4 << 20))
        except OSError:  # no descriptor is left before it was seen: it is to be ended, and never ends by itself
            time.sleep(0.01)

import os, time
os.makedirs("/app/hog")
os.chdir("/app/hog")
"""
DISK_HOGS = {
    "files": "grow()",
    "files that were removed and are open": "grow(remove=True)",
    "below more folders than are open at once": """
for _ in range(250):
    os.mkdir("d")
    os.chdir("d")
grow()
""",
    "in a folder that its owner can't list": "os.chmod('.', 0o300)\ngrow()",
}


async def with_place(world: World, use: Any, **limits: Any) -> Any:
    provider = world.provider()
    if limits.pop("watched", False):
        provider._known_machine = replace(probe.survey(), controllers={})
    sandbox = await provider.create(spec(f"{MINE}-limits", **limits))
    try:
        return dict(sandbox.levels), await use(await sandbox.machine())
    finally:
        await sandbox.aclose()
        await provider.destroy(f"{MINE}-limits")
        assert world.left() == []


FORKING = {
    "one after the other": BOMB,
    "each as fast as it can": "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass",
    "each in a session of its own": "import os\nwhile True:\n  try: os.fork(); os.setsid()\n  except OSError: pass",
}
AWHILE = 0.6
"""Seconds in which a bomb has filled its place several times over."""
SOON = AWHILE + 2.0
"""Processes die in their thousands, on a machine that others use too."""


async def bombs(world: World) -> Any:
    async def use(place: Place) -> Any:
        clock = SystemClock()
        found = {}
        for name, script in FORKING.items():
            begun = clock.monotonic()
            done = await place.run(Command(["python3", "-c", script], timeout_seconds=AWHILE, kill_grace_seconds=0.1))
            spent = clock.monotonic() - begun
            found[name] = done.ending, spent, (await place.run(Command(["echo", "alive"], timeout_seconds=20))).stdout
        return found

    # As a task's own sandbox is: one processor, and more processes than that can ever look after.
    return await with_place(world, use, processes=4096, cpu=1.0)


@pytest.mark.parametrize("way", WAYS)
def test_a_fork_bomb_that_takes_every_turn_is_told_as_timed_out_at_its_limit(way: str) -> None:
    _, found = act(way, bombs)
    assert found
    for name, (ending, spent, after) in found.items():
        assert ending is Ending.TIMED_OUT, name
        assert spent < within(SOON), name
        assert after == b"alive\n"


BESIDE = """
import signal, sys, time
signal.signal(signal.SIGCONT, lambda *_: None)
print("on", flush=True)
for line in sys.stdin:
    print(line, end="", flush=True)
"""


async def beside(world: World) -> Any:
    async def use(place: Place) -> Any:
        bystander = await place.start(Command(["python3", "-c", BESIDE], timeout_seconds=60))
        heard = bystander.output()
        first = await anext(heard)
        script = "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass"
        done = await place.run(Command(["python3", "-c", script], timeout_seconds=AWHILE, kill_grace_seconds=0.1))
        await bystander.write(b"still here\n")
        second = await anext(heard)
        await bystander.kill()
        await bystander.aclose()
        return first, done.ending, second

    return await with_place(world, use, processes=1024, cpu=1.0)


@pytest.mark.parametrize("way", WAYS)
def test_a_command_beside_a_fork_bomb_goes_on_after_its_end(way: str) -> None:
    _, (first, ending, second) = act(way, beside)
    assert first == (1, b"on\n")
    assert ending is Ending.TIMED_OUT
    assert second == (1, b"still here\n")


async def bomb(place: Place) -> tuple[Completed, int, Completed]:
    ended = await place.run(Command(["python3", "-c", BOMB], timeout_seconds=AWHILE, kill_grace_seconds=0.1))
    left = await place.run(Command(["sh", "-c", "ls -d /proc/[0-9]* | wc -l"]))
    return ended, int(left.stdout), left


async def forks(world: World) -> Any:
    return await with_place(world, bomb, processes=MOST_PROCESSES)


@pytest.mark.parametrize("way", WAYS)
def test_a_fork_bomb_hits_the_limit_and_is_gone_with_its_command(way: str) -> None:
    levels, (ended, left, after) = act(way, forks)
    assert levels["processes"] is Level.HARD
    assert ended.ending is Ending.TIMED_OUT
    assert after.ok
    assert left < 8


async def count(place: Place) -> int:
    script = f"{BOMB.replace('while True', 'for _ in range(12)')}\ntime.sleep(60)"
    hog = await place.start(Command(["python3", "-c", script], timeout_seconds=60))
    try:

        async def many() -> int | None:
            # Nothing can be started in a full place, so it is looked at without starting anything.
            entries = [entry async for entry in _processes(place)]
            return len(entries) if len(entries) >= MOST_PROCESSES - 4 else None

        return await poll(many, within_seconds=within(4), what="a full place")
    finally:
        await hog.kill()
        await hog.aclose()


async def _processes(place: Place) -> Any:
    from pathlib import PurePosixPath

    found = await place.stat([PurePosixPath(f"/proc/{number}") for number in range(1, 400)])
    for entry in found.values():
        if hasattr(entry, "kind"):
            yield entry


async def counted(world: World) -> Any:
    return await with_place(world, count, processes=MOST_PROCESSES)


@pytest.mark.parametrize("way", WAYS)
def test_never_more_processes_than_the_limit_and_what_the_helper_needs(way: str) -> None:
    _, most = act(way, counted)
    assert MOST_PROCESSES - 4 <= most <= MOST_PROCESSES + 17


async def hogged(place: Place) -> tuple[dict[str, Completed], Completed, float]:
    clock = SystemClock()
    start = clock.monotonic()
    ended = {what: await place.run(Command(["python3", "-c", hog], timeout_seconds=20)) for what, hog in HOGS.items()}
    spent = clock.monotonic() - start
    return ended, await place.run(Command(["python3", "-c", SHARED])), spent


async def memory(world: World, watched: bool) -> Any:
    return await with_place(world, hogged, memory_bytes=96 * MIB, watched=watched)


@pytest.mark.parametrize("watched", [False, True], ids=["as this machine can", "without control groups"])
@pytest.mark.parametrize("way", WAYS)
def test_a_memory_hog_ends_soon_as_limited_and_the_place_goes_on(way: str, watched: bool) -> None:
    levels, (ended, after, spent) = act(way, memory, watched)
    if watched:
        assert levels["memory"] is Level.WATCHED
    assert {what: one.ending for what, one in ended.items()} == dict.fromkeys(HOGS, Ending.LIMITED)
    assert all("memory limit of 100663296 bytes" in one.detail for one in ended.values())
    assert after.ok, after
    assert spent < within(10)


async def filled(place: Place) -> tuple[dict[str, Completed], list[bytes], Completed]:
    ended, cleaned = {}, []
    for what, hog in DISK_HOGS.items():
        ended[what] = await place.run(Command(["python3", "-c", DISK_HOG + hog], timeout_seconds=within(20)))
        cleaned.append((await place.run(Command(["sh", "-c", "chmod 700 /app/hog && rm -rf /app/hog && echo cleaned"]))).stdout)
    return ended, cleaned, await place.run(Command(["sh", "-c", "head -c 268435456 /dev/zero > /app/one; echo $?"]))


async def disk(world: World) -> Any:
    return await with_place(world, filled, disk_bytes=48 * MIB)


@pytest.mark.parametrize("way", WAYS)
def test_a_disk_hog_ends_soon_as_limited_and_one_file_never_passes_the_limit(way: str) -> None:
    levels, (ended, cleaned, one) = act(way, disk)
    assert levels["disk"] is Level.WATCHED
    assert {what: one.ending for what, one in ended.items()} == dict.fromkeys(DISK_HOGS, Ending.LIMITED)
    assert all("disk limit of 50331648 bytes" in one.detail for one in ended.values())
    assert cleaned == [b"cleaned\n"] * len(DISK_HOGS)
    assert one.stdout.strip() not in {b"0", b""}


async def outlive(world: World) -> tuple[str, list[str]]:
    provider = world.provider()
    sandbox = await provider.create(spec(f"{MINE}-ttl", ttl_seconds=lasting(0.6)))
    place = await sandbox.machine()
    await place.run(Command(["sh", "-c", "trap '' TERM HUP; (setsid sh -c 'trap \"\" TERM; while :; do sleep 1; done' &) ; echo"]))

    async def gone() -> str | None:
        try:
            await (await provider.attach(f"{MINE}-ttl", epoch=2, token=f"t-{MINE}-ttl")).aclose()
        except PlaceLostError as error:
            return str(error)
        except SandboxUnavailableError:
            return None
        return None

    said = await poll(gone, within_seconds=60, what="the end of the place")
    await sandbox.aclose()
    await provider.destroy(f"{MINE}-ttl")
    return said, world.left()


@pytest.mark.parametrize("way", WAYS)
def test_nothing_outlives_the_time_of_its_sandbox(way: str) -> None:
    said, left = act(way, outlive)
    assert "its time was over" in said
    assert left == []
