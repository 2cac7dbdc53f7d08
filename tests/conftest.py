"""What every test may use."""

from __future__ import annotations

import pytest

from tests.postgres import database_url, postgres_server, postgres_url

__all__ = ["database_url", "postgres_server", "postgres_url"]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Slow tests run when they are asked for (`-m slow`)."""
    if config.option.markexpr:
        return
    slow = [item for item in items if "slow" in item.keywords]
    if slow:
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if "slow" not in item.keywords]
