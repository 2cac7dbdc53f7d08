"""How much memory a process had at most. `ru_maxrss` does not tell: it survives `exec`, so a child starts with its parent's peak."""

from __future__ import annotations

import re
import resource
import sys
from pathlib import Path

KIB = 1024
_HAS_PROC = Path("/proc/self/status").exists()


def peak_bytes(pid: int | str = "self") -> int:
    """The most resident memory that the process had since it began, or since `forget_peak`. Of another process, on Linux alone."""
    if not _HAS_PROC and pid == "self":  # a program there begins with a peak of its own
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * KIB
    found = re.search(r"^VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found, f"process {pid} has no memory"
    return int(found[1]) * KIB


def by_a_small_parent(*arguments: str) -> list[str]:
    """A command that starts another one from a process without a past: where there is no /proc, a peak begins with the parent's."""
    return [sys.executable, "-S", "-c", "import subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]))", *arguments]


def forget_peak() -> int:
    """Lets this process's peak start again from what it has now, which is returned: an earlier peak would hide any growth below it.

    Where nothing can be forgotten, growth below the earlier peak is not seen.
    """
    if _HAS_PROC:
        Path("/proc/self/clear_refs").write_text("5")
    return peak_bytes()
