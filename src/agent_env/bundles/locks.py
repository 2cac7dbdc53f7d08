"""Turns between processes that write the same bundle: one lock file a bundle, given back by the kernel when its holder dies."""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from agent_env.defaults import DEFAULT_LIMITS, Limits
from agent_env.errors import StorageError
from agent_env.waiting import poll


@asynccontextmanager
async def bundle_locks(
    folder: Path, bundles: Iterable[str], *, limits: Limits = DEFAULT_LIMITS, on_wait: Callable[[str], None] | None = None
) -> AsyncIterator[None]:
    """Holds the locks of some bundles.

    Args:
        folder: Where lock files are; made when absent.
        bundles: Id roots. They are taken in order, so that two holders never wait for each other.
        limits: `bundle_lock_seconds` bounds the wait for each.
        on_wait: Told once a bundle that somebody else holds.

    Raises:
        DeadlineError: Another process held one for too long.
        StorageError: A lock file can't be made.
    """
    handles: list[int] = []
    try:
        for bundle in sorted(set(bundles)):
            handles.append(_open(folder, bundle))
            if not _taken(handles[-1]):
                if on_wait is not None:
                    on_wait(bundle)
                await _wait(handles[-1], bundle, limits)
        yield
    finally:
        for handle in handles:
            os.close(handle)


async def _wait(handle: int, bundle: str, limits: Limits) -> None:
    async def probe() -> bool | None:
        return _taken(handle) or None

    what = f"the write of another process to bundle {bundle}"
    await poll(probe, within_seconds=limits.bundle_lock_seconds, what=what, limits=limits)


def _open(folder: Path, bundle: str) -> int:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = folder / f"bundle-{hashlib.sha256(bundle.encode()).hexdigest()[:16]}.lock"
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StorageError(f"the bundle's lock file can't be made: {error}", concerns=str(folder)) from error


def _taken(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
