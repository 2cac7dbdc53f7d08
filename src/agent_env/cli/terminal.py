"""A shell in a place: with a terminal of its own where the place has Python, line by line elsewhere."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import stat
import struct
import sys
import termios
import tty
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from agent_env.cli.output import note, reader_left, write_bytes
from agent_env.defaults import DEFAULT_LIMITS

if TYPE_CHECKING:
    from agent_env.places import Command, Completed, Place, Process
    from agent_env.redaction import Redactor

CHUNK = 65536
NO_TERMINAL = 97
"""What the relay exits with when the place has no pseudo-terminals."""

# Runs inside the place with its own Python (3.6 or newer) and gives the shell a terminal. A place's standard input is a plain stream, so
# window sizes travel in it: `d` + length + bytes are typed text, `w` + rows + columns a new size.
RELAY = r"""
import fcntl, os, pty, select, signal, struct, sys, termios
try:
    pid, fd = pty.fork()
except OSError:
    sys.exit(97)
if pid == 0:
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # by Python; no shell can take that back
        signal.signal(ignored, signal.SIG_DFL)
    try:
        os.execvp(sys.argv[1], sys.argv[1:])
    except OSError as error:
        sys.stderr.write("%s: %s\n" % (sys.argv[1], error.strerror))
        os._exit(127)
def all_of(data, to):
    while data:
        data = data[os.write(to, data):]
buffer, sources = b"", [0, fd]
while True:
    ready = select.select(sources, [], [])[0]
    if fd in ready:
        try:
            data = os.read(fd, 65536)
        except OSError:
            data = b""
        if not data:
            break
        all_of(data, 1)
    if 0 in ready:
        data = os.read(0, 65536)
        if not data:
            sources.remove(0)
        buffer += data
        while len(buffer) >= 5:
            if buffer[:1] == b"w":
                rows, columns = struct.unpack(">HH", buffer[1:5])
                fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
                buffer = buffer[5:]
            else:
                size = struct.unpack(">I", buffer[1:5])[0]
                if len(buffer) < 5 + size:
                    break
                all_of(buffer[5:5 + size], fd)
                buffer = buffer[5 + size:]
status = os.waitpid(pid, 0)[1]
sys.exit(os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status))
"""


async def interactive_shell(place: Place, program: str, user: str | None) -> Completed:
    """A shell with a terminal; without Python or terminals in the place, one that reads line by line."""
    from agent_env.errors import LaunchError
    from agent_env.places import Command, Ending

    env = {"TERM": os.environ.get("TERM", "xterm")}
    try:
        with _raw():
            command = Command(["python3", "-c", RELAY, program], user=user, env=env, timeout_seconds=_session_seconds())
            completed = await pass_through(place, command, _frames())
    except LaunchError:
        return await _by_lines(place, program, user)
    if completed.ending is Ending.EXITED and completed.exit_code == NO_TERMINAL:
        return await _by_lines(place, program, user)
    return completed


async def piped_shell(place: Place, program: str, user: str | None, lines: AsyncGenerator[bytes, None]) -> Completed:
    """A shell that reads its commands from a stream."""
    from agent_env.places import Command

    return await pass_through(place, Command([program], user=user, timeout_seconds=_session_seconds()), lines)


async def _by_lines(place: Place, program: str, user: str | None) -> Completed:
    note("this place has no terminals: the shell reads line by line, without a prompt; end it with Ctrl-D")
    return await piped_shell(place, program, user, standard_input())


async def pass_through(
    place: Place, command: Command, typed: AsyncGenerator[bytes, None] | None, hidden: Redactor | None = None
) -> Completed:
    """Runs a command with its output passed on as it comes, and `typed` as its input; None is an empty one.

    When whoever reads our output leaves (`| head`), the command ends as it would in a pipe of its own: by SIGPIPE.

    Args:
        place: Where it runs.
        command: The command.
        typed: Its input.
        hidden: Takes secrets out of what it writes; None passes every byte on.
    """
    process = await place.start(command)
    feeder = asyncio.ensure_future(_feed(process, typed))
    redacted = {1: hidden.stream(), 2: hidden.stream()} if hidden is not None else {}
    try:
        async for stream, data in process.output():
            write_bytes(redacted[stream].feed(data) if redacted else data, to_stderr=stream == 2)
            if reader_left():
                break
        if reader_left():
            await process.kill()  # it may ignore SIGPIPE, and write to nobody until its time limit
            return _broken_pipe(await process.wait())  # behind the loop: while that reads, nobody else takes what it has not
        for stream, rest in redacted.items():
            write_bytes(rest.flush(), to_stderr=stream == 2)
        return await process.wait()
    finally:
        feeder.cancel()
        await asyncio.wait([feeder])
        if not feeder.cancelled():
            feeder.exception()  # a command that ended without reading everything is no fault
        await process.aclose()


def _broken_pipe(completed: Completed) -> Completed:
    from agent_env.places import Ending

    return replace(completed, signal=signal.SIGPIPE.value) if completed.ending is Ending.SIGNALLED else completed


async def _feed(process: Process, typed: AsyncGenerator[bytes, None] | None) -> None:
    if typed is not None:
        async with aclosing(typed):
            async for data in typed:
                await process.write(data)
    await process.close_stdin()


def _session_seconds() -> float:
    """A session may last as long as a sandbox does; the sandbox's own TTL ends it anyway."""
    return DEFAULT_LIMITS.sandbox_ttl_seconds


async def standard_input() -> AsyncGenerator[bytes, None]:
    """This process's standard input, without a thread that would outlive the command."""
    descriptor = sys.stdin.fileno()
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode) or (stat.S_ISCHR(mode) and not sys.stdin.isatty()):
        while data := os.read(descriptor, CHUNK):  # files never block; /dev/null has ended already
            yield data
        return
    # Looked at before each read, and left to wait: what says that it does not wait would say so to all who share it, the output too, where
    # both are one terminal, and to whoever reads on after this process.
    while True:
        await _readable(descriptor)
        try:
            data = os.read(descriptor, CHUNK)
        except BlockingIOError:  # somebody else has read it
            continue
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return  # the terminal is gone
        if not data:
            return
        yield data


async def _readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)


async def _frames() -> AsyncGenerator[bytes, None]:
    """What is typed and how large the window is, as the relay reads it."""
    loop = asyncio.get_running_loop()
    resized = asyncio.Event()
    loop.add_signal_handler(signal.SIGWINCH, resized.set)
    typed = standard_input()
    yield _size()
    try:
        waiting = {loop.create_task(resized.wait()): True, asyncio.ensure_future(anext(typed, b"")): False}
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if waiting.pop(task):
                    resized.clear()
                    waiting[loop.create_task(resized.wait())] = True
                    yield _size()
                    continue
                data = task.result()
                if not isinstance(data, bytes) or not data:
                    return
                waiting[asyncio.ensure_future(anext(typed, b""))] = False
                yield b"d" + struct.pack(">I", len(data)) + data
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)
        for task in waiting:
            task.cancel()


def _size() -> bytes:
    size = os.get_terminal_size(sys.stdin.fileno())  # not the environment's LINES and COLUMNS, which may be another terminal's
    return b"w" + struct.pack(">HH", size.lines, size.columns)


@contextmanager
def _raw() -> Iterator[None]:
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setraw(descriptor, termios.TCSADRAIN)  # what was typed ahead is for the shell
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
