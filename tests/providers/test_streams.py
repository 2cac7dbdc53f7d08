"""Places derived from one primitive: the helper arrives over a stream, starts, and is found again."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from agent_env.errors import InfrastructureError, SandboxUnavailableError, SupersededError, UnsupportedError
from agent_env.places import Command, Ending, Place, Upload
from agent_env.places.helper import HelperConfig
from agent_env.sandboxes.remote import RemotePlace, connect_helper, start_helper
from tests.helper.living import tagged

TOKEN = "token-5e1f"


class Program:
    """A program of this machine as a byte stream, as a cloud's exec would be one."""

    def __init__(self, process: asyncio.subprocess.Process, piece: int) -> None:
        self._process = process
        self._piece = piece

    async def receive(self) -> bytes:
        assert self._process.stdout is not None
        return await self._process.stdout.read(self._piece)

    async def send(self, data: bytes) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(data)
            await self._process.stdin.drain()
        except ConnectionError as error:
            raise InfrastructureError("the stream broke") from error

    async def aclose(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()


class Machine:
    """Runs programs on this machine, with a search path and a size of pieces of its own. Remembers what was run."""

    def __init__(self, folder: Path, *, piece: int = 1 << 16, path: str | None = None) -> None:
        self.folder = PurePosixPath(folder / "helper's folder")
        self.argvs: list[Sequence[str]] = []
        self._piece = piece
        self._environ = {"PATH": path or os.environ["PATH"], "CASE_TAG": str(folder)}

    async def open(self, argv: Sequence[str]) -> Program:
        self.argvs.append(argv)
        process = await asyncio.create_subprocess_exec(
            *argv, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, env=self._environ, start_new_session=True
        )
        return Program(process, self._piece)

    async def start(self, epoch: int = 1) -> None:
        config = HelperConfig(token=TOKEN, epoch=epoch, env={"PATH": os.environ["PATH"]}, cwd=str(self.folder))
        await start_helper(self.open, config, concerns="machine m", folder=self.folder)

    async def connect(self, *, epoch: int = 1, token: str = TOKEN) -> RemotePlace:
        return await connect_helper(self.open, place_id="m", labels={"a": "b"}, token=token, epoch=epoch, folder=self.folder)

    def holding(self, secret: bytes) -> list[str]:
        """Where a secret can be read: arguments, variables, files."""
        processes = [Path(f"/proc/{pid}/{what}") for pid in tagged(self._environ["CASE_TAG"]) for what in ("environ", "cmdline")]
        files = [path for path in Path(self.folder).iterdir() if path.is_file() and not path.is_symlink()]
        return [str(path) for path in (*processes, *files) if secret in path.read_bytes()]

    def binaries(self) -> dict[str, int]:
        """Each helper that was stored, with its inode."""
        return {path.name: path.stat().st_ino for path in Path(self.folder).glob("agentenv-helper-*")}

    def cut(self) -> None:
        """Ends every stream that is connected to the helper."""
        for pid in tagged(self._environ["CASE_TAG"]):
            if b"connect" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)


@asynccontextmanager
async def connected(machine: Machine) -> AsyncIterator[RemotePlace]:
    await machine.start()
    place = await machine.connect()
    try:
        yield place
    finally:
        ending = await machine.connect(epoch=99)
        await ending.shut_down()
        await ending.aclose()
        await place.aclose()


def run(scenario: Callable[[], Any]) -> None:
    asyncio.run(scenario())


@pytest.mark.parametrize("piece", [1 << 16, 7], ids=["large pieces", "pieces of seven bytes"])
def test_a_stream_is_enough_for_a_whole_place(tmp_path: Path, piece: int) -> None:
    async def scenario() -> None:
        async with connected(Machine(tmp_path, piece=piece)) as place:
            assert isinstance(place, Place)
            data = os.urandom(100_000)
            path = PurePosixPath(tmp_path) / "f"
            await place.put([Upload(path, data)])
            assert await place.read(path) == data
            done = await place.run(Command(["sh", "-c", "cat; echo err >&2; exit 3"], stdin=b"in"))
            assert (done.exit_code, done.stdout, done.stderr) == (3, b"in", b"err\n")

    run(scenario)


