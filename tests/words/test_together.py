"""Several works at once: errors, and cancellations that all of them hear."""

from __future__ import annotations

import asyncio

import pytest

from agent_env.waiting import together


def test_d7_second_cancellation_reaches_every_work_that_still_cleans_up() -> None:
    async def work(name: str, heard: asyncio.Queue[str]) -> None:
        try:
            heard.put_nowait(f"{name} began")
            await asyncio.Event().wait()
        finally:
            heard.put_nowait(f"{name} first")
            try:
                await asyncio.Event().wait()
            finally:
                heard.put_nowait(f"{name} second")

    async def main() -> list[set[str]]:
        heard: asyncio.Queue[str] = asyncio.Queue()
        task = asyncio.ensure_future(together([work("a", heard), work("b", heard)]))
        said = [{await heard.get(), await heard.get()}]
        for _ in range(2):
            task.cancel()
            said.append({await heard.get(), await heard.get()})
        with pytest.raises(asyncio.CancelledError):
            await task
        return said

    assert asyncio.run(main()) == [{"a began", "b began"}, {"a first", "b first"}, {"a second", "b second"}]


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
