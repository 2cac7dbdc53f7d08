"""The helper's wire format: frames, their fields, and the fixed records inside them. `helper/helper.h` is the other half.

Frame: u32 length of the rest, u8 type, u32 stream, payload. A request's payload is fields: u16 key, u32 length, bytes. Little-endian.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag
from pathlib import PurePosixPath
from struct import Struct

from agent_env.places.place import Entry, FileKind, LedgerEntry

VERSION = 2
MAX_FRAME = 4 << 20
IN_WINDOW = 128 << 10
"""Bytes that may be sent ahead on one stream before the helper gives credit back."""
OUT_WINDOW = 1 << 20
"""Bytes that the helper may send ahead on one stream."""
CHUNK = 64 << 10
ATTEMPT_MAX = 128


class Frame(IntEnum):
    """Types of frames."""

    HELLO = 1
    WELCOME = 2
    REFUSED = 3
    EXEC = 4
    STARTED = 5
    LAUNCH_FAILED = 6
    STDIN = 7
    STDIN_EOF = 8
    CREDIT = 9
    STDOUT = 10
    STDERR = 11
    EXIT = 12
    KILL = 13
    KILL_ATTEMPT = 14
    FREEZE = 15
    THAW = 16
    LEDGER = 17
    LEDGER_ENTRY = 18
    SET_TTL = 19
    SHUTDOWN = 20
    DONE = 21
    FILES = 22
    PING = 23
    OPEN_TCP = 24
    LISTEN_TCP = 25
    ACCEPTED = 26
    CONFIGURE = 27
    RESULT = 28
    ENTRY = 29
    REJOIN = 30
    NETWORK = 31
    HEARD = 32


class Key(IntEnum):
    """Names of fields."""

    VERSION = 1
    TOKEN = 2
    EPOCH = 3
    TTL_MS = 4
    ARG = 5
    ENV = 6
    CWD = 7
    USER = 8
    TIMEOUT_MS = 9
    GRACE_MS = 10
    LIMIT_OUT = 11
    LIMIT_ERR = 12
    ATTEMPT = 13
    RLIMIT = 14
    WINDOW = 15
    FLAGS = 16
    SIGNAL = 17
    OPERATION = 18
    OWNER = 19
    PORT = 20
    ENTRY_ARG = 21
    ADDRESS = 22
    FILE_LIMIT = 23
    RELAY_TOKEN = 24
    REJOIN = 25
    RECEIVED = 26
    AGE_MS = 27
    NETWORK_MS = 28
    WAIT_MS = 29


class Refused(IntEnum):
    """Why a hello was refused."""

    TOKEN = 1
    SUPERSEDED = 2
    VERSION = 3
    AWAITING = 4
    CONFIGURED = 5
    ENDED = 6


class ConfigFlag(IntFlag):
    """Flags of a configuration."""

    NEW_PRIVILEGES = 1
    HOLD = 2
    ALL_CAPABILITIES = 4
    STARTER = 8
    ENTRY_LATER = 16
    LIMITED = 32
    DEMANDED = 64
    RESTART = 128


class ExecFlag(IntFlag):
    """Flags of EXEC."""

    STDIN = 1
    STARTED = 2
    RESULT = 4


class Operation(IntEnum):
    """What a file worker does."""

    STAT = 1
    WALK = 2
    READ = 3
    WRITE = 4
    REMOVE = 5


class Record(IntEnum):
    """Records to and from a file worker; framed as frames, the stream number being the path's index."""

    PATH = 1
    FILE = 2
    FOLDER = 3
    DATA = 4
    END = 5
    ENTRY = 6
    ERROR = 7
    DONE = 8


class FileFlag(IntFlag):
    """Flags of FILES."""

    FOLLOW = 1
    DIGEST = 2
    SYNC = 4


WHAT = {
    1: "its working folder can't be entered",
    2: "the program can't be run",
    3: "the place knows no such user",
    4: "the script's interpreter is missing",
    5: "the place has no room for another process",
    6: "an argument or the environment is too long, or holds a zero byte",
    7: "a limit can't be set",
    8: "the place can't become that user",
    9: "the port can't be reached",
    10: "the place does not know it any more",
    11: "the place's network could not be set up",
}
"""What a launch failed at, by number."""
NEVER_ARRIVED = (10, errno.ENOENT)
"""The answer to a caller that comes back for a command whose request was lost with the connection."""
NO_PROGRAM = (2, errno.ENOENT)
"""What a launch failed at, and the error, when there is no such program."""
_MEANT = {
    errno.ENOENT: "; it, or the loader that it was linked for, is not there",
    errno.ENOEXEC: "; it is neither a program for this machine's processor nor a script that begins with #!",
}
"""What the kernel's answer about a program that was named by its path may mean, where that is more than it says."""
NO_NETWORK = 11
"""What a launch failed at when a network was demanded that is not there."""

