"""What the gateway was told and must still know after a restart: an append-only file whose fold is one mapping.

Every entry sets or removes one key. An entry is durable before `put` returns; writers at the same moment share one fsync.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agent_env.errors import StorageError

_REMOVED = None


class Journal:
    """The mapping and its file. One process has it open.

    Args:
        path: The file; made when it is not there.
        grown_bytes: By how much it may grow before it is written anew.
    """

    def __init__(self, path: Path, grown_bytes: int) -> None:
        self._path = path
        self._grown = grown_bytes
        self._values: dict[str, Any] = {}
        self._pending: list[bytes] = []
        self._position = 0
        self._written = 0
        self._lock = asyncio.Lock()
        self._size = self._kept = 0
        self._replay()
        self._descriptor = self._rewrite()

    @property
    def position(self) -> int:
        """How many entries this process and those before it have made durable or are about to."""
        return self._position

    def get(self, key: str) -> Any:
        """What the key holds; None for nothing."""
        return self._values.get(key)

    def under(self, prefix: str) -> Iterator[tuple[str, Any]]:
        """Keys that begin so, without the prefix, with their values, oldest first."""
        for key, value in list(self._values.items()):
            if key.startswith(prefix):
                yield key.removeprefix(prefix), value

    def note(self, key: str, value: Any) -> None:
        """Sets a key; None removes it. It holds at once here, and is durable after the next `commit`."""
        self._values.pop(key, None)
        if value is not _REMOVED:
            self._values[key] = value
        self._position += 1
        self._pending.append(_line(self._position, key, value))

    async def put(self, key: str, value: Any) -> None:
        """`note` and `commit` in one.

        Raises:
            StorageError: It could not be written; what it says holds in this process alone.
        """
        self.note(key, value)
        await self.commit()

    async def commit(self) -> None:
        """Makes all that was noted durable.

        Raises:
            StorageError: It could not be written.
        """
        wanted = self._position
        async with self._lock:
            if self._written >= wanted:
                return
            lines, self._pending = self._pending, []
            upto = self._position
            try:
                await asyncio.to_thread(self._append, b"".join(lines))
            except OSError as error:
                self._pending = lines + self._pending
                raise StorageError(f"{self._path}: can't be written: {error.strerror}", hint="is the disk full?") from error
            self._written = upto

    def close(self) -> None:
        """Writes what is left and closes the file."""
        if self._pending:
            self._append(b"".join(self._pending))
            self._pending = []
        os.close(self._descriptor)

    def _append(self, data: bytes) -> None:
        if self._size + len(data) > self._kept + self._grown:
            fresh = self._rewrite()
            os.close(self._descriptor)
            self._descriptor = fresh
            return  # the mapping already says what these lines say
        start = self._size
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(self._descriptor, view) :]
            os.fsync(self._descriptor)
        except OSError:
            os.ftruncate(self._descriptor, start)
            raise
        self._size = start + len(data)

    def _replay(self) -> None:
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return
        for line in data.splitlines(keepends=True):
            if not line.endswith(b"\n"):
                break  # torn by a kill: it was never acknowledged
            try:
                number, key, value = json.loads(line)
            except ValueError as error:
                raise StorageError(f"{self._path}: damaged in its middle: {line[:80]!r}", hint="restore it, or remove it") from error
            self._position = max(self._position, number)
            self._values.pop(key, None)
            if value is not _REMOVED:
                self._values[key] = value

    def _rewrite(self) -> int:
        """Writes the mapping as a new file in place of the old one, and leaves it open at its end."""
        data = b"".join(_line(self._position, key, value) for key, value in list(self._values.items()))
        data = data or _line(self._position, "", _REMOVED)
        fresh = self._path.with_suffix(".new")
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        fresh.rename(self._path)
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        self._kept = self._size = len(data)
        return descriptor


def _line(number: int, key: str, value: Any) -> bytes:
    return json.dumps([number, key, value], separators=(",", ":")).encode() + b"\n"
