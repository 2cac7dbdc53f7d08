"""Holding still what is looked at: the agent's own processes may be stopped while a verifier reads what they made."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

from agent_env.errors import UnsupportedError
from agent_env.places import Place
from agent_env.steps.contract import Run
from agent_env.steps.targets import AgentTarget, SandboxTarget, Target

Quiesce = Literal["leave", "freeze", "kill"]


@asynccontextmanager
async def quieted(quiesce: Quiesce, run: Run, target: Target, place: Place) -> AsyncIterator[str | None]:
    """Does what the step asks about the agent that lives in the place, for as long as the block runs.

    Yields:
        What was done, for the record; None when nothing was asked.

    Raises:
        UnsupportedError: An agent lives there, and its processes can't be frozen.
    """
    if quiesce == "leave":
        yield None
    elif not _lives_there(run, target):
        yield f"{quiesce}: no agent lives there"
    elif quiesce == "freeze":
        raise UnsupportedError(
            "the agent's processes can't be frozen in this place", concerns=place.id, hint='use quiesce "kill" or "leave"'
        )
    else:
        attempts = {entry.attempt for entry in await place.ledger() if entry.running and entry.attempt} - {run.attempt_id}
        killed = sum([await place.stop_attempt(attempt) for attempt in sorted(attempts)])
        yield f"kill: process trees ended: {killed}"


def _lives_there(run: Run, target: Target) -> bool:
    if isinstance(target, AgentTarget):
        return True
    if not isinstance(target, SandboxTarget):
        return False
    sandbox_id = run.sandbox(target.sandbox_name).sandbox_id
    return any(record.get("sandbox_id") == sandbox_id for record in run.context.get("deployed_agents") or ())
