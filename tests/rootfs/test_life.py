"""Sandboxes of images outlive their makers, and nothing of them outlives their removal."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path, PurePosixPath

import pytest

from agent_env.defaults import MIB
from agent_env.documents.network import NetworkMode, NetworkPolicy
from agent_env.errors import InfrastructureError, PlaceLostError, SandboxNotFoundError, SupersededError, TransferError, UnsupportedError
from agent_env.images import ImageStore
from agent_env.places import Command, Ending, Missing, PlaceKind, Upload
from agent_env.sandboxes.confined.processes import Identity, marked
from agent_env.sandboxes.confined.records import Records
from agent_env.sandboxes.rootfs import provider as maker
from agent_env.sandboxes.rootfs.making import Making
from agent_env.waiting import poll
from tests.busy import within
from tests.processes import forked
from tests.rootfs import images
from tests.rootfs.images import SANDBOX, WAYS, act, busybox, provider, spec
from tests.rootfs.test_images import folder
from tests.sandboxes.people import World

assert folder


@pytest.mark.parametrize("way", WAYS)
def test_a_later_owner_goes_on_where_the_first_was_killed(way: str, folder: Path) -> None:
    image = busybox(folder)

    async def make(world: World) -> None:
        await provider(world).create(spec(image))
        os.kill(os.getpid(), signal.SIGKILL)

    async def scenario(world: World) -> None:
        assert _in_a_fork(lambda: make(world)) == signal.SIGKILL
        made = provider(world)
        sandbox = await made.attach(SANDBOX, epoch=2, token="t")
        place = await sandbox.machine()
        assert (place.kind, place.id) == (PlaceKind.CONTAINER, SANDBOX)
        assert (await place.run(Command(["cat", "/etc/hostname"]))).stdout == f"{SANDBOX}\n".encode()
        with pytest.raises(SupersededError):
            await made.attach(SANDBOX, epoch=1, token="t")
        await sandbox.aclose()
        assert [info.sandbox_id async for info in made.list({"agentenv.home": "h"})] == [SANDBOX]
        assert await made.destroy(SANDBOX)
        assert not await made.destroy(SANDBOX)
        assert images.left(world) == []
        assert [*marked(SANDBOX)] == []
        with pytest.raises(SandboxNotFoundError):
            await made.attach(SANDBOX, epoch=3, token="t")

    act(way, scenario)


@pytest.mark.parametrize("after", ["record", "folder", "processes"])
def test_d01_a_maker_that_is_killed_half_way_leaves_what_can_be_found_and_removed(after: str, folder: Path) -> None:
    image = busybox(folder)

    async def make(world: World) -> None:
        def die(*_: object, **__: object) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        setattr(*{"record": (maker, "make"), "folder": (Making, "_start"), "processes": (Records, "write")}[after], die)
        await provider(world).create(spec(image))

    async def scenario(world: World) -> None:
        assert _in_a_fork(lambda: make(world)) == signal.SIGKILL
        made = provider(world)
        found = [info async for info in made.list({"agentenv.home": "h"})]
        assert [(info.sandbox_id, info.alive) for info in found] == [(SANDBOX, False)]
        with pytest.raises(PlaceLostError):
            await made.attach(SANDBOX, epoch=2, token="t")
        assert await made.destroy(SANDBOX)
        assert images.left(world) == []
        assert [*marked(SANDBOX)] == []

    act(WAYS[0], scenario)


def test_b14_a_sandbox_whose_command_ended_is_lost_and_never_a_score(folder: Path) -> None:
    image = busybox(folder, Cmd=["sh", "-c", "exit 3"])

    async def scenario(world: World) -> str:
        made = provider(world)
        await (await made.create(spec(image))).aclose()

        async def ended() -> PlaceLostError | None:
            try:
                await (await made.attach(SANDBOX, epoch=1, token="t")).aclose()
            except PlaceLostError as error:
                return None if "nobody saw how" in error.message else error  # it is written down a moment later
            except InfrastructureError:
                return None
            return None

        error = await poll(ended, within_seconds=60, what="the end of the sandbox")
        await made.destroy(SANDBOX)
        return error.message

    assert f"{SANDBOX} has ended (exit code 3)" in act(WAYS[0], scenario)


@pytest.mark.parametrize("way", WAYS)
def test_b14_whoever_holds_a_sandbox_whose_first_process_is_killed_is_told_which_one_ended_and_how(way: str, folder: Path) -> None:
    image = busybox(folder, Cmd=["sleep", "100000"])

    async def scenario(world: World) -> list[str]:
        made = provider(world)
        sandbox = await made.create(spec(image))
        place = await sandbox.machine()
        working = asyncio.create_task(place.run(Command(["sh", "-c", "echo began; sleep 100000"], attempt="a")))

        async def runs() -> bool | None:
            return any(entry.attempt == "a" for entry in await place.ledger()) or None

        await poll(runs, within_seconds=within(20), what="the start of the command")
        first = Identity.load(sandbox.info.facts["first"])
        assert first is not None
        first.kill()
        cut = await working
        assert (cut.ending, cut.exit_code) == (Ending.LOST, None)
        said = [cut.detail]
        for again in (
            place.run(Command(["true"])),
            place.read(PurePosixPath("/etc/hostname")),
            made.attach(SANDBOX, epoch=1, token="t"),
        ):
            with pytest.raises(PlaceLostError) as told:
                await again
            said.append(told.value.message)
        await sandbox.aclose()
        assert await made.destroy(SANDBOX)
        return said

    assert act(way, scenario) == [f"sandbox {SANDBOX} has ended (it was killed)"] * 4


def test_fi10_a_file_that_is_larger_than_what_a_sandbox_may_keep_is_named_with_the_limit(folder: Path) -> None:
    image = busybox(folder, Cmd=["sleep", "100000"])

    async def scenario(world: World) -> None:
        made = provider(world)
        sandbox = await made.create(spec(image, disk_bytes=8 * MIB))
        place = await sandbox.machine()
        files = [Upload(PurePosixPath("/small"), b"x"), Upload(PurePosixPath("/large"), bytes(9 * MIB))]
        with pytest.raises(TransferError, match=f"^/large could not be written: .* disk limit of {8 * MIB} bytes"):
            await place.put(files)
        assert isinstance(await place.read(PurePosixPath("/large")), Missing)
        await place.put(files[:1])
        await sandbox.aclose()
        assert await made.destroy(SANDBOX)

    act(WAYS[0], scenario)


def test_a_command_that_was_killed_is_started_again_in_the_same_sandbox_where_that_was_asked_for(folder: Path) -> None:
    image = busybox(folder, Cmd=["sh", "-c", "echo life >> /lives; exec sleep 100000"])

    async def scenario(world: World) -> bytes:
        made = provider(world)
        sandbox = await made.create(spec(image, restart=True))
        place = await sandbox.machine()

        async def lives(wanted: int) -> bytes:
            async def told() -> bytes | None:
                found = (await place.run(Command(["cat", "/lives"]))).stdout
                return found if found.count(b"\n") == wanted else None

            return await poll(told, within_seconds=60, what=f"life {wanted} of the image's command")

        await lives(1)
        (entry,) = [entry for entry in await place.ledger() if entry.attempt == "image"]
        await place.run(Command(["kill", "-9", str(entry.pid)]))
        found = await lives(2)
        await sandbox.aclose()
        await made.destroy(SANDBOX)
        return found

    assert act(WAYS[0], scenario) == b"life\nlife\n"


def test_a_command_of_the_image_keeps_to_the_places_memory(folder: Path) -> None:
    image = busybox(folder, Cmd=["sh", "-c", "grep -h . /proc/self/cgroup > /cgroups; exec sleep 100000"])

    async def scenario(world: World) -> bytes:
        made = provider(world)
        sandbox = await made.create(spec(image))
        place = await sandbox.machine()

        async def told() -> bytes | None:
            return (await place.run(Command(["cat", "/cgroups"]))).stdout or None

        found = await poll(told, within_seconds=60, what="the image's own command")
        own = (await place.run(Command(["grep", "-h", ".", "/proc/self/cgroup"]))).stdout
        await sandbox.aclose()
        await made.destroy(SANDBOX)
        return b"" if found == own else found + own

    assert act(WAYS[0], scenario) == b""


def test_a_pinned_image_stays_until_its_sandbox_is_gone(folder: Path) -> None:
    image = busybox(folder)

    async def scenario(world: World) -> list[int]:
        made, store = provider(world), ImageStore(world.state)
        await (await made.create(spec(image))).aclose()
        kept = len((await store.gc(everything=True)).removed)
        await made.destroy(SANDBOX)
        return [kept, len((await store.gc(everything=True)).removed)]

    assert act(WAYS[0], scenario) == [0, 1]


def test_it_has_no_machine_beside_it_and_says_who_has(folder: Path) -> None:
    image = busybox(folder)

    async def scenario(world: World) -> None:
        made = provider(world)
        capabilities = await made.capabilities()
        assert any("only container" in reason for reason in made.problems(spec(image, mode="vm"), capabilities))
        assert any("needs an image" in reason for reason in made.problems(spec(""), capabilities))
        sandbox = await made.create(spec(image, network=NetworkPolicy(mode=NetworkMode.NONE)))
        for asked in (sandbox.engine(), sandbox.container("0123456789abcdef")):
            with pytest.raises(UnsupportedError, match="itself a container"):
                await asked
        await sandbox.aclose()
        await made.destroy(SANDBOX)

    act(WAYS[0], scenario)


def test_secrets_are_in_no_record_argument_or_log(folder: Path) -> None:
    image = busybox(folder, Cmd=["sh", "-c", "exec sleep 100000"])

    async def scenario(world: World) -> None:
        made = provider(world)
        sandbox = await made.create(spec(image, secrets={"KEY": "canary-91c2"}, token="token-91c2"))
        files = [path for path in (*world.state.rglob("*"), *world.work.rglob("*")) if path.is_file() and "images" not in path.parts]
        assert [path for path in files if b"91c2" in path.read_bytes()] == []
        assert _holding(b"91c2") == []
        await sandbox.aclose()
        await made.destroy(SANDBOX)

    act(WAYS[0], scenario)


def _in_a_fork(work: Callable[[], Coroutine[object, object, None]]) -> int:
    """Does the work in another process, and tells what signal ended that."""

    def alone() -> None:
        asyncio._set_running_loop(None)
        asyncio.run(work())

    return os.WTERMSIG(os.waitpid(forked(alone), 0)[1])


def _holding(text: bytes) -> list[Path]:
    """Processes of this machine that have it among their arguments."""
    return [path for path in Path("/proc").glob("[0-9]*/cmdline") if text in _bytes(path)]


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
