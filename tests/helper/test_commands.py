"""Commands in a helper's place: endings, launch failures, output, input, and whole trees."""

from __future__ import annotations

import asyncio
import resource
import secrets
import signal
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest

from agent_env.errors import LaunchError
from agent_env.places import Command, Completed, Ending
from agent_env.places.helper import HelperPlace
from agent_env.waiting import poll
from tests.busy import lasting, within
from tests.helper.living import UNSHARE, Living, helper, needs_root, short, tagged
from tests.memory import forget_peak, peak_bytes
from tests.processes import children_of, state_of

AS_INIT = pytest.mark.parametrize("prefix", [(), UNSHARE], ids=["ordinary process", "pid 1"])


def sh(script: str, **more: object) -> Command:
    return Command(["sh", "-c", script], **more)  # type: ignore[arg-type]


async def until_gone(tag: str, seconds: float = 30.0) -> list[int]:
    """What still carries a tag after at most `seconds`."""
    end = time.monotonic() + seconds
    while (left := await asyncio.to_thread(tagged, tag)) and time.monotonic() < end:
        await asyncio.to_thread(time.sleep, 0.02)
    return left


async def until_tagged(tag: str, count: int, seconds: float = 30.0) -> None:
    """Waits until at least so many carry a tag. One that is between two programs has no environment for a moment."""
    end = time.monotonic() + seconds
    while len(found := await asyncio.to_thread(tagged, tag)) < count:
        assert time.monotonic() < end, f"{len(found)} processes in place of {count}"
        await asyncio.to_thread(time.sleep, 0.02)


@AS_INIT
async def test_ex14_streams_are_always_bytes_and_the_code_is_always_there(prefix: tuple[str, ...]) -> None:
    async with helper(prefix=prefix) as (_, place):
        assert await quiet(place, Command(["true"])) == Completed(Ending.EXITED, 0)
        assert await quiet(place, sh("echo out; exit 3")) == Completed(Ending.EXITED, 3, stdout=b"out\n")
        assert await quiet(place, sh("exec >/dev/null 2>&1; echo x")) == Completed(Ending.EXITED, 0)
        assert await quiet(place, sh("kill -USR1 $$")) == Completed(Ending.SIGNALLED, signal=10)
        process = await place.start(sh("echo streamed; exit 4"))
        assert [piece async for piece in process.output()] == [(1, b"streamed\n")]
        assert (await process.wait()).exit_code == 4


async def quiet(place: HelperPlace, command: Command) -> Completed:
    """A completed command without what differs from run to run."""
    done = await place.run(command)
    assert 0 <= done.duration_seconds < 60
    return Completed(
        done.ending, done.exit_code, done.signal, done.stdout, done.stderr, done.stdout_dropped_bytes, done.stderr_dropped_bytes
    )


@AS_INIT
async def test_ex01_ex02_f6_a_timeout_leaves_nothing_of_the_tree_and_touches_no_other(prefix: tuple[str, ...]) -> None:
    async with helper(prefix=prefix) as (_, place):
        tag, other = secrets.token_hex(8), secrets.token_hex(8)
        survivor = await place.start(sh("echo up; exec sleep 60", env={"TAG": other}))
        assert await anext(aiter(survivor.output())) == (1, b"up\n")
        done = await place.run(
            sh("setsid sleep 77 & (setsid sh -c 'sleep 78 & wait' &) ; exec sleep 50", env={"TAG": tag}, timeout_seconds=0.3)
        )
        assert done.ending is Ending.TIMED_OUT
        assert done.duration_seconds < within(2)
        assert tagged(tag) == []
        await until_tagged(other, 1)
        await survivor.aclose()
        assert tagged(other) == []


