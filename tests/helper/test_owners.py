"""Who may speak to a helper, what a later owner finds, and when a place ends by itself."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest

from agent_env.defaults import DEFAULT_LIMITS
from agent_env.errors import DeadlineError, LaunchError, SandboxUnavailableError, SupersededError, TransferError
from agent_env.places import Command, Ending, Place, Upload
from agent_env.places.helper import HelperConfig, binary_path, connect
from agent_env.places.helper.connection import Connection
from agent_env.places.helper.greeting import connected_socket, greet
from agent_env.places.place import RESULT_VARIABLE
from agent_env.waiting import poll
from tests.busy import lasting, within
from tests.helper.living import ENV, TOKEN, UNSHARE, end, helper, launch, launch_anywhere, short, tagged
from tests.helper.test_commands import AS_INIT, content, sh, until_gone, until_tagged
from tests.processes import is_alive

MAX_CONNECTIONS = 64
"""As in `helper.h`."""


async def test_a_helper_place_is_a_place() -> None:
    async with helper() as (_, place):
        assert isinstance(place, Place)
        assert (place.id, place.kind, dict(place.labels)) == ("test", "machine", {"a": "b"})


async def test_a_connection_that_broke_before_its_greeting_says_so_at_once() -> None:
    here, there = socket.socketpair()
    here.setblocking(False)
    _, connection = await asyncio.get_running_loop().create_connection(lambda: Connection("the place"), sock=here)
    there.close()
    await connection.wait_closed()
    with pytest.raises(SandboxUnavailableError, match="closed the connection"):
        await greet(connection, token=TOKEN, epoch=1, limits=replace(DEFAULT_LIMITS, connect_seconds=1000))


async def test_d3_an_older_epoch_is_refused_and_its_connection_is_cut_when_a_newer_one_arrives() -> None:
    async with helper() as (living, old):
        running = asyncio.ensure_future(old.run(Command(["sleep", "30"])))
        streaming = await old.start(Command(["sleep", "30"]))
        new = await living.connect(epoch=2)
        with pytest.raises(SupersededError, match="later owner"):
            await running
        with pytest.raises(SupersededError):
            await streaming.wait()
        for call in (old.run(Command(["true"])), old.ledger(), old.stop_attempt("a"), old.remove([])):
            if call.__name__ == "remove":
                await call  # nothing asked, nothing refused
                continue
            with pytest.raises(SupersededError):
                await call
        with pytest.raises(SupersededError, match="epoch 2"):
            await living.connect(epoch=1)
        assert (await new.run(Command(["true"]))).ok
        again = await living.connect(epoch=2)
        assert (await new.run(Command(["true"]))).ok
        await again.aclose()
        await new.aclose()


async def test_callers_that_say_nothing_keep_no_owner_out() -> None:
    """Anything in a place may connect to its helper, and as often as it likes."""
    async with helper() as (living, old):
        with ExitStack() as stack:
            silent = [stack.enter_context(connected_socket(living.socket)) for _ in range(MAX_CONNECTIONS + 10)]
            assert (await old.run(Command(["true"]))).ok
            new = await living.connect(epoch=2)
            assert (await new.run(Command(["true"]))).ok
            await new.aclose()
            assert silent[0].recv(1) == b"", "it has been silent for longest"


async def test_d3_a_configured_epoch_is_the_least_that_is_heard() -> None:
    living = launch_anywhere(HelperConfig(token=TOKEN, epoch=5, env=ENV))
    try:
        with pytest.raises(SupersededError):
            await living.connect(epoch=4)
        await (await living.connect(epoch=5)).aclose()
    finally:
        end(living)


async def test_a_wrong_token_is_refused() -> None:
    async with helper() as (living, place):
        for token in ("x", TOKEN[:-1], TOKEN + "0", TOKEN[:-1] + "z"):
            with pytest.raises(SandboxUnavailableError, match="token"):
                await living.connect(token=token)
        assert (await place.run(Command(["true"]))).ok


async def test_ex08_a_place_that_dies_is_told_as_lost_and_later_as_unavailable() -> None:
    async with helper(prefix=UNSHARE) as (living, place):
        mark = living.folder / "mark"
        running = asyncio.ensure_future(place.run(sh(f"echo start; echo > {mark}; sleep 30; echo end")))
        await content_exists(mark)
        process = await place.start(sh("echo up; sleep 30"))
        assert await anext(process.output()) == (1, b"up\n")
        await place.ping()
        living.process.kill()
        done = await running
        assert (done.ending, done.exit_code, done.stdout) == (Ending.LOST, None, b"start\n")
        assert done.detail
        assert (await process.wait()).ending is Ending.LOST
        with pytest.raises(SandboxUnavailableError):
            await place.run(Command(["true"]))
        with pytest.raises(SandboxUnavailableError):
            await living.connect()


async def test_f8_a_helper_that_never_answers_is_told_within_two_seconds_of_the_limit() -> None:
    connect = lasting(0.5)
    limits = short(kill_grace_seconds=0.2, connect_seconds=connect, cleanup_seconds=0.5, transfer_seconds=0.2)
    async with helper(limits=limits) as (living, place):
        process = await place.start(sh("echo x; sleep 60"))
        os.kill(living.process.pid, signal.SIGSTOP)
        try:
            waits = [
                place.run(sh("echo", timeout_seconds=0.2)),
                place.start(Command(["true"])),
                place.ledger(),
                place.stop_attempt("a"),
                place.read(Path("/etc/passwd")),  # type: ignore[arg-type]
                place.stat([Path("/")]),  # type: ignore[list-item]
                place.put([]),
                living.connect(limits=limits),
            ]
            begun = time.monotonic()
            results = await asyncio.gather(*waits, return_exceptions=True)
            assert time.monotonic() - begun < connect + within(0.2 + 2 + 1)
            assert [type(one) for one in results if one is not None] == [DeadlineError] * (len(waits) - 1)
            await process.aclose()
        finally:
            os.kill(living.process.pid, signal.SIGCONT)


OWNER = """
import asyncio, sys
sys.path[:0] = sys.argv[1:2]
from pathlib import Path, PurePosixPath
from agent_env.places import Command
from agent_env.places.helper import connect
async def main():
    place = await connect(Path(sys.argv[2]), place_id="x", token=sys.argv[3], epoch=1)
    for attempt in ("one", "two"):
        await place.start(Command(["sh", "-c", "setsid sleep 300 & sleep 0.5; echo > $MARK; exec sleep 301"],
            env={"TAG": sys.argv[4] + attempt, "MARK": sys.argv[2] + attempt}, attempt=attempt))
    await place.run(Command(["sh", "-c", "exit 7"], attempt="one"))
    print("up", flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


@AS_INIT
async def test_a14_after_a_kill_of_the_client_the_ledger_answers_and_an_attempt_can_be_stopped(prefix: tuple[str, ...]) -> None:
    living = launch_anywhere(HelperConfig(token=TOKEN, env=ENV), prefix=prefix)
    tag = secrets.token_hex(8)
    try:
        argv = [sys.executable, "-c", OWNER, str(Path(__file__).parents[2] / "src"), str(living.socket), TOKEN, tag]
        client = await asyncio.create_subprocess_exec(*argv, stdout=subprocess.PIPE)
        assert client.stdout is not None
        assert await client.stdout.readline() == b"up\n"
        client.kill()
        await client.wait()
        place = await living.connect(epoch=2)
        await content_exists(Path(f"{living.socket}one"))
        entries = await place.ledger_records()
        running = {(record.entry.attempt, record.entry.argv0) for record in entries if record.entry.running}
        assert running == {("one", "sh"), ("two", "sh")}
        assert [(record.entry.attempt, record.exit_code) for record in entries if not record.entry.running] == [("one", 7)]
        assert await place.stop_attempt("one") == 1
        assert tagged(f"{tag}one") == []
        await until_tagged(f"{tag}two", 2)
        assert await place.stop_attempt("one") == 0
        assert await place.stop_attempt("two") == 1
        assert tagged(tag) == []
        assert not [entry for entry in await place.ledger() if entry.running]
        await place.aclose()
    finally:
        end(living)


async def content_exists(path: Path) -> None:
    assert await content(path) == "\n"


@AS_INIT
async def test_the_ttl_ends_the_place_and_can_be_moved(prefix: tuple[str, ...]) -> None:
    tag = secrets.token_hex(8)
    living = launch_anywhere(HelperConfig(token=TOKEN, env=ENV, ttl_seconds=60), prefix=prefix)
    try:
        place = await living.connect()
        await place.run(sh("setsid sleep 400 & trap '' TERM; sleep 0 &", env={"TAG": tag}))
        begun = time.monotonic()
        await place.set_ttl(0.5)
        await place.aclose()
        await asyncio.to_thread(living.process.wait, 50)
        assert 0.4 < time.monotonic() - begun < within(3)
        assert await until_gone(tag) == []
    finally:
        end(living)


async def test_a_ttl_holds_from_the_start_without_any_client() -> None:
    living = launch_anywhere(HelperConfig(token=TOKEN, env=ENV, ttl_seconds=0.3))
    try:
        assert await asyncio.to_thread(living.process.wait, 50) == 0
    finally:
        end(living)


@AS_INIT
async def test_a_shutdown_leaves_nothing_and_is_idempotent(prefix: tuple[str, ...]) -> None:
    async with helper(prefix=prefix) as (living, place):
        tag = secrets.token_hex(8)
        await place.run(sh("for i in 1 2 3; do setsid sh -c 'trap \"\" TERM; while :; do sleep 1; done' & done", env={"TAG": tag}))
        await until_tagged(tag, 3)
        await place.shut_down(grace_seconds=0.2)
        assert tagged(tag) == []
        await asyncio.to_thread(living.process.wait, 50)
        await place.shut_down()


async def test_frozen_trees_stand_still_and_thaw() -> None:
    async with helper() as (living, place):
        count = living.folder / "count"
        await place.start(sh(f"while :; do echo x >> {count}; sleep 0.01; done", attempt="agent"))
        await content(count)
        assert await place.freeze("agent") >= 1
        size = count.stat().st_size
        assert (await place.run(Command(["sleep", "0.2"]))).ok
        assert count.stat().st_size == size
        assert await place.thaw("agent") >= 1
        await place.run(Command(["sleep", "0.2"]))
        assert count.stat().st_size > size
        await place.freeze()
        assert await place.stop_attempt("agent") == 1


WAKER = """
import os, signal, sys
own, others = sys.argv[1], sys.argv[2:]
for number in range(3):
    if not os.fork(): break
count = os.open(own + f"/{os.getpid()}", os.O_WRONLY | os.O_CREAT)
while True:
    os.pwrite(count, b"x" * 8, os.fstat(count).st_size % 100000)
    for folder in (own, *others):
        for name in os.listdir(folder):
            try: os.kill(int(name), signal.SIGCONT)
            except ProcessLookupError: pass
"""


@AS_INIT
async def test_trees_of_several_attempts_that_keep_waking_each_other_stand_still_after_one_request(prefix: tuple[str, ...]) -> None:
    async with helper(prefix=prefix) as (living, place):
        folders = {name: living.folder / name for name in ("one", "two", "three")}
        for folder in folders.values():
            folder.mkdir()
        for name, folder in folders.items():
            others = [str(other) for other in folders.values() if other != folder]
            await place.start(Command(["python3", "-c", WAKER, str(folder), *others], attempt=name))

        def counts() -> dict[str, int]:
            return {str(file): file.stat().st_size for folder in folders.values() for file in folder.iterdir()}

        while len(counts()) < 12 or not all(counts().values()):
            await place.ping()
        for _ in range(5):
            assert await place.freeze(*folders) == 12
            before = counts()
            assert (await place.run(Command(["sleep", "0.1"]))).ok
            assert counts() == before
            assert await place.thaw(*folders) == 12
        assert await place.freeze("one", "two") == 8
        for name in folders:
            assert await place.stop_attempt(name) == 1


READY_LATER = """
echo up; until [ -e "$GO" ]; do sleep 0.05; done; printf R >&"$AGENTENV_RESULT_FD"; sleep 0.1; printf genuine >&"$AGENTENV_RESULT_FD"
"""


@AS_INIT
async def test_f13_a_command_that_is_asked_for_while_another_hides_its_result_pipe_starts_after_that(prefix: tuple[str, ...]) -> None:
    async with helper(prefix=prefix) as (living, place):
        go, began = living.folder / "go", living.folder / "began"
        script = READY_LATER.replace("AGENTENV_RESULT_FD", RESULT_VARIABLE)
        hiding = await place.start(Command(["sh", "-c", script], env={"GO": str(go)}, result_limit_bytes=100))
        assert await anext(hiding.output()) == (1, b"up\n")
        asked = asyncio.ensure_future(place.run(Command(["touch", str(began)])))
        await asyncio.wait([asked], timeout=0.3)
        assert not began.exists()
        go.touch()
        assert (await asked).ok
        assert began.exists()
        assert (await hiding.wait()).result == b"genuine"


@AS_INIT
async def test_commands_that_hide_their_result_pipes_at_the_same_time_wait_for_each_other_and_no_longer(prefix: tuple[str, ...]) -> None:
    async with helper(prefix=prefix) as (_, place):
        script = f'printf R >&"${RESULT_VARIABLE}"; printf "$1" >&"${RESULT_VARIABLE}"'
        begun = time.monotonic()
        commands = [Command(["sh", "-c", script, "sh", str(number)], result_limit_bytes=100) for number in range(8)]
        done = await asyncio.gather(*(place.run(command) for command in commands))
        assert [one.result for one in done] == [str(number).encode() for number in range(8)]
        assert time.monotonic() - begun < within(2.5)  # one that was held still itself would be given up only after three seconds


async def test_a_frozen_tree_dies_at_its_deadline_without_waking() -> None:
    async with helper() as (_, place):
        tag = secrets.token_hex(8)
        process = await place.start(
            sh("trap 'echo woke' TERM; echo up; while :; do sleep 0.01; done", env={"TAG": tag}, timeout_seconds=lasting(1))
        )
        assert await anext(process.output()) == (1, b"up\n")
        await place.freeze()
        done = await process.wait()
        assert (done.ending, done.stdout) == (Ending.TIMED_OUT, b"")
        assert tagged(tag) == []


async def test_commands_of_a_client_that_left_end_at_their_deadline() -> None:
    async with helper() as (living, _):
        tag = secrets.token_hex(8)
        leaving = await living.connect()
        process = await leaving.start(sh("echo up; yes", env={"TAG": tag}, timeout_seconds=lasting(1), kill_grace_seconds=0.1))
        assert (await anext(process.output()))[1].startswith(b"up\n")
        await leaving.aclose()
        assert tagged(tag)
        assert await until_gone(tag) == []


async def test_a_socket_path_may_be_long(tmp_path: Path) -> None:
    folder = tmp_path / ("d" * 120) / ("e" * 120)
    folder.mkdir(parents=True)
    here = os.open(".", os.O_PATH)
    os.chdir(folder)
    try:
        living = launch(Path(), HelperConfig(token=TOKEN, env=ENV))
    finally:
        os.fchdir(here)
        os.close(here)
    living.folder = folder
    try:
        place = await living.connect()
        assert (await place.run(Command(["true"]))).ok
        await place.aclose()
    finally:
        end(living)


async def test_an_entrypoint_runs_as_a_child_and_its_end_is_the_places_end() -> None:
    config = HelperConfig(
        token=TOKEN,
        env={**ENV, "GREETING": "hello"},
        entrypoint=["sh", "-c", "trap 'exit 5' TERM; echo $GREETING > $OUT; while :; do sleep 0.05; done"],
    )
    living = launch_anywhere(HelperConfig(token=TOKEN, env={**config.env, "OUT": "/dev/null"}, entrypoint=config.entrypoint))
    try:
        place = await living.connect()
        assert [(entry.argv0, entry.running) for entry in await place.ledger()] == [("sh", True)]
        assert (await place.run(Command(["true"]))).ok
        await place.run(sh("sleep 0.2"))
        living.process.terminate()
        assert await asyncio.to_thread(living.process.wait, 50) == 5
        await place.aclose()
    finally:
        end(living)


async def test_a_command_that_was_killed_is_started_again_once_what_it_left_is_gone_and_one_that_ends_has_ended(tmp_path: Path) -> None:
    lives = tmp_path / "lives"
    script = 'sleep 1000 & echo $$ $! >> "$LIVES"; until [ -e "$LIVES.over" ]; do sleep 0.05; done; exit 3'
    config = HelperConfig(token=TOKEN, env={**ENV, "LIVES": str(lives)}, entrypoint=["sh", "-c", script], restart=True)

    async def life(number: int) -> list[int]:
        async def told() -> list[int] | None:
            lines = lives.read_text().splitlines() if lives.exists() else []
            return [int(word) for word in lines[number].split()] if len(lines) > number else None

        return await poll(told, within_seconds=60, what=f"life {number} of the command")

    async with helper(config=config) as (living, place):
        for number in range(2):
            main, child = await life(number)
            os.kill(main, signal.SIGKILL)
            await life(number + 1)
            assert not [pid for pid in (main, child) if is_alive(pid)]
        assert (await place.run(Command(["true"]))).ok, "the place is the same all the while"
        (tmp_path / "lives.over").touch()
        assert await asyncio.to_thread(living.process.wait, 60) == 3


async def test_one_bridge_process_carries_a_whole_connection() -> None:
    async with helper() as (living, _):
        ours, theirs = socket.socketpair()
        bridge = await asyncio.create_subprocess_exec(binary_path(), "connect", living.socket, stdin=theirs, stdout=theirs)
        theirs.close()
        try:
            place = await connect(ours, place_id="bridged", token=TOKEN, epoch=1)
            data = secrets.token_bytes(3_000_000)
            echoes = await asyncio.gather(*(place.run(Command(["cat"], stdin=data)) for _ in range(4)))
            assert {echo.stdout for echo in echoes} == {data}
            await place.aclose()
            assert await bridge.wait() == 0
        finally:
            if bridge.returncode is None:
                bridge.kill()
                await bridge.wait()
        lost = await asyncio.create_subprocess_exec(binary_path(), "connect", living.folder / "absent")
        assert await lost.wait() == 1


async def test_a_helper_of_an_ordinary_user_does_all_that_it_may(tmp_path: Path) -> None:
    prefix = ("setpriv", "--reuid=1234", "--regid=1234", "--clear-groups")
    async with helper(prefix=prefix if os.getuid() == 0 else ()) as (_, place):
        tag = secrets.token_hex(8)
        done = await place.run(
            sh("setsid sleep 70 & id -u; touch $HOME/.probe-$$ && rm $HOME/.probe-$$; sleep 60", env={"TAG": tag}, timeout_seconds=0.4)
        )
        assert (done.ending, done.stderr) == (Ending.TIMED_OUT, b"")
        assert tagged(tag) == []
        if os.getuid() == 0:
            with pytest.raises(LaunchError, match="become"):
                await place.run(Command(["true"], user="root"))
            with pytest.raises(TransferError, match="EACCES"):
                await place.put([Upload(PurePosixPath("/root/x"), b"1")])


async def test_a_port_inside_is_reached_through_the_helper() -> None:
    async with helper() as (_, place):
        data = secrets.token_bytes(2_000_000)

        async def upper(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"got " + await reader.read())
            writer.close()

        async with await asyncio.start_server(upper, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            streams = [await place.open_tcp(port) for _ in range(3)]
            for stream in streams:
                await stream.send(data)
                stream.send_eof()
                assert b"".join([piece async for piece in stream.pieces()]) == b"got " + data
                await stream.aclose()
            held = await place.open_tcp(port)
            await held.aclose()
        with pytest.raises(SandboxUnavailableError, match="ECONNREFUSED"):
            await place.open_tcp(port)


async def test_d3_who_writes_before_reading_that_it_was_overtaken_is_told_so_all_the_same() -> None:
    async with helper() as (living, old):
        connection = old._connection
        transport = connection._transport
        assert transport is not None
        transport.pause_reading()  # the refusal is there, and this process has not come to read it
        new = await living.connect(epoch=2)
        await new.run(Command(["true"]))
        for _ in range(100):  # the first write may still find room; a later one finds the socket closed
            if connection.error is not None:
                break
            connection.send(b"\0" * 9)
            await new.ping()
        with pytest.raises(SupersededError):
            await old.run(Command(["true"]))
        await new.aclose()
