"""Copying between this machine and a place. Names that come out of a place are hostile until they are checked."""

from __future__ import annotations

import errno
import os
import shlex
import shutil
import tempfile
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from agent_env.cli.output import reader_left, write_bytes
from agent_env.cli.terminal import standard_input
from agent_env.errors import NotFoundError, TransferError, UsageError

if TYPE_CHECKING:
    from agent_env.places import Entry, Place, Upload

BATCH_FILES = 256
STREAM_BYTES = 1 << 20
NEW_FILE_MODE = 0o644
OTHERS_WRITE = 0o022
"""Taken off what comes out of a place: on this machine, nobody else writes to it."""
LINK_MODE = 0o755
"""A link has no permissions of its own; what it leads to may be a program."""


@dataclass(frozen=True, slots=True)
class Remote:
    """A path in a place of a run."""

    target: str
    """`RUN` or `RUN:PLACE`."""
    path: PurePosixPath
    is_folder: bool
    """It was written with a slash at its end."""


@dataclass(frozen=True, slots=True)
class Copied:
    """What a copy did."""

    files: int
    bytes: int
    skipped: tuple[str, ...] = ()
    """Devices, sockets, links that lead nowhere or out of what is copied, and what can't be read: not copied."""


class Standard:
    """This process's standard input or output, written `-`."""


def side(text: str) -> Remote | Path | Standard:
    """`RUN:/path` or `RUN:PLACE:/path` is in a place, `-` a stream; all else, and whatever starts with `.` or `/`, is on this machine."""
    if text == "-":
        return Standard()
    target, colon, path = text.rpartition(":/")
    if not colon or not target or text.startswith((".", "/", "~")) or "/" in target:
        return Path(text).expanduser()
    return Remote(target, PurePosixPath("/" + path), path == "" or path.endswith("/"))


async def copy_out(place: Place, remote: Remote, destination: Path) -> Copied:
    """Copies a file, or a folder with all its files, out of a place."""
    from agent_env.places import FileKind

    top = await _there(place, remote)
    inside = _inside(destination, remote.path.name)
    if top.kind is not FileKind.DIRECTORY:
        copied = await _fetch(place, {remote.path: inside}, {remote.path: top})
        if copied.skipped:
            raise TransferError(f"{remote.target}:{copied.skipped[0]} can't be copied")
        return copied
    wanted: dict[PurePosixPath, Path] = {}
    entries: dict[PurePosixPath, Entry] = {}
    skipped: list[str] = []
    async for entry in place.walk(remote.path, unreadable=lambda missing: skipped.append(f"{missing.path} ({missing.reason})")):
        local = inside / _relative(entry.path, remote.path)
        if entry.kind is FileKind.DIRECTORY:
            try:
                local.mkdir(parents=True, exist_ok=True)
            except OSError as error:  # a name or a path that this machine can't have, or a file in its place
                skipped.append(f"{entry.path} ({error.strerror})")
        elif entry.kind is FileKind.OTHER:
            skipped.append(str(entry.path))
        else:
            wanted[entry.path], entries[entry.path] = local, entry
    try:
        inside.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TransferError(f"{inside} can't be written: {error.strerror}") from error
    copied = await _fetch(place, wanted, entries)
    return Copied(copied.files, copied.bytes, (*skipped, *copied.skipped))


async def write_out(place: Place, remote: Remote) -> None:
    """Writes a file's bytes on standard output."""
    from agent_env.places import FileKind

    if (await _there(place, remote)).kind is FileKind.DIRECTORY:
        raise UsageError(
            f"{remote.target}:{remote.path} is a folder; only a file can go to standard output", hint="name a folder instead of -"
        )
    with tempfile.TemporaryDirectory(prefix="agent-env-cp-") as staging:
        found = (await place.get([remote.path], Path(staging)))[remote.path]
        if not isinstance(found, Path):
            raise NotFoundError(f"{remote.target}:{remote.path} can't be read ({found.reason})")
        with found.open("rb") as file:
            while (data := file.read(STREAM_BYTES)) and not reader_left():
                write_bytes(data)


