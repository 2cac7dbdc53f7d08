"""What a fresh place still lacks: commands wait for its limits and its network, files don't, and nobody else wakes the network."""

from __future__ import annotations

import asyncio
import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path, PurePosixPath

import pytest

from agent_env.errors import SandboxUnavailableError
from agent_env.places import Command
from agent_env.places.helper import HelperConfig, HelperPlace
from tests.helper.living import ENV, TOKEN, Living, end, launch

LIMITED, WAKE, READY, FAILED = b"l", b"n", b"1", b"x"
SOON = 60.0


@asynccontextmanager
async def guarded(**changes: object) -> AsyncIterator[tuple[Living, HelperPlace, socket.socket]]:
    """A helper whose guardian is the test."""
    config = HelperConfig(token=TOKEN, env=ENV, **changes)  # type: ignore[arg-type]
    inside, guardian = socket.socketpair()
    guardian.settimeout(SOON)
    with inside:
        living = launch(Path(tempfile.mkdtemp(prefix="helper-test-")), config, guardian=inside)
    try:
        place = await living.connect()
        try:
            yield living, place, guardian
        finally:
            await place.aclose()
    finally:
        guardian.close()
        await asyncio.to_thread(end, living)


async def told(guardian: socket.socket) -> bytes:
    return await asyncio.wait_for(asyncio.to_thread(guardian.recv, 1), SOON)


async def silent(guardian: socket.socket, place: HelperPlace) -> bool:
    """Nothing was said although the helper has answered since."""
    await place.ping()
    guardian.setblocking(False)
    try:
        guardian.recv(1)
    except BlockingIOError:
        return True
    finally:
        guardian.settimeout(SOON)
    return False


async def test_a_command_waits_for_the_limits_and_files_do_not() -> None:
    async with guarded(limited=True) as (living, place, guardian):
        command = asyncio.ensure_future(place.run(Command(["true"])))
        other = await living.connect()
        assert await other.stat([PurePosixPath("/")])
        assert not command.done()
        guardian.sendall(LIMITED)
        assert (await command).ok
        await other.aclose()


async def test_the_network_is_woken_by_the_first_command_and_by_nothing_else() -> None:
    async with guarded(network_seconds=SOON) as (living, place, guardian):
        await place.stat([PurePosixPath("/")])
        await place.ledger()
        assert await silent(guardian, place)
        commands = [asyncio.ensure_future(place.run(Command(["true"]))) for _ in range(3)]
        assert await told(guardian) == WAKE
        other = await living.connect()
        commands.append(asyncio.ensure_future(other.run(Command(["true"]))))
        await asyncio.sleep(0)
        assert not any(command.done() for command in commands)
        guardian.sendall(READY)
        assert all(done.ok for done in await asyncio.gather(*commands))
        assert await silent(guardian, place)
        await other.aclose()


async def test_a_place_whose_network_is_lost_later_runs_commands_all_the_same() -> None:
    async with guarded(network_seconds=SOON, demanded=True) as (_, place, guardian):
        command = asyncio.ensure_future(place.run(Command(["true"])))
        assert await told(guardian) == WAKE
        guardian.sendall(READY + FAILED)
        assert (await command).ok
        assert (await place.run(Command(["true"]))).ok


@pytest.mark.parametrize("how", ["it says so", "it says nothing in time"])
async def test_a_network_that_fails_is_missed_only_where_it_is_demanded(how: str) -> None:
    seconds = SOON if how == "it says so" else 0.2
    for demanded in (False, True):
        async with guarded(network_seconds=seconds, demanded=demanded) as (_, place, guardian):
            command = asyncio.ensure_future(place.run(Command(["true"])))
            assert await told(guardian) == WAKE
            if how == "it says so":
                guardian.sendall(FAILED)
            if not demanded:
                assert (await command).ok
                continue
            with pytest.raises(SandboxUnavailableError, match="network"):
                await command
            with pytest.raises(SandboxUnavailableError, match="network"):
                await place.start(Command(["true"]))


async def test_who_has_not_shown_the_token_wakes_no_network() -> None:
    async with guarded(network_seconds=SOON) as (living, place, guardian):
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.settimeout(SOON)
            stranger.connect(str(living.socket))
            stranger.sendall(b"\x05\0\0\0\x04\x01\0\0\0")  # an EXEC without a word of who it is
            assert await asyncio.to_thread(stranger.recv, 1) == b""
        assert await silent(guardian, place)


async def test_commands_of_a_place_know_nothing_of_the_guardians_socket() -> None:
    async with guarded(limited=True) as (_, place, guardian):
        guardian.sendall(LIMITED)
        done = await place.run(Command(["sh", "-c", "ls -l /proc/self/fd"]))
        assert b"socket" not in done.stdout


async def test_the_end_of_the_guardian_is_the_end_of_the_place_and_of_what_runs_there() -> None:
    async with guarded() as (living, place, guardian):
        process = await place.start(Command(["sh", "-c", "echo up; sleep 600"]))
        assert await anext(aiter(process.output()))
        guardian.close()
        assert await asyncio.to_thread(living.process.wait, SOON) == 0
