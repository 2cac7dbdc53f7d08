"""Asking a run to stop: once for "cancel and clean up", twice for "stop cleaning up"."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

T = TypeVar("T")


class Cancellation:
    """A run's stop signal. The first call cancels its steps, the second its clean-up; more change nothing."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self._signals: tuple[asyncio.Future[None], ...] = tuple(asyncio.get_running_loop().create_future() for _ in range(2))

    @property
    def asked(self) -> bool:
        """Asked at least once."""
        return self._signals[0].done()

    @property
    def insisted(self) -> bool:
        """Asked twice."""
        return self._signals[1].done()

    @property
    def next(self) -> asyncio.Future[None] | None:
        """What the next request completes; None when there is nothing left to stop."""
        return next((signal for signal in self._signals if not signal.done()), None)

    @property
    def stop(self) -> asyncio.Future[None]:
        """What the second request completes."""
        return self._signals[1]

    def ask(self, reason: str = "cancelled") -> None:
        """Asks once more."""
        self.reason = self.reason or reason
        signal = self.next
        if signal is not None:
            signal.set_result(None)


async def to_its_end(work: Coroutine[object, object, T], cancellation: Cancellation) -> T:
    """Runs `work` to its end, turning each cancellation of the caller into a request to stop; then delivers the cancellation."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
            cancellation.ask("interrupted")
    if cancelled is not None and not task.cancelled() and task.exception() is None:
        raise cancelled
    return task.result()
