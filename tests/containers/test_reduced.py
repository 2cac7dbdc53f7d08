"""A container that somebody else started is a place in reduced mode: it says what it can't do, and never pretends."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path, PurePosixPath

import pytest

from agent_env.containers import EngineEndpoint, ExecPlace, attach, reduced
from agent_env.errors import ContainerNotRunningError, LaunchError, PlaceLostError, UnsupportedError, UsageError
from agent_env.places import Command, Ending, Entry, FileKind, Missing, Upload
from tests.busy import lasting
from tests.container_engine import Bench, bench, pause


@asynccontextmanager
async def foreign(docker: EngineEndpoint, image: str, **config) -> AsyncIterator[tuple[Bench, ExecPlace]]:
    """A container as a person's own tools make it."""
    async with bench(docker, image) as here:
        body = {"Image": image, "Cmd": ["sleep", "1000"], "Labels": here.labels, "HostConfig": {"NetworkMode": "none"}, **config}
        async with here.engine.asking("making") as client:
            made = await client.containers.create(body, name=f"foreign-{secrets.token_hex(6)}")
            await made.start()
        yield here, await reduced(here.engine, made.id)


async def test_commands_end_as_they_end_anywhere(docker: EngineEndpoint, busybox: str) -> None:
    async with foreign(docker, busybox) as (_, place):
        done = await place.run(Command(["sh", "-c", 'cat; printf "%s" "$A" >&2; exit 3'], stdin=b"\xff\xfe\x00in", env={"A": "b c"}))
        assert (done.ending, done.exit_code, done.stdout, done.stderr) == (Ending.EXITED, 3, b"\xff\xfe\x00in", b"b c")
        cut = await place.run(Command(["sh", "-c", "yes | head -c 20000"], output_limit_bytes=10_000))
        assert (len(cut.stdout), cut.stdout_dropped_bytes) == (10_000, 10_000)
        with pytest.raises(LaunchError):
            await place.run(Command(["absent"]))
        with pytest.raises(LaunchError):
            await place.run(Command(["true"], user="stranger"))


async def test_ex01_a_command_at_its_limit_is_ended_or_said_to_go_on(docker: EngineEndpoint, busybox: str) -> None:
    async with foreign(docker, busybox) as (here, place):
        done = await place.run(Command(["sh", "-c", "echo before; sleep 333 & sleep 333"], timeout_seconds=lasting(0.5)))
        assert (done.ending, done.stdout) == (Ending.TIMED_OUT, b"before\n")
        left = (await place.run(Command(["sh", "-c", "ps | grep -c '[s]leep 333' || true"]))).stdout.strip()
        assert (left == b"0") == (done.detail == "")
        assert (await here.engine.info()).on_this_machine == (left == b"0")


async def test_lc14_no_file_of_ours_is_given_to_the_client_which_would_close_it_beside_us(
    docker: EngineEndpoint, busybox: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def given(*_: object, **__: object) -> None:
        raise AssertionError("a file was given to the client")

    monkeypatch.setattr("aiohttp.payload.IOBasePayload.__init__", given)
    async with foreign(docker, busybox) as (here, place):
        await place.put([Upload(PurePosixPath("/f"), b"x" * 3_000_000)])
        assert len(await place.read(PurePosixPath("/f"), limit_bytes=4_000_000)) == 3_000_000
        await here.deploy()


async def test_files_go_through_the_engines_archives(docker: EngineEndpoint, busybox: str, tmp_path: Path) -> None:
    data = secrets.token_bytes(2_000_000)
    async with foreign(docker, busybox) as (_, place):
        path = PurePosixPath("/srv/a b/ü/data")
        await place.put([Upload(path, data, mode=0o600), Upload(PurePosixPath("/srv/empty"), None)], owner="1001:1500")
        await place.run(Command(["ln", "-s", "/srv/a b", "/srv/link"]))
        entry = (await place.stat([path], digest=True))[path]
        assert isinstance(entry, Entry)
        assert (entry.uid, entry.gid, entry.mode, entry.size) == (1001, 1500, 0o600, len(data))
        through = PurePosixPath("/srv/link/ü/data")
        got = await place.get([through, PurePosixPath("/srv"), PurePosixPath("/absent")], tmp_path)
        assert isinstance(got[through], Path)
        assert got[through].read_bytes() == data
        assert got[PurePosixPath("/srv")] == Missing(PurePosixPath("/srv"), "EISDIR")
        assert got[PurePosixPath("/absent")] == Missing(PurePosixPath("/absent"))
        kinds = {str(entry.path): entry.kind async for entry in place.walk(PurePosixPath("/srv"))}
        assert kinds["/srv/link"] is FileKind.LINK
        assert kinds["/srv/a b/ü/data"] is FileKind.FILE
        assert kinds["/srv/empty"] is FileKind.DIRECTORY
        await place.remove([PurePosixPath("/srv")])
        assert await place.read(path) == Missing(path)


async def test_what_only_a_helper_can_is_refused_by_name(docker: EngineEndpoint, busybox: str) -> None:
    async with foreign(docker, busybox) as (here, place):
        with pytest.raises(UnsupportedError, match="not started by agent-env"):
            await place.ledger()
        with pytest.raises(UnsupportedError, match="not started by agent-env"):
            await place.stop_attempt("a")
        with pytest.raises(UnsupportedError, match="by name"):
            await place.put([Upload(PurePosixPath("/x"), b"")], owner="worker")
        with pytest.raises(UsageError, match="not made by agent-env"):
            await attach(here.engine, place.id, token="t", epoch=1)


async def test_ex08_a_stopped_paused_or_removed_one_is_said_to_be_so(docker: EngineEndpoint, busybox: str) -> None:
    async with foreign(docker, busybox) as (here, place):
        await pause(here.engine, place.id)
        with pytest.raises(ContainerNotRunningError, match="somebody has paused it"):
            await place.run(Command(["true"]))
        async with here.engine.asking("stopping") as client:
            await client.containers.container(place.id).unpause()
            await client.containers.container(place.id).kill()
        with pytest.raises(ContainerNotRunningError, match="exited with code 137"):
            await place.run(Command(["true"]))
        with pytest.raises(ContainerNotRunningError):
            await reduced(here.engine, place.id)
        async with here.engine.asking("removing") as client:
            await client.containers.container(place.id).delete(force=True)
        with pytest.raises(PlaceLostError):
            await reduced(here.engine, place.id)
