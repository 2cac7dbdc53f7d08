"""Commands: what goes in arrives byte for byte, what comes out is bytes, and a failure to start is no result."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import secrets
from pathlib import Path, PurePosixPath

from agent_env.defaults import KIB, MIB
from agent_env.errors import InfrastructureError, LaunchError
from agent_env.places import Command, Ending, Upload
from agent_env.sandboxes.conformance.bench import Bench, Room
from agent_env.sandboxes.conformance.case import Area, equal, holds, raises

AREA = Area("commands")
case = AREA.case

ODD = (
    b"/app/x",
    b"sudo",
    b"a b",
    b'it\'s "quoted"',
    b"two\nlines",
    b"$(touch pwned) `id` $HOME",
    b"-rf",
    b"",
    b"*",
    b"\\",
    "ünï→".encode(),
    b"\xff\xfe bytes",
)
"""Arguments that wrappers rewrite, split or lose."""
_SCRIPTS = {
    "a heredoc that ends without a newline": (b"cat <<EOF\n$0 'x' \"y\"\nEOF", 0),
    "a heredoc within a heredoc": (b"cat <<'A'\ncat <<EOF\nx\nEOF\nA\n", 0),
    "a comment at the end": (b"echo x #comment", 0),
    "an exit in the middle": (b"echo a\nexit 3\necho b\n", 3),
    "cd first": (b"cd /\npwd", 0),
    "text that shells expand": (b"printf '%s' '$HOME `id` % !'\n", 0),
    "a backslash at the end": (b"echo x\\", 0),
}


@case("A6", "EX-16")
async def arguments_arrive_byte_for_byte(bench: Bench) -> None:
    """Arguments arrive byte for byte: nothing rewrites a path, drops a word or expands a `$`."""
    async with bench.shared() as room:
        done = await room.place.run(Command(["sh", "-c", r"""printf '%s\0' "$@" """, "sh", *ODD], cwd=room.folder))
        equal(done.stdout.split(b"\0")[:-1], list(ODD), "the arguments")
        equal(await room.text("ls"), "", "files that an argument made")


@case("A6")
async def environment_values_arrive_byte_for_byte(bench: Bench) -> None:
    """Environment values arrive byte for byte."""
    values = {f"VALUE_{number}": argument.decode("utf-8", "surrogateescape") for number, argument in enumerate(ODD)}
    async with bench.shared() as room:
        script = " ".join(f'"${name}"' for name in values)
        done = await room.sh(rf"printf '%s\0' {script}", env=values)
        equal(done.stdout.split(b"\0")[:-1], list(ODD), "the values")


@case("EX-11")
async def output_is_bytes(bench: Bench) -> None:
    """Output that is no UTF-8 comes back as it was, on both streams."""
    async with bench.shared() as room:
        done = await room.sh(r"printf '\377\376\000abc'; printf '\200\000' >&2")
        equal((done.stdout, done.stderr), (b"\xff\xfe\x00abc", b"\x80\x00"), "the streams")


@case("EX-14")
async def streams_without_output_are_empty_bytes(bench: Bench) -> None:
    """A command that says nothing has two empty streams and an exit code."""
    async with bench.shared() as room:
        done = await room.place.run(Command(["true"]))
        equal((done.ending, done.exit_code, done.stdout, done.stderr), (Ending.EXITED, 0, b"", b""), "the result")


@case("EX-07")
async def the_exit_code_is_the_commands_own(bench: Bench) -> None:
    """Every exit code is the command's own, also 126, 127 and 255."""
    async with bench.shared() as room:
        codes = [0, 1, 2, 3, 124, 126, 127, 128, 137, 255]
        found = [(await room.sh(f"exit {code}")).exit_code for code in codes]
        equal(found, codes, "the exit codes")


@case()
async def a_signal_is_no_exit_code(bench: Bench) -> None:
    """A command that a signal ended says which; it has no exit code."""
    async with bench.shared() as room:
        done = await room.sh("kill -KILL $$")
        equal((done.ending, done.exit_code, done.signal), (Ending.SIGNALLED, None, 9), "the ending")


async def _refused(room: Room, what: str, command: Command) -> None:
    with raises(LaunchError, f"a command with {what}"):
        await room.place.run(command)


@case("EX-07")
async def a_missing_program_is_a_launch_error(bench: Bench) -> None:
    """A program that is not there is a launch error, never exit code 127."""
    async with bench.shared() as room:
        await _refused(room, "a program that is missing", Command(["/no/such/program"]))
        await _refused(room, "a name that no folder of PATH holds", Command(["no-such-program-anywhere"]))


@case("EX-07")
async def a_missing_folder_is_a_launch_error(bench: Bench) -> None:
    """A working folder that is not there is a launch error."""
    async with bench.shared() as room:
        await _refused(room, "a folder that is missing", Command(["true"], cwd=PurePosixPath("/no/such/folder")))


@case("EX-07")
async def an_unknown_user_is_a_launch_error(bench: Bench) -> None:
    """A user that the place does not know is a launch error."""
    async with bench.shared() as room:
        await _refused(room, "a user that is unknown", Command(["true"], user="no-such-user-here"))


