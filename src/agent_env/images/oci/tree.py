"""A folder that is filled by names from elsewhere, through descriptors: links are followed as inside of the image, and never out of it."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from agent_env.errors import UnsupportedError

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_LINKS = 40
DEEPEST = 200
"""Folders in folders: what makes and removes them holds a descriptor for each. A path may have 4096 bytes, so real ones stay far below."""
KEPT_ATTRIBUTES = ("user.", "security.capability")
"""Extended attributes that belong to a file's content; those of security modules and overlays belong to the machine it came from."""
_OPEN_FOLDERS = 64
"""Descriptors that are kept: archives come folder by folder."""


class Tree:
    """The folder.

    Args:
        root: An existing folder.
    """

    def __init__(self, root: Path) -> None:
        self._root = os.open(root, _FOLDER)
        self._known: dict[tuple[str, ...], int] = {}

    def close(self) -> None:
        """Lets go of descriptors."""
        self._forget()
        os.close(self._root)

    def parent(self, parts: Sequence[str], *, make: bool) -> int:
        """A descriptor of the folder that holds a name, valid until the next call.

        Args:
            parts: The name's parts.
            make: Missing folders are made.

        Raises:
            FileNotFoundError: It is missing.
            NotADirectoryError: Something else is in its place.
            UnsupportedError: Its links lead in a circle.
        """
        above = tuple(parts[:-1])
        if not above:
            return self._root
        if above not in self._known:
            if len(self._known) >= _OPEN_FOLDERS:
                self._forget()
            self._known[above] = self._walk(above, make=make)
        return self._known[above]

    def make_folder(self, parts: Sequence[str]) -> None:
        """A folder, unless it exists. A file or link in its place goes."""
        parent, leaf = self.parent(parts, make=True), parts[-1]
        status = _status(parent, leaf)
        if status is not None and not stat.S_ISDIR(status.st_mode):
            self.clear(parent, leaf)
            status = None
        if status is None:
            os.mkdir(leaf, 0o700, dir_fd=parent)
            os.chmod(leaf, 0o755, dir_fd=parent)

    def open_folder(self, parts: Sequence[str]) -> int | None:
        """A descriptor that the caller closes; None when there is no folder of exactly that name."""
        if not parts:
            return os.dup(self._root)
        with contextlib.suppress(OSError):
            return os.open(parts[-1], _FOLDER, dir_fd=self.parent(parts, make=False))
        return None

    def clear(self, parent: int, leaf: str) -> None:
        """Makes a name free."""
        status = _status(parent, leaf)
        if status is None:
            return
        if stat.S_ISDIR(status.st_mode):
            self._forget(keep=parent)
            remove_below(parent, leaf)
        else:
            if stat.S_ISLNK(status.st_mode):
                self._forget(keep=parent)
            os.unlink(leaf, dir_fd=parent)

    def _walk(self, parts: Sequence[str], *, make: bool) -> int:
        """Follows links by hand, each against the root that the image will have."""
        waiting, at, followed = [*reversed(parts)], [os.dup(self._root)], 0
        try:
            while waiting:
                part = waiting.pop()
                if part in {"", "."}:
                    continue
                if part == "..":
                    if len(at) > 1:
                        os.close(at.pop())
                    continue
                if len(at) > DEEPEST:
                    raise UnsupportedError(f"a layer's folders are more than {DEEPEST} deep")
                target = _link(at[-1], part)
                if target is None:
                    at.append(_enter(at[-1], part, make=make))
                    continue
                followed += 1
                if followed > _MOST_LINKS:
                    raise UnsupportedError(f"a layer's links lead in a circle at {'/'.join(parts)!r}")
                if target.startswith("/"):
                    while len(at) > 1:
                        os.close(at.pop())
                waiting += reversed(target.split("/"))
            return at.pop()
        finally:
            for handle in at:
                os.close(handle)

    def _forget(self, keep: int | None = None) -> None:
        for parts, handle in [*self._known.items()]:
            if handle != keep:
                os.close(handle)
                del self._known[parts]


def copy_attributes(source: str | Path, target: str | Path) -> None:
    """Gives a file or folder the extended attributes of another that belong to its content.

    After its owner: changing that takes capabilities away. A file system or a user without them leaves what is there whole.
    """
    with contextlib.suppress(OSError):
        for name in os.listxattr(source, follow_symlinks=False):
            if name.startswith(KEPT_ATTRIBUTES):
                os.setxattr(target, name, os.getxattr(source, name, follow_symlinks=False), follow_symlinks=False)


def remove_below(parent: int | None, name: str | Path) -> None:
    """Removes whatever a name stands for, whole; folders that their owner may not write are opened up first. Absent is fine."""
    try:
        status = os.lstat(name, dir_fd=parent)
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(status.st_mode):
        os.unlink(name, dir_fd=parent)
        return
    if status.st_mode & 0o700 != 0o700:
        os.chmod(name, 0o700, dir_fd=parent)
    handle = os.open(name, _FOLDER, dir_fd=parent)
    try:
        with os.scandir(handle) as entries:
            names = [entry.name for entry in entries]
        for inner in names:
            remove_below(handle, inner)
    finally:
        os.close(handle)
    os.rmdir(name, dir_fd=parent)


def _enter(parent: int, name: str, *, make: bool) -> int:
    try:
        return os.open(name, _FOLDER, dir_fd=parent)
    except (FileNotFoundError, NotADirectoryError) as error:
        if not make:
            raise
        if isinstance(error, NotADirectoryError):
            os.unlink(name, dir_fd=parent)  # a file where a later entry needs a folder
        os.mkdir(name, 0o755, dir_fd=parent)
        return os.open(name, _FOLDER, dir_fd=parent)


def _link(parent: int, name: str) -> str | None:
    try:
        return os.readlink(name, dir_fd=parent)
    except OSError:
        return None


def _status(parent: int, name: str) -> os.stat_result | None:
    try:
        return os.lstat(name, dir_fd=parent)
    except FileNotFoundError:
        return None
