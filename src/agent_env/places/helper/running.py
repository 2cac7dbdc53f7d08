"""A command that is run to its end, with its input."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from agent_env.defaults import Limits
from agent_env.places.helper.connection import Connection
from agent_env.places.helper.execution import Again, Execution, fits_at_once
from agent_env.places.place import Command, Completed


async def run(connection: Connection, command: Command, limits: Limits, *, again: Again | None = None) -> Completed:
    """Runs a command to its end; see `Place.run`. Without `again`, a broken connection is the end."""
    stdin = command.stdin
    execution = Execution(connection, command, limits, again=again)
    try:
        if stdin is None or fits_at_once(stdin):
            return execution.result(await execution.over())
        return execution.result(await _run_fed(execution, stdin))
    finally:
        await execution.end_shielded()


async def _run_fed(execution: Execution, stdin: bytes | AsyncIterator[bytes]) -> Completed:
    feeder = asyncio.ensure_future(execution.feed(stdin))
    try:
        await asyncio.wait((feeder, execution.done), return_when=asyncio.FIRST_COMPLETED)
        if feeder.done():
            feeder.result()
        return await execution.over()
    finally:
        feeder.cancel()
        await asyncio.wait([feeder])
        if not feeder.cancelled():
            feeder.exception()
