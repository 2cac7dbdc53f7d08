"""The wire: what is malformed ends its own connection, and the helper lives on."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
from collections.abc import Iterator
from pathlib import PurePosixPath

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from agent_env.places import FileKind
from agent_env.places.helper import HelperConfig, protocol
from agent_env.places.helper.cutting import Cutter, NoFrameError
from agent_env.places.helper.protocol import HEAD, Frame, Key
from tests.helper.living import ENV, TOKEN, Living, end, launch_anywhere

HELLO = protocol.frame(
    Frame.HELLO,
    0,
    protocol.fields((Key.VERSION, protocol.u64(protocol.VERSION)), (Key.TOKEN, TOKEN.encode()), (Key.EPOCH, protocol.u64(1))),
)
FUZZ = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def living() -> Iterator[Living]:
    helper = launch_anywhere(HelperConfig(token=TOKEN, env=ENV))
    yield helper
    end(helper)


def opened(living: Living, *, greet: bool = True) -> socket.socket:
    link = socket.socket(socket.AF_UNIX)
    link.settimeout(10)
    link.connect(str(living.socket))
    if greet:
        link.sendall(HELLO)
        assert next_frame(link)[0] == Frame.WELCOME
    return link


def next_frame(link: socket.socket) -> tuple[int, int, bytes]:
    length, kind, stream = HEAD.unpack(exactly(link, 9))
    return kind, stream, exactly(link, length - 5)


def exactly(link: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = link.recv(count - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data


def answers(living: Living) -> bool:
    """A command still runs to its end."""
    with contextlib.closing(opened(living)) as link:
        payload = protocol.fields((Key.ARG, b"sh"), (Key.ARG, b"-c"), (Key.ARG, b"echo alive"), (Key.WINDOW, protocol.u64(1000)))
        link.sendall(protocol.frame(Frame.EXEC, 7, payload))
        frames = []
        while not frames or frames[-1][0] != Frame.EXIT:
            frames.append(next_frame(link))
        return (Frame.STDOUT, 7, b"alive\n") in frames and living.process.poll() is None


FIELD = st.tuples(st.sampled_from(list(Key)), st.one_of(st.binary(max_size=40), st.integers(0, 2**64 - 1).map(protocol.u64)))
REQUESTS = [kind for kind in Frame if kind not in (Frame.SHUTDOWN, Frame.SET_TTL, Frame.HELLO)]
FRAME = st.builds(
    lambda kind, stream, pairs: protocol.frame(kind, stream, protocol.fields(*pairs)),
    st.sampled_from(REQUESTS),
    st.integers(0, 3),
    st.lists(FIELD, max_size=5),
)


@FUZZ
@given(st.binary(max_size=300), st.booleans())
@example(b"\xff\xff\xff\xff" * 4, True)
@example(struct.pack("<IBI", 0, 1, 1), True)
@example(struct.pack("<IBI", 4 << 20, Frame.EXEC, 1) + b"x" * 100, True)
@example(protocol.frame(200, 1), True)
@example(HELLO + HELLO, True)
@example(protocol.frame(Frame.EXEC, 1), False)
@example(protocol.frame(Frame.KILL_ATTEMPT, 1, protocol.fields((Key.ATTEMPT, b"x" * 500))), True)
def test_garbage_ends_its_own_connection_and_nothing_else(living: Living, garbage: bytes, greet: bool) -> None:
    with contextlib.closing(opened(living, greet=greet)) as link, contextlib.suppress(OSError):
        link.sendall(garbage)
        link.shutdown(socket.SHUT_WR)
        while link.recv(65536):
            pass
    assert living.process.poll() is None


@FUZZ
@given(st.lists(st.one_of(FRAME, st.binary(max_size=8)), max_size=12), st.integers(1, 64))
def test_well_formed_nonsense_in_torn_pieces_is_survived(living: Living, frames: list[bytes], piece: int) -> None:
    data = b"".join(frames)
    with contextlib.closing(opened(living)) as link, contextlib.suppress(OSError):
        for at in range(0, len(data), piece):
            link.sendall(data[at : at + piece])
    assert living.process.poll() is None


def test_the_helper_still_works_after_all_that(living: Living) -> None:
    assert answers(living)


def test_frames_may_arrive_a_byte_at_a_time(living: Living) -> None:
    with contextlib.closing(opened(living, greet=False)) as link:
        for data in (HELLO, protocol.frame(Frame.PING, 9)):
            for byte in data:
                link.sendall(bytes([byte]))
        assert [next_frame(link)[:2] for _ in range(2)] == [(Frame.WELCOME, 0), (Frame.DONE, 9)]


@FUZZ
@given(
    st.lists(st.tuples(st.integers(1, 8), st.integers(0, 3), st.binary(max_size=60)), max_size=20),
    st.integers(1, 5),
    st.binary(max_size=10),
)
def test_a_file_worker_survives_nonsense_records(
    living: Living, records: list[tuple[int, int, bytes]], operation: int, tail: bytes
) -> None:
    # Paths below a folder that is not there: whatever is understood, nothing is touched.
    data = b"".join(protocol.frame(kind, index, payload.replace(b"/", b"_")) for kind, index, payload in records) + tail
    with contextlib.closing(opened(living)) as link:
        link.sendall(
            protocol.frame(Frame.FILES, 1, protocol.fields((Key.OPERATION, protocol.u64(operation)), (Key.WINDOW, protocol.u64(1 << 20))))
        )
        link.sendall(protocol.frame(Frame.STDIN, 1, data) + protocol.frame(Frame.STDIN_EOF, 1))
        while next_frame(link)[0] != Frame.EXIT:
            pass


def test_a_flood_of_questions_without_reading_costs_no_memory(living: Living) -> None:
    with contextlib.closing(opened(living)) as link:
        link.settimeout(0.5)
        flood = protocol.frame(Frame.LEDGER, 1) * 1000
        with contextlib.suppress(TimeoutError):
            for _ in range(2000):
                link.sendall(flood)
        assert resident(living) < 20 << 20
        assert answers(living)


def test_input_beyond_the_window_ends_the_connection(living: Living) -> None:
    with contextlib.closing(opened(living)) as link:
        payload = protocol.fields((Key.ARG, b"sleep"), (Key.ARG, b"1"), (Key.FLAGS, protocol.u64(1)), (Key.WINDOW, protocol.u64(1)))
        link.sendall(protocol.frame(Frame.EXEC, 1, payload))
        with pytest.raises((EOFError, OSError)):
            overrun(link)
    assert answers(living)


def overrun(link: socket.socket) -> None:
    for _ in range(100):
        link.sendall(protocol.frame(Frame.STDIN, 1, b"x" * 60_000))
    next_frame(link)


def resident(living: Living) -> int:
    with open(f"/proc/{living.process.pid}/statm") as file:
        return int(file.read().split()[1]) * 4096


@given(st.binary(max_size=200), st.binary(max_size=50), st.integers(0, 0o7777), st.binary(min_size=32, max_size=32))
def test_entries_survive_the_codec(name: bytes, target: bytes, mode: int, digest: bytes) -> None:
    name = name.replace(b"\0", b"").replace(b"/", b"") or b"x"
    if name in (b".", b".."):
        return
    payload = protocol.ENTRY.pack(0, 1, mode, 1, 2, 3, 4, len(name), 0) + digest + name
    entry = protocol.entry(payload, PurePosixPath("/root"))
    assert protocol.raw(entry.path) == b"/root/" + name
    assert (entry.mode, entry.uid, entry.gid, entry.size, entry.modified_ns, entry.sha256) == (mode, 1, 2, 3, 4, digest.hex())
    link = protocol.entry(protocol.ENTRY.pack(2, 0, mode, 1, 2, 3, 4, len(name), len(target)) + name + target, PurePosixPath("/root"))
    assert link.kind is FileKind.LINK
    assert protocol.raw(link.target or "") == target


@given(
    st.lists(st.tuples(st.integers(0, 255), st.integers(0, 2**32 - 1), st.binary(max_size=50)), max_size=20),
    st.randoms(use_true_random=False),
)
def test_records_come_out_whole_however_they_are_cut(items: list[tuple[int, int, bytes]], source: random.Random) -> None:
    data = b"".join(protocol.frame(*item) for item in items)
    cutter, found = Cutter(), []
    while data:
        cut = source.randint(1, min(len(data), source.choice((3, 20, 2000))))
        found += cutter.cut(data[:cut])
        data = data[cut:]
    assert found == items
    assert found + list(cutter.cut(protocol.frame(1, 2, b"next"))) == [*items, (1, 2, b"next")]


@pytest.mark.parametrize("length", [0, 4, protocol.MAX_FRAME + 1])
@pytest.mark.parametrize("first", [1, 9, 13])
def test_what_is_no_frame_is_refused_however_it_is_cut(length: int, first: int) -> None:
    data, cutter = protocol.HEAD.pack(length, 1, 1) + bytes(4), Cutter()
    with pytest.raises(NoFrameError):
        assert list(cutter.cut(data[:first])) + list(cutter.cut(data[first:])) == []
