"""Content-addressed objects: a file's name is the sha256 of what it holds, so it is never changed and never stored twice.

Files are written aside, synced and renamed; what is read is verified. What nothing refers to is collected after a grace period.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from agent_env.clock import timestamp
from agent_env.defaults import DEFAULT_LIMITS
from agent_env.errors import NotFoundError, StorageError, UnsupportedError
from agent_env.stores.batches import SCHEME, Batch, ObjectRef, storage_errors, sync

if TYPE_CHECKING:
    from agent_env.stores.database import Database

_HEX = re.compile(r"[0-9a-f]{64}")
OLDER_FOLDER = "object_store"
"""Beside our own objects: where the published system keeps its."""
_ASIDE = ".aside"
_DAMAGED = ".damaged"
_LOCK = ".lock"


@dataclass(frozen=True, slots=True)
class Freed:
    """What a collection removed."""

    objects: int
    size_bytes: int


class Objects:
    """Objects under one folder of this machine. Threads and processes may share it.

    Args:
        root: The folder; made on the first write.
        db: Where media types are kept; None keeps none.
    """

    def __init__(self, root: Path, db: Database | None = None) -> None:
        self._root = root
        self._older = root.with_name(OLDER_FOLDER)
        self._db = db
        self._verified: dict[str, tuple[int, int, int]] = {}

    def put(self, data: bytes, *, media_type: str = "application/octet-stream") -> ObjectRef:
        """Stores bytes. What is stored already is not written again.

        Raises:
            StorageError: The disk is full or can't be written. Nothing half-written stays.
        """
        ref = ObjectRef(hashlib.sha256(data).hexdigest(), len(data), media_type)
        if not self._has(ref):
            with self.batch() as batch:
                batch.put(data, media_type=media_type)
        return ref

    def put_file(self, path: Path, *, media_type: str = "application/octet-stream") -> ObjectRef:
        """Stores a file's content, in constant memory.

        Raises:
            NotFoundError: There is no such file.
            StorageError: The disk is full, can't be written, or the file can't be read.
        """
        with self.batch() as batch:
            return batch.put_file(path, media_type=media_type)

    @contextmanager
    def batch(self) -> Iterator[Batch]:
        """Many objects that become durable together, in the time of a few: they exist once the block has ended, or not at all.

        Raises:
            StorageError: The disk is full or can't be written.
        """
        batch = Batch(self._root / _ASIDE, self._has)
        try:
            yield batch
            self._publish(batch.written)
        finally:
            with storage_errors(self._root):
                for aside in batch.asides:
                    aside.unlink(missing_ok=True)

    def read(self, ref: ObjectRef | str) -> bytes:
        """The bytes, verified.

        Raises:
            NotFoundError: There is no such object.
            StorageError: It is damaged (it was set aside), or can't be read.
        """
        sha256 = _address(ref)
        if sha256 is None:
            return self._read_file(self._foreign(ref))
        data = self._read_file(self._file(sha256))
        if hashlib.sha256(data).hexdigest() != sha256:
            raise self._set_aside(sha256)
        return data

    def path(self, ref: ObjectRef | str) -> Path:
        """The file that holds it, verified. Nobody may write to it.

        Raises:
            NotFoundError: There is no such object.
            StorageError: It is damaged (it was set aside), or can't be read.
        """
        sha256 = _address(ref)
        if sha256 is None:
            path = self._foreign(ref)
            if not path.is_file():
                raise NotFoundError(f"there is no file {path}", concerns=str(path))
            return path
        path = self._file(sha256)
        with storage_errors(path):
            facts = path.stat()
            seen = (facts.st_ino, facts.st_size, facts.st_mtime_ns)
            if self._verified.get(sha256) == seen:
                return path
            with path.open("rb") as stored:
                found = hashlib.file_digest(stored, "sha256").hexdigest()
        if found != sha256:
            raise self._set_aside(sha256)
        self._verified[sha256] = seen
        return path

    def open(self, ref: ObjectRef | str) -> BinaryIO:
        """The object as a file to read, verified before."""
        path = self.path(ref)
        with storage_errors(path):
            return path.open("rb")

    def exists(self, ref: ObjectRef | str) -> bool:
        """Whether it is here. It is not verified."""
        sha256 = _address(ref)
        return (self._foreign(ref) if sha256 is None else self._file(sha256)).is_file()

    def size(self, ref: ObjectRef | str) -> int:
        """Its size in bytes."""
        sha256 = _address(ref)
        path = self._foreign(ref) if sha256 is None else self._file(sha256)
        with storage_errors(path):
            return path.stat().st_size

    def media_type(self, ref: ObjectRef | str) -> str | None:
        """What it was first stored as; None when that is not known."""
        sha256 = _address(ref)
        if self._db is None or sha256 is None:
            return None
        rows = self._db.read(lambda tx: tx.execute("SELECT media_type FROM objects WHERE sha256 = :sha256", {"sha256": sha256}))
        return str(rows[0].media_type) if rows else None

    def collect(self, live: Iterable[str], *, grace_seconds: float | None = None, dry_run: bool = False) -> Freed:
        """Removes what nothing refers to and nobody stored or asked for lately.

        Args:
            live: Urls or digests of what is referred to.
            grace_seconds: What was written, or stored again, less long ago than this stays; None is `Limits.gc_grace_seconds`.
            dry_run: Only counts.
        """
        if grace_seconds is None:
            grace_seconds = (self._db.limits if self._db else DEFAULT_LIMITS).gc_grace_seconds
        kept = {url.removeprefix(SCHEME) for url in live}
        gone = [sha256 for sha256 in self._stored() if sha256 not in kept]
        removed: dict[str, int] = {}
        for sha256 in gone:
            size = self._remove(self._file(sha256), grace_seconds, dry_run)
            if size is not None:
                removed[sha256] = size
        if not dry_run:
            for aside in self._children(self._root / _ASIDE):
                self._remove(aside, grace_seconds, dry_run)
            self._forget(removed)
        return Freed(len(removed), sum(removed.values()))

    # Below: one object at a time

    def _has(self, ref: ObjectRef) -> bool:
        """Whether it is stored; if so it counts as new from now on, which keeps a collection away from it."""
        with self._lock(fcntl.LOCK_SH), suppress(FileNotFoundError):
            path = self._file(ref.sha256)
            if path.stat().st_size == ref.size:
                os.utime(path)
                return True
        return False

    def _publish(self, written: Sequence[tuple[Path, ObjectRef]]) -> None:
        new = {ref.sha256: (aside, ref) for aside, ref in written if not self._has(ref)}
        if not new:
            return
        with storage_errors(self._root):
            sync([aside for aside, _ in new.values()])
            folders = {self._file(sha256).parent for sha256 in new}
            made = {folder for folder in folders if not folder.is_dir()}
            for folder in made:
                folder.mkdir(mode=0o700, exist_ok=True)
            for sha256, (aside, _) in new.items():
                with self._lock(fcntl.LOCK_SH):
                    aside.rename(self._file(sha256))
            sync([*folders, *([self._root] if made else [])])
        self._note([ref for _, ref in new.values()])

    def _note(self, refs: Sequence[ObjectRef]) -> None:
        if self._db is None:
            return
        now = timestamp(self._db.clock.now())
        rows = [{"sha256": ref.sha256, "size": ref.size, "media_type": ref.media_type, "now": now} for ref in refs]
        self._db.submit(lambda tx: tx.executemany(_NOTE, rows))

    def _remove(self, path: Path, grace_seconds: float, dry_run: bool) -> int | None:
        with self._lock(fcntl.LOCK_EX), storage_errors(path), suppress(FileNotFoundError):
            facts = path.stat()
            if _now(self._root) - facts.st_mtime < grace_seconds:
                return None
            if not dry_run:
                path.unlink()
            return facts.st_size
        return None

    def _forget(self, removed: Mapping[str, int]) -> None:
        for sha256 in removed:
            self._verified.pop(sha256, None)
        if self._db is not None and removed:
            rows = [{"sha256": sha256} for sha256 in removed]
            self._db.write(lambda tx: tx.executemany("DELETE FROM objects WHERE sha256 = :sha256", rows))

    def _set_aside(self, sha256: str) -> StorageError:
        self._verified.pop(sha256, None)
        damaged = self._root / _DAMAGED / sha256
        with self._lock(fcntl.LOCK_EX), storage_errors(damaged), suppress(FileNotFoundError):
            damaged.parent.mkdir(mode=0o700, exist_ok=True)
            with self._file(sha256).open("rb") as stored:  # somebody may have stored it anew since it was read
                found = hashlib.file_digest(stored, "sha256").hexdigest()
            if found != sha256:
                self._file(sha256).rename(damaged)
        return StorageError(
            f"object {SCHEME}{sha256} is damaged: its content does not match its name",
            concerns=SCHEME + sha256,
            hint=f"it was set aside as {damaged}; store the file again, or repeat the step that made it",
        )

    def _stored(self) -> Iterator[str]:
        for folder in self._children(self._root):
            if len(folder.name) == 2:
                yield from (sha256 for file in self._children(folder) if _HEX.fullmatch(sha256 := folder.name + file.name))

    def _children(self, folder: Path) -> list[Path]:
        with storage_errors(folder):
            return sorted(folder.iterdir()) if folder.is_dir() else []

    def _file(self, sha256: str) -> Path:
        return self._root / sha256[:2] / sha256[2:]

    def _foreign(self, ref: ObjectRef | str) -> Path:
        """The file that a `file://` address names, links followed. Documents and tasks hold such addresses, and are other people's: only
        what the published system has stored in this state folder is read by them, and no other file of this machine.
        """
        from urllib.parse import unquote_to_bytes, urlsplit

        name = os.fsdecode(unquote_to_bytes(urlsplit(str(ref)).path))
        path = Path(os.path.realpath(name.replace("\0", "")))
        if not path.is_relative_to(os.path.realpath(self._older)):
            raise UnsupportedError(
                f"object {ref!r} is a file of this machine outside of {self._older}, which no task or document may read",
                concerns=str(ref),
                hint="store the file as an artifact, or give its text itself",
            )
        return path

    def _read_file(self, path: Path) -> bytes:
        with storage_errors(path):
            return path.read_bytes()

    @contextmanager
    def _lock(self, mode: int) -> Iterator[None]:
        with storage_errors(self._root):
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(self._root / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, mode)
            yield
        finally:
            os.close(lock)


def _address(ref: ObjectRef | str) -> str | None:
    """The digest that a reference names; None when it names a file elsewhere.

    Raises:
        UnsupportedError: It is of a kind that is not stored here.
    """
    if isinstance(ref, ObjectRef):
        return ref.sha256
    text = ref.removeprefix(SCHEME)
    if _HEX.fullmatch(text):
        return text
    if ref.startswith("file://"):
        return None
    raise UnsupportedError(f"object {ref!r} is not in this store", concerns=ref, hint="sha256:<64 hexadecimal digits>")


def _now(root: Path) -> float:
    """The file system's own clock: the one that modification times are set by, also on a server elsewhere."""
    probe = root / _LOCK
    os.utime(probe)
    return probe.stat().st_mtime


_NOTE = "INSERT INTO objects (sha256, size, media_type, created_at) VALUES (:sha256, :size, :media_type, :now) ON CONFLICT DO NOTHING"
