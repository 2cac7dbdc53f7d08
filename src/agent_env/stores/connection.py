"""What a transaction's code sees of a database: the same few calls for SQLite and PostgreSQL.

Statements are portable SQL text with `:name` parameters. JSON is kept as text, moments as ISO 8601 text, flags as 0 and 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from agent_env.errors import StorageError

Params = Mapping[str, Any]


class Row(dict[str, Any]):
    """One row: a mapping from column to value whose columns are attributes too."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class Connection(Protocol):
    """One transaction."""

    @property
    def clock_sql(self) -> str:
        """An expression for the database server's clock: seconds since 1970 as a float."""
        ...

    def execute(self, sql: str, params: Params | None = None) -> list[Row]:
        """Runs one statement and returns its rows.

        Raises:
            StorageError: The database could not do it.
        """
        ...

    def change(self, sql: str, params: Params | None = None) -> int:
        """Runs one statement and returns how many rows it inserted, updated or deleted."""
        ...

    def executemany(self, sql: str, rows: Iterable[Params]) -> None:
        """Runs one statement for each of many parameter sets."""
        ...


class Session(Connection, Protocol):
    """A connection together with its transaction's life. Only `Database` holds one."""

    def begin(self, *, write: bool) -> None:
        """Opens a transaction: a snapshot to read, or the right to write."""
        ...

    def commit(self) -> None:
        """Makes it durable."""
        ...

    def mark(self) -> str | None:
        """Names the transaction before it is committed, so that whether it was can be asked; None where it has written nothing, and
        where a failed commit needs no question.
        """
        ...

    def rollback(self) -> None:
        """Undoes it. Also harmless after the database has done so itself."""
        ...

    def close(self) -> None:
        """Gives the connection up."""
        ...


class Backend(Protocol):
    """One kind of database."""

    name: str
    """How messages call it: a path, or a URL without its password."""
    commit_fails_cleanly: bool
    """Whether a failed commit is certain to have changed nothing."""

    def prepare(self) -> None:
        """Creates or migrates the schema.

        Raises:
            StorageError: It can't be used: damaged, not writable, or written by a newer agent-env.
        """
        ...

    def connect(self, *, write: bool) -> Session:
        """A new connection."""
        ...

    def was_committed(self, mark: str | None) -> bool | None:
        """Whether the transaction of that mark was committed; None where nobody can tell any more.

        Raises:
            AwayError: It can't be asked at the moment.
        """
        ...

    def keeps_what_was_written(self) -> bool:
        """Whether what was committed is still in the database that its name leads to."""
        ...

    def close(self) -> None:
        """Gives up what connections share."""
        ...


class AbortedError(StorageError):
    """The database gave the whole transaction up before it was committed."""

    transient = True
    """Whether the same may well succeed at once: a deadlock, a connection that was cut."""


class DiskFullError(AbortedError):
    """There is no space left for what the transaction writes."""

    transient = False


class AwayError(AbortedError):
    """The database's server can't be reached, and nothing was done. It may be back in a moment."""
