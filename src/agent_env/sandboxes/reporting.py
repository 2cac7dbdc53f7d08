"""What sandboxes may tell of themselves while they live, for those that can."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, runtime_checkable

Tell = Callable[[Mapping[str, object]], None]


@runtime_checkable
class Reporting(Protocol):
    """A handle on a sandbox whose network is an allow-list."""

    def report_to(self, tell: Tell) -> None:
        """Tells what the place was refused to reach (`host`, `port`, `why`), from now on and what was not told yet."""
        ...
