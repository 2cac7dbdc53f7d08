"""Artifacts over real stores."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_env.artifacts import Artifacts
from agent_env.stores import Database, Documents, Objects


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    with Database.open(f"sqlite:///{tmp_path / 'state' / 'agent-env.db'}") as opened:
        yield opened


@pytest.fixture
def artifacts(db: Database, tmp_path: Path) -> Artifacts:
    return Artifacts(Documents(db), Objects(tmp_path / "objects", db))
