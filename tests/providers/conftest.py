"""One cloud for the whole session, and its package on the path of this process and of those that it starts."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.providers.cloud import PLUGINS, cloud, machines


@pytest.fixture(scope="session")
def cloud_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cloud")
    for above in (folder, *folder.parents[:2]):
        above.chmod(0o755)
    return folder


@pytest.fixture(scope="session")
def cloud_options(cloud_folder: Path) -> Iterator[dict[str, str]]:
    with cloud(cloud_folder) as options:
        yield options
    assert machines(cloud_folder) == []


@pytest.fixture(scope="session")
def installed() -> Iterator[None]:
    """The cloud's package is installed, for this process and for those that it starts."""
    before = os.environ.get("PYTHONPATH")
    sys.path.insert(0, str(PLUGINS))
    os.environ["PYTHONPATH"] = str(PLUGINS) if before is None else f"{PLUGINS}:{before}"
    yield
    sys.path.remove(str(PLUGINS))
    os.environ.pop("PYTHONPATH") if before is None else os.environ.update(PYTHONPATH=before)


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """The command as a user with an empty home has it, with the cloud's package installed."""
    made = Cli(tmp_path)
    made.env["PYTHONPATH"] = str(PLUGINS)
    return made
