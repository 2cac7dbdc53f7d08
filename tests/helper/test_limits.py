"""A limit of the place that was reached is told apart from a command's own ending, and of several commands of the right one."""

from __future__ import annotations

import asyncio
import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path, PurePosixPath

import pytest

from agent_env.errors import TransferError
from agent_env.places import Command, Completed, Ending, Missing, Upload
from agent_env.places.helper import HelperConfig, HelperPlace
from tests.helper.living import ENV, TOKEN, end, helper, launch

VERSIONS = {
    "version 1": "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n",
    "version 2": "low 0\nhigh 0\nmax 9\noom 7\noom_kill {}\noom_group_kill 9\n",
}
MEMORY, DISK = b"m", b"d"


class Bounded:
    """A helper whose guardian and whose kernel's counter are the test's."""

    def __init__(self, place: HelperPlace, guardian: socket.socket, counter: Path, text: str) -> None:
        self.place, self.guardian, self.counter, self.text = place, guardian, counter, text

    def counted(self, kills: int) -> str:
        """Shell text that stands for the kernel's own count."""
        return f"printf '{self.text.format(kills)}' > {self.counter};".replace("\n", "\\n")

    async def sh(self, text: str) -> Completed:
        return await self.place.run(Command(["sh", "-c", text], timeout_seconds=60))


@asynccontextmanager
async def bounded(version: str = "version 1") -> AsyncIterator[Bounded]:
    inside, guardian = socket.socketpair()
    folder = Path(tempfile.mkdtemp(prefix="helper-test-"))
    counter = folder / "counter"
    counter.write_text(VERSIONS[version].format(1))
    with inside, counter.open() as seen:
        living = launch(folder, HelperConfig(token=TOKEN, env=ENV), guardian=inside, counter=seen.fileno())
    try:
        place = await living.connect()
        try:
            yield Bounded(place, guardian, counter, VERSIONS[version])
        finally:
            await place.aclose()
    finally:
        guardian.close()
        await asyncio.to_thread(end, living)


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_command_that_ends_badly_while_the_kernel_ended_a_process_is_limited(version: str) -> None:
    async with bounded(version) as here:
        assert (await here.sh("kill -9 $$")).ending is Ending.SIGNALLED
        for kills, how in enumerate(("kill -9 $$", "exit 137", "exit 1"), start=2):
            done = await here.sh(f"{here.counted(kills)} echo told; {how}")
            assert (done.ending, done.exit_code, done.signal, done.stdout) == (Ending.LIMITED, None, None, b"told\n"), how
            assert done.detail == "the place's memory limit was reached; the kernel ended a process"
        assert (await here.sh(f"{here.counted(9)} exit 0")).ok
        assert (await here.sh("exit 137")).exit_code == 137, "the count had risen before"


async def test_beside_others_only_a_command_that_was_killed_is_limited() -> None:
    async with bounded() as here:
        other = await here.place.start(Command(["sleep", "60"], timeout_seconds=60))
        own = await here.sh(f"{here.counted(2)} exit 1")
        assert (own.ending, own.exit_code) == (Ending.EXITED, 1)
        assert (await here.sh(f"{here.counted(3)} kill -9 $$")).ending is Ending.LIMITED
        await other.kill()
        told = await other.wait()
        assert (told.ending, told.signal, told.detail) == (Ending.SIGNALLED, 9, "it was killed by its caller")
        await other.aclose()


@pytest.mark.parametrize(("word", "kind"), [(MEMORY, "memory"), (DISK, "disk")])
async def test_what_the_guardian_ends_is_told_by_the_limit_that_it_held(word: bytes, kind: str) -> None:
    async with bounded() as here:
        running = await here.place.start(Command(["sh", "-c", "read line; exit 3"], timeout_seconds=60))
        here.guardian.sendall(word)
        await running.write(b"go\n")
        done = await running.wait()
        assert (done.ending, done.detail) == (Ending.LIMITED, f"the place's {kind} limit was reached; its commands were ended")
        await running.aclose()
        assert (await here.sh("exit 3")).exit_code == 3


async def test_fi10_a_file_that_may_not_be_so_large_fails_alone() -> None:
    async with helper(prefix=("prlimit", "--fsize=100000")) as (living, place):
        large, small = living.folder / "large", living.folder / "small"
        with pytest.raises(TransferError, match=f"^{large} could not be written: file too large"):
            await place.put([Upload(PurePosixPath(large), bytes(300_000)), Upload(PurePosixPath(small), b"x")])
        assert (await place.read(PurePosixPath(small)), large.exists()) == (b"x", False)
        assert isinstance(await place.read(PurePosixPath(large)), Missing)
