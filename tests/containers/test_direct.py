"""A container on this machine is reached by itself where this user may step into it, and through its engine wherever there is a doubt."""

from __future__ import annotations

import asyncio
import fcntl
import os
import resource
import secrets
import socket
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from agent_env.containers import ContainerPlace, Engine, EngineEndpoint, attach, direct, objects
from agent_env.containers.spec import Privileges
from agent_env.defaults import DEFAULT_LIMITS
from agent_env.places import Command
from agent_env.places.helper.binary import binary_path
from agent_env.places.helper.greeting import configure, over_socket
from agent_env.places.helper.protocol import HelperConfig
from agent_env.waiting import poll
from tests.busy import within
from tests.chaos.wire import wire
from tests.container_engine import Bench, bench

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="agentenv-capability-missing: root")

PATIENT = replace(DEFAULT_LIMITS, engine_knows_seconds=within(20))
"""So that a busy machine does not lead it through the engine."""


def sh(text: str) -> Command:
    return Command(["sh", "-c", text])


async def execs_of(here: Bench, place: ContainerPlace) -> int:
    return len((await objects.inspect(here.engine, place.id))["ExecIDs"] or [])


async def test_the_engine_is_asked_for_no_exec(docker: EngineEndpoint, busybox: str) -> None:
    async with bench(docker, busybox, PATIENT) as here:
        place = await here.deploy(secrets={"KEY": "told"})
        assert (await place.run(sh("echo $KEY; id -u"))).stdout == b"told\n0\n"
        async with Engine(docker, limits=PATIENT) as another:
            later = await attach(another, place.id, token=here.token, epoch=2)
            assert (await later.run(sh("ps"))).stdout.count(b"helper") == (await later.run(sh("ps"))).stdout.count(b"helper serve")
            await later.aclose()
        assert await execs_of(here, place) == 0
        assert not reaching()


async def test_a_connection_outlives_the_engines(docker: EngineEndpoint, busybox: str, tmp_path: Path) -> None:
    async with (
        bench(docker, busybox, PATIENT) as here,
        wire(docker, tmp_path / "engine.sock") as line,
        Engine(line.endpoint, limits=PATIENT) as engine,
    ):
        made = await here.deploy()
        place = await attach(engine, made.id, token=here.token, epoch=2)
        under_way = asyncio.ensure_future(place.run(sh("echo before; until [ -e /tmp/go ]; do sleep 0.05; done; echo after")))
        await line.cut()
        assert (await place.run(sh("touch /tmp/go"))).ok
        assert (await under_way).stdout == b"before\nafter\n"
        await line.mend()
        await place.aclose()


async def test_what_was_granted_that_it_may_trace_is_reached_through_its_engine(docker: EngineEndpoint, busybox: str) -> None:
    async with bench(docker, busybox) as here:
        place = await here.deploy(privileges=Privileges(capabilities=["SYS_PTRACE"]))
        assert (await place.run(sh("true"))).ok
        assert await execs_of(here, place) == 1


