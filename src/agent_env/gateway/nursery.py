"""Where the gateway's own tasks live: none outlives it, and one that fails is told and harms no other."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

log = logging.getLogger("agent_env.gateway")


class Nursery:
    """Owns background tasks. Made by `nursery()`."""

    def __init__(self, group: asyncio.TaskGroup) -> None:
        self._group = group
        self._tasks: set[asyncio.Task[None]] = set()

    def soon(self, work: Coroutine[Any, Any, object], what: str) -> asyncio.Task[None]:
        """Runs work beside everything else."""
        task = self._group.create_task(_told(work, what))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: work.close())  # of one that was cancelled before it began
        return task

    def __len__(self) -> int:
        """How many run now."""
        return len(self._tasks)

    def cancel(self) -> None:
        """Cancels all."""
        for task in list(self._tasks):
            task.cancel()


@asynccontextmanager
async def nursery() -> AsyncIterator[Nursery]:
    """A nursery whose tasks are cancelled, and awaited, at the block's end."""
    async with asyncio.TaskGroup() as group:
        made = Nursery(group)
        try:
            yield made
        finally:
            made.cancel()


async def _told(work: Coroutine[Any, Any, object], what: str) -> None:
    try:
        await work
    except Exception:  # whatever one child or client provokes must not end the others' gateway
        log.exception("%s failed", what)
