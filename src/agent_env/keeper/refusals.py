"""What was forbidden, told once each and never more than a bounded number of times: a place can't flood a run's events."""

from __future__ import annotations

import asyncio
from collections import deque

from agent_env.keeper.outside import Refusal
from agent_env.keeper.records import MOST_TOLD


class Refusals:
    """The refusals of one place. What nobody listens to waits for the next listener."""

    def __init__(self) -> None:
        self._known: set[Refusal] = set()
        self._waiting: deque[Refusal] = deque(maxlen=MOST_TOLD)
        self._changed = asyncio.Event()
        self.count = 0
        """All of them, also those that were told before."""

    def add(self, refusal: Refusal) -> None:
        """Something was forbidden."""
        self.count += 1
        if refusal in self._known or len(self._known) >= MOST_TOLD:
            return
        self._known.add(refusal)
        self._waiting.append(refusal)
        self._changed.set()

    def rest(self) -> list[Refusal]:
        """Everything that was not told yet, without waiting."""
        found = list(self._waiting)
        self._waiting.clear()
        return found

    async def next(self) -> Refusal:
        """The next one that was not told yet."""
        while not self._waiting:
            self._changed.clear()
            await self._changed.wait()
        return self._waiting.popleft()
