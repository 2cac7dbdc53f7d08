"""Holding still what is looked at: what earlier steps left running in a place may be stopped while a verifier reads what they made."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

from agent_env.errors import InfrastructureError
from agent_env.places import LedgerEntry, Missing, Place
from agent_env.steps.contract import Run
from agent_env.steps.targets import AgentTarget, SandboxTarget, Target
from agent_env.waiting import shielded

Quiesce = Literal["leave", "freeze", "kill"]


@asynccontextmanager
async def quieted(quiesce: Quiesce, run: Run, target: Target, place: Place) -> AsyncIterator[str | None]:
    """Does what the step asks about what still runs in the place, for as long as the block runs.

    Meant are the process trees that commands of earlier steps left behind when they ended; where an agent lives, also its own, which has
    not ended. A command that another step runs at the same time is neither killed nor frozen: that step would fail for it. What is
    frozen goes on after the block, however that ends.

    Yields:
        What was done, for the record; None when nothing was asked.
    """
    if quiesce == "leave":
        yield None
        return
    found = await _running(run, place, all_of_it=_agent_lives_there(run, target))
    if quiesce == "kill":
        ended = sum([await place.stop_attempt(attempt) for attempt in found.left])
        yield f"kill: process trees ended: {ended}{found.remark}"
        return
    try:
        held = await place.freeze(*found.left) if found.left else 0
        yield f"freeze: processes held still: {held}{found.remark}"
    finally:
        if found.left:
            with suppress(InfrastructureError):  # the verdict stands; a place that can't be told is gone
                await shielded(place.thaw(*found.left), seconds=run.limits.cleanup_seconds, what="letting processes go on")


@dataclass(frozen=True, slots=True)
class _Running:
    """The attempts whose trees are meant, in order, and how many others are at work."""

    left: tuple[str, ...]
    at_work: int = 0

    @property
    def remark(self) -> str:
        return f"; left alone, being at work for another step: {self.at_work}" if self.at_work else ""


async def _running(run: Run, place: Place, *, all_of_it: bool) -> _Running:
    ledger = await place.ledger()
    running = [entry for entry in ledger if entry.running and entry.attempt and entry.attempt != run.attempt_id]
    attempts = {entry.attempt for entry in running if entry.attempt}
    at_work = set() if all_of_it else await _at_work(place, running, [entry for entry in ledger if not entry.running])
    return _Running(tuple(sorted(attempts - at_work)), len(at_work))


async def _at_work(place: Place, running: Collection[LedgerEntry], over: Collection[LedgerEntry]) -> set[str]:
    """Attempts with a command that has not ended. The ledger remembers endings for a while; after that the process itself is looked for."""
    ended = {(entry.attempt, entry.pid) for entry in over}
    unsure = [entry for entry in running if (entry.attempt, entry.pid) not in ended]
    if not unsure:
        return set()
    found = await place.stat([PurePosixPath(f"/proc/{entry.pid}") for entry in unsure])
    alive = {path.name for path, entry in found.items() if not isinstance(entry, Missing)}
    return {entry.attempt for entry in unsure if entry.attempt and str(entry.pid) in alive}


def _agent_lives_there(run: Run, target: Target) -> bool:
    if isinstance(target, AgentTarget):
        return True
    if not isinstance(target, SandboxTarget):
        return False
    sandbox_id = run.sandbox(target.sandbox_name).sandbox_id
    return any(record.get("sandbox_id") == sandbox_id for record in run.context.get("deployed_agents") or ())
