"""Ports of a place's loopback that are listened on from outside, and callers that may do nothing but carry."""

from __future__ import annotations

import asyncio
import hashlib
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path, PurePosixPath

import pytest

from agent_env.defaults import DEFAULT_LIMITS
from agent_env.errors import SandboxUnavailableError, TransferError, TransportLostError
from agent_env.places import Command, PlaceKind
from agent_env.places.helper import HelperConfig, HelperPlace
from agent_env.places.helper.connection import Connection
from agent_env.places.helper.greeting import connected_socket, open_connection
from agent_env.places.helper.listening import TcpListener, TcpPipe, listen_tcp
from agent_env.places.helper.worker import open_tcp
from agent_env.waiting import poll
from tests.helper.living import ENV, TOKEN, Living, end, helper, launch_anywhere
from tests.ports import free_port

RELAY = "r" * 32
CONFIG = HelperConfig(token=TOKEN, env=ENV, relay_token=RELAY)


def sockets(port: int) -> list[tuple[str, str]]:
    """Address and state of this machine's TCP sockets of a port."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]]
    return [(row[1].partition(":")[0], row[3]) for row in rows if row[1].endswith(f":{port:04X}")]


def children(living: Living) -> list[str]:
    return Path(f"/proc/{living.process.pid}/task/{living.process.pid}/children").read_text(encoding="ascii").split()


async def relay(living: Living) -> Connection:
    return await open_connection(connected_socket(living.socket), concerns="test", token=RELAY, epoch=0, limits=DEFAULT_LIMITS)


@asynccontextmanager
async def listening() -> AsyncIterator[tuple[Living, Connection, TcpListener]]:
    """A helper that is an ordinary process, so that its loopback is this test's."""
    living = launch_anywhere(CONFIG)
    try:
        connection = await relay(living)
        yield living, connection, await listen_tcp(connection, free_port(), DEFAULT_LIMITS)
        connection.close()
    finally:
        await asyncio.to_thread(end, living)


async def everything(pipe: TcpPipe) -> bytes:
    data = b""
    while piece := await pipe.receive():
        data += piece
    return data


async def test_what_connects_to_the_port_is_a_stream_that_is_half_closed_as_it_is() -> None:
    async with listening() as (_, _, listener):
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        pipe = await listener.accept()
        writer.write(b"question")
        writer.write_eof()
        assert await everything(pipe) == b"question"
        await pipe.send(b"answer after the question's end")
        pipe.send_eof()
        assert await reader.read() == b"answer after the question's end"
        assert await pipe.receive() == b""
        writer.close()


async def test_the_port_is_of_loopback_alone() -> None:
    async with listening() as (_, _, listener):
        assert [where for where, state in sockets(listener.port) if state == "0A"] == ["0100007F"]


async def test_megabytes_arrive_whole_both_ways_at_once() -> None:
    block = hashlib.sha256(b"x").digest() * 2048
    async with listening() as (_, _, listener):
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        pipe = await listener.accept()
        digests = {}

        async def inside_sends() -> None:
            for _ in range(256):
                writer.write(block)
                await writer.drain()
            writer.write_eof()

        async def inside_reads() -> None:
            digest = hashlib.sha256()
            while piece := await reader.read(1 << 16):
                digest.update(piece)
            digests["inside"] = digest.hexdigest()

        async def outside_sends() -> None:
            for _ in range(256):
                await pipe.send(block)
            pipe.send_eof()

        async def outside_reads() -> None:
            digest = hashlib.sha256()
            while piece := await pipe.receive():
                digest.update(piece)
            digests["outside"] = digest.hexdigest()

        async with asyncio.TaskGroup() as group:
            for work in (inside_sends, inside_reads, outside_sends, outside_reads):
                group.create_task(work())
        wanted = hashlib.sha256(block * 256).hexdigest()
        assert digests == {"inside": wanted, "outside": wanted}
        writer.close()


