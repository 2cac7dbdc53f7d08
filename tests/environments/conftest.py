"""What the tests of environments share: the engine, and the base image that servers and the gateway are built upon."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from agent_env.containers import Engine, EngineEndpoint
from tests.container_engine import ROOT, has_image, only_one

HERE = Path(__file__).parent
BUILDING_SECONDS = 600
"""On a fresh machine the first test builds the gateway's image, with wheels that have to be fetched."""
BASE = "python:3.12-slim"
POSTGRES = "postgres:16-alpine"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whichever test comes first builds."""
    for item in items:
        if item.path.is_relative_to(HERE) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(BUILDING_SECONDS))


def base_image(endpoint: EngineEndpoint, name: str) -> str:
    """A base image, made from packages where no registry has it."""

    async def present() -> bool:
        async with Engine(endpoint) as engine:
            return await has_image(engine, name)

    with only_one(f"image-{name.partition(':')[0]}"):
        if not asyncio.run(present()):
            subprocess.run([sys.executable, ROOT / "tools/test_images.py", name], check=False, timeout=900, stdin=subprocess.DEVNULL)
            if not asyncio.run(present()):
                pytest.skip(f"agentenv-capability-missing: image_{name.partition(':')[0]}")
    return name


@pytest.fixture(scope="session")
def python_base(docker: EngineEndpoint) -> str:
    """A Python that images are built upon."""
    return base_image(docker, BASE)


@pytest.fixture(scope="session")
def postgres_image(docker: EngineEndpoint) -> str:
    """PostgreSQL as its official image has it."""
    return base_image(docker, POSTGRES)