@pytest.mark.parametrize(
    "whose", ["another container's", "nobody's in a container", "nobody's any more", "no process", "no number", "too high"]
)
async def test_a_process_that_is_not_the_containers_helper_is_not_stepped_into(
    whose: str, docker: EngineEndpoint, busybox: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, spawned = objects.inspect, subprocess.Popen
    async with bench(docker, busybox) as here:
        place, other = await here.deploy(), await here.deploy()
        with asleep() as stranger, asleep() as dead:
            dead.kill()
            dead.wait()
            number: Any = {
                "another container's": (await asked(here.engine, other.id))["State"]["Pid"],
                "nobody's in a container": stranger.pid,
                "nobody's any more": dead.pid,
                "no process": 0,
                "no number": "1",
                "too high": 1 << 40,
            }[whose]

            async def mistaken(engine: Engine, container_id: str) -> dict[str, Any]:
                said = await asked(engine, container_id)
                return {**said, "State": {**said["State"], "Pid": number}}

            def unasked(*_: object, **__: object) -> None:
                raise AssertionError("it was stepped into")

            with monkeypatch.context() as patched:
                patched.setattr(objects, "inspect", mistaken)
                patched.setattr(subprocess, "Popen", unasked)
                assert await direct.reach(here.engine, place.id, place.facts.told.socket) is None
                later = await attach(here.engine, place.id, token=here.token, epoch=2)
            assert subprocess.Popen is spawned
            assert (await later.run(sh("echo through the engine"))).stdout == b"through the engine\n"
            assert await execs_of(here, place) == 1
            await later.aclose()


async def test_the_container_that_comes_after_a_thousand_others_is_reached_too(
    docker: EngineEndpoint, busybox: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes a descriptor, so that what is opened next has a high number."""
    opened, (soft, hard) = os.pidfd_open, resource.getrlimit(resource.RLIMIT_NOFILE)

    def opened_high(number: int) -> int:
        low = opened(number)
        try:
            return fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 1500)
        finally:
            os.close(low)

    async with bench(docker, busybox, PATIENT) as here:
        place = await here.deploy()
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 2000), hard), hard))
        try:
            monkeypatch.setattr(os, "pidfd_open", opened_high)
            reached = await direct.reach(here.engine, place.id, place.facts.told.socket)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert reached is not None
        reached.link.close()


async def test_a_process_that_never_becomes_the_helper_is_waited_for_once(
    docker: EngineEndpoint, busybox: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As under gVisor and Kata, whose containers have another kernel: their engines name what runs that."""
    asked = objects.inspect
    async with bench(docker, busybox) as here:
        place = await here.deploy()
        said = await asked(here.engine, place.id)
        sleeping = next(each for each in psutil.Process(said["State"]["Pid"]).children(recursive=True) if each.cmdline()[0] == "sleep")

        async def mistaken(engine: Engine, container_id: str) -> dict[str, Any]:
            return {**said, "State": {**said["State"], "Pid": sleeping.pid}}

        monkeypatch.setattr(objects, "inspect", mistaken)
        async with asyncio.timeout(within(20)):
            for seconds in (0.01, 1000):
                here.engine.limits = replace(here.engine.limits, engine_knows_seconds=seconds)
                assert await direct.reach(here.engine, place.id, place.facts.told.socket) is None
                assert here.engine.strangers == {b"sleep"}


async def test_whoever_may_not_or_cannot_step_in_does_not_try(
    docker: EngineEndpoint, busybox: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bench(docker, busybox) as here:
        place = await here.deploy()
        with monkeypatch.context() as patched:
            patched.delattr(os, "pidfd_open")  # as Python is where it was built on an older kernel's headers
            assert await direct.reach(here.engine, place.id, place.facts.told.socket) is None
        for effective, engine_is in ((1001, {"rootless": False}), (0, {"on_this_machine": False})):
            here.engine._info = replace(await here.engine.info(), **engine_is)
            monkeypatch.setattr(os, "geteuid", lambda found=effective: found)
            assert await direct.reach(here.engine, place.id, place.facts.told.socket) is None


async def test_where_nobody_listens_or_somebody_else_does_nothing_is_taken_and_nothing_left() -> None:
    name = f"agentenv-test-{secrets.token_hex(8)}"
    with asleep() as process, socket.socket(socket.AF_UNIX) as impostor:
        held = os.pidfd_open(process.pid)
        waiting = asyncio.ensure_future(direct._connected(held, process.pid, name))
        inside = await poll(child_of_reach, within_seconds=within(5), what="its child in the container", limits=DEFAULT_LIMITS)
        assert os.getpgid(inside.pid) == os.getpgid(inside.ppid()) != os.getpgrp(), "a Ctrl-C would end it unreaped"
        inside.suspend()  # as the container's root may
        waiting.cancel()
        await asyncio.wait([waiting])
        assert not reaching()
        assert not psutil.pid_exists(inside.pid), "unreaped, it would keep its container from ending"
        with pytest.raises(ConnectionError, match="handed over"):
            await direct._connected(held, process.pid, name)
        impostor.bind(f"\0{name}")
        impostor.listen()
        with pytest.raises(ConnectionError, match="another process"):
            await direct._connected(held, process.pid, name)
        os.close(held)


async def test_a_container_with_users_of_its_own_trusts_who_becomes_its_root() -> None:
    """As engines without root, and those that give their containers other users, make them."""
    name = f"agentenv-test-{secrets.token_hex(8)}"
    with serving(name, "setpriv", "--reuid", "1001", "--clear-groups", "unshare", "-Urnpf", "--kill-child") as outer:

        async def started() -> psutil.Process | None:
            return next((each for each in psutil.Process(outer.pid).children() if "serve" in each.cmdline()), None)

        first = await poll(started, within_seconds=within(10), what="the helper", limits=DEFAULT_LIMITS)
        held = os.pidfd_open(first.pid)
        link = await direct._connected(held, first.pid, name)
        assert not link.get_inheritable()
        connection = await over_socket(link, "a container")
        os.close(held)
        await configure(connection, HelperConfig(token="t", epoch=1, hold=True), DEFAULT_LIMITS)
        connection.close()


def asleep() -> AbstractContextManager[subprocess.Popen[bytes]]:
    return process_of("sleep", "1000")


def serving(name: str, *around: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
    return process_of(*around, str(binary_path()), "serve", "--await", name, "--ttl-ms", "60000")


@contextmanager
def process_of(*words: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(words, stdin=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


async def child_of_reach() -> psutil.Process | None:
    return next((each for outer in reaching() for each in outer.children()), None)


def reaching() -> list[psutil.Process]:
    """Those of this process' children, of which other tests may have left it some, that step in just now."""
    return [each for each in psutil.Process().children() if each.cmdline()[:2] == ["helper", "reach"]]
