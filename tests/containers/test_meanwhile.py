"""What somebody else does to a container between our steps and in the middle of them is told at once, and never waited out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import PurePosixPath

import pytest

from agent_env.containers import ContainerPlace, EngineEndpoint
from agent_env.defaults import DEFAULT_LIMITS
from agent_env.errors import ContainerNotRunningError
from agent_env.places import Command, Ending, Upload
from agent_env.waiting import poll
from tests.busy import within
from tests.container_engine import NEAR_AND_FAR, Bench, bench, pause

LONG = 1000.0
"""Nothing here may wait for what a limit says: each is longer than the test may take."""
PATIENT = replace(DEFAULT_LIMITS, engine_stop_seconds=LONG, exec_seconds=LONG, cleanup_seconds=LONG, transfer_seconds=LONG)


def sh(text: str) -> Command:
    return Command(["sh", "-c", text], timeout_seconds=LONG, kill_grace_seconds=LONG)


def patient(endpoint: EngineEndpoint, image: str, *, far: bool = False) -> AbstractAsyncContextManager[Bench]:
    """A bench whose waits are all long, so that one that is waited out shows."""

    @asynccontextmanager
    async def made():
        async with bench(endpoint, image, far=far) as here:
            here.engine.limits = PATIENT
            yield here

    return made()


async def engine_does(here: Bench, place: ContainerPlace, what: str) -> None:
    async with here.engine.asking(what) as client:
        await client._query_json(f"containers/{place.id}/{what}", method="POST")


@NEAR_AND_FAR
@pytest.mark.timeout(300)
async def test_a_restart_between_two_commands_is_not_waited_for(far: bool, docker: EngineEndpoint, busybox: str) -> None:
    async with patient(docker, busybox, far=far) as here:
        place = await here.deploy(secrets={"KEY": "told"})
        for _ in range(2):
            assert (await place.run(sh("echo $KEY"))).stdout == b"told\n"
            await engine_does(here, place, "restart?t=5")
            assert (await place.run(sh("echo $KEY"))).stdout == b"told\n"


@NEAR_AND_FAR
@pytest.mark.timeout(300)
async def test_a_restart_in_the_middle_of_a_command_loses_it_at_once(far: bool, docker: EngineEndpoint, busybox: str) -> None:
    async with patient(docker, busybox, far=far) as here:
        place = await here.deploy()
        under_way = asyncio.ensure_future(place.run(sh("echo began > /tmp/began; sleep 2000")))
        while not (await place.run(sh("test -e /tmp/began"))).ok:
            pass
        await engine_does(here, place, "restart?t=5")
        assert (await under_way).ending is Ending.LOST
        assert (await place.run(sh("echo again"))).stdout == b"again\n"


async def a_command(place: ContainerPlace) -> None:
    done = await place.run(sh("echo began > /tmp/began; sleep 2000"))
    assert done.ending is Ending.LOST
    raise ContainerNotRunningError(done.detail)


async def a_stream(place: ContainerPlace) -> None:
    process = await place.start(sh("echo began > /tmp/began; sleep 2000"))
    done = await process.wait()
    assert done.ending is Ending.LOST
    raise ContainerNotRunningError(done.detail)


WORKS = {"a command": a_command, "a stream": a_stream}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("work", WORKS.values(), ids=WORKS)
async def test_a_pause_in_the_middle_is_told_at_once_with_what_to_do(
    work: Callable[[ContainerPlace], Awaitable[None]], docker: EngineEndpoint, busybox: str
) -> None:
    async with patient(docker, busybox) as here:
        place = await here.deploy()
        under_way = asyncio.ensure_future(work(place))
        while not (await place.run(sh("test -e /tmp/began"))).ok:
            pass
        await pause(here.engine, place.id)
        try:
            with pytest.raises(ContainerNotRunningError, match=f"docker unpause {place.name}"):
                await under_way
            with pytest.raises(ContainerNotRunningError, match=f"docker unpause {place.name}"):
                await place.stat([PurePosixPath("/tmp")])
        finally:
            await engine_does(here, place, "unpause")
        assert (await place.run(sh("echo again"))).stdout == b"again\n"


@NEAR_AND_FAR
@pytest.mark.timeout(300)
async def test_a_pause_before_a_command_is_told_at_once_with_what_to_do(far: bool, docker: EngineEndpoint, busybox: str) -> None:
    async with patient(docker, busybox, far=far) as here:
        place = await here.deploy()
        await pause(here.engine, place.id)
        try:
            assert f"docker unpause {place.name}" in (await place.run(sh("true"))).detail
            for work in (place.run(sh("true")), place.read(PurePosixPath("/etc/passwd")), place.ping()):
                with pytest.raises(ContainerNotRunningError, match=f"docker unpause {place.name}"):
                    await work
        finally:
            await engine_does(here, place, "unpause")
        assert (await place.run(sh("echo again"))).stdout == b"again\n"


CALLS: dict[str, Callable[[ContainerPlace], Awaitable[object]]] = {
    "start": lambda place: place.start(Command(["true"])),
    "stop_attempt": lambda place: place.stop_attempt("a1"),
    "ledger": lambda place: place.ledger(),
    "freeze": lambda place: place.freeze("a1"),
    "thaw": lambda place: place.thaw("a1"),
    "set_ttl": lambda place: place.set_ttl(60),
    "open_tcp": lambda place: place.open_tcp(8000),
    "ping": lambda place: place.ping(),
    "put": lambda place: place.put([Upload(PurePosixPath("/tmp/x"), b"x")]),
    "read": lambda place: place.read(PurePosixPath("/tmp/x")),
    "stat": lambda place: place.stat([PurePosixPath("/tmp/x")]),
    "remove": lambda place: place.remove([PurePosixPath("/tmp/x")]),
}


async def test_whatever_was_asked_when_the_container_ended_says_with_what_code_and_the_end_of_its_log(
    docker: EngineEndpoint, busybox: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bench(docker, busybox) as here:
        over = await here.deploy(argv=("sh", "-c", "sleep 0.2; echo boom >&2; exit 3"))

        async def ended() -> bool | None:
            return True if over._connection.error is not None else None

        await poll(ended, within_seconds=within(5), what="the container's end", limits=DEFAULT_LIMITS)

        async def as_though_just_before() -> None:
            """The connection was looked at in the moment before the container's end."""

        monkeypatch.setattr(over, "ready", as_though_just_before)
        for call in CALLS.values():
            with pytest.raises(ContainerNotRunningError, match=r"exited with code 3(.|\n)*boom"):
                await call(over)


@pytest.mark.timeout(300)
async def test_a_command_that_says_nothing_for_long_is_left_alone(docker: EngineEndpoint, busybox: str) -> None:
    async with bench(docker, busybox) as here:
        here.engine.limits = replace(DEFAULT_LIMITS, answer_margin_seconds=0.1)
        place = await here.deploy()
        assert (await place.run(Command(["sh", "-c", "sleep 2; echo said"]))).stdout == b"said\n"


async def test_only_containers_of_the_same_run_are_named_beside_one_that_does_not_run(docker: EngineEndpoint, busybox: str) -> None:
    async with bench(docker, busybox) as here, bench(docker, busybox) as strangers:
        mine, other = {"agentenv.run": "run-mine"}, {"agentenv.run": "run-other"}
        stranger, friend, place = await strangers.deploy(labels=mine), await here.deploy(labels=mine), await here.deploy(labels=mine)
        neighbour = await here.deploy(labels=other)
        await engine_does(here, place, "kill")
        with pytest.raises(ContainerNotRunningError) as told:
            await place.run(Command(["true"]))
        assert friend.name in str(told.value)
        assert stranger.name not in str(told.value)
        assert neighbour.name not in str(told.value)