@AS_INIT
async def test_c12_f6_a_tree_that_ignores_sigterm_and_forks_in_a_loop_is_gone_within_a_second_of_sigkill(prefix: tuple[str, ...]) -> None:
    async with helper(prefix=prefix) as (_, place):
        tag = secrets.token_hex(8)
        script = "trap '' TERM; bomb() { while :; do (setsid sleep 30 &) ; (sleep 0.01 &); done; }; echo on; bomb & bomb & wait"
        limit = lasting(0.5)
        begun = time.monotonic()
        done = await place.run(sh(script, env={"TAG": tag}, timeout_seconds=limit, kill_grace_seconds=0.5))
        assert done.ending is Ending.TIMED_OUT
        assert time.monotonic() - begun < limit + within(1.5)
        assert tagged(tag) == []
        assert done.stdout == b"on\n"


async def test_c12_the_grace_lets_a_command_end_by_itself() -> None:
    async with helper() as (_, place):
        done = await place.run(sh("trap 'echo bye; exit 9' TERM; echo hi; while :; do sleep 0.05; done", timeout_seconds=lasting(0.3)))
        assert (done.ending, done.stdout) == (Ending.TIMED_OUT, b"hi\nbye\n")
        assert done.duration_seconds < within(4)


async def test_ex01_a_cancelled_call_leaves_nothing_twenty_times() -> None:
    async with helper() as (_, place):
        tag = secrets.token_hex(8)
        for _ in range(20):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await place.run(sh("setsid sleep 333 & sleep 333", env={"TAG": tag}))
            assert tagged(tag) == []


async def test_ex04_output_before_the_timeout_is_kept() -> None:
    async with helper() as (_, place):
        done = await place.run(sh("echo before; echo err >&2; sleep 60", timeout_seconds=lasting(0.3)))
        assert (done.ending, done.stdout, done.stderr) == (Ending.TIMED_OUT, b"before\n", b"err\n")


@AS_INIT
async def test_ex05_a_background_child_delays_nothing_and_lives_until_teardown(prefix: tuple[str, ...]) -> None:
    async with helper(prefix=prefix) as (living, place):
        tag = secrets.token_hex(8)
        done = await place.run(sh("sleep 30 & echo done", env={"TAG": tag}))
        assert (done.exit_code, done.stdout) == (0, b"done\n")
        assert done.duration_seconds < within(3)
        await until_tagged(tag, 1)
        done = await place.run(sh("sleep 30 & head -c 1000000 /dev/zero", env={"TAG": tag}))
        assert len(done.stdout) == 1_000_000
        await until_tagged(tag, 2)
        await place.shut_down()
        living.process.wait(60)
        assert tagged(tag) == []


async def test_ex05_a_background_child_may_go_on_writing() -> None:
    async with helper() as (living, place):
        mark = living.folder / "mark"
        done = await place.run(sh(f"(sleep 0.2; echo late; echo $? > {mark}) & echo done"))
        assert done.stdout == b"done\n"
        assert await content(mark) == "0\n"