@case("EX-07")
async def a_bad_interpreter_is_a_launch_error(bench: Bench) -> None:
    """A script whose interpreter is missing, or written with a carriage return, is a launch error."""
    async with bench.shared() as room:
        for name, first in {"absent": b"#!/no/such/interpreter\n", "dos": b"#!/bin/sh\r\necho x\r\n"}.items():
            await room.place.put([Upload(room.folder / name, first, mode=0o755)])
            await _refused(room, f"an interpreter that is {name}", Command([str(room.folder / name)]))


@case("EX-07")
async def a_file_that_is_no_program_is_a_launch_error(bench: Bench) -> None:
    """A file without the right to be run is a launch error, while exit code 126 of a program is a result."""
    async with bench.shared() as room:
        await room.place.put([Upload(room.folder / "text", b"echo x\n", mode=0o644)])
        await _refused(room, "a file that may not be run", Command([str(room.folder / "text")]))
        equal((await room.sh("exit 126")).exit_code, 126, "a program's own 126")


@case("EX-10")
async def an_argument_that_is_too_long_is_refused(bench: Bench) -> None:
    """An argument that no kernel takes is an error before anything runs; one just below its bound arrives."""
    async with bench.shared() as room:
        equal(await room.text('printf %s "${#1}"', "x" * 131_000), "131000", "the length of a long argument")
        await _refused(room, "an argument of 3 MiB", Command(["true", "x" * (3 * MIB)]))


@case("EX-10")
async def a_script_of_a_megabyte_travels_by_stdin(bench: Bench) -> None:
    """A script's size does not matter when it comes as input."""
    script = b"n=0\n" + b"n=$((n + 1))\n" * (90 * KIB) + b"echo $n\n"
    async with bench.shared() as room:
        done = await room.place.run(Command(["sh"], stdin=script))
        equal((done.exit_code, done.stdout), (0, b"92160\n"), "the script's output")


@case("EX-19")
async def input_arrives_whole_and_ends(bench: Bench) -> None:
    """Megabytes of input arrive whole, and the command sees their end."""
    data = secrets.token_bytes(5 * MIB)
    async with bench.shared() as room:
        done = await room.place.run(Command(["sh", "-c", "cat"], stdin=data))
        equal(hashlib.sha256(done.stdout).hexdigest(), hashlib.sha256(data).hexdigest(), "the digest of what came back")


@case()
async def input_can_be_streamed(bench: Bench) -> None:
    """Input that is made while the command runs arrives in order."""
    pieces = [secrets.token_bytes(100 * KIB) for _ in range(20)]

    async def source() -> object:
        for piece in pieces:
            yield piece

    async with bench.shared() as room:
        done = await room.place.run(Command(["cat"], stdin=source()))  # type: ignore[arg-type]
        equal(done.stdout, b"".join(pieces), "what came back")


@case()
async def no_input_is_an_empty_input(bench: Bench) -> None:
    """A command that was given no input sees its end at once."""
    async with bench.shared() as room:
        equal((await room.sh("cat; echo over")).stdout, b"over\n", "the output")


@case("D6")
async def input_that_nobody_reads_holds_nobody_up(bench: Bench) -> None:
    """A command that never reads its input still ends with its own exit code."""
    async with bench.shared() as room:
        done = await room.place.run(Command(["sh", "-c", "exit 4"], stdin=b"x" * (4 * MIB)))
        equal((done.ending, done.exit_code), (Ending.EXITED, 4), "the ending")


@case("EX-16")
async def scripts_run_as_their_authors_wrote_them(bench: Bench) -> None:
    """Heredocs, comments, exits and quotes of a script mean what they mean in a file."""
    async with bench.shared() as room:
        for what, (script, code) in _SCRIPTS.items():
            await room.place.put([Upload(room.folder / "script", script)])
            by_file = await room.place.run(Command(["sh", str(room.folder / "script")], cwd=room.folder))
            by_argument = await room.place.run(Command(["sh", "-c", script, str(room.folder / "script")], cwd=room.folder))
            equal(by_argument.stdout, by_file.stdout, f"the output of {what}")
            equal((by_file.exit_code, by_argument.exit_code), (code, code), f"the exit codes of {what}")
        done = await room.sh("echo 'unbalanced")
        holds(done.exit_code not in (0, None), "an unbalanced quote is a syntax error")


@case()
async def a_command_runs_in_the_folder_that_is_given(bench: Bench) -> None:
    """The working folder is the one that was asked for; without one it is the place's own, which can be written."""
    async with bench.shared() as room:
        equal(await room.text("pwd -P"), await room.text('cd "$1" && pwd -P', str(room.folder)), "the folder")
        done = await room.place.run(Command(["sh", "-c", "touch .written-here && rm .written-here && pwd"]))
        holds(done.ok, f"the place's own folder can be written: {done.stderr!r}")


