"""Runs cases, several at once, each within its deadline, and says how each ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from agent_env.clock import SystemClock
from agent_env.errors import AgentEnvError
from agent_env.sandboxes.conformance.bench import Bench
from agent_env.sandboxes.conformance.case import MISSING, CapabilityMissingError, Case, Result, Verdict
from agent_env.waiting import deadline

_CLOCK = SystemClock()


async def judge(bench: Bench, case: Case) -> Verdict:
    """Runs one case. Whatever a provider raises is a verdict, never an error of the kit."""
    async with bench.turn():
        missing = case.missing(await bench.declared())
    if missing is not None:
        return Verdict(case, Result.SKIPPED, 0.0, f"{MISSING}: {missing}")
    begun = _CLOCK.monotonic()
    result, detail = Result.PASSED, ""
    try:
        async with bench.turn(), deadline(bench.limits.conformance_case_seconds * case.patience, f"the case {case.id}"):
            await case.work(bench)
    except CapabilityMissingError as error:
        result, detail = Result.SKIPPED, error.message
    except AssertionError as error:
        result, detail = Result.FAILED, str(error) or "an assertion without words"
    except Exception as error:  # noqa: BLE001 - a provider may be anybody's code, and the other cases must still be run
        result, detail = Result.FAILED, _told(error)
    return Verdict(case, result, _CLOCK.monotonic() - begun, detail)


def _told(error: Exception) -> str:
    if isinstance(error, ExceptionGroup):
        return "; ".join(_told(inner) for inner in error.exceptions)
    return f"{type(error).__name__}: {error}" if isinstance(error, AgentEnvError) else f"it raised {error!r}"


async def run_cases(bench: Bench, cases: Sequence[Case], *, jobs: int = 1) -> AsyncIterator[Verdict]:
    """Runs the cases and gives each verdict as it comes; what the bench made is removed at the end.

    Args:
        bench: The provider under test.
        cases: What to run.
        jobs: How many at once.
    """
    gate = asyncio.Semaphore(jobs)

    async def one(case: Case) -> Verdict:
        async with gate:
            return await judge(bench, case)

    tasks = [asyncio.ensure_future(one(case)) for case in cases]
    try:
        for task in asyncio.as_completed(tasks):
            yield await task
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await bench.aclose()
