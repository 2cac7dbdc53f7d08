"""Copying between this machine and a place. Names that come out of a place are hostile until they are checked."""

from __future__ import annotations

import shlex
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from agent_env.errors import NotFoundError, TransferError, UsageError

if TYPE_CHECKING:
    from agent_env.places import Entry, Place, Upload

BATCH_FILES = 256


@dataclass(frozen=True, slots=True)
class Remote:
    """A path in a place of a run."""

    target: str
    """`RUN` or `RUN:SANDBOX`."""
    path: PurePosixPath
    is_folder: bool
    """It was written with a slash at its end."""


@dataclass(frozen=True, slots=True)
class Copied:
    """What a copy did."""

    files: int
    bytes: int
    skipped: tuple[str, ...] = ()
    """Devices, sockets, links that lead nowhere: not copied."""


def side(text: str) -> Remote | Path:
    """`RUN:/path` or `RUN:SANDBOX:/path` is in a place; everything else, and whatever starts with `.` or `/`, is on this machine."""
    target, colon, path = text.rpartition(":/")
    if not colon or not target or text.startswith((".", "/", "~")) or "/" in target:
        return Path(text).expanduser()
    return Remote(target, PurePosixPath("/" + path), path == "" or path.endswith("/"))


async def copy_out(place: Place, remote: Remote, destination: Path) -> Copied:
    """Copies a file, or a folder with all its files, out of a place."""
    from agent_env.places import FileKind, Missing

    top = (await place.stat([remote.path]))[remote.path]
    if isinstance(top, Missing):
        raise NotFoundError(
            f"{remote.target}:{remote.path} can't be read ({top.reason})",
            hint=f"agent-env exec {remote.target} -- ls -la {shlex.quote(str(remote.path.parent))}",
        )
    inside = _inside(destination, remote.path.name)
    if top.kind is not FileKind.DIRECTORY:
        return await _fetch(place, {remote.path: inside}, {remote.path: top})
    wanted: dict[PurePosixPath, Path] = {}
    entries: dict[PurePosixPath, Entry] = {}
    skipped: list[str] = []
    async for entry in place.walk(remote.path):
        local = inside / _relative(entry.path, remote.path)
        if entry.kind is FileKind.DIRECTORY:
            local.mkdir(parents=True, exist_ok=True)
        elif entry.kind is FileKind.OTHER:
            skipped.append(str(entry.path))
        else:
            wanted[entry.path], entries[entry.path] = local, entry
    inside.mkdir(parents=True, exist_ok=True)
    copied = await _fetch(place, wanted, entries)
    return Copied(copied.files, copied.bytes, (*skipped, *copied.skipped))


async def copy_in(place: Place, source: Path, remote: Remote) -> Copied:
    """Copies a file, or a folder with all its files, into a place."""
    from agent_env.places import Entry, FileKind

    there = (await place.stat([remote.path]))[remote.path]
    into_folder = remote.is_folder or (isinstance(there, Entry) and there.kind is FileKind.DIRECTORY)
    uploads = _uploads(source, remote.path, into_folder=into_folder)
    await place.put(uploads)
    files = [upload.source for upload in uploads if isinstance(upload.source, Path)]
    return Copied(len(files), sum(file.stat().st_size for file in files))


async def _fetch(place: Place, wanted: dict[PurePosixPath, Path], entries: dict[PurePosixPath, Entry]) -> Copied:
    from agent_env.places import Missing

    paths, size, skipped = list(wanted), 0, []
    for start in range(0, len(paths), BATCH_FILES):
        batch = paths[start : start + BATCH_FILES]
        with tempfile.TemporaryDirectory(prefix="agent-env-cp-") as staging:
            found = await place.get(batch, Path(staging))
            for path in batch:
                here = found[path]
                if isinstance(here, Missing):
                    skipped.append(f"{path} ({here.reason})")
                    continue
                size += here.stat().st_size
                here.chmod(entries[path].mode & 0o777 or 0o644)
                _move(here, wanted[path])
    return Copied(len(paths) - len(skipped), size, tuple(skipped))


def _move(here: Path, to: Path) -> None:
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        if to.is_symlink():
            to.unlink()  # a link is replaced, never written through
        shutil.move(here, to)
    except OSError as error:
        raise TransferError(f"{to} can't be written: {error.strerror}") from error


def _relative(path: PurePosixPath, root: PurePosixPath) -> PurePosixPath:
    try:
        relative = path.relative_to(root)
    except ValueError as error:
        raise TransferError(f"the place listed {path}, which is not below {root}") from error
    if ".." in relative.parts or "\0" in str(relative):
        raise TransferError(f"the place listed {path}, which leads outside of {root}")
    return relative


def _inside(destination: Path, name: str) -> Path:
    return destination / name if destination.is_dir() and name else destination


def _uploads(source: Path, base: PurePosixPath, *, into_folder: bool) -> list[Upload]:
    from agent_env.places import Upload

    if not source.exists():
        raise NotFoundError(f"{source} does not exist")
    if into_folder:
        base /= source.resolve().name
    if source.is_file():
        return [Upload(base, source)]
    if not source.is_dir():
        raise UsageError(f"{source} is neither a file nor a folder")
    found = [path for path in sorted(source.rglob("*")) if path.is_file() or path.is_dir()]
    below = [Upload(base / path.relative_to(source).as_posix(), path if path.is_file() else None) for path in found]
    return [Upload(base, None), *below]
