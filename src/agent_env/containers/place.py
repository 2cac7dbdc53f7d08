"""A container as a place: the whole contract over the helper that is its first process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from agent_env.containers.connecting import connect
from agent_env.containers.engine import Engine
from agent_env.containers.large import copy_out
from agent_env.containers.pulse import Pulse
from agent_env.containers.spec import Told
from agent_env.containers.state import not_running
from agent_env.errors import (
    AgentEnvError,
    ContainerNotRunningError,
    DeadlineError,
    EngineFailedError,
    EngineUnavailableError,
    InfrastructureError,
    PlaceAwaitsError,
    PlaceEndedError,
    PlaceLostError,
    SandboxUnavailableError,
    SupersededError,
    TransportLostError,
)
from agent_env.places.helper import process, running
from agent_env.places.helper.connection import Connection, ask
from agent_env.places.helper.execution import Again
from agent_env.places.helper.greeting import configure, enter, greet
from agent_env.places.helper.place import HelperPlace
from agent_env.places.helper.process import HelperProcess
from agent_env.places.helper.protocol import Frame, HelperConfig, LedgerRecord
from agent_env.places.helper.worker import TcpStream
from agent_env.places.place import Command, Completed, Ending, Entry, Missing, PlaceKind, Upload
from agent_env.places.workdir import hand_over, is_concerned
from agent_env.redaction import Redactor
from agent_env.waiting import poll

ENTRY_ATTEMPT = "image"
"""The attempt that the image's own command belongs to, in the helper's ledger. Ending it leaves the container, held by its helper."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What is recorded on a container of ours, and in the journal."""

    id: str
    name: str
    labels: Mapping[str, str]
    told: Told
    env: Mapping[str, str] = field(default_factory=dict)
    ports: Mapping[int, int] = field(default_factory=dict)
    """Port inside → port of the host's loopback."""
    memory_bytes: int = 0
    """What it may use; 0 is no limit."""