async def read_in(place: Place, remote: Remote) -> Copied:
    """Writes standard input into a file of a place, once all of it was read."""
    from agent_env.places import Upload

    if remote.is_folder:
        raise UsageError(
            "standard input has no name: say the file that it becomes", hint=f"agent-env cp - {remote.target}:{remote.path}/NAME"
        )
    with tempfile.NamedTemporaryFile(prefix="agent-env-cp-") as staged:
        async with aclosing(standard_input()) as typed:
            async for data in typed:
                staged.write(data)
        staged.flush()
        await place.put([Upload(remote.path, Path(staged.name), mode=NEW_FILE_MODE)])
        return Copied(1, staged.tell())


async def _there(place: Place, remote: Remote) -> Entry:
    from agent_env.places import Missing

    top = (await place.stat([remote.path]))[remote.path]
    if isinstance(top, Missing):
        raise NotFoundError(
            f"{remote.target}:{remote.path} can't be read ({top.reason})",
            hint=f"agent-env exec {remote.target} -- ls -la {shlex.quote(str(remote.path.parent))}",
        )
    return top


async def copy_in(place: Place, source: Path, remote: Remote) -> Copied:
    """Copies a file, or a folder with all its files, into a place."""
    from agent_env.places import Entry, FileKind

    there = (await place.stat([remote.path]))[remote.path]
    into_folder = remote.is_folder or (isinstance(there, Entry) and there.kind is FileKind.DIRECTORY)
    uploads, skipped = _uploads(source, remote.path, into_folder=into_folder)
    await place.put(uploads)
    files = [upload.source for upload in uploads if isinstance(upload.source, Path)]
    return Copied(len(files), sum(file.stat().st_size for file in files), tuple(skipped))


async def _fetch(place: Place, wanted: dict[PurePosixPath, Path], entries: dict[PurePosixPath, Entry]) -> Copied:
    from agent_env.places import FileKind, Missing

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
                mode = LINK_MODE if entries[path].kind is FileKind.LINK else entries[path].mode & 0o777 & ~OTHERS_WRITE
                here.chmod(mode or NEW_FILE_MODE)
                if why := _move(here, wanted[path]):
                    skipped.append(f"{path} ({why})")
    return Copied(len(paths) - len(skipped), size, tuple(skipped))


def _move(here: Path, to: Path) -> str | None:
    """Puts a file where it belongs. Returns why it can't stand there on this machine, if so."""
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        if to.is_symlink():
            to.unlink()  # a link is replaced, never written through
        shutil.move(here, to)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return error.strerror
        raise TransferError(f"{to} can't be written: {error.strerror}") from error
    return None


def _relative(path: PurePosixPath, root: PurePosixPath) -> PurePosixPath:
    try:
        relative = path.relative_to(root)
    except ValueError as error:
        raise TransferError(f"the place listed {path}, which is not below {root}") from error
    if ".." in relative.parts or "\0" in str(relative):
        raise TransferError(f"the place listed {path}, which leads outside of {root}")
    return relative


def _inside(destination: Path, name: str) -> Path:
    return destination / name if destination.is_dir() and name not in {"", ".."} else destination


def _uploads(source: Path, base: PurePosixPath, *, into_folder: bool) -> tuple[list[Upload], list[str]]:
    """What to write, and what of a folder is left out, with the reason.

    A link is written as what it leads to as long as that lies in the folder: a place is another's, and the files of this user are not.
    """
    from agent_env.places import Upload

    if not source.exists():
        raise NotFoundError(f"{source} does not exist")
    if into_folder:
        base /= Path(os.path.realpath(source)).name
    if source.is_file():
        return [Upload(base, source)], []
    if not source.is_dir():
        raise UsageError(f"{source} is neither a file nor a folder")
    uploads, skipped = [Upload(base, None)], []
    top = source.resolve()
    for folder, folders, files in os.walk(source, onerror=lambda error: skipped.append(f"{error.filename} ({error.strerror})")):
        folders.sort()
        for path in sorted(Path(folder, name) for name in (*folders, *files)):
            why = _left_out(path, top)
            if why:
                skipped.append(f"{path} ({why})")
                continue
            uploads.append(Upload(base / path.relative_to(source).as_posix(), None if path.is_dir() else path))
    return uploads, skipped


def _left_out(path: Path, top: Path) -> str | None:
    if path.is_symlink():
        if not path.exists():
            return "a link that leads nowhere"
        if not path.resolve().is_relative_to(top):
            return "a link that leads out of the folder"
        if path.is_dir():
            return "a link to a folder"
    return None if path.is_file() or path.is_dir() else "neither a file nor a folder"
