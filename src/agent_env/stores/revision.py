"""Which revision of the schema this code reads and writes, and the way from another one to it.

alembic and SQLAlchemy are imported only when something is to be migrated.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from agent_env.errors import StorageError

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

HEAD = "0002"
"""The newest revision; a test holds it equal to alembic's head."""

_MIGRATIONS = Path(__file__).parent / "migrations"


def migrate(connection: Connection, stored: str | None, name: str) -> None:
    """Brings a database to `HEAD`, in the connection's transaction. The caller holds the lock and commits.

    Raises:
        StorageError: A newer agent-env wrote it.
    """
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if stored is not None and stored not in known:
        raise StorageError(
            f"the run database {name} has schema revision {stored}, which a newer agent-env wrote; this one knows {HEAD}",
            concerns=name,
            hint="upgrade agent-env, or set another database in the configuration",
        )
    config.attributes["connection"] = connection
    command.upgrade(config, HEAD)


def migrate_sqlite(path: Path, stored: str | None, *, busy_seconds: float) -> None:
    """Brings a SQLite file to `HEAD`, all or nothing.

    Raises:
        StorageError: A newer agent-env wrote it, or it is some other program's.
        sqlite3.Error: It can't be done: the disk is full, another process has held the file's lock for longer than `busy_seconds`.
    """
    import sqlite3

    from sqlalchemy import create_engine
    from sqlalchemy.exc import DBAPIError
    from sqlalchemy.pool import NullPool

    def connected() -> sqlite3.Connection:
        # The driver's own transaction handling would commit before each DDL statement.
        return sqlite3.connect(path, timeout=busy_seconds, isolation_level=None)

    try:
        _migrate_sqlite(create_engine("sqlite://", creator=connected, poolclass=NullPool), path, stored)
    except DBAPIError as error:
        if isinstance(error.orig, sqlite3.Error):
            raise error.orig from error
        raise


def _migrate_sqlite(engine: Engine, path: Path, stored: str | None) -> None:
    with engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA journal_mode=WAL")
        connection.exec_driver_sql("BEGIN EXCLUSIVE")
        if stored is None and _is_foreign(connection):
            raise StorageError(
                f"{path} is a database of another program", concerns=str(path), hint="set another database in the configuration"
            )
        migrate(connection, stored, str(path))
        connection.exec_driver_sql("COMMIT")


def _is_foreign(connection: Connection) -> bool:
    tables = connection.exec_driver_sql("SELECT name FROM sqlite_master WHERE type = 'table'").scalars()
    return any(name != "alembic_version" for name in tables)
