"""How much memory a process had at most. `ru_maxrss` does not tell: it survives `exec`, so a child starts with its parent's peak."""

from __future__ import annotations

import re
from pathlib import Path

KIB = 1024


def peak_bytes(pid: int | str = "self") -> int:
    """The most resident memory that the process had since it began, or since `forget_peak`."""
    found = re.search(r"^VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found, f"process {pid} has no memory"
    return int(found[1]) * KIB


def forget_peak() -> int:
    """Lets this process's peak start again from what it has now, which is returned: an earlier peak would hide any growth below it."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak_bytes()
