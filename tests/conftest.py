"""What every test may use."""

from __future__ import annotations

import gc
import signal
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.container_engine import busybox, debian, docker, podman
from tests.postgres import database_url, postgres_database, postgres_server, postgres_url
from tests.unit import SELECTED, is_scene, is_unit

__all__ = ["busybox", "database_url", "debian", "docker", "podman", "postgres_database", "postgres_server", "postgres_url"]


# A shared machine may be slow at any moment: examples are bounded by their number, never by the clock.
settings.register_profile("shared", max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("shared")

# A shell that starts tests in the background has them ignore Ctrl-C, and with them every command that is to be interrupted.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where unit tests alone are wanted, a folder without any is not read."""
    return True if config.option.markexpr == SELECTED and is_scene(collection_path) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Slow tests run when they are asked for (`-m slow`). Unit tests are marked (`-m unit`)."""
    for item in items:
        if is_unit(item):
            item.add_marker("unit")
    if config.option.markexpr:
        return
    slow = [item for item in items if "slow" in item.keywords]
    if slow:
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if "slow" not in item.keywords]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """What is imported and collected stays: looking through it for garbage, half a million objects, costs a third of the collection.

    Nor is it looked through again while tests run.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, Any, Any]:
    """A report shows sources, and parses them; Python 3.11 gives that up, and pytest itself, when a finalizer comes in between."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