class ContainerPlace(HelperPlace):
    """A container whose first process is our helper. Made by `deploy` and `attach`; it connects again by itself when its stream broke."""

    def __init__(self, engine: Engine, facts: Facts, *, token: str, epoch: int, secrets: Mapping[str, str], relay_token: str = "") -> None:
        super().__init__(_unconnected(facts.name), place_id=facts.id, kind=PlaceKind.CONTAINER, labels=facts.labels, limits=engine.limits)
        self.engine = engine
        self.facts = facts
        self._token = token
        self._epoch = epoch
        self._secrets = dict(secrets)
        self._relay_token = relay_token
        self._connecting = asyncio.Lock()
        self._closed = False
        self._direct = False
        """Its connection goes past the engine."""
        self._life = ""
        self._silent: tuple[Connection, float] | None = None
        """A connection that has not answered, and since when."""
        self._pulse = Pulse(self._listen, engine.limits.answer_margin_seconds)

    @property
    def name(self) -> str:
        """The container's name, for people. Identity is `id`."""
        return self.facts.name

    @property
    def ports(self) -> Mapping[int, int]:
        """Port inside → port of the host's loopback."""
        return self.facts.ports

    # its connection

    async def configure(self) -> None:
        """Tells a container that was just started what it is, and waits until its own command runs.

        Raises:
            LaunchError: Its own command can't be started.
        """
        async with self._connecting:
            await self._configure()

    async def _configure(self) -> None:
        told = self.facts.told
        unknown = [name for name in told.secrets if name not in self._secrets]
        if unknown:
            raise SandboxUnavailableError(
                f"the container {self.name} was started again by somebody, and the values of {', '.join(unknown)} that it has to be told "
                "again are not known here",
                concerns=self.name,
                hint="give them a value again where the task's references lead, or have it made again: agent-env resume --redeploy",
            )
        connection = await self._open()
        handing_over = is_concerned(told.user, told.cwd)
        config = HelperConfig(
            token=self._token,
            epoch=self._epoch,
            env={**self.facts.env, **self._secrets},
            cwd=told.cwd,
            user=told.user,
            entrypoint=told.command,
            hold=told.hold,
            restart=told.restart,
            relay_token=self._relay_token,
            new_privileges=told.new_privileges,
            all_capabilities=told.all_capabilities,
            attempt=ENTRY_ATTEMPT,
            entry_later=handing_over and bool(told.command),
        )
        self._connection = connection
        await configure(connection, config, self._limits)
        if handing_over:
            await hand_over(self, PurePosixPath(told.cwd), owner=told.user)
        if config.entry_later:
            await enter(connection, config, self._limits)

    async def ready(self) -> None:
        """Has a connection, a new one if the last broke while the container goes on.

        Raises:
            ContainerNotRunningError: The container is not running.
            SupersededError: A later owner has it.
        """
        if self._connection.error is None:
            self._pulse.watch()
            return
        async with self._connecting:
            if self._connection.error is None:
                return
            if self._closed or isinstance(self._connection.error, SupersededError):
                raise self._connection.ended()
            if isinstance(self._connection.error, PlaceEndedError):
                error = self._connection.ended()
                why = await self._explained(error)
                if why is not error:  # it has not been started again meanwhile
                    raise why
            try:
                await self._greet()
            except (SandboxUnavailableError, TransportLostError, DeadlineError) as error:
                raise await self._explained(error) from error
        self._pulse.watch()

    def lost(self, error: InfrastructureError) -> None:
        """Somebody else found it not running, before its connection here broke: `ready` looks again."""
        self._connection.close(error)

    async def life(self) -> str:
        """When its engine started it, by the engine's clock: tells one life of the container from the next.

        Raises:
            ContainerNotRunningError: The container is not running.
        """
        await self.ready()
        return self._life

    async def _explained(self, error: AgentEnvError) -> AgentEnvError:
        worked_in = self._life, self._connection.error
        why = await not_running(self.engine, self.id, self.name, otherwise=error, known=self.labels, worked_in=worked_in)
        if why is error:
            return error
        # The end of the log is in it, and the image's own command may have written what it was told.
        hidden = Redactor([*self._secrets.values(), self._token])
        return ContainerNotRunningError(hidden.redact(why.message), concerns=why.concerns, hint=why.hint)

    async def _listen(self) -> bool:
        """Whether anything is under way. A helper that says nothing may stand still with its whole container, which its engine knows.

        Where the container runs and nothing is heard for long, it is the connection that leads nowhere: another one is opened.
        """
        connection, now = self._connection, asyncio.get_running_loop().time()
        if connection.error is not None or not connection.busy:
            return False
        if self._silent is None or self._silent[0] is not connection:
            self._silent = connection, now
        try:
            await ask(connection, Frame.PING, b"", seconds=self._limits.answer_margin_seconds)
        except DeadlineError as error:
            why = await self._explained(error)
            if isinstance(why, ContainerNotRunningError):
                connection.close(why)
            elif now - self._silent[1] >= self._limits.silence_seconds:
                connection.close(TransportLostError(f"{connection.concerns} runs, and says nothing", concerns=connection.concerns))
        except InfrastructureError:
            pass  # it has ended, which whoever waits hears by itself; another one may be waited on by now
        else:
            self._silent = None
        return True

    @asynccontextmanager
    async def _told_why(self) -> AsyncIterator[None]:
        """Has a connection; of work that is cut because the container ends or stands still, the error says what became of it."""
        await self.ready()
        try:
            yield
        except (TransportLostError, SandboxUnavailableError, DeadlineError) as error:
            why = await self._explained(error)
            if why is error:
                raise
            raise why from error

    async def _greet(self) -> None:
        connection = await self._open()
        try:
            await greet(connection, token=self._token, epoch=self._epoch, limits=self._limits)
        except PlaceAwaitsError:
            await self._configure()
            return
        self._connection = connection

    async def _open(self) -> Connection:
        found = await connect(self.engine, self.id, self.facts.told.socket, concerns=f"container {self.name}")
        self._life, self._direct = found.life, found.direct
        found.connection.bounds = {"memory": self.facts.memory_bytes}
        return found.connection

    async def aclose(self) -> None:
        """Lets go of the connection. What runs there goes on."""
        self._closed = True
        await self._pulse.aclose()
        if self._connection.error is None:
            await super().aclose()

    # commands

    async def run(self, command: Command) -> Completed:
        """Runs a command to its end, also when the engine goes meanwhile and comes back; see `Place.run`.

        Of a lost one, the detail says what became of the container.
        """
        await self.ready()
        try:
            done = await running.run(self._connection, command, self._limits, again=self._again())
        except DeadlineError as error:  # a paused container answers nothing
            raise await self._explained(error) from error
        if done.ending is Ending.LOST:
            why = await self._explained(InfrastructureError(done.detail))
            return replace(done, detail=why.message)
        return done

    def _again(self) -> Again:
        """For a command that begins now: another connection to the same life of the container, a few times."""
        attempts, life = iter(range(self._limits.rejoin_attempts)), self._life

        async def again() -> Connection | None:
            another = await self._reconnected() if next(attempts, None) is not None else None
            return another if self._life == life else None

        return again

    async def _reconnected(self) -> Connection | None:
        """Another connection after one that broke; None where that says that the container does not go on, or none is to be had in time."""
        if not isinstance(self._connection.error, TransportLostError):
            return None

        async def connected() -> Connection | None:
            try:
                await self.ready()
            except (EngineUnavailableError, EngineFailedError, SandboxUnavailableError, TransportLostError, DeadlineError) as error:
                if self._closed or type(error) in {ContainerNotRunningError, PlaceLostError}:
                    raise
                return None  # on its way back, perhaps
            return self._connection

        try:
            within = self._limits.rejoin_seconds
            return await poll(connected, within_seconds=within, what=f"another connection to {self.name}", limits=self._limits)
        except InfrastructureError:
            return None

    async def start(self, command: Command) -> HelperProcess:
        """Starts a command whose output is streamed, also when the engine goes meanwhile and comes back; see `Place.start`."""
        async with self._told_why():
            return await process.start(self._connection, command, self._limits, again=self._again())

    async def stop_attempt(self, attempt: str) -> int:
        """Kills whatever still runs for an attempt, and waits until it is gone. Returns how many trees were killed."""
        async with self._told_why():
            return await super().stop_attempt(attempt)

    async def ledger_records(self) -> Sequence[LedgerRecord]:
        """What the container runs now, its own command too, and what it ran last, with the endings of what is over."""
        async with self._told_why():
            return await super().ledger_records()

    async def freeze(self, *attempts: str) -> int:
        """Stops these attempts' trees, or where none is named all, in one go where they stand."""
        async with self._told_why():
            return await super().freeze(*attempts)

    async def thaw(self, *attempts: str) -> int:
        """Lets frozen trees go on."""
        async with self._told_why():
            return await super().thaw(*attempts)

    async def set_ttl(self, seconds: float) -> None:
        """Tells the helper when to end the container by itself, counted from now; 0 means never."""
        async with self._told_why():
            await super().set_ttl(seconds)

    async def open_tcp(self, port: int, *, wait_seconds: float = 0.0) -> TcpStream:
        """Connects to a port on the container's own loopback; see `HelperPlace.open_tcp`."""
        async with self._told_why():
            return await super().open_tcp(port, wait_seconds=wait_seconds)

    async def ping(self) -> None:
        """Asks whether the helper answers."""
        async with self._told_why():
            await super().ping()

    # files

    async def put(self, uploads: Sequence[Upload], *, owner: str | None = None) -> None:
        """Writes files as root, each whole or not at all; see `Place.put`."""
        async with self._told_why():
            await super().put(uploads, owner=owner)

    async def get(
        self, paths: Sequence[PurePosixPath], into: Path, *, limit_bytes: int | None = None
    ) -> Mapping[PurePosixPath, Path | Missing]:
        """Copies the contents of regular files into fresh files of `into`; see `Place.get`."""
        small, most = self._limits.archive_copy_bytes, self._limits.archive_copy_most_bytes
        if self._direct or (limit_bytes is not None and limit_bytes <= small):
            return await self._streamed(paths, into, limit_bytes)
        found = dict(await self._streamed(paths, into, small))
        larger = [path for path, copy in found.items() if isinstance(copy, Missing) and copy.reason == "EFBIG"]
        entries = await self.stat(larger) if larger else {}
        for path, entry in entries.items():
            if isinstance(entry, Entry) and (limit_bytes is None or entry.size <= limit_bytes):
                copy = await self._archived(path, entry, into) if entry.size <= most else None
                found[path] = copy or (await self._streamed([path], into, limit_bytes))[path]
        return found

    async def _streamed(self, paths: Sequence[PurePosixPath], into: Path, limit: int | None) -> Mapping[PurePosixPath, Path | Missing]:
        async with self._told_why():
            return await super().get(paths, into, limit_bytes=limit)

    async def _archived(self, path: PurePosixPath, entry: Entry, into: Path) -> Path | None:
        """A large file's copy by the engine; None where it has not given what the helper says that the file is."""

        async def digest() -> str | None:
            said = (await self.stat([path], digest=True))[path]
            return said.sha256 if isinstance(said, Entry) else None

        return await copy_out(self.engine, self.id, path, into, size=entry.size, said=digest())

    async def read(self, path: PurePosixPath, *, limit_bytes: int | None = None) -> bytes | Missing:
        """One file's bytes."""
        async with self._told_why():
            return await super().read(path, limit_bytes=limit_bytes)

    async def stat(
        self, paths: Sequence[PurePosixPath], *, follow: bool = True, digest: bool = False
    ) -> Mapping[PurePosixPath, Entry | Missing]:
        """What stands at each path, as root, in one round trip."""
        async with self._told_why():
            return await super().stat(paths, follow=follow, digest=digest)

    async def walk(
        self, root: PurePosixPath, *, digest: bool = False, unreadable: Callable[[Missing], None] | None = None
    ) -> AsyncIterator[Entry]:
        """Everything below a folder; see `Place.walk`."""
        async with self._told_why():
            async for entry in super().walk(root, digest=digest, unreadable=unreadable):
                yield entry

    async def remove(self, paths: Sequence[PurePosixPath]) -> None:
        """Removes trees; links are removed, never followed."""
        async with self._told_why():
            await super().remove(paths)


def _unconnected(name: str) -> Connection:
    connection = Connection(f"container {name}")
    connection.close(SandboxUnavailableError(f"the container {name} has not been connected"))
    return connection
