"""What is written down about a sandbox of this machine, outside the sandbox: enough to find and remove all of it later.

The record is written before anything is made and again when it runs. It never holds the place's token.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent_env import host
from agent_env.errors import StorageError, UserError
from agent_env.sandboxes.confined.processes import Identity, boot_id

_ID = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}", re.IGNORECASE)
HOST = "host"
"""The confiner of a place that is not confined at all."""
CONTAINER = "container"
"""The confiner of a sandbox that is a container."""
LOG = "helper.log"
"""What a place's helper and its networking say, beside its record."""
EVENTS = "events"
"""What its guardian reported."""
HELPER_SOCKET = "helper.sock"
SLIRP_SOCKET = "slirp.sock"
"""Where slirp4netns takes ports to publish."""
_FACTS = "facts.json"
_WORK_DIR = "agent-env-"
_PARTIAL = ".partial-"
"""Begins the name of a record's folder that is not whole yet, or not any more; the number of the process that is at it follows."""
_LABELS = ".agentenv/sandbox.json"
_MOST_LABEL_BYTES = 65536
_GET_FLAGS, _SET_FLAGS = 0x80086601, 0x40086602
_UNRELATED = 0x00020000
"""(linux/fs.h) FS_IOC_GETFLAGS, FS_IOC_SETFLAGS, FS_TOPDIR_FL."""


@dataclass(frozen=True, slots=True)
class Facts:
    """A sandbox's record."""

    sandbox_id: str
    work_dir: str
    labels: Mapping[str, str] = field(default_factory=dict)
    boot: str = ""
    phase: str = "making"
    """`making`, then `running`."""
    maker: Mapping[str, int] = field(default_factory=dict)
    """The process that makes it; while it lives, a half-made sandbox is not anybody's to remove."""
    confiner: str = ""
    """`helper`, `bwrap`, `host`, or `container`."""
    first: Mapping[str, int] = field(default_factory=dict)
    """The place's PID 1, by its number out here."""
    guardian: Mapping[str, int] = field(default_factory=dict)
    helpers: tuple[Mapping[str, int], ...] = ()
    """Networking."""
    cgroups: tuple[str, ...] = ()
    base_uid: int | None = None
    """The first host id of its private range; None when it shares the user's own."""
    network: Mapping[str, Any] = field(default_factory=dict)
    """`mode`, `how` it is done, the `policy`, and whether that was `demanded`."""
    levels: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[str, float] = field(default_factory=dict)
    ttl_seconds: float = 0.0
    ports: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    engine: Mapping[str, str] = field(default_factory=dict)
    """The container engine that has containers of this sandbox: its address, never a secret. Empty while it has none."""
    container_id: str | None = None
    """Of a sandbox that is a container: the engine's id, which is its identity."""
    container_name: str | None = None
    image: Mapping[str, str] = field(default_factory=dict)
    """What it was made of, where that is an image: its `name` as it was asked for, and its `id`, which is its content's."""
    machine_image: str | None = None
    """Of a machine that a container plays: the image that was configured then."""
    leads: Mapping[str, int] = field(default_factory=dict)
    """Port of the place's loopback → port of this machine's, of what runs beside it."""
    answers: Mapping[str, int] = field(default_factory=dict)
    """Port of the place's own loopback → port of this machine's that leads there."""

    @property
    def rebooted(self) -> bool:
        """It was made in an earlier boot of this machine."""
        return self.boot != boot_id()

    @property
    def alive(self) -> bool:
        """Its first process runs, or it is still being made."""
        if self.rebooted:
            return False
        identity = Identity.load(self.first if self.phase == "running" else self.maker)
        return identity is not None and identity.alive


