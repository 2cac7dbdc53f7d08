"""Objects that are written aside and not yet published: what a store of files needs to know about writing, whatever it keeps.

A file becomes an object only once it is whole and on the disk; until then nobody finds it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from agent_env.defaults import MIB
from agent_env.errors import NotFoundError, StorageError

SCHEME = "sha256:"
_CHUNK_BYTES = MIB
_ONE_BY_ONE = 4
"""Up to so many files are synced each; syncing a file system costs about as much as a few files."""


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """A stored object."""

    sha256: str
    size: int
    media_type: str

    @property
    def url(self) -> str:
        """`sha256:<hex>`."""
        return SCHEME + self.sha256


class Batch:
    """Objects that are written, and not yet published. Made by `Objects.batch`."""

    def __init__(self, folder: Path, has: Callable[[ObjectRef], bool]) -> None:
        self._folder = folder
        self._has = has
        self.asides: list[Path] = []
        """Every file that was begun."""
        self.written: list[tuple[Path, ObjectRef]] = []
        """Those that are whole."""

    def put(self, data: bytes, *, media_type: str = "application/octet-stream") -> ObjectRef:
        """Like `Objects.put`."""
        ref = ObjectRef(hashlib.sha256(data).hexdigest(), len(data), media_type)

        def fill(aside: BinaryIO) -> ObjectRef:
            aside.write(data)
            return ref

        return ref if self._has(ref) else self._write(fill)

    def put_file(self, path: Path, *, media_type: str = "application/octet-stream") -> ObjectRef:
        """Like `Objects.put_file`."""

        def copy(aside: BinaryIO) -> ObjectRef:
            digest = hashlib.sha256()
            size = 0
            while chunk := source.read(_CHUNK_BYTES):
                digest.update(chunk)
                aside.write(chunk)
                size += len(chunk)
            return ObjectRef(digest.hexdigest(), size, media_type)

        with storage_errors(path, "file"), path.open("rb") as source:
            return self._write(copy)

    def _write(self, fill: Callable[[BinaryIO], ObjectRef]) -> ObjectRef:
        aside = self._folder / os.urandom(12).hex()
        with storage_errors(self._folder):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.asides.append(aside)
            with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as stream:
                ref = fill(stream)
        self.written.append((aside, ref))
        return ref


def sync(paths: Sequence[Path]) -> None:
    """Waits until files and folders are on the disk: one by one, or their whole file system at once when they are many."""
    if len(paths) > _ONE_BY_ONE and _sync_file_system(paths[0]):
        return
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _sync_file_system(path: Path) -> bool:
    import ctypes

    syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return syncfs is not None and syncfs(descriptor) == 0
    finally:
        os.close(descriptor)


@contextmanager
def storage_errors(path: Path, what: str = "stored object") -> Iterator[None]:
    """What the file system refuses, in our words."""
    try:
        yield
    except FileNotFoundError as error:
        raise NotFoundError(f"there is no {what} {error.filename or path}", concerns=str(path)) from error
    except OSError as error:
        where = error.filename or path
        raise StorageError(
            f"{where} can't be read or written: {error.strerror}", concerns=str(where), hint="free space, or check permissions"
        ) from error
