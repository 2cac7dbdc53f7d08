"""One command of a helper's place: its streams, its input, its deadline and its ending."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

from agent_env.defaults import Limits
from agent_env.errors import DeadlineError, InfrastructureError, LaunchError, SupersededError
from agent_env.places.helper import protocol
from agent_env.places.helper.connection import Connection
from agent_env.places.helper.protocol import ExecFlag, Frame, Key
from agent_env.places.place import Command, Completed, Ending
from agent_env.waiting import deadline, shielded


class Kept:
    """One output stream's bytes, cut to its limit at one end."""

    __slots__ = ("_from_end", "_limit", "_pieces", "_size", "total")

    def __init__(self, limit: int, *, from_end: bool) -> None:
        self.total = 0
        self._pieces: deque[bytes] = deque()
        self._size = 0
        self._limit = limit
        self._from_end = from_end

    def add(self, piece: bytes) -> None:
        """Takes a piece in, and lets go of what can't matter any more."""
        self.total += len(piece)
        if not self._from_end:
            piece = piece[: self._limit - self._size]
        if piece:
            self._pieces.append(piece)
            self._size += len(piece)
        while self._from_end and self._pieces and self._size - len(self._pieces[0]) >= self._limit:
            self._size -= len(self._pieces.popleft())

    def bytes(self) -> bytes:
        """What was kept."""
        whole = b"".join(self._pieces)
        return whole[max(len(whole) - self._limit, 0) :] if self._from_end else whole


