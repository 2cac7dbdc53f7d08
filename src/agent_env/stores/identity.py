"""Which installation a state folder is: an id that goes with the folder where it is moved, and that a copy of it does not get.

The folder holds its id, and where it was when that was written: machine, paths, device and inode. Elsewhere it was moved, unless a path
that it is known by still leads to another folder of that id: then it is a copy, and gets an id of its own.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
import socket
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from agent_env import host
from agent_env.errors import StorageError

HOME_LABEL = "agentenv.home"
_FILE = "installation.json"
_OF_OLD = ("installation.key", "agent-env.db", "images")
"""One of these is in a state folder that was used before there were identities."""
_RELAYS = Path("keeper/places")
"""What is carried for places. In a copy they are another installation's places, and its own keeper must not touch them."""
_MOST_PATHS = 8
_HEX_DIGITS = 16


@dataclass(frozen=True, slots=True)
class Origin:
    """The installation that a state folder is a copy of."""

    home: str
    paths: tuple[str, ...]

    @property
    def path(self) -> Path | None:
        """Where it is; None where it is not found any more."""
        return next((Path(path) for path in self.paths if _may_hold(Path(path), self.home)), None)


@dataclass(frozen=True, slots=True)
class Identity:
    """What a state folder says of itself."""

    home: str
    """The label of what this installation makes."""
    machine: str
    """A digest of the machine's own id; empty where it has none."""
    host: str
    device: int
    inode: int
    """Of the folder."""
    paths: tuple[str, ...]
    """Where it was found, the latest one last."""
    old: bool = False
    """It was in use before there were identities, so what it had made by then may carry any label."""
    origins: tuple[Origin, ...] = ()
    """What it is a copy of, the nearest last."""

    def origin(self, home: str) -> Origin | None:
        """The origin of that label, if it is one."""
        return next((origin for origin in self.origins if origin.home == home), None)


@dataclass(frozen=True, slots=True)
class _Here:
    """Where a state folder is now."""

    path: str
    device: int
    inode: int
    machine: str
    host: str

    @classmethod
    def of(cls, state_root: Path) -> _Here:
        path, status, machine = state_root.resolve(), state_root.stat(), host.machine_id()
        return cls(str(path), status.st_dev, status.st_ino, _digest(machine) if machine else "", socket.gethostname())

    def is_folder_of(self, known: Identity) -> bool:
        return (self.machine, self.device, self.inode) == (known.machine, known.device, known.inode)

    def is_machine_of(self, known: Identity) -> bool:
        return self.machine == known.machine and (bool(self.machine) or self.host == known.host)

    def others(self, known: Identity) -> list[str]:
        """Other folders that have this id too. Where this one surely has it, only what has it as surely counts."""
        sure = self.is_folder_of(known)
        return [path for path in known.paths if path != self.path and _may_hold(Path(path), known.home, but=self, sure=sure)]

    def settled(self, known: Identity) -> bool:
        """There is nothing to find out, and nothing to write down."""
        return self.is_folder_of(known) and self.path in known.paths and not self.others(known)


def identity_of(state_root: Path) -> Identity:
    """The identity of the installation with this state folder, which is made when absent.

    What is found out is written down once, whoever is first; that a folder turned out to be a copy is said then. Where nothing can be
    written, the same is found out each time.

    Raises:
        StorageError: What is written there is damaged.
    """
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        known, here = _read(state_root), _Here.of(state_root)
        if known is not None and here.settled(known):
            return known
    try:
        state_root.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(state_root):
            return _found_out(state_root, written=True)
    except OSError:
        return _found_out(state_root, written=False)