async def test_what_nobody_reads_waits_with_its_sender_and_holds_up_nothing_else() -> None:
    async with listening() as (_, connection, listener):
        _, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        pipe = await listener.accept()

        async def flood() -> None:
            while True:
                writer.write(b"x" * 65536)
                await writer.drain()

        flooding = asyncio.ensure_future(flood())
        second_reader, second = await asyncio.open_connection("127.0.0.1", listener.port)
        other = await listener.accept()
        await other.send(b"meanwhile")
        assert await second_reader.readexactly(9) == b"meanwhile"
        assert sum(map(len, pipe._pieces)) <= 256 << 10
        flooding.cancel()
        for link in (writer, second):
            link.transport.abort()
        connection.close()


async def test_an_abort_is_a_reset_and_an_orderly_end_delivers_first() -> None:
    async with listening() as (_, _, listener):
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        pipe = await listener.accept()
        pipe.abort()
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port, limit=1024)
        pipe = await listener.accept()
        await pipe.send(b"y" * 100_000)
        pipe.send_eof()
        await pipe.aclose()
        assert await reader.read() == b"y" * 100_000
        writer.close()


async def test_a_program_that_dies_in_the_middle_is_told() -> None:
    async with listening() as (_, _, listener):
        _, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        pipe = await listener.accept()
        await pipe.send(b"x")
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
        with pytest.raises(TransferError):
            await pipe.receive()


async def test_a_port_that_is_taken_is_told_and_an_ended_one_is_free() -> None:
    async with listening() as (living, connection, listener):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            with pytest.raises(SandboxUnavailableError, match=r"can't be listened on.*EADDRINUSE"):
                await listen_tcp(connection, taken.getsockname()[1], DEFAULT_LIMITS)
        for port in (0, 65536, 1 << 40):
            with pytest.raises(SandboxUnavailableError, match="EINVAL"):
                await listen_tcp(connection, port, DEFAULT_LIMITS)
        await listener.aclose()
        await (await listen_tcp(connection, listener.port, DEFAULT_LIMITS)).aclose()
        place = await living.connect()
        with pytest.raises(SandboxUnavailableError, match="ECONNREFUSED"):
            await place.open_tcp(listener.port)
        await place.aclose()


async def test_who_connects_while_a_relay_is_replaced_waits_and_is_served_by_the_next() -> None:
    async with listening() as (living, connection, listener):
        connection.close()
        await connection.wait_closed()
        _, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(b"still here")
        successor = await relay(living)
        pipe = await (await listen_tcp(successor, listener.port, DEFAULT_LIMITS)).accept()
        assert await pipe.receive() == b"still here"
        writer.close()
        successor.close()


async def test_a_connection_that_was_accepted_and_not_served_is_served_by_the_next_relay() -> None:
    async with listening() as (living, connection, listener):
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(b"nobody took me")

        async def announced() -> bool | None:
            return True if listener._waiting else None

        await poll(announced, within_seconds=60, what="the helper's word of it")
        connection.close()
        await connection.wait_closed()
        successor = await relay(living)
        pipe = await (await listen_tcp(successor, listener.port, DEFAULT_LIMITS)).accept()
        assert await pipe.receive() == b"nobody took me"
        await pipe.send(b"served")
        pipe.send_eof()
        assert await reader.read() == b"served"
        writer.close()
        successor.close()


async def test_a_relay_takes_a_port_over_from_one_whose_end_was_not_seen() -> None:
    async with listening() as (living, _, listener):
        successor = await relay(living)
        again = await listen_tcp(successor, listener.port, DEFAULT_LIMITS)
        with pytest.raises(SandboxUnavailableError):
            await listener.accept()
        _, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        await again.accept()
        writer.close()
        successor.close()


async def test_d3_owners_come_and_go_and_a_relay_stays() -> None:
    async with listening() as (living, connection, listener):
        for epoch in (1, 7, 9):
            place = await living.connect(epoch=epoch)
            _, writer = await asyncio.open_connection("127.0.0.1", listener.port)
            await listener.accept()
            writer.close()
            await place.aclose()
        assert connection.error is None