def test_the_token_stands_in_no_argument_variable_or_file(tmp_path: Path) -> None:
    async def scenario() -> None:
        machine = Machine(tmp_path)
        async with connected(machine):
            assert TOKEN not in str(machine.argvs)
            assert machine.holding(TOKEN.encode()) == []

    run(scenario)


def test_a_helper_that_is_there_already_is_not_sent_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        machine = Machine(tmp_path)
        async with connected(machine):
            pass
        before = machine.binaries()
        async with connected(machine):
            pass
        assert (len(before), before) == (1, machine.binaries())

    run(scenario)


def test_a_second_helper_at_one_place_is_refused_and_the_first_one_lives(tmp_path: Path) -> None:
    async def scenario() -> None:
        machine = Machine(tmp_path)
        async with connected(machine) as place:
            with pytest.raises(InfrastructureError, match="somebody listens there already"):
                await machine.start()
            assert (await place.run(Command(["true"]))).ok

    run(scenario)


def test_a_later_owner_takes_the_place_over_through_streams_too(tmp_path: Path) -> None:
    async def scenario() -> None:
        machine = Machine(tmp_path)
        async with connected(machine) as place:
            newer = await machine.connect(epoch=2)
            with pytest.raises(SupersededError):
                await place.run(Command(["true"]))
            with pytest.raises(SupersededError):
                await machine.connect(epoch=1)
            with pytest.raises(SandboxUnavailableError):
                await machine.connect(epoch=3, token="another")
            assert (await newer.run(Command(["true"]))).ok
            await newer.aclose()

    run(scenario)


# What carries it lets nobody of its own user look into it, and could not be found.
@pytest.mark.skipif(os.geteuid() != 0, reason="agentenv-capability-missing: root")
def test_a_stream_that_breaks_is_lost_and_the_place_is_found_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        machine = Machine(tmp_path)
        async with connected(machine) as place:
            running = asyncio.ensure_future(place.run(Command(["sleep", "60"], attempt="a")))
            await place.ping()
            machine.cut()
            assert (await running).ending is Ending.LOST
            again = await machine.connect(epoch=2)
            assert await again.stop_attempt("a") in {0, 1}
            await again.aclose()

    run(scenario)


@pytest.mark.parametrize(
    ("program", "text", "kind", "said"),
    [
        ("uname", "echo sparc64", UnsupportedError, "no helper for the architecture 'sparc64'"),
        ("uname", "exit 1", InfrastructureError, "uname does not tell"),
        ("mkdir", "exit 1", InfrastructureError, "can't be made"),
        ("head", "exit 1", InfrastructureError, "can't be stored"),
        ("chmod", "exit 1", InfrastructureError, "can't be stored"),
    ],
    ids=["another architecture", "no uname", "no folder", "no head", "no space"],
)
def test_a_machine_that_can_not_take_the_helper_says_why(tmp_path: Path, program: str, text: str, kind: type[Exception], said: str) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / program).write_text(f"#!/bin/sh\n{text}\n")
    (tools / program).chmod(0o755)
    machine = Machine(tmp_path, path=f"{tools}:{os.environ['PATH']}")
    with pytest.raises((kind, UnsupportedError), match=said):
        asyncio.run(machine.start())
    left = [path.name for path in Path(machine.folder).iterdir()] if Path(machine.folder).exists() else []
    assert [name for name in left if name != "helper"] == []


def test_a_place_whose_helper_is_gone_is_unavailable(tmp_path: Path) -> None:
    machine = Machine(tmp_path)

    async def scenario() -> None:
        async with connected(machine):
            pass
        with pytest.raises(SandboxUnavailableError, match="is gone"):
            await machine.connect(epoch=100)

    run(scenario)
