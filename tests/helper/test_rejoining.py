"""A command whose connection breaks goes on over another one: what either side sent and the other did not get is sent again."""

from __future__ import annotations

import asyncio
import contextlib
import random
import resource
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from agent_env.defaults import DEFAULT_LIMITS
from agent_env.errors import AgentEnvError, ProgramMissingError
from agent_env.places import Command, Ending
from agent_env.places.helper import HelperConfig, protocol
from agent_env.places.helper.connection import Connection
from agent_env.places.helper.greeting import connected_socket, open_connection
from agent_env.places.helper.process import start
from agent_env.places.helper.protocol import Frame, Key
from agent_env.places.helper.running import run
from agent_env.waiting import poll
from tests.chaos.wire import Wire, copied
from tests.helper.living import ENV, TOKEN, Living, end, launch_anywhere
from tests.helper.test_commands import until_gone, until_tagged
from tests.helper.test_protocol import next_frame, opened

pytestmark = pytest.mark.timeout(120)
STALE = (10, 116)


@pytest.fixture(scope="module")
def living() -> Iterator[Living]:
    helper = launch_anywhere(HelperConfig(token=TOKEN, env=ENV))
    yield helper
    end(helper)


@pytest.fixture
def chance() -> random.Random:
    seed = random.SystemRandom().randrange(1_000_000)
    print(f"seed {seed}")
    return random.Random(seed)


@dataclass
class Line(Wire):
    """A wire to a helper. What the helper says while it is `silent` is lost, as what is under way when a wire is cut."""

    silent: bool = False
    lost_bytes: int = 0
    noticed: asyncio.Event = field(default_factory=asyncio.Event)
    """Somebody has asked for another connection."""

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._links.add(task)
        back, far = await asyncio.open_unix_connection(self.engine)

        async def answers() -> None:
            while piece := await back.read(1 << 16):
                if self.silent:
                    self.lost_bytes += len(piece)
                else:
                    writer.write(piece)
                    await writer.drain()

        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(copied(reader, far))
                group.create_task(answers())
        except* (OSError, asyncio.CancelledError):
            pass
        finally:
            self._links.discard(task)
            writer.transport.abort()
            far.transport.abort()

    async def connect(self) -> Connection:
        link = await asyncio.to_thread(connected_socket, self.at)
        return await open_connection(link, concerns="the place", token=TOKEN, epoch=1, limits=DEFAULT_LIMITS)

    async def again(self) -> Connection:
        """Another connection, as soon as there is one."""

        self.noticed.set()

        async def connected() -> Connection | None:
            with contextlib.suppress(OSError, AgentEnvError):
                return await self.connect()
            return None

        return await poll(connected, within_seconds=60, what="another connection")


@asynccontextmanager
async def line_to(living: Living, folder: Path) -> AsyncIterator[Line]:
    line = Line(folder / "line.sock", living.socket)
    await line.mend()
    try:
        yield line
    finally:
        await line.cut()


async def lost_something(line: Line) -> None:
    async def lost() -> bool | None:
        return line.lost_bytes > 0 or None

    await poll(lost, within_seconds=60, what="an answer that is lost")


async def has_run(path: Path) -> None:
    async def there() -> bool | None:
        return await asyncio.to_thread(path.exists) or None

    await poll(there, within_seconds=60, what=str(path))


def sh(text: str, *arguments: object, **given: object) -> Command:
    return Command(["sh", "-c", text, "sh", *map(str, arguments)], **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [0, 10, 300_000, 900_000])
async def test_what_a_command_said_before_its_end_is_told_again_although_the_helper_had_told_it(
    living: Living, tmp_path: Path, size: int
) -> None:
    async with line_to(living, tmp_path) as line:
        text = 'until [ -e "$1/go" ]; do sleep 0.01; done; head -c "$2" /dev/zero; echo told >&2; touch "$1/over"; exit 5'
        under_way = asyncio.ensure_future(run(await line.connect(), sh(text, tmp_path, size), DEFAULT_LIMITS, again=line.again))
        await asyncio.wait([under_way], timeout=0)
        line.silent = True
        (tmp_path / "go").touch()
        await has_run(tmp_path / "over")
        await lost_something(line)
        await line.cut()
        line.silent = False
        await line.mend()
        done = await under_way
        assert (done.ending, done.exit_code) == (Ending.EXITED, 5), done.detail
        assert (done.stdout, done.stderr) == (bytes(size), b"told\n")