@pytest.mark.parametrize("what", ["run", "stat", "ledger", "shut_down", "set_ttl", "freeze", "stop_attempt"])
async def test_a_relay_may_carry_and_nothing_else(what: str) -> None:
    async with helper(config=CONFIG) as (living, owner):
        connection = await relay(living)
        place = HelperPlace(connection, place_id="x", kind=PlaceKind.MACHINE, labels={}, limits=DEFAULT_LIMITS)
        deeds = {
            "run": lambda: place.run(Command(["touch", "/tmp/never"])),
            "stat": lambda: place.stat([PurePosixPath("/")]),
            "ledger": place.ledger,
            "shut_down": place.shut_down,
            "set_ttl": lambda: place.set_ttl(1),
            "freeze": place.freeze,
            "stop_attempt": lambda: place.stop_attempt("a"),
        }
        if what == "shut_down":
            await place.shut_down()  # a place that is gone has been shut down; this one is not
        elif what == "run":
            assert (await place.run(Command(["true"]))).ending == "lost"
        else:
            with pytest.raises((TransportLostError, TransferError)):
                await deeds[what]()
        assert connection.error is not None
        assert (await owner.run(Command(["true"]))).ok


async def test_without_a_relay_token_nobody_is_a_relay() -> None:
    async with helper() as (living, _):
        for token in ("", RELAY):
            with pytest.raises(SandboxUnavailableError, match="token"):
                await open_connection(connected_socket(living.socket), concerns="t", token=token, epoch=9, limits=DEFAULT_LIMITS)


async def test_a_relay_connects_to_ports_of_the_place_too() -> None:
    async with listening() as (_, connection, listener):
        stream = await open_tcp(connection, listener.port, DEFAULT_LIMITS)
        pipe = await listener.accept()
        await stream.send(b"there")
        assert await pipe.receive() == b"there"
        await pipe.send(b"and back")
        assert await stream.receive() == b"and back"
        await stream.aclose()


async def looking(living: Living, *, wanted: bool) -> None:
    """Until a worker of the place looks for a listener, or none does any more."""

    async def seen() -> bool | None:
        return True if bool(children(living)) is wanted else None

    await poll(seen, within_seconds=60, what="a worker's beginning or end")


async def test_a_place_waits_by_itself_for_somebody_to_listen_and_no_longer_than_it_was_told() -> None:
    async with helper() as (living, place):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
            with pytest.raises(SandboxUnavailableError, match="ECONNREFUSED"):
                await place.open_tcp(port, wait_seconds=0.05)
            waiting = asyncio.create_task(place.open_tcp(port, wait_seconds=300))
            await looking(living, wanted=True)
            free.listen()
            stream = await waiting
            accepted, _ = free.accept()
            with accepted:
                accepted.sendall(b"late")
            assert await stream.receive() == b"late"
            await stream.aclose()
        given_up = asyncio.create_task(place.open_tcp(port, wait_seconds=300))
        await looking(living, wanted=True)
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        await looking(living, wanted=False)


async def test_hundreds_of_connections_cost_the_place_no_process() -> None:
    async with listening() as (living, _, listener):
        links = [await asyncio.open_connection("127.0.0.1", listener.port) for _ in range(300)]
        pipes = [await listener.accept() for _ in links]
        for number, pipe in enumerate(pipes):
            await pipe.send(b"%d\n" % number)
        assert {await reader.readline() for reader, _ in links} == {b"%d\n" % number for number in range(300)}
        assert children(living) == []
        for _, writer in links:
            writer.close()

        async def none_left() -> bool | None:
            return None if any(state == "08" for _, state in sockets(listener.port)) else True

        for pipe in pipes:
            await pipe.aclose()
        await poll(none_left, within_seconds=60, what="the helper to let go")
