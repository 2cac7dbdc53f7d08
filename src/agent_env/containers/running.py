"""One command through a plain engine exec: its streams, its input, its ending."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator

import psutil

from agent_env.containers import objects
from agent_env.containers.engine import Engine
from agent_env.containers.stream import STDERR, STDOUT, start_exec
from agent_env.errors import AgentEnvError, LaunchError, NotFoundError
from agent_env.places.helper.kept import Kept
from agent_env.places.place import Command, Completed, Ending
from agent_env.waiting import poll

_NOT_STARTED = (126, 127)
_LAUNCH_WORDS = (b"OCI runtime exec failed", b"unable to find user", b"crun: ", b"executable file not found")
"""How engines say, on the command's own output, that it could not be started."""


class Running:
    """A command that an engine runs for us; see `places.place.Process`."""

    def __init__(self, engine: Engine, container_id: str, name: str, command: Command) -> None:
        self._engine = engine
        self._container = container_id
        self._name = name
        self._command = command
        limits = engine.limits
        limit = limits.output_limit_bytes if command.output_limit_bytes is None else command.output_limit_bytes
        self._kept = {which: Kept(limit, from_end=command.keep == "tail") for which in (STDOUT, STDERR)}
        self._timeout = limits.exec_seconds if command.timeout_seconds is None else command.timeout_seconds
        self._queue: deque[tuple[int, bytes]] = deque()
        self._changed = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._over = False
        self._error: Exception | None = None
        self._transport: asyncio.Transport | None = None
        self._exec = ""
        self._feeder: asyncio.Task[None] | None = None
        self._begun = asyncio.get_running_loop().time()

    # the engine's side

    def piece(self, which: int, data: bytes) -> None:
        """Output arrived."""
        self._queue.append((which, data))
        self._changed.set()

    def over(self, error: Exception | None) -> None:
        """No more will arrive."""
        self._over, self._error = True, error
        self._changed.set()
        self._writable.set()

    def pause_writing(self) -> None:
        """The engine takes no more input for now."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """The engine takes more input."""
        self._writable.set()

    async def begin(self) -> None:
        """Starts it.

        Raises:
            ContainerNotRunningError: The container is not there, stopped or paused.
        """
        command = self._command
        body: dict[str, object] = {
            "AttachStdin": True,
            "AttachStdout": True,
            "AttachStderr": True,
            "Cmd": [word.decode(errors="surrogateescape") if isinstance(word, bytes) else word for word in command.argv],
            "Env": [f"{name}={value}" for name, value in {**command.env, **command.secrets}.items()],
        }
        if command.user is not None:
            body["User"] = command.user
        if command.cwd is not None:
            body["WorkingDir"] = str(command.cwd)
        self._exec, self._transport = await start_exec(self._engine, self._container, body, self, concerns=f"container {self._name}")
        if command.stdin is None:
            await self.close_stdin()
        else:
            self._feeder = asyncio.ensure_future(self._feed(command.stdin))

    async def _feed(self, source: bytes | AsyncIterator[bytes]) -> None:
        if isinstance(source, bytes):
            await self.write(source)
        else:
            async for piece in source:
                await self.write(piece)
        await self.close_stdin()

    # the caller's side

    @property
    def pid(self) -> int:
        """Not known inside the container: 0."""
        return 0

    async def output(self) -> AsyncIterator[tuple[int, bytes]]:
        """Pieces of output as `(1 | 2, bytes)` until the command has ended."""
        while True:
            while self._queue:
                yield self._queue.popleft()
            if self._over:
                return
            self._changed.clear()
            await self._changed.wait()

    async def write(self, data: bytes) -> None:
        """Feeds standard input."""
        await self._writable.wait()
        if self._transport is not None and not self._over:
            self._transport.write(data)

    async def close_stdin(self) -> None:
        """Ends standard input."""
        if self._transport is not None and self._transport.can_write_eof() and not self._over:
            self._transport.write_eof()

    async def wait(self) -> Completed:
        """The ending, with the output that nobody read, up to the limit.

        Raises:
            LaunchError: It could not be started.
        """
        try:
            async with asyncio.timeout(self._timeout):
                async for which, piece in self.output():
                    self._kept[which].add(piece)
        except TimeoutError:
            ended = await self._end(9)
            return self._result(
                Ending.TIMED_OUT, detail="" if ended else f"it may still run in {self._name}, which has no helper to end it"
            )
        if self._error is not None:
            return self._result(Ending.LOST, detail=str(self._error) or "the connection to the container engine broke")
        return await self._ended()

    async def _ended(self) -> Completed:
        async def code() -> int | None:
            async with self._engine.asking("asking how a command ended", concerns=self._name) as docker:
                said = await docker._query_json(f"exec/{self._exec}/json")
                return None if said.get("Running") or said.get("ExitCode") is None else int(said["ExitCode"])

        try:
            number = await poll(code, within_seconds=self._engine.limits.connect_seconds, what=f"the ending of a command in {self._name}")
        except NotFoundError:
            return self._result(Ending.LOST, detail="the container engine no longer knows the command: its container has ended")
        said = self._kept[STDOUT].bytes() + self._kept[STDERR].bytes()
        if number in _NOT_STARTED and any(words in said for words in _LAUNCH_WORDS):
            raise LaunchError(
                f"{self._command.argv[0]!r} could not be started: {said.decode(errors='replace').strip()}", concerns=self._name
            )
        try:
            state = (await objects.inspect(self._engine, self._container))["State"]
        except AgentEnvError:
            state = {}
        if number == 128 + 9 and not state.get("Running"):
            return self._result(Ending.LOST, detail=f"its container has ended (exit code {state.get('ExitCode')})")
        if number > 128 and number - 128 in (9, 15):
            return self._result(Ending.SIGNALLED, signal=number - 128)
        return self._result(Ending.EXITED, exit_code=number)

    def _result(self, ending: Ending, *, exit_code: int | None = None, signal: int | None = None, detail: str = "") -> Completed:
        out, err = self._kept[STDOUT], self._kept[STDERR]
        stdout, stderr = out.bytes(), err.bytes()
        spent = asyncio.get_running_loop().time() - self._begun
        return Completed(ending, exit_code, signal, stdout, stderr, out.total - len(stdout), err.total - len(stderr), spent, detail)

    async def kill(self, signal: int = 9) -> None:
        """Signals the command's tree, where this process may signal the container's processes."""
        await self._end(signal)

    async def _end(self, signal: int) -> bool:
        """Whether it could be signalled: its engine's processes are this machine's, and this user's to signal."""
        if self._over or not (await self._engine.info()).on_this_machine:
            return self._over
        try:
            async with self._engine.asking("asking for a command's number", concerns=self._name) as docker:
                number = int((await docker._query_json(f"exec/{self._exec}/json")).get("Pid") or 0)
            return number > 0 and await asyncio.to_thread(_signal_tree, number, signal)
        except (AgentEnvError, psutil.AccessDenied):
            return False

    async def aclose(self) -> None:
        """Ends what still runs of it and lets go."""
        if self._feeder is not None:
            self._feeder.cancel()
            await asyncio.wait([self._feeder])
        if not self._over:
            await self._end(9)
        if self._transport is not None:
            self._transport.abort()


def _signal_tree(number: int, signal: int) -> bool:
    try:
        root = psutil.Process(number)
        for process in (*root.children(recursive=True), root):
            process.send_signal(signal)
    except psutil.NoSuchProcess:
        return True
    return True