REACHED = {
    1: ("memory", "the kernel ended a process"),
    2: ("memory", "its commands were ended"),
    3: ("disk", "its commands were ended"),
}
"""A limit of the place that a command ran into, by number, and what was done about it."""

HEAD = Struct("<IBI")
FIELD = Struct("<HI")
U64 = Struct("<Q")
INPUT_HAD = Struct("<QQ")
"""The answer to a caller that comes back for a command: bytes of its input that have arrived, and for how many more there is room."""
RLIMIT = Struct("<IQQ")
EXIT = Struct("<BBBxiQQQQQQQ")
"""Signalled, timed out, the limit of the place that was reached (see `reached`), code, then what was counted."""
LAUNCH_FAILED = Struct("<II")
LEDGER_ENTRY = Struct("<IBBBiBB")
ENTRY = Struct("<BBHIIQQII4x")
KINDS = (FileKind.FILE, FileKind.DIRECTORY, FileKind.LINK, FileKind.OTHER)


def frame(kind: int, stream: int, payload: bytes | memoryview = b"") -> bytes:
    """One frame."""
    return b"".join((HEAD.pack(5 + len(payload), kind, stream), payload))


def fields(*pairs: tuple[Key, bytes]) -> bytes:
    """A payload of fields."""
    return b"".join([FIELD.pack(key, len(value)) + value for key, value in pairs])


def u64(value: float) -> bytes:
    """A number as a field's value; what does not fit is the largest one."""
    return U64.pack(min(max(int(value), 0), (1 << 64) - 1))


def milliseconds(seconds: float) -> bytes:
    """Seconds as a field's value; never 0, which would mean no limit at all."""
    return u64(max(1, seconds * 1000))


def raw(text: str | bytes | PurePosixPath) -> bytes:
    """The bytes of an argument or path; what came in through `surrogateescape` goes out as it was."""
    return text if isinstance(text, bytes) else str(text).encode("utf-8", "surrogateescape")


def text(data: bytes) -> str:
    """A name of a place as text that `raw` turns back into the same bytes."""
    return data.decode("utf-8", "surrogateescape")


def reached(number: int, bounds: Mapping[str, float]) -> str:
    """What an EXIT frame says of the limits of its place.

    Args:
        number: As the frame says.
        bounds: What the place may use, by name, as far as it is known here; 0 is no limit.
    """
    name, done = REACHED.get(number, ("own", "its commands were ended"))
    if bounds.get(name) == 0:
        return f"the {name} of the place's machine was used up; {done}"
    size = f" of {bounds[name]:.0f} bytes" if name in bounds else ""
    return f"the place's {name} limit{size} was reached; {done}"


def errno_name(number: int) -> str:
    """`ENOENT` for 2."""
    return errno.errorcode.get(number, f"E{number}")


def why_not_launched(what: int, number: int, program: str, *, user: str | None, cwd: object) -> str:
    """Why a command could not be started, with the name of what was asked for and is not there."""
    named = {1: cwd, 3: user, 8: user}.get(what)
    meant = _MEANT.get(number, "") if what == NO_PROGRAM[0] and "/" in program else ""
    return f"{WHAT.get(what, 'it could not be launched')}{f' ({named})' if named else ''}: {reason(number)}{meant}"


def reason(number: int) -> str:
    """An errno for people."""
    return f"{os.strerror(number).lower()} ({errno_name(number)})"


