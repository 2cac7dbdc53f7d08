"""Several works at once: errors, and cancellations that all of them hear."""

from __future__ import annotations

import asyncio

import pytest

from agent_env.waiting import together


def test_d7_second_cancellation_reaches_every_work_that_still_cleans_up() -> None:
    heard: list[str] = []

    async def work(name: str, ready: asyncio.Event) -> None:
        try:
            ready.set()
            await asyncio.Event().wait()
        finally:
            heard.append(f"{name} first")
            try:
                await asyncio.Event().wait()
            finally:
                heard.append(f"{name} second")

    async def main() -> None:
        events = [asyncio.Event(), asyncio.Event()]
        task = asyncio.ensure_future(together([work("a", events[0]), work("b", events[1])]))
        for event in events:
            await event.wait()
        for expected in (2, 4):
            task.cancel()
            while len(heard) < expected:
                await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert sorted(heard) == ["a first", "a second", "b first", "b second"]


def test_first_error_cancels_the_others_and_is_raised() -> None:
    ended: list[str] = []

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("waits")

    async def fails() -> None:
        raise LookupError("none")

    with pytest.raises(LookupError):
        asyncio.run(together([waits(), fails()]))
    assert ended == ["waits"]
