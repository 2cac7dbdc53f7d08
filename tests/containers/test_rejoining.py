"""The wire to an engine is cut under commands: they go on, and what they say and how they end is not lost when it is mended in time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace

import pytest

from agent_env.containers import ContainerPlace, Engine, EngineEndpoint, attach, reduced
from agent_env.defaults import DEFAULT_LIMITS
from agent_env.errors import DeadlineError, EngineUnavailableError, SandboxUnavailableError, SupersededError, TransportLostError
from agent_env.places import Command, Ending
from agent_env.waiting import poll
from tests.chaos.wire import Wire, copied, wire
from tests.container_engine import Bench, bench

pytestmark = pytest.mark.timeout(300)

PATIENT = replace(DEFAULT_LIMITS, rejoin_seconds=60.0, rejoin_attempts=100)


@pytest.fixture
def chance() -> random.Random:
    seed = random.SystemRandom().randrange(1_000_000)
    print(f"seed {seed}")
    return random.Random(seed)


@asynccontextmanager
async def over_a_wire(docker: EngineEndpoint, image: str) -> AsyncIterator[tuple[Wire, Bench, ContainerPlace]]:
    """A container that is reached over a wire that can be cut, and removed over one that can't."""
    async with bench(docker, image) as here, wire(docker) as line, Engine(line.endpoint, limits=PATIENT) as engine:
        made = await here.deploy()
        place = await attach(engine, made.id, token=here.token, epoch=2)
        try:
            yield line, here, place
        finally:
            await place.aclose()


def sh(text: str, **given: object) -> Command:
    return Command(["sh", "-c", text], **given)


async def began(here: Bench, place: ContainerPlace, path: str) -> None:
    """Waits until a file is there, as the engine itself sees it: the place's owner is whoever holds the wire."""

    async def there() -> bool | None:
        async with here.engine.asking("looking") as client:
            answer = await client.session.head(here.engine.url(f"containers/{place.id}/archive"), params={"path": path})
            answer.close()
        return answer.status == 200 or None

    await poll(there, within_seconds=60, what=f"the file {path}")


async def unheard(here: Bench, place: ContainerPlace) -> None:
    """Waits until the helper knows that its caller is gone: an engine tells it when it comes to it."""

    async def nobody() -> bool | None:
        async with here.engine.asking("looking") as client:
            said = await client._query_json(f"containers/{place.id}/top")
        return None if "connect @" in str(said["Processes"]) else True

    await poll(nobody, within_seconds=60, what="the end of the cut connection")


async def by_hand(here: Bench, place: ContainerPlace, text: str) -> None:
    """As a person does who has the engine."""
    assert (await (await reduced(here.engine, place.id)).run(sh(text))).ok


async def test_a_command_ends_as_it_would_have_although_its_wire_was_cut(docker: EngineEndpoint, busybox: str) -> None:
    async with over_a_wire(docker, busybox) as (line, here, place):
        text = "cat; echo before; echo told >&2; touch /tmp/began; until [ -e /tmp/go ]; do sleep 0.05; done; echo after; exit 7"
        under_way = asyncio.ensure_future(place.run(sh(text, stdin=b"input\n")))
        await began(here, place, "/tmp/began")
        await line.cut()
        await line.mend()
        while not (await place.run(sh("touch /tmp/go"))).ok:
            pass  # what is sent before the cut is noticed may never arrive
        done = await under_way
        assert (done.ending, done.exit_code, done.stdout, done.stderr) == (Ending.EXITED, 7, b"input\nbefore\nafter\n", b"told\n")


async def test_a_command_that_ends_while_nobody_hears_it_is_heard_later(docker: EngineEndpoint, busybox: str) -> None:
    async with over_a_wire(docker, busybox) as (line, here, place):
        text = "touch /tmp/began; until [ -e /tmp/go ]; do sleep 0.05; done; head -c 300000 /dev/zero; touch /tmp/ended; exit 5"
        under_way = asyncio.ensure_future(place.run(sh(text)))
        await began(here, place, "/tmp/began")
        await line.cut()
        await unheard(here, place)
        await by_hand(here, place, "touch /tmp/go")
        await began(here, place, "/tmp/ended")
        await line.mend()
        done = await under_way
        assert (done.ending, done.exit_code, done.stdout) == (Ending.EXITED, 5, bytes(300_000))


