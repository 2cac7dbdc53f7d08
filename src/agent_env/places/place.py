"""The contract of a place: somewhere commands run and files live.

A place is a value with an identity. It never says "which mode am I in?": it is one machine, or one container on it, for as long
as it exists. Providers give channels; everything that a step needs is derived from this contract once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Protocol, runtime_checkable


class PlaceKind(StrEnum):
    """What a place is."""

    MACHINE = "machine"
    CONTAINER = "container"


class Ending(StrEnum):
    """How a command ended. `LIMITED` and `LOST` are outcomes of their own, never an exit code."""

    EXITED = "exited"
    SIGNALLED = "signalled"
    TIMED_OUT = "timed_out"
    LIMITED = "limited"
    """The place's own limit of memory or disk was reached while it ran, and ended it or made it fail."""
    LOST = "lost"
    """The connection or the place went; what became of the command is not known."""


RESULT_VARIABLE = "AGENTENV_RESULT"
"""Tells a command the number of its result pipe."""

ROOT_USER = "root"
"""Steps read and write files as root; a user's own command keeps the place's user (`user=None`)."""


@dataclass(frozen=True, slots=True)
class Command:
    """What to run. An argument vector, never shell text: a user's shell text is one argument of `bash -c`."""

    argv: Sequence[str | bytes]
    user: str | None = None
    """A user name or `uid[:gid]` of the place; None keeps the place's own user."""
    cwd: PurePosixPath | None = None
    """None is the place's own working directory (a container's WORKDIR, `/app` on a machine)."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to the place's environment, byte for byte."""
    secrets: Mapping[str, str] = field(default_factory=dict)
    """As `env`, but never in argv, logs or records."""
    stdin: bytes | AsyncIterator[bytes] | None = None
    """None is an empty input."""
    timeout_seconds: float | None = None
    """At the limit: SIGTERM to the whole tree, `kill_grace_seconds`, SIGKILL to whatever is left. None uses
    `Limits.exec_seconds`."""
    kill_grace_seconds: float | None = None
    output_limit_bytes: int | None = None
    """For each stream; what is beyond is counted and dropped. None uses `Limits.output_limit_bytes` for what is kept, and no limit for
    what a reader of `Process.output` takes."""
    keep: str = "head"
    """Which end of an overlong stream is kept: `head` or `tail`."""
    rlimits: Mapping[int, int] = field(default_factory=dict)
    """Resource limits of each of its processes (`resource.RLIMIT_CPU` → number). One of processor time or file size that ended the
    command is told in `Completed.detail`; one of open files is seen by the program alone, whose calls fail."""
    result_limit_bytes: int | None = None
    """Gives the command a pipe for its result, apart from what it prints; its number is told in `RESULT_VARIABLE`. Until the first byte,
    which is not part of the result, everything else that this place's helper started holds still, so that the command can shut others out
    (`PR_SET_DUMPABLE`) first. One byte more than the limit is kept. A place without a helper has no such pipe."""
    attempt: str | None = None
    """The attempt that this belongs to: the place's ledger answers for it to a later owner."""


@dataclass(frozen=True, slots=True)
class Completed:
    """A command that is over. Streams are bytes, always present, cut at the limit with the cut counted."""

    ending: Ending
    exit_code: int | None = None
    """Set when `ending` is EXITED."""
    signal: int | None = None
    """Set when `ending` is SIGNALLED."""
    stdout: bytes = b""
    stderr: bytes = b""
    stdout_dropped_bytes: int = 0
    stderr_dropped_bytes: int = 0
    duration_seconds: float = 0.0
    detail: str = ""
    """Why, where there is more to say than the ending does: the limit that was reached, who killed it, how it was lost."""
    result: bytes | None = None
    """What came through the result pipe; None where there was none to come through."""

    @property
    def ok(self) -> bool:
        """The command exited with 0."""
        return self.ending is Ending.EXITED and self.exit_code == 0

    @property
    def truncated(self) -> bool:
        """Some output was dropped."""
        return bool(self.stdout_dropped_bytes or self.stderr_dropped_bytes)


class FileKind(StrEnum):
    """What stands at a path."""

    FILE = "file"
    DIRECTORY = "directory"
    LINK = "link"
    OTHER = "other"
    """Device, socket, fifo: listed, never read."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One path of a place. Names that are not UTF-8 survive through `surrogateescape`."""

    path: PurePosixPath
    kind: FileKind
    size: int = 0
    mode: int = 0o644
    """Permission bits only."""
    uid: int = 0
    gid: int = 0
    modified_ns: int = 0
    target: str | None = None
    """Where a link points, as written."""
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class Missing:
    """Nothing at that path, or it can't be looked at. `reason` is an errno name such as `ENOENT`."""

    path: PurePosixPath
    reason: str = "ENOENT"


@dataclass(frozen=True, slots=True)
class Upload:
    """One file or folder to write. Parents are created, with the same owner."""

    path: PurePosixPath
    source: bytes | Path | None
    """The bytes, a file of this machine that is streamed, or None for a folder."""
    mode: int | None = None
    """None keeps a local file's permission bits, else 0644 (0755 for folders). Set-id bits never pass."""
    beneath: PurePosixPath | None = None
    """A folder above the path, below which no link is followed, also if one is put there meanwhile. The path has no `..` then. A place
    without a helper takes no notice."""


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """A command that a place still runs, or ran for a given attempt."""

    attempt: str | None
    pid: int
    argv0: str
    running: bool


