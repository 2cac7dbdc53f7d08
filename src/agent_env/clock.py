"""Time as a value that is passed in, so that a test can hold it and a jump of the wall clock can't move a deadline.

Deadlines use `monotonic`; `now` is for records that people read. Nothing else in the package calls `time.time`.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """What the engine knows of time."""

    def monotonic(self) -> float:
        """Seconds that only grow, unaffected by changes of the wall clock."""
        ...

    def now(self) -> datetime:
        """The wall clock, aware, in UTC."""
        ...


class SystemClock:
    """This machine's clocks."""

    def monotonic(self) -> float:
        """Seconds that only grow."""
        return time.monotonic()

    def now(self) -> datetime:
        """The wall clock in UTC."""
        return datetime.now(UTC)


def timestamp(moment: datetime) -> str:
    """ISO 8601 in UTC with microseconds and `Z`: sorts as text."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
