"""File work in a helper's place: many paths a round trip, streamed, checked by sha256, bounded in memory.

A worker in the place reads records and answers with records; both directions are windows of one stream.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path, PurePosixPath
from struct import Struct
from typing import BinaryIO

from agent_env.defaults import MIB, Limits
from agent_env.errors import TransferError
from agent_env.places.helper import protocol
from agent_env.places.helper.connection import Connection
from agent_env.places.helper.cutting import Cutter, NoFrameError
from agent_env.places.helper.protocol import HEAD, FileFlag, Frame, Key, Operation, Record
from agent_env.places.helper.worker import Worker
from agent_env.places.place import Entry, Missing, Upload
from agent_env.waiting import deadline

_PIECE = protocol.CHUNK - HEAD.size
_BLOCK = MIB
"""What is read, hashed or written here at a time, off the event loop."""

_TARGET = Struct("<II")
"""Before the path of what is written: its mode, and in how many bytes of the path links are followed."""
_WHOLE = 0xFFFFFFFF
_ROOT = PurePosixPath("/")

Item = tuple[int, int, bytes]


class FileWork(Worker):
    """A worker that is asked with records and answers with records."""

    def __init__(self, connection: Connection, operation: Operation, limits: Limits, pairs: Iterable[tuple[Key, bytes]]) -> None:
        head = (Key.OPERATION, protocol.u64(operation)), (Key.TIMEOUT_MS, protocol.milliseconds(limits.transfer_seconds))
        super().__init__(connection, Frame.FILES, operation.name.lower(), limits, *head, *pairs)

    async def answers(self) -> AsyncIterator[Item]:
        """Records as they come, until the worker has ended.

        Raises:
            TransferError: It broke off.
        """
        records = Cutter()
        while piece := await self.receive():
            try:
                for item in records.cut(piece):
                    yield item
            except NoFrameError:
                raise TransferError(f"{self.what} broke off: what arrived is no record", concerns=self._connection.concerns) from None


Feed = Callable[[FileWork], Awaitable[None]]


async def _fed(work: FileWork, feed: Feed) -> None:
    try:
        await feed(work)
    except OSError as error:
        work.abandon(TransferError(f"{error.filename or 'a local file'} can't be read here: {error.strerror}"))
    else:
        work.finish()


@asynccontextmanager
async def _working(
    connection: Connection, operation: Operation, limits: Limits, feed: Feed, *pairs: tuple[Key, bytes]
) -> AsyncIterator[FileWork]:
    """A worker that is fed while its answers are read; ended whatever happens, and bounded as a whole."""
    work = FileWork(connection, operation, limits, pairs)
    feeder = asyncio.ensure_future(_fed(work, feed))
    try:
        async with deadline(limits.transfer_seconds + limits.answer_margin_seconds, work.what):
            yield work
            await feeder
    finally:
        feeder.cancel()
        await work.stop()
        await asyncio.wait([feeder])
        if not feeder.cancelled():
            feeder.exception()  # marks it as seen: what failed first is on its way to the caller


def _asking(paths: Sequence[PurePosixPath]) -> Feed:
    """Asks for paths by their index."""

    async def feed(work: FileWork) -> None:
        await work.send(b"".join([protocol.frame(Record.PATH, index, protocol.raw(path)) for index, path in enumerate(paths)]))

    return feed


def _error_of(payload: bytes) -> int:
    return int.from_bytes(payload[:4], "little")


# looking


async def stat(
    connection: Connection, paths: Sequence[PurePosixPath], limits: Limits, *, follow: bool, digest: bool
) -> Mapping[PurePosixPath, Entry | Missing]:
    """See `Place.stat`."""
    found: dict[PurePosixPath, Entry | Missing] = {}
    flags = (FileFlag.FOLLOW if follow else 0) | (FileFlag.DIGEST if digest else 0)
    if not paths:
        return found
    async with _working(connection, Operation.STAT, limits, _asking(paths), (Key.FLAGS, protocol.u64(flags))) as work:
        async for kind, index, payload in work.answers():
            path = paths[index]
            if kind == Record.ENTRY:
                found[path] = protocol.entry(payload, path, named=False)
            else:
                found[path] = Missing(path, protocol.errno_name(_error_of(payload)))
    _complete(found, paths, connection)
    return found


async def walk(
    connection: Connection, root: PurePosixPath, limits: Limits, *, digest: bool, unreadable: Callable[[Missing], None] | None = None
) -> AsyncIterator[Entry]:
    """See `Place.walk`."""
    flags = FileFlag.DIGEST if digest else 0
    async with _working(connection, Operation.WALK, limits, _asking([root]), (Key.FLAGS, protocol.u64(flags))) as work:
        async for kind, _, payload in work.answers():
            if kind == Record.ENTRY:
                yield protocol.entry(payload, root)
            elif kind == Record.ERROR and (len(payload) == 4 or _error_of(payload) != errno.ENOENT):
                where = root / protocol.text(payload[4:]) if len(payload) > 4 else root
                if unreadable is not None:
                    unreadable(Missing(where, protocol.errno_name(_error_of(payload))))
                    continue
                raise TransferError(f"{where} can't be listed: {protocol.reason(_error_of(payload))}", concerns=connection.concerns)


async def remove(connection: Connection, paths: Sequence[PurePosixPath], limits: Limits) -> None:
    """See `Place.remove`."""
    failed: list[str] = []
    if not paths:
        return
    async with _working(connection, Operation.REMOVE, limits, _asking(paths)) as work:
        async for kind, index, payload in work.answers():
            if kind == Record.ERROR:
                failed.append(f"{paths[index]} can't be removed: {protocol.reason(_error_of(payload))}")
    _raise_first(failed, connection)


def _complete(found: Mapping[PurePosixPath, object], paths: Sequence[PurePosixPath], connection: Connection) -> None:
    if len(found) != len(set(paths)):
        raise TransferError(f"{connection.concerns} answered for {len(found)} of {len(set(paths))} paths", concerns=connection.concerns)


def _raise_first(failed: Sequence[str], connection: Connection) -> None:
    if failed:
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        raise TransferError(f"{failed[0]}{more}", concerns=connection.concerns)


# reading


class _Sink:
    """Where one file's bytes go: memory, or a fresh file of ours. Hashes as it goes."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._file: BinaryIO | None = None
        self._waiting: list[bytes] = []
        self._size = 0
        self._sum = hashlib.sha256()

    async def add(self, piece: bytes) -> None:
        self._waiting.append(piece)
        self._size += len(piece)
        if self.path is not None and self._size >= _BLOCK:
            await asyncio.to_thread(self._flush)

    def _flush(self) -> None:
        if self._file is None and self.path is not None:
            self._file = self.path.open("xb")
        for piece in self._waiting:
            self._sum.update(piece)
            if self._file is not None:
                self._file.write(piece)
        if self._file is not None:
            self._waiting.clear()
            self._size = 0

    def finish(self, expected: bytes) -> bytes:
        """The bytes, if they went to memory.

        Raises:
            TransferError: They are not what the place read.
        """
        self._flush()
        self.close()
        if self._sum.digest() != expected:
            raise TransferError("the bytes that arrived are not those that were sent (sha256 differs)")
        return b"".join(self._waiting)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def discard(self) -> None:
        self.close()
        if self.path is not None:
            self.path.unlink(missing_ok=True)


