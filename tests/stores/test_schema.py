"""One schema: the frozen text, the migrations and the description in code say the same."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, text

from agent_env.defaults import DEFAULT_LIMITS
from agent_env.errors import StorageError
from agent_env.stores import Database
from agent_env.stores.freeze import FROZEN, dump, head
from agent_env.stores.revision import HEAD
from agent_env.stores.schema import METADATA


def sqlalchemy_url(url: str) -> str:
    return url.replace("postgresql://", "postgresql+psycopg://")


def test_the_frozen_schema_is_what_the_migrations_end_in() -> None:
    assert FROZEN.read_text() == head(), "run python -m agent_env.stores.freeze"


def test_the_revision_in_code_is_the_newest_migration() -> None:
    config = Config()
    config.set_main_option("script_location", str(FROZEN.parent / "migrations"))
    assert ScriptDirectory.from_config(config).get_current_head() == HEAD


def test_a_fresh_file_has_the_frozen_schema(tmp_path: Path) -> None:
    Database.open(f"sqlite:///{tmp_path / 'x.db'}").close()
    assert dump(tmp_path / "x.db") == FROZEN.read_text()


def test_a_fresh_file_is_made_without_sqlalchemy_or_alembic(tmp_path: Path) -> None:
    import subprocess
    import sys

    script = (
        "import sys; from agent_env.stores import Database, Documents, Journal, Objects; from pathlib import Path\n"
        "root = Path(sys.argv[1]); db = Database.open(f'sqlite:///{root}/x.db'); Documents(db).put('tasks', 'a', 'task', {})\n"
        "Journal(db, Objects(root / 'objects', db)).list_runs(); db.close()\n"
        "print([name for name in ('sqlalchemy', 'alembic', 'psycopg', 'pydantic', 'asyncio', 'httpx') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script, tmp_path], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"


def test_the_description_in_code_equals_the_migrated_database(database_url: str) -> None:
    Database.open(database_url).close()
    engine = create_engine(sqlalchemy_url(database_url))
    with engine.connect() as connection:
        differences = compare_metadata(MigrationContext.configure(connection, opts={"compare_type": False}), METADATA)
    engine.dispose()
    assert differences == []


def test_an_older_revision_is_migrated_when_it_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    with sqlite3.connect(path) as old:
        old.execute("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY)")
    old.close()
    with Database.open(f"sqlite:///{path}") as db:
        assert db.read(lambda tx: tx.execute("SELECT count(*) AS n FROM runs"))[0].n == 0
    made_by_alembic, made_from_text = dump(path).splitlines(), FROZEN.read_text().splitlines()
    assert made_by_alembic[2:] == made_from_text[2:]


def test_a_migration_that_another_process_keeps_waiting_says_so_and_is_done_later(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    impatient = replace(DEFAULT_LIMITS, database_busy_seconds=0.05)
    with closing(sqlite3.connect(path, isolation_level=None)) as holder:
        holder.execute("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY)")
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(StorageError, match=r"old\.db stayed locked by another process.*database_busy_seconds"):
            Database.open(f"sqlite:///{path}", limits=impatient)
    Database.open(f"sqlite:///{path}").close()
    assert "CREATE TABLE runs" in dump(path)


def test_a_newer_revision_is_refused_with_what_to_do(database_url: str) -> None:
    Database.open(database_url).close()
    engine = create_engine(sqlalchemy_url(database_url))
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    engine.dispose()
    with pytest.raises(StorageError, match=r"9999, which a newer agent-env wrote.*upgrade agent-env"):
        Database.open(database_url)


def test_another_programs_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "theirs.db"
    with sqlite3.connect(path) as theirs:
        theirs.execute("CREATE TABLE bookmarks (url TEXT)")
    theirs.close()
    with pytest.raises(StorageError, match="another program"):
        Database.open(f"sqlite:///{path}")
    with sqlite3.connect(path) as theirs:
        assert theirs.execute("SELECT name FROM sqlite_master").fetchall() == [("bookmarks",)]
    theirs.close()


def test_the_file_is_private(tmp_path: Path) -> None:
    with Database.open(f"sqlite:///{tmp_path / 'state' / 'x.db'}") as db:
        db.write(lambda tx: tx.change("INSERT INTO meta (name, value) VALUES ('a', 'b')"))
        modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "state").iterdir()}
    assert set(modes.values()) == {0o600}
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700


def test_an_empty_file_and_what_a_killed_creation_left_are_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "x.db").touch()
    (tmp_path / ".x.db.0123").write_bytes(b"half")
    Database.open(f"sqlite:///{tmp_path / 'x.db'}").close()
    assert dump(tmp_path / "x.db") == FROZEN.read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.db", "x.db.lock"]


def test_tp12_a_folder_that_cannot_be_made_or_a_path_that_is_no_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "in the way").write_text("")
    with pytest.raises(StorageError, match=r"in the way/state/x\.db can't be created: Not a directory") as told:
        Database.open(f"sqlite:///{tmp_path / 'in the way' / 'state' / 'x.db'}")
    assert "set AGENT_ENV_STATE_ROOT to a folder that this user can write" in str(told.value.hint)
    (tmp_path / "folder").mkdir()
    with pytest.raises(StorageError, match="folder"):
        Database.open(f"sqlite:///{tmp_path / 'folder'}")


def test_tp12_a_relative_path_keeps_meaning_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with Database.open("sqlite:///runs.db") as db:
        monkeypatch.chdir(tmp_path / "elsewhere")
        db.write(lambda tx: tx.change("INSERT INTO meta (name, value) VALUES ('a', 'b')"))
        assert db.read(lambda tx: tx.execute("SELECT value FROM meta"))[0].value == "b"
    assert (tmp_path / "runs.db").exists()
    assert list((tmp_path / "elsewhere").iterdir()) == []