async def test_that_a_program_is_missing_is_told_again(living: Living, tmp_path: Path) -> None:
    async with line_to(living, tmp_path) as line:
        connection = await line.connect()
        line.silent = True
        under_way = asyncio.ensure_future(run(connection, Command(["/no/such/program"]), DEFAULT_LIMITS, again=line.again))
        await lost_something(line)
        await line.cut()
        line.silent = False
        await line.mend()
        with pytest.raises(ProgramMissingError, match="no/such/program"):
            await under_way


async def pieces_of(data: bytes, chance: random.Random) -> AsyncIterator[bytes]:
    while data:
        size = chance.randint(1, 200_000)
        yield data[:size]
        data = data[size:]


async def cuts(line: Line, until: Sequence[asyncio.Future[object]], chance: random.Random) -> None:
    """Cuts again and again, sometimes after a while in which the helper speaks for nothing."""
    while not all(each.done() for each in until):
        await asyncio.wait(until, timeout=chance.uniform(0.005, 0.1), return_when=asyncio.ALL_COMPLETED)
        line.silent = chance.random() < 0.4
        await asyncio.wait(until, timeout=chance.uniform(0, 0.03), return_when=asyncio.ALL_COMPLETED)
        await line.cut()
        line.silent = False
        await line.mend()


async def test_inputs_and_outputs_of_any_size_lose_no_byte_however_often_the_line_is_cut(
    living: Living, tmp_path: Path, chance: random.Random
) -> None:
    data = chance.randbytes(3_000_000)
    async with line_to(living, tmp_path) as line:
        at_once = Command(["cat"], stdin=data[:60_000])
        large = Command(["cat"], stdin=data)
        streamed = Command(["cat"], stdin=pieces_of(data, chance))
        connection = await line.connect()
        running = [
            asyncio.ensure_future(run(connection, command, DEFAULT_LIMITS, again=line.again)) for command in (at_once, large, streamed)
        ]
        process = await start(connection, Command(["cat"]), DEFAULT_LIMITS, again=line.again)
        read: list[bytes] = []

        async def reads() -> None:
            async for which, piece in process.output():
                assert which == 1
                read.append(piece)

        async def writes() -> None:
            async for piece in pieces_of(data, chance):
                await process.write(piece)
            await process.close_stdin()

        held = [asyncio.ensure_future(reads()), asyncio.ensure_future(writes())]
        await cuts(line, [*running, *held], chance)
        for done, whole in zip(await asyncio.gather(*running), (data[:60_000], data, data), strict=True):
            assert (done.ending, done.exit_code) == (Ending.EXITED, 0), done.detail
            assert done.stdout == whole
        await asyncio.gather(*held)
        ended = await process.wait()
        assert (ended.ending, ended.exit_code) == (Ending.EXITED, 0), ended.detail
        assert b"".join(read) == data
        await process.aclose()


async def test_a_signal_that_is_sent_while_the_line_is_cut_arrives(living: Living, tmp_path: Path) -> None:
    async with line_to(living, tmp_path) as line:
        text = "trap 'echo asked; exit 4' TERM; echo ready; while :; do :; done"
        process = await start(await line.connect(), sh(text), DEFAULT_LIMITS, again=line.again)
        output = process.output()
        assert await anext(output) == (1, b"ready\n")
        await line.cut()
        await line.noticed.wait()
        await process.kill(15)
        await line.mend()
        assert await anext(output) == (1, b"asked\n")
        await output.aclose()
        assert (await process.wait()).exit_code == 4


async def test_a_command_that_is_given_up_while_the_line_is_cut_does_not_run_on(living: Living, tmp_path: Path) -> None:
    tag = f"TAG={tmp_path}"
    async with line_to(living, tmp_path) as line:
        command = Command(["sleep", "77"], env={"TAG": str(tmp_path)})
        under_way = asyncio.ensure_future(run(await line.connect(), command, DEFAULT_LIMITS, again=line.again))
        await until_tagged(tag, 1)
        await line.cut()
        await line.noticed.wait()
        under_way.cancel()
        await line.mend()
        with pytest.raises(asyncio.CancelledError):
            await under_way
        assert await until_gone(tag, 30) == []


# by hand, frame by frame


def execution_of(number: int, *argv: str) -> bytes:
    pairs = [(Key.ARG, part.encode()) for part in argv]
    pairs += [(Key.WINDOW, protocol.u64(protocol.OUT_WINDOW)), (Key.REJOIN, protocol.u64(number))]
    return protocol.frame(Frame.EXEC, 1, protocol.fields(*pairs))