class Process(Protocol):
    """A running command whose output is read while it runs."""

    @property
    def pid(self) -> int:
        """Its process id inside the place."""
        ...

    def output(self) -> AsyncIterator[tuple[int, bytes]]:
        """Pieces of output as `(1 | 2, bytes)` until both streams end."""
        ...

    async def write(self, data: bytes) -> None:
        """Feeds standard input."""
        ...

    async def close_stdin(self) -> None:
        """Ends standard input."""
        ...

    async def kill(self, signal: int = 9) -> None:
        """Signals the whole tree, also what called `setsid`."""
        ...

    async def wait(self) -> Completed:
        """The ending, exact as `Place.run` tells it: its time limit, a limit of the place, a signal and a loss are different things, and
        a reader who is slow is none of them. Output that nobody read is in the result, up to the limit.
        """
        ...

    async def aclose(self) -> None:
        """Kills what still runs of it and lets go."""
        ...


@runtime_checkable
class Place(Protocol):
    """Somewhere commands run and files live.

    All methods raise `SandboxUnavailableError` when the place is gone or stopped, `TransportLostError` when the connection broke
    in the middle (except `run`, which tells it as `Ending.LOST`), `DeadlineError` when it does not answer within its
    deadline plus `Limits.cleanup_seconds` and `Limits.answer_margin_seconds`, and `SupersededError` when a later owner has taken
    the place over.
    """

    @property
    def id(self) -> str:
        """Identity: a container's engine id, or the sandbox's id for a machine. Never a name."""
        ...

    @property
    def kind(self) -> PlaceKind:
        """Machine or container."""
        ...

    @property
    def labels(self) -> Mapping[str, str]:
        """The run, sandbox and installation that it belongs to."""
        ...

    async def run(self, command: Command) -> Completed:
        """Runs a command to its end. Nothing of it is left running if it times out or the caller is cancelled.

        A background child that outlives a normal exit does not delay the result, and lives until teardown.

        Raises:
            LaunchError: It could not be started: the program, folder or user is missing, or an argument is too long.
        """
        ...

    async def start(self, command: Command) -> Process:
        """Starts a command whose output is streamed. Raises as `run`."""
        ...

    async def put(self, uploads: Sequence[Upload], *, owner: str | None = None) -> None:
        """Writes files as root, in one stream, checked by sha256, each put in place whole or not at all.

        Args:
            uploads: What to write; an existing link at the last component is replaced, not followed.
            owner: `user`, `uid`, or `uid:gid`; None is the place's own user.

        Raises:
            TransferError: A file could not be written (names the path and the reason: no space, read-only).
        """
        ...

    async def get(
        self, paths: Sequence[PurePosixPath], into: Path, *, limit_bytes: int | None = None
    ) -> Mapping[PurePosixPath, Path | Missing]:
        """Copies the *contents* of regular files (links followed inside the place) into fresh files of `into`.

        The local names are chosen by us, never by the place.

        Returns:
            Where each path's bytes are now, or why they are not; a folder is `Missing(reason="EISDIR")`, a link that loops
            `ELOOP`, a device or fifo `EINVAL`, a file over the limit `EFBIG`.
        """
        ...

    async def read(self, path: PurePosixPath, *, limit_bytes: int | None = None) -> bytes | Missing:
        """One file's bytes; see `get`."""
        ...

    async def stat(
        self, paths: Sequence[PurePosixPath], *, follow: bool = True, digest: bool = False
    ) -> Mapping[PurePosixPath, Entry | Missing]:
        """What stands at each path, as root, in one round trip."""
        ...

    def walk(
        self, root: PurePosixPath, *, digest: bool = False, unreadable: Callable[[Missing], None] | None = None
    ) -> AsyncIterator[Entry]:
        """Everything below a folder, links not followed, parents first, sorted by name. What goes away meanwhile is left out.

        Args:
            root: The folder.
            digest: Tell each file's sha256 too.
            unreadable: Told of each path that is there and can't be looked at (a folder of mode 0 in a place without a real root); the
                walk goes on past it.

        Raises:
            TransferError: Without `unreadable`: something can't be looked at.
        """
        ...

    async def remove(self, paths: Sequence[PurePosixPath]) -> None:
        """Removes trees; what is absent already counts as removed. Links are removed, never followed."""
        ...

    async def stop_attempt(self, attempt: str) -> int:
        """Kills whatever still runs for an attempt. Returns how many trees were killed."""
        ...

    async def ledger(self) -> Sequence[LedgerEntry]:
        """What the place runs now, and what it ran last.

        A command that has ended and left processes behind is there twice: as over, and as running.
        """
        ...

    async def freeze(self, *attempts: str) -> int:
        """Stops these attempts' trees, or where none is named all, in one go. Returns how many processes stand still now."""
        ...

    async def thaw(self, *attempts: str) -> int:
        """Lets frozen trees go on. Returns how many processes were told."""
        ...

    async def aclose(self) -> None:
        """Lets go of the connection. What runs there goes on."""
        ...
