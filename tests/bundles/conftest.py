from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_env.engine.options import Stores
from tests.bundles.building import memory


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Stores]:
    with memory(tmp_path / "memory") as opened:
        yield opened


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.delenv("AGENT_ENV_CONFIG", raising=False)
    return folder
