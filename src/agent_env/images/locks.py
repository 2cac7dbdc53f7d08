"""Turns between processes: one lock file a name, given back by the kernel when its holder dies, whatever it dies of."""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from enum import IntEnum
from pathlib import Path

from agent_env.defaults import DEFAULT_LIMITS, Limits
from agent_env.errors import StorageError
from agent_env.waiting import poll


class Hold(IntEnum):
    """How a lock is held; the values are `flock`'s."""

    ALONE = fcntl.LOCK_EX
    SHARED = fcntl.LOCK_SH
    """Together with others who share it."""


@asynccontextmanager
async def turn(
    folder: Path,
    names: Sequence[str],
    what: str,
    *,
    hold: Hold = Hold.ALONE,
    limits: Limits = DEFAULT_LIMITS,
    on_wait: Callable[[], None] | None = None,
) -> AsyncIterator[int]:
    """Holds one of some locks: with one name a mutex, with several a limit.

    Args:
        folder: Where lock files are; made when absent.
        names: The first free one is taken.
        what: What is waited for, as a message will say it.
        hold: Alone, or with others.
        limits: `image_lock_seconds` bounds the wait.
        on_wait: Told once when all are held.

    Yields:
        Which of `names` is held.

    Raises:
        DeadlineError: Others held them for too long.
        StorageError: A lock file can't be made.
    """
    handles = []
    try:
        for name in names:
            handles.append(_open(folder, name))
        taken = _first_free(handles, hold)
        if taken is None:
            if on_wait is not None:
                on_wait()

            async def probe() -> int | None:
                return _first_free(handles, hold)

            taken = await poll(probe, within_seconds=limits.image_lock_seconds, what=what, limits=limits)
        yield taken
    finally:
        for handle in handles:
            os.close(handle)


@contextmanager
def turn_if_free(folder: Path, name: str) -> Iterator[bool]:
    """Holds a lock when nobody else does, and says whether.

    Raises:
        StorageError: The lock file can't be made.
    """
    handle = _open(folder, name)
    try:
        yield _taken(handle, Hold.ALONE)
    finally:
        os.close(handle)


def _first_free(handles: Sequence[int], hold: Hold) -> int | None:
    return next((index for index, handle in enumerate(handles) if _taken(handle, hold)), None)


def _open(folder: Path, name: str) -> int:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = folder / f"image-{hashlib.sha256(name.encode()).hexdigest()[:16]}.lock"
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StorageError(f"a lock file can't be made: {error.strerror}", concerns=str(folder)) from error


def _taken(handle: int, hold: Hold) -> bool:
    try:
        fcntl.flock(handle, hold | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