async def _reading(
    connection: Connection, paths: Sequence[PurePosixPath], limit: int | None, limits: Limits, sink_of: Callable[[], _Sink]
) -> AsyncGenerator[tuple[PurePosixPath, _Sink, bytes | Missing], None]:
    """Reads files one after the other; the worker answers in the order of the question."""
    pairs = [] if limit is None else [(Key.FILE_LIMIT, protocol.u64(limit))]
    sink = sink_of()
    try:
        async with _working(connection, Operation.READ, limits, _asking(paths), *pairs) as work:
            async for kind, index, payload in work.answers():
                if kind == Record.DATA:
                    await sink.add(payload)
                elif kind == Record.DONE:
                    yield paths[index], sink, sink.finish(payload)
                    sink = sink_of()
                else:
                    sink.discard()
                    yield paths[index], sink, Missing(paths[index], protocol.errno_name(_error_of(payload)))
                    sink = sink_of()
    except BaseException:  # a file that is not whole must not stay, whatever ended the copy
        sink.discard()
        raise
    sink.close()


async def get(
    connection: Connection, paths: Sequence[PurePosixPath], into: Path, limit: int | None, limits: Limits
) -> Mapping[PurePosixPath, Path | Missing]:
    """See `Place.get`."""
    found: dict[PurePosixPath, Path | Missing] = {}
    if not paths:
        return found
    copies = _reading(connection, paths, limit, limits, lambda: _Sink(into / secrets.token_hex(8)))
    async with aclosing(copies):
        async for path, sink, content in copies:
            found[path] = content if isinstance(content, Missing) else _kept(sink)
    _complete(found, paths, connection)
    return found


def _kept(sink: _Sink) -> Path:
    assert sink.path is not None
    return sink.path


