"""The Dockerfiles of shipped bundles: what their servers need at each start is done once, when the image is built."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import agent_env_bundles

ROOT = Path(agent_env_bundles.__file__).parent
SERVERS = sorted(path for path in ROOT.glob("*/*/*/Dockerfile*") if "requirements.txt" in path.read_text())
"""Of those that install our SDK."""


def served(dockerfile: str) -> str:
    """The module that an image's command runs."""
    (words,) = re.findall(r"^CMD (\[\"python3\", .*\])$", dockerfile, re.MULTILINE)
    return str(json.loads(words)[-1]).removesuffix(".py")


@pytest.mark.parametrize("path", [pytest.param(path, id=str(path.relative_to(ROOT))) for path in SERVERS])
def test_what_a_server_imports_is_compiled_while_its_image_is_built(path: Path) -> None:
    """An ordinary user can't write what belongs to root, and would compile the same files at each start."""
    dockerfile = path.read_text()
    module = served(dockerfile)
    before, user, _ = dockerfile.partition("\nUSER ")
    assert user
    assert re.search(rf"^RUN python3 -c 'import {re.escape(module)}, agent_env_sdk\.(agent|environment)\.serving'", before, re.MULTILINE)


def test_there_are_such_images() -> None:
    assert len(SERVERS) > 10
