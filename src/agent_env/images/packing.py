"""Contexts as archives: byte for byte the same on every machine, streamed, and read back without leaving the folder."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import os
import posixpath
import shutil
import tarfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import IO

from agent_env.defaults import DEFAULT_LIMITS, KIB, Limits
from agent_env.errors import StorageError, TransferError, UserError
from agent_env.images.context import BuildContext, Entry, chunks_of

_BLOCK = 512
_RECORD = 20 * _BLOCK
"""Archives end on a multiple of this (POSIX)."""
_GATHERED = 256 * KIB


def tar_chunks(context: BuildContext) -> Iterator[bytes]:
    """The context as an uncompressed archive: sorted, no times, no owners, folders before what they hold.

    Raises:
        TransferError: A file has changed since the context was read.
    """
    size = 0
    for chunk in _members(context):
        size += len(chunk)
        yield chunk
    yield b"\0" * (2 * _BLOCK + -(size + 2 * _BLOCK) % _RECORD)


async def tar_stream(context: BuildContext) -> AsyncIterator[bytes]:
    """`tar_chunks`, read in a worker thread and gathered, so that many small files cost few turns.

    Raises:
        TransferError: A file has changed since the context was read.
    """
    chunks = tar_chunks(context)

    def gathered() -> bytes:
        parts, size = [], 0
        for chunk in chunks:
            parts.append(chunk)
            size += len(chunk)
            if size >= _GATHERED:
                break
        return b"".join(parts)

    while block := await asyncio.to_thread(gathered):
        yield block


def write(context: BuildContext, out: IO[bytes]) -> None:
    """The context as a compressed archive, as it is stored.

    Raises:
        TransferError: A file has changed since the context was read.
    """
    with gzip.GzipFile(filename="", mode="wb", fileobj=out, mtime=0) as packed:
        for chunk in tar_chunks(context):
            packed.write(chunk)


def extract(archive: Path, into: Path, *, limits: Limits = DEFAULT_LIMITS) -> None:
    """Unpacks a stored context into an empty folder: files, folders and links only. A link that leads outside is left out.

    Raises:
        UserError: A name leads outside of the folder, or the archive holds more than it may.
        StorageError: It is no archive, is cut off, or can't be written.
    """
    try:
        with tarfile.open(archive, "r:*") as stream:
            held = 0
            for member in stream:
                held += member.size
                if held > limits.image_layer_bytes:
                    raise UserError(f"the build context holds more than {limits.image_layer_bytes} bytes", concerns=str(archive))
                _extract_member(stream, member, into)
    except (tarfile.TarError, EOFError, gzip.BadGzipFile) as error:
        raise StorageError(f"the build context can't be unpacked: {error}", concerns=str(archive)) from error
    except OSError as error:
        raise StorageError(f"the build context can't be unpacked: {error.strerror or error}", concerns=str(archive)) from error


def _extract_member(stream: tarfile.TarFile, member: tarfile.TarInfo, into: Path) -> None:
    name = posixpath.normpath(member.name)
    if name == ".":
        return
    if name.startswith(("/", "../")) or name == "..":
        raise UserError(f"the build context holds {member.name!r}, which leads outside of it")
    target = into / name
    if any(parent.is_symlink() for parent in target.parents if parent.is_relative_to(into) and parent != into):
        raise UserError(f"the build context holds {member.name!r} below a link")
    target.parent.mkdir(parents=True, exist_ok=True)
    if member.isdir():
        target.mkdir(exist_ok=True)
    elif member.issym():
        if not _leads_outside(name, member.linkname):
            target.unlink(missing_ok=True)
            target.symlink_to(member.linkname)
    elif member.isfile():
        source = stream.extractfile(member)
        if source is not None:
            target.unlink(missing_ok=True)
            with open(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
                shutil.copyfileobj(source, file)
            target.chmod(0o755 if member.mode & 0o100 else 0o644)


def _leads_outside(name: str, target: str) -> bool:
    landed = posixpath.normpath(posixpath.join(posixpath.dirname(name), target))
    return landed.startswith(("/", "../")) or landed == ".."


def _members(context: BuildContext) -> Iterator[bytes]:
    made: set[str] = set()
    for entry in context.entries:
        for folder in _parents(entry.name):
            if folder not in made:
                made.add(folder)
                yield _header(f"{folder}/", tarfile.DIRTYPE, 0o755)
        if entry.target is not None:
            yield _header(entry.name, tarfile.SYMTYPE, 0o777, target=entry.target)
        else:
            yield _header(entry.name, tarfile.REGTYPE, entry.mode, size=entry.size)
            yield from _content(entry)


def _content(entry: Entry) -> Iterator[bytes]:
    digest, size = hashlib.sha256(), 0
    try:
        for chunk in chunks_of(entry.path):
            size += len(chunk)
            if size > entry.size:
                break
            digest.update(chunk)
            yield chunk
    except OSError as error:
        raise TransferError(f"{entry.name} can't be read any more: {error.strerror}", concerns=str(entry.path)) from error
    if size != entry.size or digest.hexdigest() != entry.sha256:
        raise TransferError(
            f"{entry.name} changed while it was packed", concerns=str(entry.path), hint="try again when nothing writes to the context"
        )
    yield b"\0" * (-size % _BLOCK)


def _parents(name: str) -> list[str]:
    parts = name.split("/")[:-1]
    return ["/".join(parts[: i + 1]) for i in range(len(parts))]


def _header(name: str, kind: bytes, mode: int, *, size: int = 0, target: str = "") -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.size, info.linkname, info.mtime = kind, mode, size, target, 0
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
