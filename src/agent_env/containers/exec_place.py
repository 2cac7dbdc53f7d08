"""A container that we did not start, as a place in reduced mode: plain engine execs and the engine's archives.

It has no helper, so what only a first process of ours can do is refused with `UnsupportedError`: a ledger, the end of an attempt, freezing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from agent_env.containers import archives, objects
from agent_env.containers.engine import Engine
from agent_env.containers.running import Running
from agent_env.containers.state import not_running
from agent_env.errors import (
    ContainerNotRunningError,
    LaunchError,
    NotFoundError,
    PlaceLostError,
    SandboxUnavailableError,
    TransferError,
    UnsupportedError,
)
from agent_env.places.place import Command, Completed, Entry, LedgerEntry, Missing, PlaceKind, Upload
from agent_env.waiting import shielded

MISSING = ("a ledger of what runs", "ending what an attempt left", "freezing", "ports of its own loopback")
"""What is not possible here, for capabilities and messages."""


class ExecPlace:
    """A running container without our helper. Made by `reduced`."""

    def __init__(self, engine: Engine, container_id: str, name: str, labels: Mapping[str, str]) -> None:
        self.engine = engine
        self.name = name
        self._id = container_id
        self._labels = labels
        self._limits = engine.limits

    @property
    def id(self) -> str:
        """The engine's id."""
        return self._id

    @property
    def kind(self) -> PlaceKind:
        """A container."""
        return PlaceKind.CONTAINER

    @property
    def labels(self) -> Mapping[str, str]:
        """What whoever made it put on it."""
        return self._labels

    # commands

    async def run(self, command: Command) -> Completed:
        """Runs a command to its end; see `Place.run`.

        At its time limit a command is ended where this process may signal the container's (an engine on this machine, as its user);
        elsewhere it may go on, and `detail` says so.
        """
        running = await self.start(command)
        try:
            return await running.wait()
        finally:
            await shielded(running.aclose(), seconds=self._limits.cleanup_seconds, what=f"ending a command in {self.name}")

    async def start(self, command: Command) -> Running:
        """Starts a command whose output is streamed; see `Place.start`."""
        if command.attempt is not None and not command.argv:
            raise LaunchError("a command without a name", concerns=self.name)
        running = Running(self.engine, self._id, self.name, command)
        try:
            await running.begin()
        except (ContainerNotRunningError, SandboxUnavailableError) as error:
            raise await not_running(self.engine, self._id, self.name, otherwise=error) from error
        return running

    # files

    async def put(self, uploads: Sequence[Upload], *, owner: str | None = None) -> None:
        """Writes files through the engine's archive, numeric owners only; see `Place.put`.

        Raises:
            UnsupportedError: The owner is a name: there is no helper that could look it up.
            TransferError: The engine refuses (a read-only file system, no space).
        """
        await archives.put(self.engine, self._id, uploads, await self._owner(owner))

    async def get(
        self, paths: Sequence[PurePosixPath], into: Path, *, limit_bytes: int | None = None
    ) -> Mapping[PurePosixPath, Path | Missing]:
        """Copies the contents of regular files; see `Place.get`. One request a file."""
        return {path: await archives.get(self.engine, self._id, path, into, limit_bytes) for path in paths}

    async def read(self, path: PurePosixPath, *, limit_bytes: int | None = None) -> bytes | Missing:
        """One file's bytes; without a limit of its own, at most `Limits.probe_file_bytes`."""
        limit = self._limits.probe_file_bytes if limit_bytes is None else limit_bytes
        return await archives.read(self.engine, self._id, path, limit)

    async def stat(
        self, paths: Sequence[PurePosixPath], *, follow: bool = True, digest: bool = False
    ) -> Mapping[PurePosixPath, Entry | Missing]:
        """What stands at each path; one request a path."""
        return {path: await archives.stat(self.engine, self._id, path, follow=follow, digest=digest) for path in paths}

    async def walk(
        self, root: PurePosixPath, *, digest: bool = False, unreadable: Callable[[Missing], None] | None = None
    ) -> AsyncIterator[Entry]:
        """Everything below a folder; see `Place.walk`. Costs a copy of the whole tree."""
        found = await archives.walk(self.engine, self._id, root, digest=digest)
        if isinstance(found, Missing):
            if unreadable is None:
                raise TransferError(f"{root} can't be listed: {found.reason}", concerns=self.name)
            unreadable(found)
            return
        for entry in found:
            yield entry

    async def remove(self, paths: Sequence[PurePosixPath]) -> None:
        """Removes trees with the image's own `rm`.

        Raises:
            UnsupportedError: The image has none.
        """
        if not paths:
            return
        try:
            done = await self.run(Command(["rm", "-rf", "--", *map(str, paths)], user="0:0"))
        except LaunchError as error:
            raise UnsupportedError(f"nothing can be removed in {self.name}: it has no helper, and its image has no rm") from error
        if not done.ok:
            raise TransferError(f"not everything could be removed in {self.name}: {done.stderr[:500]!r}", concerns=self.name)

    # what only a helper can

    async def stop_attempt(self, attempt: str) -> int:
        """Not possible here.

        Raises:
            UnsupportedError: Always.
        """
        raise self._unsupported(f"what the attempt {attempt} left can't be found and ended")

    async def ledger(self) -> Sequence[LedgerEntry]:
        """Not possible here.

        Raises:
            UnsupportedError: Always.
        """
        raise self._unsupported("what it runs can't be told")

    async def aclose(self) -> None:
        """Nothing is held."""

    def _unsupported(self, what: str) -> UnsupportedError:
        return UnsupportedError(
            f"{what} in {self.name}: it was not started by agent-env, so it has no helper", concerns=self.name, hint="deploy it by a step"
        )

    async def _owner(self, owner: str | None) -> tuple[int, int]:
        if owner is None:
            found = await objects.inspect(self.engine, self._id)
            owner = str((found.get("Config") or {}).get("User") or "0:0")
        user, _, group = owner.partition(":")
        if user == "root":
            user = "0"
        if not user.isdigit() or (group and not group.isdigit()):
            raise self._unsupported(f"files can't be given to {owner!r} by name")
        return int(user), int(group or user)


async def reduced(engine: Engine, container_id: str) -> ExecPlace:
    """The place of a container that somebody else started, by id.

    Raises:
        PlaceLostError: There is none with this id.
        ContainerNotRunningError: It is not running.
    """
    try:
        found: dict[str, Any] = await objects.inspect(engine, container_id)
    except NotFoundError as error:
        raise PlaceLostError(f"the container {container_id[:12]} no longer exists", concerns=container_id) from error
    name = str(found["Name"]).lstrip("/")
    if not found["State"].get("Running") or found["State"].get("Paused"):
        raise await not_running(engine, found["Id"], name, otherwise=SandboxUnavailableError(f"the container {name} is not running"))
    return ExecPlace(engine, str(found["Id"]), name, (found.get("Config") or {}).get("Labels") or {})