async def test_more_than_is_kept_waits_in_the_command(docker: EngineEndpoint, busybox: str) -> None:
    async with over_a_wire(docker, busybox) as (line, here, place):
        wait = "touch /tmp/began; until [ -e /tmp/go ]; do sleep 0.05; done"
        under_way = asyncio.ensure_future(
            place.run(sh(f"{wait}; head -c 1000 /dev/zero; touch /tmp/some; head -c 20000000 /dev/zero; echo end"))
        )
        await began(here, place, "/tmp/began")
        await line.cut()
        await unheard(here, place)
        await by_hand(here, place, "touch /tmp/go")
        await began(here, place, "/tmp/some")
        await line.mend()
        done = await under_way
        assert (done.exit_code, done.stdout) == (0, bytes(20_001_000) + b"end\n")


COUNTS = """cat; echo $1 >> /tmp/runs; i=0
until [ -e /tmp/go ]; do seq $((i + 1)) $((i + 500)); i=$((i + 500)); sleep 0.05; done
echo $i >&2; exit $1"""
"""Writes numbers without a gap until it is told to end, and then how many."""


async def test_many_commands_lose_no_byte_however_often_the_wire_is_cut(
    docker: EngineEndpoint, busybox: str, chance: random.Random
) -> None:
    async with over_a_wire(docker, busybox) as (line, _, place):
        commands = [Command(["sh", "-c", COUNTS, "sh", str(at)], stdin=b"in %d\n" % at) for at in range(6)]
        under_way = [asyncio.ensure_future(place.run(command)) for command in commands]
        for _ in range(6):
            await asyncio.wait(under_way, timeout=chance.uniform(0.02, 0.6))
            await line.cut()
            await asyncio.wait(under_way, timeout=chance.uniform(0, 0.2))
            await line.mend()

        async def only_one_connection() -> bool | None:
            """Of one that is still ending, the helper may not know yet that nobody hears it."""
            found = await place.run(sh("ps | grep -c '[c]onnect @'"))
            return True if found.ending is Ending.EXITED and found.stdout == b"1\n" else None

        await poll(only_one_connection, within_seconds=60, what="the end of broken connections")
        assert (await place.run(sh("touch /tmp/go"))).ok
        for at, done in enumerate(await asyncio.gather(*under_way)):
            assert (done.ending, done.exit_code) == (Ending.EXITED, at), done.detail
            count = int(done.stderr)
            assert done.stdout == b"in %d\n" % at + b"".join(b"%d\n" % number for number in range(1, count + 1))
        assert sorted((await place.run(sh("cat /tmp/runs"))).stdout.split()) == [b"%d" % at for at in range(6)], "each was run once"


@dataclass
class Deaf(Wire):
    """A wire that carries all, but nothing that comes back over the first streams of programs, up to the `last` that is meant."""

    last: int = 0
    opened: int = 0

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._links.add(task)
        back, far = await asyncio.open_unix_connection(self.engine)

        async def answers() -> None:
            number, head = 0, b""
            while piece := await back.read(1 << 16):
                if not number and (head or piece.startswith(b"HTTP/1.1 101 ")):
                    head += piece  # an engine writes it in several pieces
                    top, end, piece = head.partition(b"\r\n\r\n")
                    if not end:
                        continue
                    self.opened += 1
                    number = self.opened
                    writer.write(top + end)
                if not 0 < number <= self.last:
                    writer.write(piece)
            writer.write_eof()

        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(copied(reader, far))
                group.create_task(answers())
        except* (OSError, asyncio.CancelledError):
            pass
        finally:
            self._links.discard(task)
            for each in (writer, far):
                each.transport.abort()


async def attached(here: Bench, place: ContainerPlace, **limits: float) -> ContainerPlace:
    """As a later owner who has other limits, which may be short for a busy machine."""
    place.engine.limits = replace(PATIENT, **limits)  # type: ignore[arg-type]

    async def tried() -> ContainerPlace | None:
        with suppress(DeadlineError):
            return await attach(place.engine, place.id, token=here.token, epoch=3)
        return None

    return await poll(tried, within_seconds=60, what="a place")


