"""A place that has a helper: the whole contract of `places.place.Place`, over one connection."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath

from agent_env.defaults import DEFAULT_LIMITS, Limits
from agent_env.errors import SandboxUnavailableError, TransportLostError
from agent_env.places.helper import files, process, protocol, running
from agent_env.places.helper.connection import Connection, ask
from agent_env.places.helper.greeting import connected_socket, open_connection
from agent_env.places.helper.process import HelperProcess
from agent_env.places.helper.protocol import Frame, Key, LedgerRecord
from agent_env.places.helper.worker import TcpStream, open_tcp
from agent_env.places.place import Command, Completed, Entry, LedgerEntry, Missing, PlaceKind, Upload


class HelperPlace:
    """A machine or container whose PID 1 is our helper. Made by `connect`."""

    def __init__(self, connection: Connection, *, place_id: str, kind: PlaceKind, labels: Mapping[str, str], limits: Limits) -> None:
        self._connection = connection
        self._id = place_id
        self._kind = kind
        self._labels = dict(labels)
        self._limits = limits

    @property
    def id(self) -> str:
        """Identity; never a name."""
        return self._id

    @property
    def kind(self) -> PlaceKind:
        """Machine or container."""
        return self._kind

    @property
    def labels(self) -> Mapping[str, str]:
        """The run, sandbox and installation that it belongs to."""
        return self._labels

    async def run(self, command: Command) -> Completed:
        """Runs a command to its end; see `Place.run`."""
        return await running.run(self._connection, command, self._limits)

    async def start(self, command: Command) -> HelperProcess:
        """Starts a command whose output is streamed; see `Place.start`."""
        return await process.start(self._connection, command, self._limits)

    async def put(self, uploads: Sequence[Upload], *, owner: str | None = None) -> None:
        """Writes files as root, each whole or not at all; see `Place.put`."""
        await files.put(self._connection, uploads, owner, self._limits)

    async def get(
        self, paths: Sequence[PurePosixPath], into: Path, *, limit_bytes: int | None = None
    ) -> Mapping[PurePosixPath, Path | Missing]:
        """Copies the contents of regular files into fresh files of `into`; see `Place.get`."""
        return await files.get(self._connection, paths, into, limit_bytes, self._limits)

    async def read(self, path: PurePosixPath, *, limit_bytes: int | None = None) -> bytes | Missing:
        """One file's bytes; without a limit of its own, at most `Limits.probe_file_bytes`."""
        limit = self._limits.probe_file_bytes if limit_bytes is None else limit_bytes
        return await files.read(self._connection, path, limit, self._limits)

    async def stat(
        self, paths: Sequence[PurePosixPath], *, follow: bool = True, digest: bool = False
    ) -> Mapping[PurePosixPath, Entry | Missing]:
        """What stands at each path, as root, in one round trip."""
        return await files.stat(self._connection, paths, self._limits, follow=follow, digest=digest)

    def walk(
        self, root: PurePosixPath, *, digest: bool = False, unreadable: Callable[[Missing], None] | None = None
    ) -> AsyncIterator[Entry]:
        """Everything below a folder, links not followed, parents first, sorted by name; see `Place.walk`.

        Raises:
            TransferError: The folder, or something below it, can't be looked at, and nobody asked to be told.
        """
        return files.walk(self._connection, root, self._limits, digest=digest, unreadable=unreadable)

    async def remove(self, paths: Sequence[PurePosixPath]) -> None:
        """Removes trees; links are removed, never followed."""
        await files.remove(self._connection, paths, self._limits)

    async def stop_attempt(self, attempt: str) -> int:
        """Kills whatever still runs for an attempt, and waits until it is gone. Returns how many trees were killed."""
        return await self._ask(Frame.KILL_ATTEMPT, (Key.ATTEMPT, protocol.raw(attempt)))

    async def ledger(self) -> Sequence[LedgerEntry]:
        """What the place runs now, and what it ran last."""
        return [record.entry for record in await self.ledger_records()]

    async def ledger_records(self) -> Sequence[LedgerRecord]:
        """The ledger with the endings of what is over."""
        seconds = self._limits.connect_seconds
        _, frames = await ask(self._connection, Frame.LEDGER, b"", seconds=seconds)
        return [protocol.ledger_record(frame) for frame in frames]

    async def freeze(self, *attempts: str) -> int:
        """Stops these attempts' trees, or where none is named all, in one go. Returns how many processes stand still now."""
        return await self._ask(Frame.FREEZE, *((Key.ATTEMPT, protocol.raw(attempt)) for attempt in attempts))

    async def thaw(self, *attempts: str) -> int:
        """Lets frozen trees go on. Returns how many processes were told."""
        return await self._ask(Frame.THAW, *((Key.ATTEMPT, protocol.raw(attempt)) for attempt in attempts))

    async def set_ttl(self, seconds: float) -> None:
        """Tells the helper when to end the place by itself, counted from now; 0 means never."""
        await self._ask(Frame.SET_TTL, (Key.TTL_MS, protocol.u64(seconds * 1000)))

    async def open_tcp(self, port: int, *, wait_seconds: float = 0.0) -> TcpStream:
        """Connects to a port on the place's own loopback, through the helper.

        Args:
            port: The port.
            wait_seconds: How long to wait for somebody to listen.

        Raises:
            SandboxUnavailableError: Nothing listens there.
        """
        return await open_tcp(self._connection, port, self._limits, wait_seconds)

    async def ping(self) -> None:
        """Asks whether the helper answers."""
        await self._ask(Frame.PING)

    async def shut_down(self, *, grace_seconds: float = 0.0) -> None:
        """Ends everything that runs in the place, then the helper itself, and waits for both."""
        try:
            payload = protocol.fields((Key.GRACE_MS, protocol.u64(grace_seconds * 1000)))
            await ask(self._connection, Frame.SHUTDOWN, payload, seconds=grace_seconds + self._limits.cleanup_seconds)
        except (SandboxUnavailableError, TransportLostError):
            return  # it was gone already, or went while it was asked

    async def aclose(self) -> None:
        """Lets go of the connection. What runs there goes on."""
        self._connection.close()
        await self._connection.wait_closed()

    async def _ask(self, kind: Frame, *pairs: tuple[Key, bytes]) -> int:
        seconds = self._limits.cleanup_seconds + self._limits.answer_margin_seconds
        answer, _ = await ask(self._connection, kind, protocol.fields(*pairs), seconds=seconds)
        return int(protocol.U64.unpack_from(answer)[0])


