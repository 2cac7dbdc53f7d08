"""`python -m agent_env.stores.freeze` writes alembic's head for SQLite as SQL text.

A fresh database file is made from that text, so that it needs neither alembic nor SQLAlchemy.
"""

from __future__ import annotations

import sqlite3
import tempfile
from pathlib import Path

from agent_env.stores.revision import HEAD, migrate_sqlite

FROZEN = Path(__file__).with_name("schema_sqlite.sql")


def head() -> str:
    """The schema that the migrations end in, as statements in the order in which they were made."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "head.db"
        path.touch()
        migrate_sqlite(path, None, busy_seconds=0)
        return dump(path)


def dump(path: Path) -> str:
    """The schema of a file, and the revision that it says it has."""
    connection = sqlite3.connect(path)
    try:
        statements = [sql for (sql,) in connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY rowid")]
        (revision,) = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    finally:
        connection.close()
    lines = [f"{' '.join(sql.split())};" for sql in statements]
    return "\n".join(
        [
            f"-- Revision {HEAD}. Written by python -m agent_env.stores.freeze.",
            *lines,
            f"INSERT INTO alembic_version VALUES ('{revision}');",
            "",
        ]
    )


if __name__ == "__main__":
    FROZEN.write_text(head(), encoding="utf-8")
