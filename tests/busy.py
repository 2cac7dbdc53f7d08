"""How long things may take in tests: said as for a quiet machine, granted as this one is."""

from __future__ import annotations

import os


def within(seconds: float) -> float:
    """So many seconds of a quiet machine, as a machine needs them on which twice as many want to run as can, ten times as many, …"""
    return seconds * max(1.0, 2 * os.getloadavg()[0] / (os.cpu_count() or 1))