async def connect(
    at: Path | socket.socket,
    *,
    place_id: str,
    kind: PlaceKind = PlaceKind.MACHINE,
    labels: Mapping[str, str] | None = None,
    token: str,
    epoch: int,
    limits: Limits = DEFAULT_LIMITS,
) -> HelperPlace:
    """Connects to a place's helper and becomes its owner for this epoch.

    Args:
        at: The helper's unix socket (any length of path), or a connected stream socket such as one end of a pair that bridges to
            `agentenv-helper connect`.
        place_id: The place's identity, for messages and records.
        kind: Machine or container.
        labels: The run, sandbox and installation that it belongs to.
        token: The place's token, as its helper was configured.
        epoch: The caller's epoch; connections of an older one are cut.
        limits: Deadlines and sizes.

    Raises:
        SandboxUnavailableError: Nobody listens, or the token does not fit.
        SupersededError: A later owner has taken the place over.
        DeadlineError: No answer.
    """
    concerns = f"{kind} {place_id}"
    if isinstance(at, Path):
        try:
            link = await asyncio.to_thread(connected_socket, at)
        except OSError as error:
            raise SandboxUnavailableError(
                f"{concerns} is gone: nobody listens on its socket ({error.strerror})", concerns=concerns
            ) from error
    else:
        link = at
        link.setblocking(False)
    connection = await open_connection(link, concerns=concerns, token=token, epoch=epoch, limits=limits)
    return HelperPlace(connection, place_id=place_id, kind=kind, labels=labels or {}, limits=limits)
