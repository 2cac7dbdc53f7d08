"""Stores over a fresh database of each kind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_env.stores import Database, Documents, Journal, Objects


@pytest.fixture
def db(database_url: str) -> Iterator[Database]:
    with Database.open(database_url) as opened:
        yield opened


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Database]:
    with Database.open(f"sqlite:///{tmp_path / 'state' / 'runs.db'}") as opened:
        yield opened


@pytest.fixture
def documents(db: Database) -> Documents:
    return Documents(db)


@pytest.fixture
def objects(db: Database, tmp_path: Path) -> Objects:
    return Objects(tmp_path / "objects", db)


@pytest.fixture
def journal(db: Database, objects: Objects) -> Journal:
    return Journal(db, objects)