class Execution:
    """A command that was sent. Output is kept for the result, unless `streaming` hands it to a reader."""

    def __init__(self, connection: Connection, command: Command, limits: Limits, *, streaming: bool = False) -> None:
        self._loop = asyncio.get_running_loop()
        self._connection = connection
        self._command = command
        self._limits = limits
        self._streaming = streaming
        limit = limits.output_limit_bytes if command.output_limit_bytes is None else command.output_limit_bytes
        from_end = command.keep == "tail"
        self.kept = {Frame.STDOUT: Kept(limit, from_end=from_end), Frame.STDERR: Kept(limit, from_end=from_end)}
        self.done: asyncio.Future[Completed] = self._loop.create_future()
        self.started: asyncio.Future[int] = self._loop.create_future()
        self.queue: deque[tuple[int, bytes]] = deque()
        self.changed = asyncio.Event()
        self._credit_owed = 0
        self._in_credit = protocol.IN_WINDOW
        self._in_room = asyncio.Event()
        self._timeout = limits.exec_seconds if command.timeout_seconds is None else command.timeout_seconds
        self._grace = limits.kill_grace_seconds if command.kill_grace_seconds is None else command.kill_grace_seconds
        self.number = connection.open(self)
        self._begun = self._loop.time()
        self._timer = self._loop.call_later(self._timeout + self._grace + limits.answer_margin_seconds, self._overdue)
        try:
            self._send_request()
        except LaunchError:
            self.forget()
            raise

    def _send_request(self) -> None:
        command = self._command
        stdin = command.stdin
        flags = (ExecFlag.STARTED if self._streaming else 0) | (ExecFlag.STDIN if stdin is not None or self._streaming else 0)
        pairs = [(Key.ARG, protocol.raw(argument)) for argument in command.argv]
        pairs += [
            (Key.TIMEOUT_MS, protocol.milliseconds(self._timeout)),
            (Key.GRACE_MS, protocol.u64(self._grace * 1000)),
            (Key.WINDOW, protocol.u64(protocol.OUT_WINDOW)),
            (Key.FLAGS, protocol.u64(flags)),
            *protocol.environment(command.env),
            *protocol.environment(command.secrets),
        ]
        if command.keep != "tail" and not self._streaming:
            limit = protocol.u64(self.kept[Frame.STDOUT]._limit)
            pairs += [(Key.LIMIT_OUT, limit), (Key.LIMIT_ERR, limit)]
        if command.cwd is not None:
            pairs.append((Key.CWD, protocol.raw(command.cwd)))
        if command.user is not None:
            pairs.append((Key.USER, protocol.raw(command.user)))
        if command.attempt is not None:
            pairs.append((Key.ATTEMPT, protocol.raw(command.attempt)))
        payload = protocol.fields(*pairs)
        if len(payload) + 5 > protocol.MAX_FRAME:
            raise self._launch_error(f"{protocol.WHAT[6]} ({len(payload)} bytes in all)")
        data = protocol.frame(Frame.EXEC, self.number, payload)
        if isinstance(stdin, bytes) and len(stdin) <= protocol.CHUNK and not self._streaming:
            data += (protocol.frame(Frame.STDIN, self.number, stdin) if stdin else b"") + protocol.frame(Frame.STDIN_EOF, self.number)
        self._connection.send(data)

    # frames

    def frame(self, kind: int, payload: bytes) -> None:
        """A frame of this command arrived."""
        if kind in (Frame.STDOUT, Frame.STDERR):
            self._output(Frame(kind), payload)
        elif kind == Frame.EXIT:
            self._exited(payload)
        elif kind == Frame.CREDIT:
            self._in_credit += protocol.U64.unpack_from(payload)[0]
            self._in_room.set()
        elif kind == Frame.STARTED:
            if not self.started.done():
                self.started.set_result(int.from_bytes(payload[:4], "little"))
        elif kind == Frame.LAUNCH_FAILED:
            what, number = protocol.LAUNCH_FAILED.unpack_from(payload)
            self._finish(self._launch_error(f"{protocol.WHAT.get(what, 'it could not be launched')}: {protocol.reason(number)}"))

    def lost(self, error: InfrastructureError) -> None:
        """The connection ended while it ran."""
        if isinstance(error, SupersededError):
            self._finish(SupersededError(error.message, concerns=error.concerns, hint=error.hint))
            return
        spent = self._loop.time() - self._begun
        self._finish(Completed(Ending.LOST, stdout=self._bytes(1), stderr=self._bytes(2), duration_seconds=spent, detail=error.message))

    def _output(self, kind: Frame, payload: bytes) -> None:
        if self._streaming:
            self.queue.append((1 if kind is Frame.STDOUT else 2, payload))
            self.changed.set()
            return
        self.kept[kind].add(payload)
        self.eaten(len(payload))

    def eaten(self, count: int) -> None:
        """Gives credit back for output that was taken."""
        self._credit_owed += count
        if self._credit_owed >= protocol.OUT_WINDOW // 2:
            credit = protocol.fields((Key.WINDOW, protocol.u64(self._credit_owed)))
            self._connection.send(protocol.frame(Frame.CREDIT, self.number, credit))
            self._credit_owed = 0

    def _exited(self, payload: bytes) -> None:
        signalled, timed_out, code, *numbers = protocol.EXIT.unpack_from(payload)
        out_total, out_sent, err_total, err_sent, duration, _cpu, _rss = numbers
        ending = Ending.TIMED_OUT if timed_out else Ending.SIGNALLED if signalled else Ending.EXITED
        self._finish(
            Completed(
                ending,
                exit_code=code if ending is Ending.EXITED else None,
                signal=code if ending is Ending.SIGNALLED else None,
                stdout_dropped_bytes=out_total - out_sent,
                stderr_dropped_bytes=err_total - err_sent,
                duration_seconds=duration / 1e6,
            )
        )

    def _bytes(self, which: int) -> bytes:
        return self.kept[Frame.STDOUT if which == 1 else Frame.STDERR].bytes()

    def result(self, ending: Completed) -> Completed:
        """The ending with the output that was kept until now."""
        out, err = self.kept[Frame.STDOUT], self.kept[Frame.STDERR]
        stdout, stderr = out.bytes(), err.bytes()
        return Completed(
            ending.ending,
            ending.exit_code,
            ending.signal,
            stdout,
            stderr,
            ending.stdout_dropped_bytes + out.total - len(stdout),
            ending.stderr_dropped_bytes + err.total - len(stderr),
            ending.duration_seconds,
            ending.detail,
        )

    def _finish(self, ending: Completed | InfrastructureError) -> None:
        self.forget()
        if self.done.done():
            return
        if isinstance(ending, InfrastructureError):
            self.done.set_exception(ending)
            self.done.exception()  # marks it as seen: a caller that was cancelled does not ask for it
        else:
            self.done.set_result(ending)
        if not self.started.done():
            self.started.cancel()
        self.changed.set()
        self._in_room.set()

    def _overdue(self) -> None:
        self.signal(9)
        self._finish(
            DeadlineError(
                f"{self._connection.concerns} did not tell in time how {self._name()} ended",
                concerns=self._connection.concerns,
                hint="the place hangs: its helper should have ended the command itself",
                partial=self._bytes(1),
            )
        )

    def _launch_error(self, why: str) -> LaunchError:
        return LaunchError(f"{self._name()} could not be started: {why}", concerns=self._connection.concerns)

    def _name(self) -> str:
        return protocol.text(protocol.raw(self._command.argv[0]))[:200] if self._command.argv else "a command without a name"

    # what a caller does

    def forget(self) -> None:
        """Takes no more frames."""
        self._timer.cancel()
        self._connection.forget(self.number)

    def signal(self, number: int) -> None:
        """Signals the whole tree; 9 kills it, whatever it does."""
        if not self.done.done():
            payload = protocol.fields((Key.SIGNAL, protocol.u64(number)))
            self._connection.send(protocol.frame(Frame.KILL, self.number, payload))

    async def write(self, data: bytes) -> None:
        """Sends input as far as the command takes it; ends early when the command has ended."""
        view = memoryview(data)
        while view and not self.done.done():
            if not self._in_credit:
                self._in_room.clear()
                await self._in_room.wait()
                continue
            await self._connection.ready()
            piece = bytes(view[: min(self._in_credit, protocol.CHUNK)])
            self._in_credit -= len(piece)
            view = view[len(piece) :]
            self._connection.send(protocol.frame(Frame.STDIN, self.number, piece))

    def end_input(self) -> None:
        """Ends standard input."""
        if not self.done.done():
            self._connection.send(protocol.frame(Frame.STDIN_EOF, self.number))

    async def feed(self, source: bytes | AsyncIterator[bytes]) -> None:
        """Sends all of an input, then its end."""
        if isinstance(source, bytes):
            await self.write(source)
        else:
            async for piece in source:
                await self.write(piece)
                if self.done.done():
                    return
        self.end_input()

    async def end(self) -> None:
        """Kills the whole tree and waits until it is gone."""
        self.signal(9)
        if not self.done.done():
            await asyncio.wait([self.done])

    async def end_shielded(self) -> None:
        """As `end`, also while the caller is being cancelled, and bounded."""
        if self.done.done():
            return
        try:
            await shielded(self.end(), seconds=self._limits.cleanup_seconds, what=f"the end of {self._name()}")
        except DeadlineError:
            self._overdue()