def rejoin_of(number: int, received: int = 0) -> bytes:
    pairs = ((Key.REJOIN, number), (Key.RECEIVED, received), (Key.WINDOW, protocol.OUT_WINDOW), (Key.AGE_MS, 0))
    return protocol.frame(Frame.REJOIN, 1, protocol.fields(*((key, protocol.u64(value)) for key, value in pairs)))


def answer_to(link: socket.socket, request: bytes) -> tuple[int, bytes]:
    link.sendall(request)
    kind, stream, payload = next_frame(link)
    assert stream == 1
    return kind, payload


def settled(link: socket.socket) -> None:
    """Everything that was sent before has been handled, and nothing was said to it."""
    link.sendall(protocol.frame(Frame.PING, 9))
    assert next_frame(link)[:2] == (Frame.DONE, 9)


def number_of(chance: random.Random) -> int:
    return chance.getrandbits(63) | 1


def test_who_came_by_a_later_connection_is_not_robbed_by_what_was_under_way_on_an_earlier_one(
    living: Living, chance: random.Random
) -> None:
    number = number_of(chance)
    with contextlib.closing(opened(living)) as first, contextlib.closing(opened(living)) as second:
        first.sendall(execution_of(number, "sleep", "77"))
        settled(first)
        assert answer_to(second, rejoin_of(number))[0] == Frame.DONE
        kind, why = answer_to(first, rejoin_of(number))
        assert (kind, protocol.LAUNCH_FAILED.unpack(why)) == (Frame.LAUNCH_FAILED, STALE)
        second.sendall(protocol.frame(Frame.KILL, 1))
        assert next_frame(second)[0] == Frame.EXIT


def test_a_request_that_was_taken_for_lost_and_sent_again_is_begun_once_and_for_the_later_connection(
    living: Living, chance: random.Random, tmp_path: Path
) -> None:
    number = number_of(chance)
    request = execution_of(number, "sh", "-c", f"echo once >> {tmp_path}/runs")
    with contextlib.closing(opened(living)) as first, contextlib.closing(opened(living)) as second:
        kind, why = answer_to(second, rejoin_of(number))
        assert (kind, protocol.LAUNCH_FAILED.unpack(why)) == (Frame.LAUNCH_FAILED, protocol.NEVER_ARRIVED)
        first.sendall(request)
        settled(first)
        assert answer_to(second, request)[0] == Frame.EXIT
        first.sendall(request)
        settled(first)
    assert (tmp_path / "runs").read_text() == "once\n"


def test_a_caller_that_has_everything_leaves_nothing_to_be_kept(living: Living, chance: random.Random) -> None:
    number = number_of(chance)
    with contextlib.closing(opened(living)) as link:
        link.sendall(execution_of(number, "echo", "kept"))
        assert [next_frame(link)[0] for _ in range(2)] == [Frame.STDOUT, Frame.EXIT]
        link.sendall(rejoin_of(number))
        assert [next_frame(link)[::2] for _ in range(2)][1] == (Frame.STDOUT, b"kept\n")
        assert next_frame(link)[0] == Frame.EXIT
        link.sendall(protocol.frame(Frame.HEARD, 1, protocol.fields((Key.REJOIN, protocol.u64(number)))))
        kind, why = answer_to(link, rejoin_of(number))
        assert (kind, protocol.LAUNCH_FAILED.unpack(why)) == (Frame.LAUNCH_FAILED, STALE)


def memory_of(living: Living) -> int:
    pages = int(Path(f"/proc/{living.process.pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def test_what_nobody_comes_back_for_takes_no_more_memory_than_all_may(living: Living, chance: random.Random) -> None:
    before = memory_of(living)
    last = 0
    with contextlib.closing(opened(living)) as link:
        for _ in range(40):
            last = number_of(chance)
            link.sendall(execution_of(last, "head", "-c", "1000000", "/dev/zero"))
            while next_frame(link)[0] != Frame.EXIT:
                pass
        link.sendall(rejoin_of(last))
        told = [next_frame(link)]
        while told[-1][0] != Frame.EXIT:
            told.append(next_frame(link))
    assert sum(len(payload) for kind, _, payload in told if kind == Frame.STDOUT) == 1_000_000, "the last one goes last"
    assert memory_of(living) - before < 40 << 20