@case("C13", "SE-03")
async def secrets_stand_in_no_argument(bench: Bench) -> None:
    """A secret reaches the command's environment and stands in no process's arguments."""
    secret = f"canary-{secrets.token_hex(8)}"
    async with bench.shared() as room:
        script = r"""tr '\0' '\n' < /proc/$$/environ | grep -c "^S=" ; cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\0' '\n' """
        done = await room.sh(script, secrets={"S": secret})
        holds(done.stdout.startswith(b"1\n"), f"the secret is in the command's environment: {done.stderr!r}")
        holds(secret.encode() not in done.stdout, "the secret stands in an argument")


def _arguments_here() -> bytes:
    """The arguments of every process of this machine."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(path.read_bytes())
    return b"\n".join(found)


@case("C13", "SE-03")
async def what_a_place_is_told_in_confidence_its_commands_see_and_nobody_else(bench: Bench) -> None:
    """A secret that is handed over at create is in the commands' environment, also for a later owner, and in no argument, fact or list."""
    secret = f"canary-{secrets.token_hex(8)}"
    async with bench.sandbox(secrets={"CASE_SECRET": secret}, env={"CASE_PLAIN": "seen"}) as room:
        equal(await room.text('printf "%s %s" "$CASE_PLAIN" "$CASE_SECRET"'), f"seen {secret}", "the variables of a command")
        arguments = await room.text("cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n'; true")
        holds(secret not in arguments, "it stands in an argument of the place")
        holds(secret not in repr(room.spec), "it stands in what was asked for, as a log would show it")
        holds(secret not in repr(room.sandbox.info), "it stands in what the journal keeps")
        async for info in bench.make().list(room.spec.labels):
            holds(secret not in repr(info), "it stands in what the provider lists")
        holds(secret.encode() not in await asyncio.to_thread(_arguments_here), "it stands in an argument of this machine's")
        if (await bench.capabilities()).reattach:
            async with bench.attached(room.spec, epoch=2) as again:
                done = await (await bench.place_of(again)).run(Command(["sh", "-c", 'printf "%s" "$CASE_SECRET"']))
                equal(done.stdout.decode(), secret, "the variable of a later owner's command")


@case()
async def this_processes_environment_stays_here(bench: Bench) -> None:
    """Nothing of the environment of whoever asks is in the place."""
    canary = f"canary-{secrets.token_hex(8)}"
    os.environ["AGENT_ENV_CONFORMANCE_CANARY"] = canary
    try:
        async with bench.sandbox() as room:
            holds(canary not in await room.text("env; cat /proc/1/environ 2>/dev/null; true"), "a variable of this process is in the place")
    finally:
        del os.environ["AGENT_ENV_CONFORMANCE_CANARY"]


@case("US-01")
async def the_home_folder_is_there_and_can_be_written(bench: Bench) -> None:
    """`HOME` names a folder that the command's user can write."""
    async with bench.shared() as room:
        holds((await room.sh('test -d "$HOME" && touch "$HOME/.case" && rm "$HOME/.case"')).ok, "HOME can be written")


@case("A13")
async def commands_run_at_once_without_mixing(bench: Bench) -> None:
    """Fifty commands at once each get their own output and exit code."""
    async with bench.shared() as room:
        done = await asyncio.gather(*(room.sh(f"echo {n}; echo e{n} >&2; exit {n}") for n in range(50)))
        found = [(one.stdout, one.stderr, one.exit_code) for one in done]
        equal(found, [(f"{n}\n".encode(), f"e{n}\n".encode(), n) for n in range(50)], "the results")


@case()
async def a_streamed_command_speaks_while_it_runs(bench: Bench) -> None:
    """A streamed command answers its input line by line, and ends with its exit code."""
    async with bench.shared() as room:
        process = await room.place.start(Command(["sh", "-c", 'while read -r line; do echo "got $line"; done; exit 5']))
        try:
            output, heard = process.output(), b""
            for word in (b"one", b"two"):
                await process.write(word + b"\n")
                while b"got " + word + b"\n" not in heard:
                    heard += (await anext(output))[1]
            await process.close_stdin()
            heard += b"".join([piece async for _, piece in output])
            ended = await process.wait()
            equal((heard, ended.exit_code), (b"got one\ngot two\n", 5), "what was heard, and the exit code")
        finally:
            await process.aclose()


@case("D6")
async def a_slow_reader_holds_up_itself_alone(bench: Bench) -> None:
    """While one streamed command's output is not read, others run."""
    async with bench.shared() as room:
        flood = await room.place.start(Command(["sh", "-c", "while :; do echo xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; done"]))
        try:
            equal(await room.text("echo through"), "through", "another command's output")
        finally:
            await flood.aclose()


@case("EX-08")
async def a_place_that_is_gone_gives_no_result(bench: Bench) -> None:
    """A command in a sandbox that was removed is an infrastructure error or `lost`, never an exit code."""
    async with bench.sandbox() as room:
        running = asyncio.ensure_future(room.place.run(Command(["sleep", "600"])))
        await room.text("true")
        await bench.make().destroy(room.spec.sandbox_id)
        with contextlib.suppress(InfrastructureError):  # said by an error instead
            equal((await running).ending, Ending.LOST, "the ending of what ran")
        with contextlib.suppress(InfrastructureError):
            equal((await room.sh("true")).ending, Ending.LOST, "the ending of what was asked afterwards")
