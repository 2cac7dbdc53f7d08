"""Waiting: deadlines are scopes, clean-up survives cancellation."""

from __future__ import annotations

import asyncio

import pytest

from agent_env.errors import DeadlineError
from agent_env.waiting import deadline, poll, shielded


def test_a_deadline_names_what_did_not_end() -> None:
    async def wait() -> None:
        async with deadline(0.01, "the harbour master"):
            await asyncio.Event().wait()

    with pytest.raises(DeadlineError, match=r"the harbour master did not end within 0\.01 s"):
        asyncio.run(wait())


def test_a_time_out_of_something_inside_is_not_taken_for_the_deadline() -> None:
    async def wait() -> None:
        async with deadline(5, "outer"):
            raise TimeoutError("inner")

    with pytest.raises(TimeoutError, match="inner"):
        asyncio.run(wait())


def test_a_poll_ends_with_the_first_answer() -> None:
    asked = []

    async def probe() -> str | None:
        asked.append(1)
        return "ready" if len(asked) == 3 else None

    assert asyncio.run(poll(probe, within_seconds=5, what="it")) == "ready"
    assert len(asked) == 3


def test_a_shielded_clean_up_ends_although_its_caller_is_cancelled_and_the_cancellation_is_delivered() -> None:
    done = asyncio.Event()

    async def clean_up() -> None:
        await asyncio.sleep(0.02)
        done.set()

    async def main() -> None:
        work = asyncio.ensure_future(shielded(clean_up(), seconds=5, what="clean-up"))
        await asyncio.sleep(0)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        assert done.is_set()

    asyncio.run(main())


def test_a_shielded_clean_up_that_hangs_is_bounded() -> None:
    async def main() -> None:
        await shielded(asyncio.Event().wait(), seconds=0.02, what="the clean-up")

    with pytest.raises(DeadlineError, match="the clean-up"):
        asyncio.run(main())


def test_a_clean_up_that_fails_tells_its_own_error() -> None:
    async def fail() -> None:
        raise ValueError("broken")

    async def main() -> None:
        await shielded(fail(), seconds=1, what="it")

    with pytest.raises(ValueError, match="broken"):
        asyncio.run(main())