def _found_out(state_root: Path, *, written: bool) -> Identity:
    try:
        here = _Here.of(state_root)
    except OSError:  # there is no such folder, and none can be made
        here = _Here(str(state_root), 0, 0, "", socket.gethostname())
    known = _read(state_root)
    # Where nothing can be written, what would be drawn is derived from the place.
    drawn = secrets.token_hex(_HEX_DIGITS // 2) if written else _digest(f"{_place(state_root)}\0{here.device}\0{here.inode}")
    if known is None:
        old = any((state_root / name).exists() for name in _OF_OLD)
        home = _digest(_place(state_root)) if old else drawn
        found = Identity(home, here.machine, here.host, here.device, here.inode, (here.path,), old)
    elif here.is_folder_of(known) or here.is_machine_of(known):
        found = _copied(known, here, drawn) if here.others(known) else _moved(known, here)
    elif here.inode == known.inode:  # another machine sees the very folder; what it makes is its own, and what is written stays
        return replace(known, home=_digest(f"{known.home}\0{here.machine or here.host}"))
    else:
        found = _copied(known, here, drawn)
    if written and found != known:
        _write(state_root, found)
        if known is not None and found.home != known.home:
            _set_relays_aside(state_root, known.home)
            _say_copied(state_root, known)
    return found


def _moved(known: Identity, here: _Here) -> Identity:
    paths = (*(path for path in known.paths if path != here.path), here.path)[-_MOST_PATHS:]
    return Identity(known.home, here.machine, here.host, here.device, here.inode, paths, known.old, known.origins)


def _copied(known: Identity, here: _Here, home: str) -> Identity:
    origins = (*known.origins, Origin(known.home, known.paths))
    return Identity(home, here.machine, here.host, here.device, here.inode, (here.path,), known.old, origins)


def _may_hold(folder: Path, home: str, *, but: _Here | None = None, sure: bool = False) -> bool:
    """Whether a folder has that id; one that can't be looked into may.

    Args:
        folder: Which one.
        home: The id.
        but: A folder that does not count, whatever path leads to it.
        sure: It also has to be the folder that its identity was written in.
    """
    try:
        status, found = folder.stat(), _read(folder)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, StorageError):
        return not sure
    if found is None or found.home != home or (but is not None and (status.st_dev, status.st_ino) == (but.device, but.inode)):
        return False
    return not sure or (found.device, found.inode) == (status.st_dev, status.st_ino)


def _read(folder: Path) -> Identity | None:
    try:
        text = (folder / _FILE).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StorageError(f"the installation's identity {folder / _FILE} can't be read: {error.strerror}", concerns=str(folder)) from error
    try:
        data: Mapping[str, Any] = json.loads(text)
        origins = tuple(Origin(origin["home"], tuple(origin["paths"])) for origin in data["origins"])
        return Identity(**{**data, "paths": tuple(data["paths"]), "origins": origins})
    except (ValueError, KeyError, TypeError) as error:
        path = folder / _FILE
        hint = "restore it, or remove it: then what this installation has made so far counts as another one's"
        raise StorageError(f"the installation's identity {path} is damaged", concerns=str(path), hint=hint) from error


def _write(folder: Path, identity: Identity) -> None:
    aside = folder / f".{_FILE}.{os.urandom(8).hex()}"
    try:
        with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w", encoding="utf-8") as stream:
            json.dump(asdict(identity), stream, indent=1)
            stream.flush()
            os.fsync(stream.fileno())
        aside.replace(folder / _FILE)
    finally:
        aside.unlink(missing_ok=True)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    lock = os.open(folder / f"{_FILE}.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _set_relays_aside(state_root: Path, home: str) -> None:
    with contextlib.suppress(OSError):
        (state_root / _RELAYS).rename(state_root / f"{_RELAYS}-of-{home}")


def _say_copied(state_root: Path, known: Identity) -> None:
    import logging

    logging.getLogger(__name__).warning(
        "the state folder %s is a copy of %s, so it is an installation of its own from now on: what the copied runs have made stays the"
        " other one's, and is neither used nor removed from here",
        state_root,
        known.paths[-1],
    )


def _place(state_root: Path) -> str:
    """Machine, user and path: what the label of a state folder was derived from before there were identities."""
    return f"{host.machine_id() or socket.gethostname()}\0{os.getuid()}\0{state_root.resolve()}"


def _digest(text: str) -> str:
    return hashlib.sha256(os.fsencode(text)).hexdigest()[:_HEX_DIGITS]
