"""The folder of a sandbox's own files over an image's tree: what an image does not have and its programs expect, made before the first of
them runs. The image's own links are followed as inside of the image, and never out of it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agent_env.errors import UnsupportedError
from agent_env.images.oci.tree import copy_attributes

TOP, WORK = "top", "work"
_MOST_LINKS = 40
_CLONE = 0x40049409
"""(kernel) FICLONE: the same content without a second copy, where the file system can."""


@dataclass(frozen=True, slots=True)
class Top:
    """The folder, and the tree that it lies over.

    A tree that can't be stacked is copied into the folder first; then both are the same.
    """

    tree: Path
    path: Path
    shift: int = 0
    """What is added to every owner's number."""

    def begin(self) -> None:
        """Makes the folder: its own facts are those of the image's root."""
        self.path.mkdir()
        self._like(self.tree.lstat(), self.path)

    def empty(self) -> None:
        """Makes the folder root's, with nothing in it."""
        self.path.mkdir(mode=0o755)
        os.chown(self.path, self._user(0), self._group(0))

    def folder(self, name: str) -> Path:
        """Has a real folder of that name in the sandbox, whatever the image has there; links on the way to it are the image's own.

        Raises:
            UnsupportedError: The image's links lead in a circle.
            OSError: It can't be made.
        """
        at = self.path
        parts = _real(self.tree, name)
        for depth, part in enumerate(parts, 1):
            at /= part
            found = _status(at)
            if found is not None and stat.S_ISDIR(found.st_mode):
                continue
            if found is not None:
                at.unlink()
            below = _status(self.tree.joinpath(*parts[:depth]))
            at.mkdir(mode=0o755)
            if below is not None and stat.S_ISDIR(below.st_mode):
                self._like(below, at)
            else:
                os.chown(at, self._user(0), self._group(0))
        return at

    def exposed(self, name: str) -> None:
        """Has a folder of that name, as a mount point that no link may stand in for."""
        at, below = self.path / name, _status(self.tree / name)
        if below is None or not stat.S_ISDIR(below.st_mode):
            if at.is_symlink() or at.is_file():
                at.unlink()
            at.mkdir(exist_ok=True)
            os.chown(at, self._user(0), self._group(0))

    def missing(self, name: str) -> bool:
        """Whether the image has no such folder."""
        return _status(self.tree.joinpath(*_real(self.tree, name))) is None

    def file(self, folder: str, name: str, content: bytes) -> None:
        """A file of root's, readable by all, in place of whatever has its name."""
        path = self.folder(folder) / name
        found = _status(path)
        if found is not None and not stat.S_ISDIR(found.st_mode):
            path.unlink()
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644), "wb") as file:
            file.write(content)
            os.fchmod(file.fileno(), 0o644)
            os.fchown(file.fileno(), self._user(0), self._group(0))

    def copy(self, check: Callable[[], None]) -> None:
        """Copies the tree into the folder, which must not exist yet.

        Args:
            check: Called often; raises to end the work.

        Raises:
            OSError: It can't be copied.
        """
        self.path.mkdir(mode=0o700)
        self._copy(self.tree, self.path, check)

    def _copy(self, source: Path, target: Path, check: Callable[[], None]) -> None:
        check()
        with os.scandir(source) as found:
            entries = [*found]
        for entry in entries:
            status, into = entry.stat(follow_symlinks=False), target / entry.name
            if stat.S_ISDIR(status.st_mode):
                into.mkdir(mode=0o700)
                self._copy(Path(entry.path), into, check)
                continue
            if stat.S_ISLNK(status.st_mode):
                into.symlink_to(Path(entry.path).readlink())
            elif stat.S_ISREG(status.st_mode):
                _contents(entry.path, into)
            elif stat.S_ISFIFO(status.st_mode):
                os.mkfifo(into)
            else:
                continue  # devices and sockets are of no use in a place
            self._like(status, into)
            copy_attributes(entry.path, into)
        self._like(source.lstat(), target)
        copy_attributes(source, target)

    def _like(self, status: os.stat_result, target: Path) -> None:
        os.chown(target, self._user(status.st_uid), self._group(status.st_gid), follow_symlinks=False)
        if not stat.S_ISLNK(status.st_mode):
            target.chmod(stat.S_IMODE(status.st_mode))
        os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns), follow_symlinks=False)

    def _user(self, number: int) -> int:
        return number + self.shift if os.geteuid() == 0 else os.geteuid()

    def _group(self, number: int) -> int:
        return number + self.shift if os.geteuid() == 0 else os.getegid()


def _contents(source: str, target: Path) -> None:
    with open(source, "rb") as one, open(target, "xb") as other:
        try:
            fcntl.ioctl(other.fileno(), _CLONE, one.fileno())
        except OSError:
            shutil.copyfileobj(one, other, 1 << 20)


def _real(tree: Path, name: str) -> Sequence[str]:
    """The parts of a name once the image's links are followed, each against the image's own root."""
    waiting, at, followed = [*reversed(name.split("/"))], list[str](), 0
    while waiting:
        part = waiting.pop()
        if part in {"", "."}:
            continue
        if part == "..":
            del at[-1:]
            continue
        found = _status(tree.joinpath(*at, part))
        if found is None or not stat.S_ISLNK(found.st_mode):
            at.append(part)
            continue
        followed += 1
        if followed > _MOST_LINKS:
            raise UnsupportedError(f"the image's links lead in a circle at {name!r}")
        target = str(tree.joinpath(*at, part).readlink())
        if target.startswith("/"):
            at.clear()
        waiting += reversed(target.split("/"))
    return at


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None


def volumes(tree: Path, names: Sequence[str], into: Path, shift: int, check: Callable[[], None]) -> Mapping[str, Path]:
    """Gives an image's volumes folders of their own, which hold what the image has there; one below another is a part of that.

    Args:
        tree: The image's tree.
        names: The volumes.
        into: Where the folders are made.
        shift: What is added to every owner's number.
        check: Called often; raises to end the work.

    Returns:
        The volume, without any link on the way to it → its folder. Of what is the root itself, or a file, there is none.

    Raises:
        UnsupportedError: The image's links lead in a circle.
        OSError: A folder can't be made.
    """
    made: dict[tuple[str, ...], Path] = {}
    for parts in sorted(tuple(_real(tree, name)) for name in names):
        found = _status(tree.joinpath(*parts))
        if not parts or any(parts[: len(above)] == above for above in made) or (found is not None and not stat.S_ISDIR(found.st_mode)):
            continue
        top = Top(tree.joinpath(*parts), into / f"volume-{len(made)}", shift)
        made[parts] = top.path
        if found is None:
            top.empty()
        else:
            top.copy(check)
    return {f"/{'/'.join(parts)}": folder for parts, folder in made.items()}


def furnish(top: Top, files: Mapping[str, str], *, mounts: Sequence[str], folders: Sequence[str]) -> None:
    """Gives the place what an engine's container has, too.

    Args:
        top: The sandbox's own files.
        files: Name in /etc → content.
        mounts: Folders directly below the root that something is mounted on.
        folders: The image's working folder and volumes; each is made unless it is there.

    Raises:
        UnsupportedError: The image's links lead in a circle.
        OSError: It can't be written.
    """
    for name in mounts:
        top.exposed(name)
    for name, text in files.items():
        top.file("etc", name, text.encode())
    top.file("", ".dockerenv", b"")
    for name in folders:
        if top.missing(name):
            with contextlib.suppress(FileExistsError, NotADirectoryError):  # a file in its way: who needs it is told so by the kernel
                top.folder(name)
