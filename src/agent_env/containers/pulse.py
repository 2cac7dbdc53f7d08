"""A look, now and then, at what somebody waits for and hears nothing of. Costs nothing while nobody waits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


class Pulse:
    """Looks again and again, from the first wait on, for as long as there is something to look at.

    Args:
        look: Whether there is still something; must be quick to answer, or bounded.
        seconds: Between the looks.
    """

    def __init__(self, look: Callable[[], Awaitable[bool]], seconds: float) -> None:
        self._look = look
        self._seconds = seconds
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def watch(self) -> None:
        """Somebody begins to wait."""
        if self._timer is None and self._task is None:
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self._due)

    def _due(self) -> None:
        self._timer = None
        self._task = asyncio.ensure_future(self._once())

    async def _once(self) -> None:
        again = await self._look()
        self._task = None
        if again:
            self.watch()

    async def aclose(self) -> None:
        """Looks no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
