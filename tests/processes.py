"""What the kernel says of processes that may be gone by the time somebody looks, and copies of this process."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable
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


def forked(work: Callable[[], object]) -> int:
    """Starts a copy of this process that does the work and ends, whatever comes of it: one that came back would go on with the tests.

    Signals end it, also the one by which a test's own time is measured here.

    Returns:
        Its id; whoever asked waits for it. It ends with 0 when the work is done, else with 1 and says why.
    """
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        work()
        code = 0
    except BaseException:  # noqa: BLE001 (nothing may come back)
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)