class Records:
    """The records below one state root: a private folder for each sandbox."""

    def __init__(self, state_root: Path) -> None:
        self.root = state_root / "sandboxes"
        self._tools = state_root / "tools"
        self.home = hashlib.sha256(os.fsencode(state_root.absolute())).hexdigest()[:8]
        """Tells this installation's things from another's where names are shared."""

    def folder(self, sandbox_id: str) -> Path:
        """Where its record, log, events and socket are.

        Raises:
            UserError: That is no sandbox id.
        """
        if not _ID.fullmatch(sandbox_id):
            raise UserError(f"{sandbox_id!r} is no sandbox id", hint="such as local-1f2e3d4c")
        return self.root / sandbox_id

    def tools(self) -> Path:
        """Where files are that every sandbox shares."""
        self._tools.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self._tools

    def open(self, facts: Facts) -> Path:
        """Makes the folder and writes the first record.

        Raises:
            UserError: A sandbox of that id exists.
        """
        folder = self.folder(facts.sandbox_id)
        making = self.root / f"{_PARTIAL}{os.getpid()}-{facts.sandbox_id}"
        try:
            make_unrelated(self.root)
            making.mkdir(mode=0o700)
            (making / _FACTS).write_text(_text(facts))
            making.rename(folder)  # the folder never exists without its record
        except OSError as error:
            shutil.rmtree(making, ignore_errors=True)
            if error.errno in {errno.ENOTEMPTY, errno.EEXIST}:
                raise UserError(f"a sandbox {facts.sandbox_id!r} exists already", concerns=facts.sandbox_id) from error
            raise StorageError(f"can't make {folder}: {error.strerror}", concerns=facts.sandbox_id) from error
        return folder

    def retire(self, sandbox_id: str) -> Path | None:
        """Takes a record out of sight in one step; whoever lists the records later removes what the caller leaves of it.

        Returns:
            The folder that is left to be removed; None when there was no record.
        """
        retired = self.root / f"{_PARTIAL}{os.getpid()}-{sandbox_id}-{secrets.token_hex(4)}"
        try:
            self.folder(sandbox_id).rename(retired)
        except FileNotFoundError:
            return None
        return retired

    def write(self, facts: Facts) -> None:
        """Replaces the record, whole or not at all.

        Raises:
            StorageError: It can't be written.
        """
        target = self.folder(facts.sandbox_id) / _FACTS
        fresh = target.with_name(f".facts-{secrets.token_hex(4)}")
        try:
            fresh.write_text(_text(facts))
            fresh.replace(target)
        except OSError as error:
            with contextlib.suppress(OSError):
                fresh.unlink()
            raise StorageError(f"can't write {target}: {error.strerror}", concerns=facts.sandbox_id) from error

    def read(self, sandbox_id: str) -> Facts | None:
        """The record; None when there is none. A record that was cut is taken as an empty one."""
        try:
            data = json.loads((self.folder(sandbox_id) / _FACTS).read_text())
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            data = None
        if not isinstance(data, dict) or data.get("sandbox_id") != sandbox_id:
            return Facts(sandbox_id, "")
        known = {name: data[name] for name in Facts.__dataclass_fields__ if name in data}
        for name in ("helpers", "cgroups", "notes"):
            known[name] = tuple(known.get(name, ()))
        return Facts(**known)

    def ids(self) -> Iterator[str]:
        """Every sandbox with a record here."""
        with contextlib.suppress(FileNotFoundError):
            for path in sorted(self.root.iterdir()):
                if path.name.startswith(_PARTIAL):
                    self._forget_cut(path)
                elif path.is_dir() and not path.is_symlink():
                    yield path.name

    def _forget_cut(self, path: Path) -> None:
        """A record that was being written when its process died, so nothing had been made yet, or removed, and nothing was left."""
        pid = path.name.removeprefix(_PARTIAL).partition("-")[0]
        if not pid.isdigit() or Identity.of(int(pid)) is None:
            shutil.rmtree(path, ignore_errors=True)


def reported(events: Path) -> list[dict[str, Any]]:
    """What a guardian wrote to this file, oldest first."""
    found = []
    with contextlib.suppress(OSError):
        for line in events.read_bytes().splitlines():
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
    return found


def _text(facts: Facts) -> str:
    return json.dumps({name: getattr(facts, name) for name in Facts.__dataclass_fields__}, default=dict)


