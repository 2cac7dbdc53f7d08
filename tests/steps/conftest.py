"""One bench for each test that asks for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.steps.bench import BenchRun, on_bench

Bench = Callable[[Callable[[BenchRun], Awaitable[None]]], None]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """Runs a test's body with a deployed sandbox `box`, and removes everything afterwards."""
    return lambda test: on_bench(tmp_path, test)