async def run(connection: Connection, command: Command, limits: Limits) -> Completed:
    """Runs a command to its end; see `Place.run`."""
    execution = Execution(connection, command, limits)
    stdin = command.stdin
    try:
        if stdin is None or (isinstance(stdin, bytes) and len(stdin) <= protocol.CHUNK):
            # Shielded: a cancelled caller must not cancel the future that tells when the tree is gone.
            return execution.result(await asyncio.shield(execution.done))
        return execution.result(await _run_fed(execution, stdin))
    finally:
        await execution.end_shielded()


async def _first_of(*futures: asyncio.Future[Any]) -> None:
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)


async def _run_fed(execution: Execution, stdin: bytes | AsyncIterator[bytes]) -> Completed:
    feeder = asyncio.ensure_future(execution.feed(stdin))
    try:
        await _first_of(feeder, execution.done)
        if feeder.done():
            feeder.result()
        return await asyncio.shield(execution.done)
    finally:
        feeder.cancel()
        await asyncio.wait([feeder])
        if not feeder.cancelled():
            feeder.exception()


class HelperProcess:
    """A running command whose output is read while it runs; see `places.place.Process`."""

    def __init__(self, execution: Execution, pid: int, feeder: asyncio.Future[None] | None) -> None:
        self._execution = execution
        self._pid = pid
        self._feeder = feeder
        self._reading = False

    @property
    def pid(self) -> int:
        """Its process id inside the place."""
        return self._pid

    async def output(self) -> AsyncIterator[tuple[int, bytes]]:
        """Pieces of output as `(1 | 2, bytes)` until the command has ended. Unread output holds the command up, as a pipe does."""
        execution = self._execution
        self._reading = True
        try:
            while True:
                while execution.queue:
                    which, piece = execution.queue.popleft()
                    execution.eaten(len(piece))
                    yield which, piece
                if execution.done.done():
                    return
                execution.changed.clear()
                await execution.changed.wait()
        finally:
            self._reading = False
            execution.changed.set()

    async def write(self, data: bytes) -> None:
        """Feeds standard input, as far as the command takes it."""
        await self._execution.write(data)

    async def close_stdin(self) -> None:
        """Ends standard input."""
        self._execution.end_input()

    async def kill(self, signal: int = 9) -> None:
        """Signals the whole tree, also what called `setsid`."""
        self._execution.signal(signal)

    async def wait(self) -> Completed:
        """The ending, with the output that nobody read, up to the limit."""
        execution = self._execution
        while True:
            while execution.queue and not self._reading:
                which, piece = execution.queue.popleft()
                execution.kept[Frame.STDOUT if which == 1 else Frame.STDERR].add(piece)
                execution.eaten(len(piece))
            if execution.done.done() and (self._reading or not execution.queue):
                await self._end_feeder()
                return execution.result(execution.done.result())
            execution.changed.clear()
            await execution.changed.wait()

    async def _end_feeder(self) -> None:
        feeder, self._feeder = self._feeder, None
        if feeder is None:
            return
        if not feeder.done():
            feeder.cancel()
            await asyncio.wait([feeder])
        if not feeder.cancelled():
            feeder.result()

    async def aclose(self) -> None:
        """Kills what still runs of it and lets go."""
        await self._execution.end_shielded()
        self._execution.forget()
        await self._end_feeder()


async def start(connection: Connection, command: Command, limits: Limits) -> HelperProcess:
    """Starts a command whose output is streamed; see `Place.start`. Without an input of its own, its input is open for `write`."""
    execution = Execution(connection, command, limits, streaming=True)
    try:
        async with deadline(limits.connect_seconds, f"the start of {command.argv[0]!r}"):
            await _first_of(execution.started, execution.done)
        if execution.started.cancelled():
            ending = execution.done.result()
            raise InfrastructureError(f"the command was lost before it started: {ending.detail}", concerns=connection.concerns)
        feeder = None if command.stdin is None else asyncio.ensure_future(execution.feed(command.stdin))
        return HelperProcess(execution, execution.started.result(), feeder)
    except BaseException:  # whatever went wrong, a command that nobody holds must not run on
        await execution.end_shielded()
        raise
