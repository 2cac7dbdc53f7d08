"""A container is a place: commands, files, owners, and what is said when it is gone."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from agent_env.containers import ENTRY_ATTEMPT, Engine, EngineEndpoint, attach, objects
from agent_env.containers.large import copy_out
from agent_env.defaults import DEFAULT_LIMITS
from agent_env.errors import ContainerNotRunningError, LaunchError, PlaceLostError, SupersededError, TransportLostError, UsageError
from agent_env.places import Command, Ending, Entry, Missing, PlaceKind, Upload
from tests.busy import lasting, within
from tests.container_engine import NEAR_AND_FAR, bench, pause


def sh(text: str, **given) -> Command:
    return Command(["sh", "-c", text], **given)


@NEAR_AND_FAR
async def test_a_command_runs_in_the_container_with_the_images_environment_and_the_secrets(
    far: bool, docker: EngineEndpoint, busybox: str
) -> None:
    async with bench(docker, busybox, far=far) as here:
        place = await here.deploy(env={"A": "b c\n$(d)"}, secrets={"KEY": "hidden"})
        done = await place.run(sh('printf "%s|" "$A" "$KEY" "$IMAGE" "$HOSTNAME" "$(hostname)"; id -u'))
        assert place.kind is PlaceKind.CONTAINER
        assert len(place.id) == 64
        short = place.id[:12]
        assert done.stdout.decode() == f"b c\n$(d)|hidden|busybox|{short}|{short}|0\n"


@NEAR_AND_FAR
async def test_files_go_in_and_out_whole_and_belong_to_the_images_user(
    far: bool, docker: EngineEndpoint, busybox: str, tmp_path: Path
) -> None:
    data = secrets.token_bytes(3_000_000)
    async with bench(docker, busybox, far=far) as here:
        place = await here.deploy(user="worker")
        path = PurePosixPath("/srv/deep/er/data.bin")
        await place.put([Upload(path, data)])
        entry = (await place.stat([path]))[path]
        assert isinstance(entry, Entry)
        assert (entry.uid, entry.gid, entry.size) == (1001, 1001, len(data))
        got = await place.get([path, PurePosixPath("/absent")], tmp_path)
        assert isinstance(got[path], Path)
        assert got[path].read_bytes() == data
        assert got[PurePosixPath("/absent")] == Missing(PurePosixPath("/absent"))
        assert [entry.path.name async for entry in place.walk(PurePosixPath("/srv"))] == ["deep", "er", "data.bin"]
        assert (await place.run(sh("id -u; id -G; test -w /srv/deep && echo mine"))).stdout == b"1001\n1001 1500\nmine\n"
        await place.remove([PurePosixPath("/srv")])
        assert await place.read(path) == Missing(path)


@NEAR_AND_FAR
async def test_a_later_owner_in_this_or_another_process_takes_the_container_over(far: bool, docker: EngineEndpoint, busybox: str) -> None:
    async with bench(docker, busybox, far=far) as here:
        place = await here.deploy()
        later = await attach(here.engine, place.id, token=here.token, epoch=2)
        here.places.append(later)
        assert (await later.run(Command(["true"]))).ok
        with pytest.raises(SupersededError):
            await place.run(Command(["true"]))
        with pytest.raises(SupersededError):
            await attach(here.engine, place.id, token=here.token, epoch=1)
        assert later.id == place.id
        assert later.labels["agentenv.home"] == here.home


@NEAR_AND_FAR
async def test_a_broken_stream_loses_neither_the_command_nor_the_place(far: bool, docker: EngineEndpoint, busybox: str) -> None:
    async with bench(docker, busybox, far=far) as here:
        place = await here.deploy()
        done = await place.run(sh("echo before; kill -9 $(ps | grep '[c]onnect @' | awk '{print $1}'); sleep 0.5; echo after; exit 7"))
        assert (done.ending, done.exit_code, done.stdout) == (Ending.EXITED, 7, b"before\nafter\n")
        assert (await place.run(sh("echo back"))).stdout == b"back\n"


async def test_a09_a_stopped_container_is_an_error_that_names_it_and_what_runs(docker: EngineEndpoint, busybox: str) -> None:
    async with bench(docker, busybox) as here:
        labels = {"agentenv.run": "run-of-both"}
        place = await here.deploy(argv=("sh", "-c", "until [ -e /tmp/go ]; do sleep 0.05; done; echo boom >&2; exit 3"), labels=labels)
        decoy = await here.deploy(labels=labels)
        done = await place.run(sh("touch /tmp/go; sleep 60"))
        assert done.ending is Ending.LOST
        assert "exited with code 3" in done.detail
        for _ in range(2):
            with pytest.raises(ContainerNotRunningError) as told:
                await place.run(Command(["true"]))
            assert f"Agent container '{place.name}' is not running: it has exited with code 3." in str(told.value)
            assert decoy.name in str(told.value)
            assert "boom" in str(told.value)
        with pytest.raises(ContainerNotRunningError):
            await attach(here.engine, place.id, token=here.token, epoch=2)


HOG = "x=0123456789abcdef; while :; do x=$x$x; done"


async def test_ex09_only_the_command_that_the_kernel_ended_for_memory_is_limited(docker: EngineEndpoint, busybox: str) -> None:
    limit = 32 << 20
    async with bench(docker, busybox) as here:
        place = await here.deploy(memory_bytes=limit)
        beside = await place.start(sh("read line; exit 3"))
        # The second one is a shell's, which says of its child that it was killed, as a test script does.
        for text in (HOG, f"sh -c '{HOG}'; exit $?"):
            hog = await place.run(sh(text))
            assert (hog.ending, hog.exit_code, hog.signal) == (Ending.LIMITED, None, None), hog
            assert hog.detail == f"the place's memory limit of {limit} bytes was reached; the kernel ended a process"
        await beside.write(b"go\n")
        assert (await beside.wait()).exit_code == 3
        await beside.aclose()
        assert (await place.run(sh("kill -9 $$"))).ending is Ending.SIGNALLED
        again = await attach(here.engine, place.id, token=here.token, epoch=2)
        here.places.append(again)
        assert f"{limit} bytes" in (await again.run(sh(HOG))).detail


async def test_a_removed_container_is_lost_and_a_name_is_no_identity(docker: EngineEndpoint, busybox: str) -> None:
    async with bench(docker, busybox) as here:
        place = await here.deploy()
        with pytest.raises(UsageError, match="told by its id"):
            await attach(here.engine, place.name, token=here.token, epoch=2)
        async with here.engine.asking("removing") as client:
            await client.containers.container(place.id).delete(force=True)
        with pytest.raises(ContainerNotRunningError, match="it was removed"):
            await place.run(Command(["true"]))
        with pytest.raises(PlaceLostError):
            await attach(here.engine, place.id, token=here.token, epoch=2)


async def test_ex07_what_cannot_be_launched_is_a_launch_error(docker: EngineEndpoint, busybox: str) -> None:
    async with bench(docker, busybox) as here:
        place = await here.deploy()
        await place.put([Upload(PurePosixPath("/bad"), b"#!/bin/sh\r\n", mode=0o755)])
        for command in (
            Command(["true"], cwd=PurePosixPath("/absent")),
            Command(["absent"]),
            Command(["true"], user="stranger"),
            Command(["/bad"]),
            Command(["echo", "x" * 131_072]),
        ):
            with pytest.raises(LaunchError):
                await place.run(command)
        assert (await place.run(sh("exit 126"))).exit_code == 126


async def test_ending_the_images_command_leaves_the_container_and_freezing_stops_it(docker: EngineEndpoint, busybox: str) -> None:
    async with bench(docker, busybox) as here:
        place = await here.deploy(argv=("sh", "-c", "while :; do date +%s%N >/tmp/tick; done"))
        assert (await place.run(sh("until [ -s /tmp/tick ]; do :; done"))).ok
        assert await place.freeze(ENTRY_ATTEMPT) >= 1
        before = await place.read(PurePosixPath("/tmp/tick"))
        assert (await place.run(sh("sleep 0.2; cat /tmp/tick"))).stdout == before
        assert await place.thaw(ENTRY_ATTEMPT) >= 1
        assert await place.stop_attempt(ENTRY_ATTEMPT) == 1
        assert (await place.run(sh("ps | grep -c '[d]ate\\|[w]hile' || true"))).stdout.strip() == b"0"


async def test_a_crowd_is_frozen_and_whoever_asked_for_it_hears_the_answer(docker: EngineEndpoint, busybox: str) -> None:
    async with bench(docker, busybox) as here:
        place = await here.deploy(argv=("sh", "-c", "for i in $(seq 150); do sleep 1000 & done; wait"))
        assert (await place.run(sh("until [ $(pidof sleep | wc -w) -ge 150 ]; do :; done"))).ok
        assert await place.freeze(ENTRY_ATTEMPT) >= 150
        assert (await place.run(sh("ps -o stat,comm | grep -c '^T.*sleep'"))).stdout.strip() == b"150"
        assert await place.thaw(ENTRY_ATTEMPT) >= 150
        assert (await place.run(sh("ps -o stat,comm | grep -c '^T.*sleep' || true"))).stdout.strip() == b"0"


async def test_a_thousand_commands_at_once_on_one_container(docker: EngineEndpoint, busybox: str) -> None:
    async with bench(docker, busybox) as here:
        place = await here.deploy()
        done = await asyncio.gather(*(place.run(Command(["echo", str(number)])) for number in range(1000)))
        assert [each.stdout for each in done] == [b"%d\n" % number for number in range(1000)]


async def test_ex08_a_container_that_is_killed_or_paused_meanwhile_is_said_to_be_so(docker: EngineEndpoint, busybox: str) -> None:
    async with bench(docker, busybox) as here:
        place = await here.deploy(argv=("sh", "-c", "echo told $KEY; exec sleep 1000"), secrets={"KEY": "canary-of-the-log"})
        container = here.engine.docker.containers.container(place.id)
        await pause(here.engine, place.id)
        asked = await place.run(Command(["true"], timeout_seconds=0.1, kill_grace_seconds=0.1))
        assert asked.ending is Ending.LOST
        assert "somebody has paused it" in asked.detail
        assert asked.detail.count(place.name) == 2, "what else runs, which it is not, and how it is set going"
        await container.unpause()
        assert (await place.run(Command(["true"]))).ok
        running = asyncio.ensure_future(place.run(sh("echo start; sleep 60; echo end")))
        await asyncio.gather(container.kill(), asyncio.wait([running]))
        done = running.result()
        assert done.ending is Ending.LOST
        assert "end" not in done.stdout.decode()
        with pytest.raises(ContainerNotRunningError, match="exited with code 137") as told:
            await place.run(Command(["true"]))
        assert "told" in str(told.value)
        assert "canary-of-the-log" not in str(told.value)


async def test_ex08_a_container_whose_end_its_engine_learns_late_is_said_to_have_ended(
    docker: EngineEndpoint, busybox: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    inspect, late = objects.inspect, iter(range(2))
    async with bench(docker, busybox) as here:
        place = await here.deploy(argv=("sh", "-c", "echo boom; exec sleep 1000"))
        runs = await inspect(here.engine, place.id)

        async def learns_late(engine: Engine, container_id: str) -> Any:
            return runs if next(late, None) is not None else await inspect(engine, container_id)

        await here.engine.docker.containers.container(place.id).kill()
        await here.engine.docker.containers.container(place.id).wait()
        place.lost(TransportLostError("the connection broke"))
        monkeypatch.setattr(objects, "inspect", learns_late)
        with pytest.raises(ContainerNotRunningError, match=r"exited with code 137(.|\n)*boom"):
            await place.ledger()
        assert next(late, None) is None


async def test_ex02_what_a_command_left_in_sessions_of_its_own_ends_at_its_limit(docker: EngineEndpoint, busybox: str) -> None:
    async with bench(docker, busybox) as here:
        place = await here.deploy()
        other = asyncio.ensure_future(place.run(sh("sleep 2; echo other")))
        text = "echo before; echo err >&2; setsid sh -c 'trap \"\" TERM; sleep 77' & exec sleep 77"
        done = await place.run(sh(text, timeout_seconds=lasting(0.5), kill_grace_seconds=0.2))
        assert (done.ending, done.stdout, done.stderr) == (Ending.TIMED_OUT, b"before\n", b"err\n")
        assert (await place.run(sh("ps | grep -c '[s]leep 77' || true"))).stdout.strip() == b"0"
        assert (await other).stdout == b"other\n"


async def test_ex05_a_background_child_does_not_hold_the_result_back(docker: EngineEndpoint, busybox: str) -> None:
    async with bench(docker, busybox) as here:
        place = await here.deploy()
        done = await place.run(sh("sleep 30 & head -c 1000000 /dev/zero; echo done"))
        assert done.stdout == bytes(1_000_000) + b"done\n"
        assert done.duration_seconds < within(10)
        assert (await place.run(sh("ps | grep -c '[s]leep 30'"))).stdout == b"1\n"


async def test_a06_words_and_values_arrive_byte_for_byte(docker: EngineEndpoint, busybox: str) -> None:
    words = ["/app", "sudo", "a 'b' \"c\"", "line\nline", "$(id) `id` ${HOME}", " ", "", "ü€", "-n"]
    async with bench(docker, busybox) as here:
        place = await here.deploy(env={"VALUE": "".join(words)})
        done = await place.run(Command(["sh", "-c", 'printf "%s\\0" "$@" "$VALUE"', "sh", *words, b"\xff\xfe"]))
        assert done.stdout.split(b"\0")[:-1] == [*(word.encode() for word in words), b"\xff\xfe", "".join(words).encode()]


async def test_large_files_are_copied_by_the_engine_and_are_what_the_place_says_that_they_are(
    docker: EngineEndpoint, busybox: str, tmp_path: Path
) -> None:
    data, limit = secrets.token_bytes(3_000_001), 2_000_000
    plain, link, mounted, small, absent = (
        PurePosixPath(name) for name in ("/srv/plain", "/srv/link", "/dev/shm/file", "/srv/small", "/no")
    )
    async with bench(docker, busybox, replace(DEFAULT_LIMITS, archive_copy_bytes=limit), far=True) as here:
        place = await here.deploy()
        await place.put([Upload(plain, data), Upload(mounted, data[::-1]), Upload(small, b"small")])
        await place.run(sh("ln -s plain /srv/link"))
        got = await place.get([plain, link, mounted, small, absent], tmp_path)
        found = {path: copy.read_bytes() if isinstance(copy, Path) else copy for path, copy in got.items()}
        assert found == {plain: data, link: data, mounted: data[::-1], small: b"small", absent: Missing(absent)}
        for most in (limit, len(data) - 1):
            assert await place.get([plain], tmp_path, limit_bytes=most) == {plain: Missing(plain, "EFBIG")}

        async def by_the_engine(path: PurePosixPath, sha256: str) -> Path | None:
            async def said() -> str:
                return sha256

            return await copy_out(here.engine, place.id, path, tmp_path, size=len(data), said=said())

        true = hashlib.sha256(data).hexdigest()
        copy = await by_the_engine(plain, true)
        assert copy is not None
        assert copy.read_bytes() == data
        others = [
            (plain, true[::-1]),
            (link, true),
            (mounted, true),
            (absent, true),
            (PurePosixPath("/srv"), true),
            (PurePosixPath("/\udcff"), true),
        ]
        assert [await by_the_engine(*other) for other in others] == [None] * len(others)
        assert len(await asyncio.to_thread(lambda: list(tmp_path.iterdir()))) == 5


async def test_files_that_would_keep_a_container_from_everybody_else_for_long_are_not_copied_by_the_engine(
    docker: EngineEndpoint, busybox: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unasked(*_: object, **__: object) -> None:
        raise AssertionError("the engine was asked for its archive")

    monkeypatch.setattr("agent_env.containers.place.copy_out", unasked)
    data, path = secrets.token_bytes(3_000_001), PurePosixPath("/srv/plain")
    limits = replace(DEFAULT_LIMITS, archive_copy_bytes=2_000_000, archive_copy_most_bytes=3_000_000)
    async with bench(docker, busybox, limits, far=True) as here:
        place = await here.deploy()
        await place.put([Upload(path, data)])
        copy = (await place.get([path], tmp_path))[path]
        assert isinstance(copy, Path)
        assert copy.read_bytes() == data