def work_root(environ: Mapping[str, str], fallback: Path) -> Path:
    """Where the sandboxes' own folders are: `$AGENT_ENV_LOCAL_SANDBOX_DIR`, else `~/.agent-env-sandboxes`.

    Where there is no home that can be written (TP-12), the state folder's `fallback` serves. A named folder that others may enter, such
    as /tmp, holds a private one of this user.
    """
    named = environ.get("AGENT_ENV_LOCAL_SANDBOX_DIR", "")
    if named:
        root = Path(named).absolute()
        return root if _is_private(root) else root / f".agent-env-{os.geteuid()}"
    home = Path(environ.get("HOME") or Path.home())
    usable = home.is_dir() and os.access(home, os.W_OK | os.X_OK)
    return home / ".agent-env-sandboxes" if usable else fallback


def _is_private(folder: Path) -> bool:
    """Nobody but this user can enter it, or it is still to be made."""
    try:
        found = folder.stat()
    except OSError:
        return True
    return found.st_uid == os.geteuid() and not found.st_mode & 0o077


def make_private(root: Path) -> None:
    """Makes the folder that holds the sandboxes' folders, and closes it to other users.

    A place owns its own root folder, so it can open that to everybody and leave a set-id program of this user in it.

    Raises:
        StorageError: It belongs to somebody else, or is a link to what others may enter.
        OSError: It can't be made.
    """
    make_unrelated(root)
    found = root.lstat()
    linked = stat.S_ISLNK(found.st_mode) and found.st_uid == os.geteuid()
    if linked:  # this user's own link, to a larger disk perhaps; what it leads to is not ours to close
        found = root.stat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or (linked and found.st_mode & 0o077):
        raise StorageError(
            f"{root} is no folder of this user alone, and sandboxes can't be kept where others could reach into them",
            hint="chmod 700 what is yours, or set AGENT_ENV_LOCAL_SANDBOX_DIR to a folder of your own",
        )
    if found.st_mode & 0o077:
        root.chmod(0o700)


def make_unrelated(root: Path) -> None:
    """Makes a private folder whose folders have nothing to do with each other, unless there is something of that name.

    A file system that can be told so (ext) puts each of them somewhere else. Otherwise they all begin in one place of the disk, and each
    new file there looks past all that were removed of late: with a hundred sandboxes just gone, one's folders took eight times as long.

    Raises:
        OSError: It can't be made.
    """
    try:
        root.mkdir(mode=0o700, parents=True)
    except FileExistsError:
        return
    if not host.IS_LINUX:
        return
    handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # others can't be told, and need not
            flags = int.from_bytes(fcntl.ioctl(handle, _GET_FLAGS, bytes(4)), sys.byteorder)
            fcntl.ioctl(handle, _SET_FLAGS, (flags | _UNRELATED).to_bytes(4, sys.byteorder))
    finally:
        os.close(handle)


def new_work_dir(root: Path, sandbox_id: str) -> Path:
    """A name for its folder that nothing has yet."""
    return root / f"{_WORK_DIR}{sandbox_id}-{secrets.token_hex(4)}"


def work_dirs(root: Path, sandbox_id: str | None = None) -> Iterator[tuple[str, Path]]:
    """Sandbox ids and folders directly below the root, by name; links are not folders."""
    beginning = _WORK_DIR if sandbox_id is None else f"{_WORK_DIR}{sandbox_id}-"
    names: list[str] = []
    with (
        contextlib.suppress(OSError),
        os.scandir(root) as listing,
    ):
        names += [entry.name for entry in listing if entry.name.startswith(beginning) and entry.is_dir(follow_symlinks=False)]
    for name in sorted(names):
        found = name.removeprefix(_WORK_DIR).rpartition("-")[0]
        if found and (sandbox_id is None or found == sandbox_id):
            yield found, root / name


def labels_file(sandbox_id: str, labels: Mapping[str, str]) -> tuple[str, str]:
    """Name and content of the file that marks a work folder, for the day on which the record is lost."""
    return _LABELS, json.dumps({"sandbox_id": sandbox_id, "labels": dict(labels)})


def read_labels(work_dir: Path) -> Mapping[str, str]:
    """The labels that a folder carries; none when it carries none that can be read. What is inside is not trusted further."""
    try:
        handle = os.open(work_dir / _LABELS, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(handle, "rb") as file:
            labels = json.loads(file.read(_MOST_LABEL_BYTES))["labels"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return {str(key): str(value) for key, value in labels.items()} if isinstance(labels, dict) else {}