async def read(connection: Connection, path: PurePosixPath, limit: int, limits: Limits) -> bytes | Missing:
    """See `Place.read`."""
    copies = _reading(connection, [path], limit, limits, lambda: _Sink(None))
    async with aclosing(copies):
        async for _, _, content in copies:
            return content
    raise TransferError(f"{path} was not answered", concerns=connection.concerns)


# writing


def _mode(upload: Upload) -> int:
    if upload.mode is not None:
        return upload.mode & 0o1777
    if isinstance(upload.source, Path):
        return upload.source.stat().st_mode & 0o777
    return 0o755 if upload.source is None else 0o644


def _trusted(upload: Upload) -> int:
    """In how many bytes of its path links are followed."""
    if upload.beneath is None:
        return _WHOLE
    return 0 if upload.beneath == _ROOT else len(protocol.raw(upload.beneath))


def _block(file: BinaryIO, total: hashlib._Hash) -> bytes:
    data = file.read(_BLOCK)
    total.update(data)
    return data


async def _blocks(source: bytes | Path, total: hashlib._Hash) -> AsyncIterator[bytes]:
    if isinstance(source, bytes):
        total.update(source)
        for at in range(0, len(source), _BLOCK):
            yield source[at : at + _BLOCK]
        return
    with source.open("rb") as file:
        small = os.fstat(file.fileno()).st_size <= protocol.CHUNK
        while data := _block(file, total) if small else await asyncio.to_thread(_block, file, total):
            yield data


class _Batch:
    """Joins small records, so that a thousand small files are a few writes."""

    def __init__(self, work: FileWork) -> None:
        self._work = work
        self._pieces: list[bytes | memoryview] = []
        self._size = 0

    async def add(self, kind: Record, index: int, payload: bytes | memoryview) -> None:
        self._pieces += (HEAD.pack(5 + len(payload), kind, index), payload)
        self._size += HEAD.size + len(payload)
        if self._size >= protocol.CHUNK:
            await self.flush()

    async def flush(self) -> None:
        data = b"".join(self._pieces)
        self._pieces.clear()
        self._size = 0
        await self._work.send(data)


def _sending(uploads: Sequence[Upload], sums: dict[int, bytes]) -> Feed:
    async def feed(work: FileWork) -> None:
        batch = _Batch(work)
        for index, upload in enumerate(uploads):
            kind = Record.FOLDER if upload.source is None else Record.FILE
            head = _TARGET.pack(_mode(upload), _trusted(upload)) + protocol.raw(upload.path)
            await batch.add(kind, index, head)
            if upload.source is None:
                continue
            total = hashlib.sha256()
            async for block in _blocks(upload.source, total):
                for at in range(0, len(block), _PIECE):
                    await batch.add(Record.DATA, index, memoryview(block)[at : at + _PIECE])
            sums[index] = total.digest()
            await batch.add(Record.END, index, sums[index])
        await batch.flush()

    return feed


async def put(connection: Connection, uploads: Sequence[Upload], owner: str | None, limits: Limits) -> None:
    """See `Place.put`."""
    failed: list[str] = []
    sums: dict[int, bytes] = {}
    answered = 0
    if not uploads:
        return
    pairs = [] if owner is None else [(Key.OWNER, protocol.raw(owner))]
    async with _working(connection, Operation.WRITE, limits, _sending(uploads, sums), *pairs) as work:
        async for kind, index, payload in work.answers():
            answered += 1
            if kind == Record.ERROR:
                failed.append(_not_written(uploads[index], _error_of(payload), owner, connection.bounds.get("disk")))
            elif index in sums and payload != sums[index]:
                failed.append(f"{uploads[index].path} was written altered (sha256 differs)")
    _raise_first(failed, connection)
    if answered != len(uploads):
        raise TransferError(f"only {answered} of {len(uploads)} files were written", concerns=connection.concerns)


def _not_written(upload: Upload, error: int, owner: str | None, disk: float | None) -> str:
    if error == errno.ESRCH:
        return f"{upload.path} could not be written: the place knows no user {owner or 'of its own'}"
    if error == errno.EBADMSG:
        return f"{upload.path} could not be written: it arrived altered (sha256 differs)"
    if error == errno.EFBIG and disk:
        return f"{upload.path} could not be written: it is larger than the place's disk limit of {disk:.0f} bytes; raise its disk_size_gb"
    if error == errno.ENOTDIR and upload.beneath is not None:
        return f"{upload.path} could not be written: a link or a file stands on its way below {upload.beneath}"
    return f"{upload.path} could not be written: {protocol.reason(error)}"
