"""PostgreSQL through SQLAlchemy Core and psycopg 3. Imported only when the configuration names such a database."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection as SqlConnection
from sqlalchemy import Engine, TextClause, create_engine, event, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError, SQLAlchemyError

from agent_env.defaults import Limits
from agent_env.errors import ConfigError, StorageError
from agent_env.lazy import optional
from agent_env.stores.connection import AbortedError, AwayError, DiskFullError, Params, Row
from agent_env.stores.revision import HEAD, migrate

_SCHEMA_LOCK = 0x6167656E74656E76
"""Advisory lock held while the schema is made or migrated: "agentenv" in ASCII."""
_TRY_AGAIN = {"40001", "40P01"}
_DISK_FULL = {"53100"}
_LOCKED = {"55P03"}


class PostgresBackend:
    """One database of a PostgreSQL server."""

    commit_fails_cleanly = False

    def __init__(self, url: str, limits: Limits) -> None:
        optional("psycopg", extra="postgres", purpose="a PostgreSQL run database")
        try:
            parsed = make_url(url)
        except ArgumentError as error:
            raise ConfigError("the URL of the run database can't be read", hint="postgresql://USER:PASSWORD@HOST:PORT/NAME") from error
        parsed = parsed.set(drivername="postgresql+psycopg")
        self.name = parsed.set(drivername="postgresql").render_as_string(hide_password=True)
        self._engine: Engine = create_engine(
            parsed, connect_args={"connect_timeout": max(int(limits.connect_seconds), 1)}, pool_size=2, max_overflow=-1
        )
        self._reading = self._engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        self._driver_error: type[Exception] = self._engine.dialect.loaded_dbapi.OperationalError
        wait_milliseconds = int(limits.database_busy_seconds * 1000)

        @event.listens_for(self._engine, "connect")
        def limit_waits(connection: Any, _: object) -> None:
            connection.execute(f"SET lock_timeout = {wait_milliseconds}")
            connection.commit()

    def prepare(self) -> None:
        """Creates or migrates the schema; processes that start at once wait for each other."""
        with _mapped(self.name), self._engine.connect() as connection:
            if _revision(connection) == HEAD:
                return
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _SCHEMA_LOCK})
            stored = _revision(connection)
            if stored != HEAD:
                migrate(connection, stored, self.name)
            connection.commit()

    def connect(self, *, write: bool) -> PostgresSession:
        """A connection of the pool."""
        try:
            with _mapped(self.name):
                return PostgresSession((self._engine if write else self._reading).connect(), self.name)
        except StorageError as error:
            # A server that starts, stops or has no room refuses in words alone: what it says has no SQLSTATE before there is a connection.
            if isinstance(error.__cause__, OperationalError):
                raise AwayError(error.message, concerns=error.concerns, hint=error.hint) from error.__cause__
            raise
        except self._driver_error as error:  # the first word on a new connection, which is not SQLAlchemy's
            raise AwayError(f"the run database {self.name} broke a connection off: {error}", concerns=self.name) from error

    def was_committed(self, mark: str | None) -> bool | None:
        """Asks the server, which knows it of its last transactions, across restarts too."""
        if mark is None:
            return False
        session = self.connect(write=False)
        try:
            status = session.execute("SELECT txid_status(CAST(:mark AS bigint)) AS status", {"mark": mark})[0].status
        finally:
            session.close()
        if status == "in progress":  # the server has not noticed yet that its client is gone
            raise AwayError(f"the run database {self.name} has not ended a transaction yet", concerns=self.name)
        return None if status is None else bool(status == "committed")

    def keeps_what_was_written(self) -> bool:
        """A server takes nothing for a database that is gone."""
        return True

    def close(self) -> None:
        """Closes the pool."""
        self._engine.dispose()


class PostgresSession:
    """One connection."""

    clock_sql = "CAST(extract(epoch FROM clock_timestamp()) AS double precision)"

    def __init__(self, connection: SqlConnection, name: str) -> None:
        self._connection = connection
        self._name = name

    def execute(self, sql: str, params: Params | None = None) -> list[Row]:
        """Runs one statement and returns its rows."""
        with _mapped(self._name):
            result = self._connection.execute(_statement(sql), dict(params or {}))
            if not result.returns_rows:
                return []
            names = list(result.keys())
            return [Row(zip(names, values, strict=True)) for values in result]

    def change(self, sql: str, params: Params | None = None) -> int:
        """Runs one statement and returns how many rows it changed."""
        with _mapped(self._name):
            return int(self._connection.execute(_statement(sql), dict(params or {})).rowcount)

    def executemany(self, sql: str, rows: Iterable[Params]) -> None:
        """Runs one statement for each of many parameter sets."""
        many = [dict(row) for row in rows]
        if many:
            with _mapped(self._name):
                self._connection.execute(_statement(sql), many)

    def begin(self, *, write: bool) -> None:
        """The first statement opens the transaction; whether it reads or writes was said when connecting."""
        del write

    def commit(self) -> None:
        """Makes it durable."""
        with _mapped(self._name):
            self._connection.commit()

    def mark(self) -> str | None:
        """The server's number of the transaction."""
        with _mapped(self._name):
            number = self._connection.exec_driver_sql("SELECT txid_current_if_assigned()").scalar()
        return None if number is None else str(number)

    def rollback(self) -> None:
        """Undoes it. A connection that broke is good for nothing: SQLAlchemy would open another one in its place, in mid-transaction."""
        with _mapped(self._name):
            if self._connection.invalidated:
                raise AbortedError(f"the connection to the run database {self._name} broke", concerns=self._name)
            self._connection.rollback()

    def close(self) -> None:
        """Gives the connection back to the pool."""
        with _mapped(self._name):
            self._connection.close()


@lru_cache(maxsize=512)
def _statement(sql: str) -> TextClause:
    """The same object for the same text, so that SQLAlchemy finds it compiled."""
    return text(sql)


def _revision(connection: SqlConnection) -> str | None:
    if connection.execute(text("SELECT to_regclass('alembic_version')")).scalar() is None:
        return None
    stored = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    return None if stored is None else str(stored)


@contextmanager
def _mapped(name: str) -> Iterator[None]:
    """The one place where SQLAlchemy's and the driver's errors become ours."""
    try:
        yield
    except SQLAlchemyError as error:
        raise _storage_error(error, name) from error


def _storage_error(error: SQLAlchemyError, name: str) -> StorageError:
    if not isinstance(error, DBAPIError):
        return StorageError(f"the run database {name} can't be used: {error}", concerns=name)
    state = getattr(error.orig, "sqlstate", None)
    why = str(error.orig).strip().split("\n")[0]
    if state in _DISK_FULL:
        return DiskFullError(f"the run database {name} has no space left: {why}", concerns=name, hint="free space on its disk, then resume")
    if state in _TRY_AGAIN:
        return AbortedError(f"the run database {name} gave a transaction up: {why}", concerns=name)
    if state in _LOCKED:
        return StorageError(
            f"the run database {name} stayed locked by another process", concerns=name, hint="raise limits.database_busy_seconds"
        )
    if error.connection_invalidated:
        return AbortedError(f"the connection to the run database {name} broke: {why}", concerns=name)
    return StorageError(f"the run database {name} can't do it: {why}", concerns=name, hint="is the server up, and is the database there?")
