"""How long things may take in tests: said as for a quiet machine, granted as this one is."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

LONGEST = 8
"""How many times over a limit that is waited out may be stretched."""


def within(seconds: float) -> float:
    """So many seconds of a quiet machine, as a machine needs them on which twice as many want to run as can, ten times as many, …"""
    return seconds * max(1.0, 2 * _busy())


def lasting(seconds: float) -> float:
    """A limit that a test waits out and before which something small has to be done, in tenths of a second: no longer than it must be."""
    return round(seconds * min(max(1.0, _busy()), LONGEST), 1)


def _busy() -> float:
    """How many want to run for each that can: in the last minute, or, where that has only just begun, at this moment."""
    now = 0
    with suppress(OSError):
        now = int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0])
    return max(os.getloadavg()[0], now) / (os.cpu_count() or 1)
