"""A program's stream over an engine's connection, without an engine."""

from __future__ import annotations

import asyncio
import socket
from types import SimpleNamespace
from typing import Any, cast

import pytest

from agent_env.containers.stream import STDERR, STDOUT, Carrier, HelperEnds
from agent_env.errors import InfrastructureError
from agent_env.places.helper import protocol
from agent_env.places.helper.connection import Connection
from agent_env.places.helper.protocol import Frame


class Heard:
    """A stream of which everything is kept."""

    def __init__(self) -> None:
        self.frames: list[tuple[int, bytes]] = []
        self.error: InfrastructureError | None = None

    def frame(self, kind: int, payload: bytes) -> None:
        self.frames.append((kind, payload))

    def lost(self, error: InfrastructureError) -> None:
        self.error = error


def piece(data: bytes) -> bytes:
    """As an engine sends standard output."""
    return b"\x01\0\0\0" + len(data).to_bytes(4, "big") + data


async def test_what_had_arrived_when_a_write_failed_is_read_as_the_engines_pieces() -> None:
    here, there = socket.socketpair()
    here.setblocking(False)
    made, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=here)
    transport = cast(asyncio.Transport, made)
    connection, heard = Connection("the place"), Heard()
    response = cast(Any, SimpleNamespace(close=lambda: None))
    transport.set_protocol(Carrier(HelperEnds(connection), transport, response, asyncio.Protocol()))
    connection.connection_made(transport)
    number = connection.open(heard)
    output = bytes(range(256)) * 40
    whole = protocol.frame(Frame.STDOUT, number, output)
    transport.pause_reading()
    there.sendall(piece(whole[:5000]) + piece(whole[5000:]) + piece(protocol.frame(Frame.STDERR, number, b"said last")))
    there.close()
    connection.send(b"nobody takes this")
    await connection.wait_closed()
    assert heard.frames == [(Frame.STDOUT, output), (Frame.STDERR, b"said last")]
    assert heard.error is not None


@pytest.mark.parametrize("size", [1, 7, 8, 9, 1000])
async def test_pieces_are_told_apart_however_they_are_cut_on_their_way(size: int) -> None:
    pieces = [(STDOUT, b"first"), (STDERR, b""), (STDERR, b"an error"), (STDOUT, bytes(300))]
    heard: dict[int, bytes] = {STDOUT: b"", STDERR: b""}

    def take(which: int, data: bytes) -> None:
        heard[which] += data

    ends, nothing = SimpleNamespace(piece=take), cast(Any, SimpleNamespace())
    carrier = Carrier(cast(Any, ends), nothing, nothing, asyncio.Protocol())
    sent = b"".join(bytes([which, 0, 0, 0]) + len(data).to_bytes(4, "big") + data for which, data in pieces)
    for at in range(0, len(sent), size):
        carrier.data_received(sent[at : at + size])
    assert heard == {STDOUT: b"first" + bytes(300), STDERR: b"an error"}
