"""SQLite through the standard library: the default, and the one whose start-up time counts, so no other package is imported."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Literal

from agent_env.config.state import STATE_VARIABLE
from agent_env.defaults import Limits
from agent_env.errors import ConfigError, StorageError, UserError
from agent_env.stores.connection import DiskFullError, Params, Row
from agent_env.stores.revision import HEAD, migrate_sqlite

_PREFIX = "sqlite:///"
_SCHEMA = Path(__file__).with_name("schema_sqlite.sql")
_SYNCHRONOUS = ("normal", "full")
_MOST = 2**63 - 1
_FULL = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM}
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_LOCKED = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_ELSEWHERE = f"set {STATE_VARIABLE} to a folder that this user can write; it lies there, unless database.url names another file"
_DENIED = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH}


class SqliteBackend:
    """One database file. Private to this user (0600 in a 0700 folder)."""

    commit_fails_cleanly = True

    def __init__(self, url: str, limits: Limits) -> None:
        self._path, self._synchronous = parse_url(url)
        self._limits = limits
        self._written: tuple[int, int] | None = None
        self.name = str(self._path)

    def prepare(self) -> None:
        """Creates the file from the frozen schema, or has another stored revision migrated."""
        with suppress(FileNotFoundError):
            if self._revision() == HEAD:
                return
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with _locked(self._path.with_name(self._path.name + ".lock")):
                self._prepare_alone()
        except OSError as error:
            message = f"the run database {self.name} can't be created: {error.strerror}"
            raise StorageError(message, concerns=self.name, hint=_ELSEWHERE) from error

    def _prepare_alone(self) -> None:
        if not self._path.exists() or not self._path.stat().st_size:
            self._create()
            return
        stored = self._revision()
        if stored != HEAD:
            with _mapped(self.name):
                migrate_sqlite(self._path, stored, busy_seconds=self._limits.database_busy_seconds)

    def _create(self) -> None:
        """Makes the file aside, without waiting for the disk at each step, then syncs it once and moves it into place."""
        self._sweep()
        aside = self._path.with_name(f"{self._aside_prefix}{os.urandom(8).hex()}")
        descriptor = os.open(aside, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            with _mapped(self.name), closing(sqlite3.connect(aside, isolation_level=None)) as connection:
                connection.execute("PRAGMA synchronous=OFF")
                connection.execute("PRAGMA journal_mode=MEMORY")
                connection.executescript(f"BEGIN;\n{_SCHEMA.read_text(encoding='utf-8')}\nCOMMIT;")
                connection.execute("PRAGMA journal_mode=WAL")
            os.fsync(descriptor)
            aside.replace(self._path)
        finally:
            os.close(descriptor)
            self._sweep()

    @property
    def _aside_prefix(self) -> str:
        return f".{self._path.name}."

    def _sweep(self) -> None:
        """Removes what a kill while creating left. The caller holds the lock."""
        for left in self._path.parent.iterdir():
            if left.name.startswith(self._aside_prefix):
                left.unlink(missing_ok=True)

    def _revision(self) -> str | None:
        if not self._path.exists():
            raise FileNotFoundError(self.name)
        session = self._open()
        try:
            if not session.execute("SELECT name FROM sqlite_master WHERE name = 'alembic_version'"):
                return None
            rows = session.execute("SELECT version_num FROM alembic_version")
            return str(rows[0].version_num) if rows else None
        finally:
            session.close()

    def connect(self, *, write: bool) -> SqliteSession:
        """A new connection; one that only reads refuses to write."""
        session = self._open()
        if write and self._written is None:
            self._written = self._identity()
        with _mapped(self.name):
            session.connection.execute(f"PRAGMA synchronous={self._synchronous}")
            if not write:
                session.connection.execute("PRAGMA query_only=ON")
        return session

    def was_committed(self, mark: str | None) -> bool | None:
        """A failed commit has changed nothing."""
        del mark
        return False

    def keeps_what_was_written(self) -> bool:
        """Whether the file that was opened to write is still the one under its name; one that was removed takes writes all the same."""
        return self._written is None or self._written == self._identity()

    def _identity(self) -> tuple[int, int] | None:
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def _open(self) -> SqliteSession:
        with _mapped(self.name):
            connection = sqlite3.connect(
                self._path,
                timeout=self._limits.database_busy_seconds,
                isolation_level=None,
                check_same_thread=False,
                cached_statements=256,
            )
        return SqliteSession(connection, self.name)

    def close(self) -> None:
        """Nothing is shared between connections."""


class SqliteSession:
    """One connection to the file."""

    clock_sql = "((julianday('now') - 2440587.5) * 86400.0)"

    def __init__(self, connection: sqlite3.Connection, name: str) -> None:
        self.connection = connection
        self._name = name

    def execute(self, sql: str, params: Params | None = None) -> list[Row]:
        """Runs one statement and returns its rows."""
        with _mapped(self._name):
            cursor = self.connection.execute(sql, params or {})
            if cursor.description is None:
                return []
            names = [column[0] for column in cursor.description]
            return [Row(zip(names, values, strict=True)) for values in cursor]

    def change(self, sql: str, params: Params | None = None) -> int:
        """Runs one statement and returns how many rows it changed."""
        with _mapped(self._name):
            return self.connection.execute(sql, params or {}).rowcount

    def executemany(self, sql: str, rows: Iterable[Params]) -> None:
        """Runs one statement for each of many parameter sets."""
        with _mapped(self._name):
            self.connection.executemany(sql, rows)

    def begin(self, *, write: bool) -> None:
        """Opens a transaction. A writer takes the file's write lock at once, so that it can't fail half-way for want of it."""
        with _mapped(self._name):
            self.connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")

    def commit(self) -> None:
        """Makes it durable."""
        with _mapped(self._name):
            self.connection.execute("COMMIT")

    def mark(self) -> str | None:
        """A failed commit has changed nothing."""
        return None

    def rollback(self) -> None:
        """Undoes it; SQLite may have done so already."""
        with _mapped(self._name):
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")

    def close(self) -> None:
        """Closes it."""
        self.connection.close()


def parse_url(url: str) -> tuple[Path, Literal["normal", "full"]]:
    """The file and the durability of `sqlite:///PATH[?synchronous=full]`.

    Raises:
        ConfigError: It is not such a URL.
    """
    path, _, query = url.removeprefix(_PREFIX).partition("?synchronous=")
    if not url.startswith(_PREFIX) or not path or path == ":memory:":
        raise ConfigError(f"{url!r} names no database file", hint="write sqlite:///folder/file.db, or sqlite:////absolute/file.db")
    if query and query not in _SYNCHRONOUS:
        raise ConfigError(f"synchronous={query} is not known", hint="normal is safe against kills, full also against power loss")
    return Path(path).absolute(), "full" if query == "full" else "normal"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    lock = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


class _mapped:  # noqa: N801 - reads as a statement; a class, because it stands on the hot path
    """The one place where SQLite's errors become ours."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OverflowError):
            raise UserError(f"a number is larger than any that the run database keeps ({_MOST})") from error
        if isinstance(error, sqlite3.Error):
            raise _storage_error(error, self._name) from error


def _storage_error(error: sqlite3.Error, name: str) -> StorageError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in _FULL:
        return DiskFullError(
            f"the run database {name} can't be written: {error}",
            concerns=name,
            hint="free space on that disk, then resume; what was committed is intact",
        )
    if code in _DAMAGED:
        return StorageError(
            f"the run database {name} is damaged: {error}",
            concerns=name,
            hint="move the file aside to start afresh; `sqlite3 FILE .recover` reads what is left",
        )
    if code in _LOCKED:
        return StorageError(
            f"the run database {name} stayed locked by another process", concerns=name, hint="raise limits.database_busy_seconds"
        )
    if code in _DENIED:
        return StorageError(f"the run database {name} can't be opened or written: {error}", concerns=name, hint="check its permissions")
    return StorageError(f"the run database {name} refused a statement: {error}", concerns=name)
