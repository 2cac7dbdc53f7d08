"""The only module that sleeps. Everything else waits *on* something: an event, a socket, a process."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import TypeVar

from agent_env.defaults import DEFAULT_LIMITS, Limits
from agent_env.errors import DeadlineError

T = TypeVar("T")


@asynccontextmanager
async def deadline(seconds: float | None, what: str) -> AsyncIterator[None]:
    """Bounds the block.

    Args:
        seconds: The limit; None means that an outer scope holds the deadline.
        what: What is being waited for, as the message will say it.

    Raises:
        DeadlineError: The block did not end in time.
    """
    scope = asyncio.timeout(seconds)
    try:
        async with scope:
            yield
    except TimeoutError as error:
        if scope.expired():
            raise DeadlineError(f"{what} did not end within {seconds:g} s") from error
        raise


async def poll(
    probe: Callable[[], Awaitable[T | None]],
    *,
    within_seconds: float,
    what: str,
    limits: Limits = DEFAULT_LIMITS,
) -> T:
    """Asks until there is an answer, first after `limits.poll_first_seconds` and then ever more rarely.

    For what gives no event to wait on. `probe` returns None for "not yet".

    Raises:
        DeadlineError: There was no answer within `within_seconds`.
    """
    pause = limits.poll_first_seconds
    async with deadline(within_seconds, what):
        while True:
            answer = await probe()
            if answer is not None:
                return answer
            await asyncio.sleep(pause)
            pause = min(pause * 2, limits.poll_max_seconds)


async def back_off(attempt: int, *, limits: Limits = DEFAULT_LIMITS, random_source: random.Random | None = None) -> None:
    """Pauses before attempt `attempt` (2 is the first retry): doubling, capped, with jitter of up to half."""
    ceiling = min(limits.retry_backoff_seconds * 2 ** max(attempt - 2, 0), limits.retry_backoff_max_seconds)
    await asyncio.sleep(ceiling * (0.5 + (random_source or random).random() / 2))


async def pause(seconds: float) -> None:
    """Pauses for as long as somebody else asked for, such as a server that is busy."""
    await asyncio.sleep(seconds)


async def shielded(clean_up: Coroutine[object, object, T], *, seconds: float, what: str) -> T:
    """Runs a clean-up to its end even while the caller is being cancelled, within its own deadline.

    The caller's cancellation is delivered once the clean-up has ended.

    Raises:
        DeadlineError: The clean-up itself did not end in time.
    """

    async def bounded() -> T:
        async with deadline(seconds, what):
            return await clean_up

    work = asyncio.ensure_future(bounded())
    cancelled: asyncio.CancelledError | None = None
    while not work.done():
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is None:
        return work.result()
    if not work.cancelled():
        work.exception()  # marks it as seen: the cancellation is what the caller must hear
    raise cancelled


async def together(works: Iterable[Coroutine[object, object, None]]) -> None:
    """Runs all to their end. The first one that fails cancels the others, and its error is raised.

    Unlike a `TaskGroup`, every cancellation of the caller reaches each of them, not only the first: where the first one starts a clean-up,
    the second one must be able to stop it.
    """
    tasks = [asyncio.ensure_future(work) for work in works]
    cancelled: asyncio.CancelledError | None = None
    failed: asyncio.Task[None] | None = None
    pending = set(tasks)
    while pending:
        try:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError as error:
            cancelled, done = error, set()
            for task in pending:
                task.cancel()
        broken = next((task for task in done if not task.cancelled() and task.exception() is not None), None)
        if broken is not None and failed is None:
            failed = broken
            for task in pending:
                task.cancel()
    if failed is not None:
        failed.result()
    if cancelled is not None:
        raise cancelled
