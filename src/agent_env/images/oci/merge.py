"""Stacks unpacked layers into one tree. Files are hard links to their layer, so a tree costs folders and names, and no content twice."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from agent_env.images.oci.tree import copy_attributes, remove_below


@dataclass(frozen=True, slots=True)
class Stacked:
    """One layer, as it lies in the store."""

    folder: Path
    whiteouts: Sequence[str] = ()
    opaque: Sequence[str] = ()


def merge(layers: Sequence[Stacked], into: Path, check: Callable[[], None] = lambda: None) -> None:
    """Makes the tree of a stack.

    Args:
        layers: Lowest first.
        into: An empty folder.
        check: Called often; raises to end the work.

    Raises:
        OSError: It can't be written.
    """
    for layer in layers:
        for name in layer.opaque:
            folder = _inside(into, name)
            status = _status(folder) if folder is not None else None
            if folder is not None and status is not None and stat.S_ISDIR(status.st_mode):
                for inner in [*folder.iterdir()]:
                    remove_below(None, inner)
        for name in layer.whiteouts:
            path = _inside(into, name)
            if path is not None:
                remove_below(None, path)
        _lay(layer.folder, into, layer.folder.lstat(), check)


@contextlib.contextmanager
def _opened_up(folder: Path) -> Iterator[None]:
    """A folder that its owner may not read (an image's own doing), readable while the block lasts."""
    mode = stat.S_IMODE(folder.lstat().st_mode)
    if os.geteuid() == 0 or mode & 0o500 == 0o500:
        yield
        return
    folder.chmod(mode | 0o700)
    try:
        yield
    finally:
        folder.chmod(mode)


def _lay(layer: Path, into: Path, facts: os.stat_result, check: Callable[[], None]) -> None:
    """Lays one folder over another. Neither holds a link above a name that is used here: folders are entered as folders only."""
    check()
    with os.scandir(layer) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        target = into / entry.name
        status = _status(target)
        if entry.is_dir(follow_symlinks=False):
            if status is not None and not stat.S_ISDIR(status.st_mode):
                target.unlink()
                status = None
            if status is None:
                target.mkdir(0o700)
            elif status.st_mode & 0o700 != 0o700:
                target.chmod(0o700)
            inner = entry.stat(follow_symlinks=False)
            with _opened_up(Path(entry.path)):
                _lay(Path(entry.path), target, inner, check)
        else:
            if status is not None:
                remove_below(None, target)
            _link(entry.path, target)
    _like(layer, into, facts)


def _link(source: str, target: Path) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError as error:
        # The file has as many names as its file system allows.
        if error.errno != errno.EMLINK:
            raise
        _copy(source, target)


def _copy(source: str, target: Path) -> None:
    """The same once more, whatever it is."""
    status = os.lstat(source)
    if stat.S_ISREG(status.st_mode):
        shutil.copyfile(source, target)
    elif stat.S_ISLNK(status.st_mode):
        target.symlink_to(Path(source).readlink())
    else:
        os.mknod(target, status.st_mode, status.st_rdev)
    _like(Path(source), target, status)


def _like(source: Path, target: Path, status: os.stat_result) -> None:
    """Everything that is said of a file or folder but its content."""
    if (status.st_uid, status.st_gid) != (os.geteuid(), os.getegid()):
        os.chown(target, status.st_uid, status.st_gid, follow_symlinks=False)
    copy_attributes(source, target)
    if not stat.S_ISLNK(status.st_mode):
        target.chmod(stat.S_IMODE(status.st_mode))
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns), follow_symlinks=False)


def _inside(root: Path, name: str) -> Path | None:
    """A name below the tree, unless something on the way to it is a link or missing."""
    if name == ".":
        return root
    path = root
    *above, leaf = name.split("/")
    for part in above:
        path /= part
        status = _status(path)
        if status is None or not stat.S_ISDIR(status.st_mode):
            return None
    return path / leaf


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
