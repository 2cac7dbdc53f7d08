"""One command of a helper's place: its streams, its input, its deadline and its ending."""

from __future__ import annotations

import asyncio
import math
import resource
import secrets
import signal
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeGuard

from agent_env.defaults import Limits
from agent_env.errors import (
    AgentEnvError,
    DeadlineError,
    InfrastructureError,
    LaunchError,
    ProgramMissingError,
    SandboxUnavailableError,
    SupersededError,
)
from agent_env.places.helper import protocol
from agent_env.places.helper.connection import Connection
from agent_env.places.helper.kept import Kept
from agent_env.places.helper.protocol import Frame, Key
from agent_env.places.helper.request import request_of
from agent_env.places.helper.window import Outgoing
from agent_env.places.place import Command, Completed, Ending
from agent_env.waiting import shielded

Again = Callable[[], Awaitable[Connection | None]]
"""Called when the connection under a command broke, for another one to go on over; None when there is none to be had."""
_READY = 1
"""Bytes of a result pipe that come before the result."""


class NoNetworkError(SandboxUnavailableError):
    """The place was to have a network, and it could not be set up."""


class Execution:
    """A command that was sent. Output is kept for the result, unless `streaming` hands it to a reader."""

    def __init__(
        self, connection: Connection, command: Command, limits: Limits, *, streaming: bool = False, again: Again | None = None
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._connection = connection
        self._command = command
        self._limits = limits
        self._streaming = streaming
        limit = limits.output_limit_bytes if command.output_limit_bytes is None else command.output_limit_bytes
        from_end = command.keep == "tail"
        self.kept = {Frame.STDOUT: Kept(limit, from_end=from_end), Frame.STDERR: Kept(limit, from_end=from_end)}
        self._timeout = limits.exec_seconds if command.timeout_seconds is None else command.timeout_seconds
        self._grace = limits.kill_grace_seconds if command.kill_grace_seconds is None else command.kill_grace_seconds
        self._again = again
        self._rejoin = secrets.randbits(63) | 1 if again else 0
        """By which the command is gone on with when the connection broke; 0 for never."""
        self._timer: asyncio.TimerHandle | None = None
        self.number = connection.open(self)
        self._input = Outgoing(connection, self.number, keeps=again is not None)
        self._begun = self._loop.time()
        try:
            self._send_request(self._input_at_once())
        except LaunchError:
            self.forget()
            raise
        # It is on its way, and no answer can come in before the loop's next turn: the rest is made ready meanwhile.
        self._result = None if command.result_limit_bytes is None else Kept(command.result_limit_bytes + _READY + 1, from_end=False)
        self.done: asyncio.Future[Completed] = self._loop.create_future()
        self.started: asyncio.Future[int] = self._loop.create_future()
        self._waiting: asyncio.Future[None] | None = None
        self.queue: deque[tuple[int, bytes]] = deque()
        self.changed = asyncio.Event()
        self._credit_owed = 0
        self._received = 0
        """Bytes of output, all in all."""
        self._away = False
        """The connection broke, and the place has not answered over another one yet."""
        self._returning: asyncio.Future[None] | None = None
        self._unsent: list[int] = []
        """Signals that were asked for while the connection was broken."""
        self._held_up = False
        """Its ending is due, and may be waiting behind output that the reader did not take yet."""
        self._killed_here = False
        self._discarding = False
        self._wait_until_overdue()

    def _wait_until_overdue(self) -> None:
        """By then the place has told the ending, if it can: a tree of thousands takes seconds to die where others want to run too."""
        if self._timer is not None:
            self._timer.cancel()
        margin = self._limits.cleanup_seconds + self._limits.answer_margin_seconds
        over = self._begun + self._timeout + self._grace + margin
        self._timer = self._loop.call_at(max(over, self._loop.time() + margin), self._overdue)

    def _send_request(self, data: bytes = b"") -> None:
        payload = request_of(
            self._command,
            timeout_seconds=self._timeout,
            grace_seconds=self._grace,
            streaming=self._streaming,
            limit_bytes=self.kept[Frame.STDOUT].limit,
            rejoin=self._rejoin,
        )
        if len(payload) + 5 > protocol.MAX_FRAME:
            raise self._launch_error(f"{protocol.WHAT[6]} ({len(payload)} bytes in all)")
        self._connection.send(protocol.frame(Frame.EXEC, self.number, payload) + data)

    def _input_at_once(self) -> bytes:
        stdin = self._command.stdin
        return self._input.whole(stdin) if fits_at_once(stdin) and not self._streaming else b""

    # another connection

    async def _come_back(self, again: Again, why: str) -> None:
        try:
            another = await again()
            self._returning = None
            if another is None:
                self._lose(why)
            else:
                self._go_on(another)
        except AgentEnvError as error:
            self._returning = None
            self._finish(error)

    def _go_on(self, connection: Connection) -> None:
        """Asks for the command over another connection: for the output that did not arrive, and for its ending."""
        self._connection, self._credit_owed = connection, 0
        self.number = connection.open(self)
        self._wait_until_overdue()
        unread = sum(len(piece) for _, piece in self.queue)
        pairs = (
            (Key.REJOIN, protocol.u64(self._rejoin)),
            (Key.RECEIVED, protocol.u64(self._received)),
            (Key.WINDOW, protocol.u64(protocol.OUT_WINDOW - unread)),
            (Key.AGE_MS, protocol.u64((self._loop.time() - self._begun) * 1000)),
        )
        connection.send(protocol.frame(Frame.REJOIN, self.number, protocol.fields(*pairs)))

    def _welcomed_back(self, had: int, room: int) -> None:
        self._away = False
        self._input.resume(self._connection, self.number, had, room)
        unsent, self._unsent = self._unsent, []
        for number in unsent:
            self.signal(number)

    def _unknown(self, what: int, number: int) -> None:
        """The place does not know the command: it is sent again where it can't have arrived."""
        if (what, number) != protocol.NEVER_ARRIVED:
            self._lose("the connection broke, and the place does not know the command any more")
            return
        self._begun = self._loop.time()
        self._wait_until_overdue()
        self._send_request()
        self._welcomed_back(0, protocol.IN_WINDOW)

    def _heard(self) -> None:
        """The place need not keep anything of the command any more."""
        if self._rejoin:
            payload = protocol.fields((Key.REJOIN, protocol.u64(self._rejoin)))
            self._connection.send_unhurried(protocol.frame(Frame.HEARD, self.number, payload))

    # frames

    def frame(self, kind: int, payload: bytes) -> None:
        """A frame of this command arrived."""
        if kind in (Frame.STDOUT, Frame.STDERR, Frame.RESULT):
            self._received += len(payload)
        match kind:
            case Frame.STDOUT | Frame.STDERR:
                self._output(Frame(kind), payload)
            case Frame.RESULT if self._result is not None:
                self._result.add(payload)
                self.eaten(len(payload))
            case Frame.EXIT:
                self._exited(payload)
            case Frame.CREDIT:
                self._input.granted(payload)
            case Frame.STARTED if not self.started.done():
                self.started.set_result(int.from_bytes(payload[:4], "little"))
            case Frame.DONE if self._away:
                self._welcomed_back(*protocol.INPUT_HAD.unpack_from(payload))
            case Frame.LAUNCH_FAILED if self._away:
                self._unknown(*protocol.LAUNCH_FAILED.unpack_from(payload))
            case Frame.LAUNCH_FAILED:
                self._heard()
                self._finish(self._not_launched(*protocol.LAUNCH_FAILED.unpack_from(payload)))

    def lost(self, error: InfrastructureError) -> None:
        """The connection ended while it ran."""
        if isinstance(error, SupersededError):
            self._finish(SupersededError(error.message, concerns=error.concerns, hint=error.hint))
        elif self._again is None:
            self._lose(error.message)
        else:
            self._away = True
            self._input.pause()
            if self._timer is not None:
                self._timer.cancel()
            self._returning = asyncio.ensure_future(self._come_back(self._again, error.message))

    def _lose(self, why: str) -> None:
        spent = self._loop.time() - self._begun
        self._finish(Completed(Ending.LOST, stdout=self._bytes(1), stderr=self._bytes(2), duration_seconds=spent, detail=why))

    def _output(self, kind: Frame, payload: bytes) -> None:
        if self._discarding:
            self.eaten(len(payload))
            return
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
        if self._held_up and not self.queue and not self.done.done():
            self._held_up = False
            self._wait_until_overdue()

    def _exited(self, payload: bytes) -> None:
        self._heard()
        signalled, timed_out, reached, code, *numbers = protocol.EXIT.unpack_from(payload)
        out_total, out_sent, err_total, err_sent, duration, cpu, _rss = numbers
        ending = Ending.TIMED_OUT if timed_out else Ending.LIMITED if reached else Ending.SIGNALLED if signalled else Ending.EXITED
        self._finish(
            Completed(
                ending,
                exit_code=code if ending is Ending.EXITED else None,
                signal=code if ending is Ending.SIGNALLED else None,
                stdout_dropped_bytes=out_total - out_sent,
                stderr_dropped_bytes=err_total - err_sent,
                duration_seconds=duration / 1e6,
                detail=self._why(ending, code, reached, cpu / 1e6),
            )
        )

    def _why(self, ending: Ending, number: int, reached: int, cpu_seconds: float) -> str:
        if ending is Ending.LIMITED:
            return protocol.reached(reached, self._connection.bounds)
        if ending is not Ending.SIGNALLED:
            return ""
        limits = self._command.rlimits
        if number == signal.SIGXCPU or (number == signal.SIGKILL and cpu_seconds > limits.get(resource.RLIMIT_CPU, math.inf)):
            return "its limit of processor time was reached"
        if number == signal.SIGXFSZ:
            return "its limit of the size of a file was reached"
        return "it was killed by its caller" if number == signal.SIGKILL and self._killed_here else ""

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
            None if self._result is None else self._result.bytes()[_READY:],
        )

    def _finish(self, ending: Completed | AgentEnvError) -> None:
        self.forget()
        if self.done.done():
            return
        if self._returning is not None:
            self._returning.cancel()
            self._returning = None
        if isinstance(ending, AgentEnvError):
            self.done.set_exception(ending)
            self.done.exception()  # marks it as seen: a caller that was cancelled does not ask for it
        else:
            self.done.set_result(ending)
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
        if not self.started.done():
            self.started.cancel()
        self.changed.set()
        self._input.end()

    def _overdue(self) -> None:
        if self.queue:
            self._held_up = True  # the place says how it ended once its output is taken; that it is not is our reader's doing
        else:
            self._give_up()

    def _give_up(self) -> None:
        self.signal(9)
        self._finish(
            DeadlineError(
                f"{self._connection.concerns} did not tell in time how {self._name()} ended",
                concerns=self._connection.concerns,
                hint="the place hangs: its helper should have ended the command itself",
                partial=self._bytes(1),
            )
        )

    def _not_launched(self, what: int, number: int) -> InfrastructureError:
        if what == protocol.NO_NETWORK:
            return NoNetworkError(f"the network of {self._connection.concerns} could not be set up", concerns=self._connection.concerns)
        kind = ProgramMissingError if (what, number) == protocol.NO_PROGRAM else LaunchError
        why = protocol.why_not_launched(what, number, self._name(), user=self._command.user, cwd=self._command.cwd)
        return self._launch_error(why, kind)

    def _launch_error(self, why: str, kind: type[LaunchError] = LaunchError) -> LaunchError:
        return kind(f"{self._name()} could not be started: {why}", concerns=self._connection.concerns)

    def _name(self) -> str:
        return protocol.text(protocol.raw(self._command.argv[0]))[:200] if self._command.argv else "a command without a name"

    # what a caller does

    def forget(self) -> None:
        """Takes no more frames."""
        if self._timer is not None:
            self._timer.cancel()
        self._connection.forget(self.number)

    def signal(self, number: int) -> None:
        """Signals the whole tree; 9 kills it, whatever it does."""
        if not self.done.done():
            self._killed_here |= number == signal.SIGKILL
            if self._away:
                self._unsent.append(number)
                return
            payload = protocol.fields((Key.SIGNAL, protocol.u64(number)))
            self._connection.send(protocol.frame(Frame.KILL, self.number, payload))

    async def write(self, data: bytes) -> None:
        """Sends input as far as the command takes it; ends early when the command has ended."""
        await self._input.send(data)

    def end_input(self) -> None:
        """Ends standard input."""
        self._input.finish()

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

    async def over(self) -> Completed:
        """Waits for the ending, for one caller. One that is cancelled leaves the command, and what tells when its tree is gone, alone."""
        if not self.done.done():
            self._waiting = self._loop.create_future()
            await self._waiting
        return self.done.result()

    async def end(self) -> None:
        """Kills the whole tree and waits until it is gone. Output that nobody took is let go: its ending stands behind it.

        Where the connection is broken, the kill waits for another one.
        """
        self.signal(9)
        if not self.done.done():
            self._discarding = True
            while self.queue:
                self.eaten(len(self.queue.popleft()[1]))
        if not self.done.done():
            await asyncio.wait([self.done])

    async def end_shielded(self) -> None:
        """As `end`, also while the caller is being cancelled, and bounded."""
        if self.done.done():
            return
        try:
            await shielded(self.end(), seconds=self._limits.cleanup_seconds, what=f"the end of {self._name()}")
        except DeadlineError:
            self._give_up()


def fits_at_once(stdin: bytes | AsyncIterator[bytes] | None) -> TypeGuard[bytes]:
    """Whether an input is sent together with its command."""
    return isinstance(stdin, bytes) and len(stdin) <= protocol.CHUNK
