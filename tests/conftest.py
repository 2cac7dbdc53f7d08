"""What every test may use."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

from tests.postgres import database_url, postgres_server, postgres_url

__all__ = ["database_url", "postgres_server", "postgres_url"]


# A shared machine may be slow at any moment: examples are bounded by their number, never by the clock.
settings.register_profile("shared", max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("shared")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Slow tests run when they are asked for (`-m slow`)."""
    if config.option.markexpr:
        return
    slow = [item for item in items if "slow" in item.keywords]
    if slow:
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if "slow" not in item.keywords]