async def content(path: Path) -> str:
    """What is written to a file that comes into being."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        if text := await asyncio.to_thread(text_of, path):
            return text
        await asyncio.to_thread(time.sleep, 0.02)
    raise AssertionError(f"{path} never came")


def text_of(path: Path) -> str:
    return path.read_text() if path.exists() else ""


@AS_INIT
async def test_ex07_a_failed_launch_is_typed_and_a_126_is_a_result(prefix: tuple[str, ...]) -> None:
    async with helper(prefix=prefix) as (living, place):
        script = living.folder / "script"
        script.write_bytes(b"#!/bin/sh\r\necho no\n")
        script.chmod(0o755)
        plain = living.folder / "plain"
        plain.write_bytes(b"text")
        foreign = living.folder / "foreign"
        foreign.write_bytes(b"\x7fELF of another machine")
        foreign.chmod(0o755)
        cases = {
            r"working folder .*\(/not/there\)": Command(["true"], cwd=PurePosixPath("/not/there")),
            "program .*ENOENT.*it, or the loader that it was linked for": Command(["/not/there"]),
            "ENOEXEC.*neither a program for this machine's processor nor a script": Command([str(foreign)]),
            "can't be run": Command(["no-such-program-on-the-path"]),
            r"no such user \(nobody-of-that-name\)": Command(["true"], user="nobody-of-that-name"),
            "interpreter": Command([str(script)]),
            "EACCES": Command([str(plain)]),
            "EISDIR|EACCES": Command(["/tmp"]),
        }
        for text, command in cases.items():
            with pytest.raises(LaunchError, match=text):
                await place.run(command)
            with pytest.raises(LaunchError, match=text):
                await place.start(command)
        assert (await place.run(sh("exit 126"))).exit_code == 126


async def test_ex10_an_overlong_argument_is_refused_before_anything_runs() -> None:
    async with helper() as (_, place):
        fits = await place.run(Command(["sh", "-c", 'printf %s "$1" | wc -c', "sh", "x" * 131_000]))
        assert fits.stdout.strip() == b"131000"
        for argument in ("x" * 131_072, "x" * 5_000_000, "a\0b"):
            with pytest.raises(LaunchError, match="too long"):
                await place.run(Command(["echo", argument]))
        script = b"true " + b"x" * (1 << 20) + b"\necho $((6 * 7))\n"
        assert (await place.run(Command(["sh", "-s"], stdin=script))).stdout == b"42\n"


async def test_ex11_f19_bytes_are_bytes_in_arguments_environment_and_output() -> None:
    async with helper() as (_, place):
        done = await place.run(sh(r"printf '\377\376\000abc'; printf '\377\376\000abc' >&2"))
        assert done.stdout == done.stderr == b"\xff\xfe\x00abc"
        every = bytes(range(256))
        assert (await place.run(Command(["cat"], stdin=every))).stdout == every
        process = await place.start(Command(["cat"], stdin=every))
        assert (await process.wait()).stdout == every
        odd = [b"\xff\xfe", b"a\nb", b"$(id)", b"'\"", b"", b"/app sudo"]
        done = await place.run(Command(["printf", "%s\\n|", *odd], env={"X": "\udcff $y"}))
        assert done.stdout == b"".join(argument + b"\n|" for argument in odd)
        assert (await place.run(sh('printf %s "$X"', env={"X": "\udcff $y"}))).stdout == b"\xff $y"


@pytest.mark.parametrize("count", [9_999, 10_000, 10_001, 16_384])
@pytest.mark.parametrize("keep", ["head", "tail"])
async def test_ex13_a_cut_is_counted_and_flips_exactly_at_the_limit(count: int, keep: str) -> None:
    async with helper() as (_, place):
        script = f"yes abcdefghi | head -c {count}; yes ABCDEFGHI | head -c {count} >&2"
        done = await place.run(sh(script, output_limit_bytes=10_000, keep=keep))
        whole = (b"abcdefghi\n" * 2000)[:count]
        kept = whole[:10_000] if keep == "head" else whole[-10_000:]
        assert done.stdout == kept
        assert done.stderr == kept.upper()
        assert done.stdout_dropped_bytes == done.stderr_dropped_bytes == max(count - 10_000, 0)
        assert done.truncated == (count > 10_000)


@pytest.mark.parametrize("keep", ["head", "tail"])
async def test_f18_d6_two_gigabytes_of_output_cost_no_memory(keep: str) -> None:
    async with helper() as (living, place):
        before, here = memory(living), forget_peak()
        done = await place.run(sh(f"yes | head -c {'2G' if keep == 'head' else '200M'}", output_limit_bytes=1 << 20, keep=keep))
        assert len(done.stdout) == 1 << 20
        assert done.stdout_dropped_bytes == ((2 << 30) if keep == "head" else 200 << 20) - (1 << 20)
        assert memory(living) - before < 8 << 20
        assert peak_bytes() - here < 20 << 20


def memory(living: Living) -> int:
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{living.process.pid}/status").read_text().splitlines())
    return int(fields["VmHWM"].split()[0]) * 1024


async def test_d6_a_command_that_never_reads_its_input_ends_all_the_same() -> None:
    async with helper() as (_, place):
        begun = time.monotonic()
        done = await place.run(Command(["true"], stdin=b"x" * 10_000_000))
        assert done.ok
        done = await place.run(sh("exec <&-; sleep 0.1; echo ok", stdin=b"x" * 10_000_000))
        assert done.stdout == b"ok\n"

        async def endless() -> AsyncIterator[bytes]:
            while True:
                yield b"y" * 50_000

        assert (await place.run(Command(["head", "-c", "100000"], stdin=endless()))).stdout == b"y" * 100_000
        assert time.monotonic() - begun < within(10)


async def test_ex19_the_end_of_the_input_is_delivered() -> None:
    async with helper() as (_, place):
        data = secrets.token_bytes(3_000_001)
        done = await place.run(Command(["cat"], stdin=data))
        assert done.stdout == data
        process = await place.start(Command(["cat"], stdin=data))  # nobody reads its output yet
        assert b"".join([piece async for _, piece in process.output()]) == data
        process = await place.start(Command(["sleep", "60"], stdin=data))
        await process.aclose()
        process = await place.start(Command(["cat"]))
        await process.write(b"one")
        await process.write(b"two")
        await process.close_stdin()
        assert (await process.wait()).stdout == b"onetwo"


SCRIPTS = [
    b"cat <<EOF\nlast line",
    b"cat <<A\ncat <<EOF\nx\nEOF\nA\n",
    b"echo x #comment",
    b"echo a\\",
    b"echo 'unbalanced",
    b"echo a\nexit 3\necho b\n",
    b"cd /\npwd\n",
    b'echo $HOME `echo tick` 100% hi! "q"\n',
]


@pytest.mark.parametrize("script", SCRIPTS, ids=range(len(SCRIPTS)))
async def test_ex16_a_script_runs_byte_for_byte(script: bytes) -> None:
    async with helper() as (living, place):
        file = living.folder / "script"
        file.write_bytes(script)
        expected = await place.run(Command(["sh", str(file)]))
        given = await place.run(Command(["sh", "-s"], stdin=script))
        text = await place.run(Command(["sh", "-c", script]))
        assert given.exit_code == text.exit_code == expected.exit_code
        assert given.stdout == text.stdout == expected.stdout


@AS_INIT
async def test_ex17_orphans_leave_no_zombies(prefix: tuple[str, ...]) -> None:
    async with helper(prefix=prefix) as (living, place):
        await asyncio.gather(*(place.run(sh("sh -c 'sleep 0.05 &'")) for _ in range(50)))
        await place.run(Command(["sleep", "0.4"]))

        async def none() -> bool | None:
            return None if zombies_below(living.process.pid) else True

        assert await poll(none, within_seconds=60, what="the last of the dead")


def zombies_below(root: int) -> list[int]:
    """Dead processes below a live one that nobody has taken notice of."""
    found, todo = [], [root]
    while todo:
        children = children_of(todo.pop())
        todo += children
        found += [child for child in children if state_of(child) == "Z"]
    return found


async def test_two_hundred_commands_at_once() -> None:
    async with helper() as (_, place):
        done = await asyncio.gather(*(place.run(sh(f"sleep 0.2; echo {i}")) for i in range(200)))
        assert [one.stdout for one in done] == [b"%d\n" % i for i in range(200)]


async def test_a_slow_reader_holds_up_its_own_stream_alone() -> None:
    async with helper() as (living, place):
        before = forget_peak()
        process = await place.start(sh("yes | head -c 100M"))
        done = await asyncio.gather(*(place.run(sh("yes | head -c 3M")) for _ in range(4)))
        assert {len(one.stdout) for one in done} == {3 << 20}
        assert memory(living) < 16 << 20
        assert peak_bytes() - before < 60 << 20
        total = 0
        async for _, piece in process.output():
            total += len(piece)
        assert total == 100 << 20
        assert (await process.wait()).ok


FLOOD = "head -c 9000000 /dev/zero"


async def test_a_reader_who_is_slow_is_no_place_that_hangs() -> None:
    """Nobody takes the output for longer than all deadlines together."""
    async with helper(limits=short(answer_margin_seconds=0.1, cleanup_seconds=0.1, kill_grace_seconds=0.1)) as (_, place):
        process = await place.start(replace(sh(FLOOD), timeout_seconds=lasting(0.3)))
        output = process.output()
        taken = len((await anext(output))[1])
        ending = asyncio.ensure_future(process.wait())
        told, _ = await asyncio.wait([ending], timeout=lasting(0.3) + 0.9)  # all deadlines pass, and nothing is read meanwhile
        assert not told
        taken += sum([len(piece) async for _, piece in output])
        assert (await ending).ending is Ending.TIMED_OUT  # the place did end it at its limit: it stood still behind its output
        assert taken < 9_000_000


@pytest.mark.parametrize("read", [True, False], ids=["read", "not read"])
async def test_a_time_limit_is_told_as_one_however_much_was_printed_and_whoever_reads(read: bool) -> None:
    async with helper(limits=short(answer_margin_seconds=lasting(0.2), kill_grace_seconds=0.1)) as (_, place):
        process = await place.start(replace(sh("yes"), timeout_seconds=0.5))
        if read:
            async for _ in process.output():
                pass
        ending = await process.wait()
        assert ending.ending is Ending.TIMED_OUT
        assert await quiet(place, sh("true")) == Completed(Ending.EXITED, exit_code=0)


async def test_an_output_limit_of_a_streamed_command_is_counted_and_is_no_ending() -> None:
    async with helper() as (_, place):
        process = await place.start(replace(sh(f"{FLOOD}; exit 3"), output_limit_bytes=1000))
        taken = sum([len(piece) async for _, piece in process.output()])
        ending = await process.wait()
        assert (taken, ending.ending, ending.exit_code, ending.stdout_dropped_bytes) == (1000, Ending.EXITED, 3, 8_999_000)


async def test_a_loss_is_told_as_one_while_output_is_streamed_and_what_was_printed_is_kept() -> None:
    async with helper() as (living, place):
        process = await place.start(sh("echo before; sleep 77"))
        output = process.output()
        assert await anext(output) == (1, b"before\n")
        living.process.kill()
        assert [piece async for piece in output] == []
        ending = await process.wait()
        assert (ending.ending, ending.exit_code, ending.signal) == (Ending.LOST, None, None)
        assert "broke" in ending.detail


async def test_a_process_that_its_caller_killed_says_so_and_one_that_killed_itself_does_not() -> None:
    async with helper() as (_, place):
        process = await place.start(sh("sleep 77"))
        await process.kill()
        ending = await process.wait()
        assert (ending.ending, ending.signal, ending.detail) == (Ending.SIGNALLED, 9, "it was killed by its caller")
        assert (await place.run(sh("kill -9 $$"))).detail == ""


async def test_letting_go_of_a_process_whose_output_nobody_reads_takes_no_time() -> None:
    async with helper(limits=short(cleanup_seconds=5)) as (_, place):
        process = await place.start(sh("yes"))
        assert (await anext(process.output()))[0] == 1
        async with asyncio.timeout(within(3)):
            await process.aclose()
        assert not [entry for entry in await place.ledger() if entry.running]


@pytest.mark.parametrize(
    ("limits", "program", "number", "detail"),
    [
        ({resource.RLIMIT_CPU: 1}, "while True: pass", signal.SIGXCPU, "its limit of processor time was reached"),
        (
            {resource.RLIMIT_CPU: 1},
            "import signal; signal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass",
            signal.SIGKILL,
            "its limit of processor time was reached",
        ),
        (
            {resource.RLIMIT_FSIZE: 1000},
            "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_DFL)\n"
            "import tempfile; f = tempfile.TemporaryFile(); f.write(b'x' * 2000); f.flush()",
            signal.SIGXFSZ,
            "its limit of the size of a file was reached",
        ),
    ],
    ids=["processor time", "processor time, ignored", "file size"],
)
async def test_a_limit_of_a_command_that_ended_it_is_told_by_name(limits: dict[int, int], program: str, number: int, detail: str) -> None:
    async with helper() as (_, place):
        ending = await place.run(Command([sys.executable, "-c", program], rlimits=limits, timeout_seconds=20))
        assert (ending.ending, ending.signal, ending.detail) == (Ending.SIGNALLED, number, detail), ending
        opened = Command([sys.executable, "-c", "import os; [os.dup(1) for _ in range(50)]"], rlimits={resource.RLIMIT_NOFILE: 20})
        assert b"Too many open files" in (await place.run(opened)).stderr


async def test_a_process_can_be_signalled_as_a_tree() -> None:
    async with helper() as (_, place):
        process = await place.start(
            sh("sh -c 'trap \"echo child; exit\" USR1; echo up; while :; do sleep 0.02; done' 2>/dev/null & trap '' USR1; wait; wait")
        )
        output = process.output()
        assert await anext(output) == (1, b"up\n")
        await process.kill(10)
        assert await anext(output) == (1, b"child\n")
        await output.aclose()
        assert (await process.wait()).exit_code is not None


@AS_INIT
async def test_a_supervisor_that_a_command_kills_or_stops_does_not_free_its_tree(prefix: tuple[str, ...]) -> None:
    async with helper(prefix=prefix) as (_, place):
        for signal in (9, 19):
            tag = secrets.token_hex(8)
            done = await place.run(
                sh(f"setsid sleep 99 & kill -{signal} $PPID; exec sleep 98", env={"TAG": tag}, timeout_seconds=1, kill_grace_seconds=0.1)
            )
            assert done.ending in (Ending.SIGNALLED, Ending.TIMED_OUT)
            assert await until_gone(tag) == []
        assert (await place.run(Command(["true"]))).ok


@AS_INIT
async def test_a14_a_place_cannot_look_into_its_helper(prefix: tuple[str, ...]) -> None:
    async with helper(prefix=prefix) as (living, place):
        pid = 1 if prefix else living.process.pid
        script = (
            f"cat /proc/{pid}/environ /proc/{pid}/maps; head -c 1 /proc/{pid}/mem; readlink -v /proc/{pid}/fd/*; cat /proc/$PPID/environ"
        )
        if prefix:  # an ordinary process that belongs to real root hides from nobody who is real root
            done = await place.run(sh(script))
            assert done.stdout == b""
            assert done.stderr.count(b"ermission denied") >= 4
        token = (await place.run(sh(f"tr '\\0' ' ' < /proc/{pid}/cmdline; tr '\\0' ' ' < /proc/{pid}/environ; env"))).stdout
        assert living.config.token.encode() not in token
        assert b"NoNewPrivs:\t1" in (await place.run(sh("cat /proc/self/status"))).stdout


async def test_secrets_reach_the_command_alone() -> None:
    async with helper() as (_, place):
        done = await place.run(sh('printf %s "$KEY"; tr "\\0" " " < /proc/$PPID/cmdline', secrets={"KEY": "s3cret-value"}))
        assert done.stdout.count(b"s3cret-value") == 1
        records = await place.ledger_records()
        assert "s3cret-value" not in repr(records)


async def test_limits_of_files_are_the_callers_not_the_helpers() -> None:
    async with helper(limits=short()) as (_, place):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert (await place.run(sh("ulimit -Sn; ulimit -Hn"))).stdout.split() == [b"%d" % soft, b"%d" % hard]


@needs_root
@pytest.mark.parametrize("user", ["4321:4321", "4321", "www-data", "www-data:4321", "root", None])
async def test_us01_home_exists_and_is_writable_for_any_user(user: str | None) -> None:
    async with helper() as (_, place):
        done = await place.run(sh("id -u; id -g; echo $HOME; f=$(mktemp -p $HOME) && rm $f", user=user))
        assert done.ok, done.stderr
        uid, gid, home = done.stdout.decode().split()
        names = {"4321:4321": ("4321", "4321"), "4321": ("4321", "4321"), "www-data": ("33", "33"), "www-data:4321": ("33", "4321")}
        assert (uid, gid) == names.get(user or "", ("0", "0"))
        assert (home == "/root") == (uid == "0")
        given = await place.run(sh("echo $HOME", user=user, env={"HOME": "/given"}))
        assert given.stdout == b"/given\n"