GOES_ON = "touch /tmp/began; until [ -e /tmp/go ]; do sleep 0.05; done; echo said; exit 3"


async def test_an_engine_that_opens_a_stream_and_says_nothing_over_it_is_asked_again(docker: EngineEndpoint, busybox: str) -> None:
    async with over_a_wire(docker, busybox) as (line, here, place):
        impatient = await attached(here, place, connect_seconds=3.0)
        under_way = asyncio.ensure_future(impatient.run(sh(GOES_ON)))
        await began(here, place, "/tmp/began")
        await line.cut()
        deaf = Deaf(line.at, line.engine, last=1)
        await deaf.mend()
        await by_hand(here, place, "touch /tmp/go")
        done = await under_way
        assert (done.ending, done.exit_code, done.stdout) == (Ending.EXITED, 3, b"said\n"), done.detail
        assert deaf.opened > 1
        await impatient.aclose()
        await deaf.cut()


async def test_a_stream_that_leads_nowhere_though_the_container_runs_is_opened_again(docker: EngineEndpoint, busybox: str) -> None:
    async with over_a_wire(docker, busybox) as (line, here, place):
        await line.cut()
        deaf = Deaf(line.at, line.engine)
        await deaf.mend()
        impatient = await attached(here, place, silence_seconds=0.1, answer_margin_seconds=0.5)
        under_way = asyncio.ensure_future(impatient.run(sh(GOES_ON)))
        await began(here, place, "/tmp/began")
        deaf.last = deaf.opened
        await by_hand(here, place, "touch /tmp/go")
        done = await under_way
        assert (done.ending, done.exit_code, done.stdout) == (Ending.EXITED, 3, b"said\n"), done.detail
        assert deaf.opened > deaf.last
        await impatient.aclose()
        await deaf.cut()


async def test_a_wire_that_stays_cut_loses_the_command_and_does_not_fail_it(docker: EngineEndpoint, busybox: str) -> None:
    async with over_a_wire(docker, busybox) as (line, here, place):
        place.engine.limits = replace(PATIENT, rejoin_seconds=0.5)
        short = await attach(place.engine, place.id, token=here.token, epoch=3)
        under_way = asyncio.ensure_future(short.run(sh("touch /tmp/began; sleep 50", attempt="one")))
        await began(here, place, "/tmp/began")
        await line.cut()
        assert (await under_way).ending is Ending.LOST
        with pytest.raises((EngineUnavailableError, TransportLostError, SandboxUnavailableError)) as caught:
            await short.run(sh("true"))
        assert "engine" in str(caught.value)
        await line.mend()
        assert await short.stop_attempt("one") == 1
        await short.aclose()


async def test_a_container_that_was_started_again_meanwhile_loses_the_command(docker: EngineEndpoint, busybox: str) -> None:
    async with over_a_wire(docker, busybox) as (line, here, place):
        under_way = asyncio.ensure_future(place.run(sh("touch /tmp/began; sleep 50")))
        await began(here, place, "/tmp/began")
        await line.cut()
        async with here.engine.asking("restarting") as client:
            await client.containers.container(place.id).restart(timeout=0)
        await line.mend()
        assert (await under_way).ending is Ending.LOST
        assert (await place.run(sh("echo again"))).stdout == b"again\n"


async def test_what_a_later_owner_took_over_is_nobody_elses_to_go_on_with(docker: EngineEndpoint, busybox: str) -> None:
    async with over_a_wire(docker, busybox) as (line, here, place):
        under_way = asyncio.ensure_future(place.run(sh("touch /tmp/began; sleep 50", attempt="one")))
        await began(here, place, "/tmp/began")
        await line.cut()
        later = await attach(here.engine, place.id, token=here.token, epoch=9)
        here.places.append(later)
        assert [entry.attempt for entry in await later.ledger() if entry.running and entry.attempt == "one"] == ["one"]
        assert await later.stop_attempt("one") == 1
        await line.mend()
        assert (await asyncio.gather(under_way, return_exceptions=True))[0].ending is Ending.LOST
        with pytest.raises(SupersededError):
            await place.run(sh("true"))
