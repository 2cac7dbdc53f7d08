"""What the kernel says of processes that may be gone by the time somebody looks."""

from __future__ import annotations

from pathlib import Path


def state_of(pid: int | str) -> str:
    """A process's state, as the letter that the kernel has for it; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def children_of(pid: int | str) -> list[int]:
    """The processes that a process's first thread has started; none when it is gone."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def is_alive(pid: int | str) -> bool:
    """Whether a process is there, and not only waited for."""
    return state_of(pid) not in {"", "Z"}
