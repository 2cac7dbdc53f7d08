"""What a connection puts on its socket, and when."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from agent_env.places.helper.connection import Connection
from agent_env.waiting import deadline


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[Connection, asyncio.StreamReader]]:
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=theirs)
    _, connection = await asyncio.get_running_loop().create_connection(lambda: Connection("machine test"), sock=ours)
    try:
        async with deadline(30, "the frames of a connection"):
            yield connection, reader
    finally:
        connection.close()
        writer.close()


async def test_what_nobody_waits_for_goes_out_with_what_is_sent_next_or_by_itself_or_before_the_end() -> None:
    async with connected() as (connection, reader):
        connection.send_unhurried(b"heard of one. ")
        connection.send_unhurried(b"heard of two. ")
        connection.send(b"run three.")
        assert await reader.read(100) == b"heard of one. heard of two. run three."
        connection.send_unhurried(b"heard of three.")
        assert await reader.read(100) == b"heard of three."
        connection.send_unhurried(b"heard of four.")
        connection.close()
        assert await reader.read() == b"heard of four."


async def test_a_caller_that_goes_on_at_once_is_let_go_before_what_nobody_waits_for() -> None:
    async with connected() as (connection, reader):
        ended = asyncio.get_running_loop().create_future()

        def end() -> None:
            connection.send_unhurried(b"heard. ")
            ended.set_result(None)

        asyncio.get_running_loop().call_soon(end)
        await ended
        connection.send(b"run.")
        assert await reader.read(100) == b"heard. run."