@dataclass(frozen=True, slots=True)
class HelperConfig:
    """What a helper is told when it starts, through an inherited descriptor or its first frame: never by argv or environment."""

    token: str
    epoch: int = 1
    ttl_seconds: float = 0.0
    """0 means no limit."""
    env: Mapping[str, str] = field(default_factory=dict)
    """The place's environment, which commands add to."""
    cwd: str = "/"
    user: str | None = None
    """The place's own user; None is the user that the helper runs as."""
    entrypoint: Sequence[str | bytes] = ()
    """The image's own command, run as the place's user; when it ends the place ends."""
    new_privileges: bool = False
    """Lets commands gain privileges through set-id programs (images that use `sudo`)."""
    relay_token: str = ""
    """Lets in who may only carry TCP to and from the place's loopback, whatever the owner's epoch; empty lets nobody in that way."""
    starter: bool = False
    """Commands are forked by a thread of its own, so that it can stand outside of the control groups that it puts them into."""
    rlimits: Mapping[int, int] = field(default_factory=dict)
    """Resource limits of every command (`resource.RLIMIT_NPROC` → number); the helper itself keeps what it was started with."""
    all_capabilities: bool = False
    """Commands keep every capability that the container was given (a privileged one)."""
    hold: bool = False
    """The place stays when its own command has ended."""
    attempt: str | None = None
    """The attempt that the place's own command belongs to."""
    entry_later: bool = False
    """The place's own command is started by `greeting.enter`: when the place has its limits and its network, not before."""
    limited: bool = False
    """Control groups are joined from outside meanwhile; no command starts before that."""
    network_seconds: float = 0.0
    """Its networking is started from outside when a command first wants to run, which waits for it so long; 0 is for none of that."""
    demanded: bool = False
    """Without that networking no command runs. Otherwise they run without it when it can't be started."""
    restart: bool = False
    """The place's own command is started again when it was killed, once everything that it had started is gone. One that ends by itself has
    ended, and so has one that was told to (SIGTERM, SIGINT, SIGHUP, SIGQUIT)."""

    def encode(self) -> bytes:
        """The bytes to write into the configuration descriptor, which is then closed, or to send as the first frame."""
        names = ("new_privileges", "hold", "all_capabilities", "starter", "entry_later", "limited", "demanded", "restart")
        flags = sum(ConfigFlag[name.upper()] for name in names if getattr(self, name))
        pairs = [
            (Key.TOKEN, self.token.encode()),
            (Key.EPOCH, u64(self.epoch)),
            (Key.TTL_MS, u64(self.ttl_seconds * 1000)),
            (Key.CWD, raw(self.cwd)),
            (Key.VERSION, u64(VERSION)),
            (Key.FLAGS, u64(flags)),
            *environment(self.env),
            *((Key.RLIMIT, RLIMIT.pack(which, most, most)) for which, most in self.rlimits.items()),
            *((Key.ENTRY_ARG, raw(argument)) for argument in self.entrypoint),
        ]
        if self.network_seconds:
            pairs.append((Key.NETWORK_MS, milliseconds(self.network_seconds)))
        if self.relay_token:
            pairs.append((Key.RELAY_TOKEN, self.relay_token.encode()))
        if self.user is not None:
            pairs.append((Key.USER, raw(self.user)))
        if self.attempt is not None:
            pairs.append((Key.ATTEMPT, raw(self.attempt)))
        return fields(*pairs)


def environment(variables: Mapping[str, str]) -> Iterator[tuple[Key, bytes]]:
    """Variables as fields."""
    for name, value in variables.items():
        yield Key.ENV, raw(f"{name}={value}")


def entry(payload: bytes, root: PurePosixPath, *, named: bool = True) -> Entry:
    """An ENTRY record.

    Args:
        payload: The record.
        root: What the record's path is relative to, or the path itself when the record is not `named`.
    """
    kind, digested, mode, uid, gid, size, modified, path_length, target_length = ENTRY.unpack_from(payload)
    at = ENTRY.size + (32 if digested else 0)
    name = payload[at : at + path_length]
    return Entry(
        path=root / text(name) if named else root,
        kind=KINDS[kind],
        size=size,
        mode=mode & 0o7777,
        uid=uid,
        gid=gid,
        modified_ns=modified,
        target=text(payload[at + path_length : at + path_length + target_length]) if KINDS[kind] is FileKind.LINK else None,
        sha256=payload[ENTRY.size : at].hex() if digested else None,
    )


@dataclass(frozen=True, slots=True)
class LedgerRecord:
    """A line of the helper's ledger, with the ending of what is over."""

    entry: LedgerEntry
    exit_code: int | None
    signal: int | None
    timed_out: bool


def ledger_record(payload: bytes) -> LedgerRecord:
    """A LEDGER_ENTRY frame."""
    pid, running, signalled, timed_out, code, attempt_length, argv0_length = LEDGER_ENTRY.unpack_from(payload)
    at = LEDGER_ENTRY.size
    attempt = text(payload[at : at + attempt_length])
    argv0 = text(payload[at + attempt_length : at + attempt_length + argv0_length])
    over = not running
    return LedgerRecord(
        LedgerEntry(attempt or None, pid, argv0, bool(running)),
        exit_code=code if over and not signalled else None,
        signal=code if over and signalled else None,
        timed_out=bool(timed_out),
    )
