"""A command of a helper's place whose output is read while it runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from agent_env.defaults import Limits
from agent_env.errors import TransportLostError
from agent_env.places.helper.connection import Connection
from agent_env.places.helper.execution import Again, Execution
from agent_env.places.helper.protocol import Frame
from agent_env.places.place import Command, Completed, Ending
from agent_env.waiting import deadline


class HelperProcess:
    """A running command whose output is read while it runs; see `places.place.Process`."""

    def __init__(self, execution: Execution, pid: int, feeder: asyncio.Future[None] | None) -> None:
        self._execution = execution
        self._pid = pid
        self._feeder = feeder
        self._reading = False

    @property
    def pid(self) -> int:
        """Its process id inside the place; 0 where it had ended before that was told."""
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
        """Signals the whole tree, also what called `setsid`. A kill is told in the ending's `detail`."""
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


async def start(connection: Connection, command: Command, limits: Limits, *, again: Again | None = None) -> HelperProcess:
    """Starts a command whose output is streamed; see `Place.start`. Without an input of its own, its input is open for `write`."""
    execution = Execution(connection, command, limits, streaming=True, again=again)
    try:
        async with deadline(limits.connect_seconds, f"the start of {command.argv[0]!r}"):
            await asyncio.wait((execution.started, execution.done), return_when=asyncio.FIRST_COMPLETED)
        if execution.started.cancelled():
            ending = execution.done.result()
            if ending.ending is Ending.LOST:
                raise TransportLostError(f"the command was lost before it started: {ending.detail}", concerns=connection.concerns)
            return HelperProcess(execution, 0, None)  # it killed all that it saw, also what was to tell of its start
        feeder = None if command.stdin is None else asyncio.ensure_future(execution.feed(command.stdin))
        return HelperProcess(execution, execution.started.result(), feeder)
    except BaseException:  # whatever went wrong, a command that nobody holds must not run on
        await execution.end_shielded()
        raise
