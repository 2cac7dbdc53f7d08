"""How a sandbox of this machine ended, as its record and the reports of its guardian tell."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from agent_env.errors import PlaceLostError
from agent_env.sandboxes.confined.processes import Identity
from agent_env.sandboxes.confined.records import Facts, reported


def gone(facts: Facts, events: Path) -> PlaceLostError | None:
    """Why a recorded sandbox can't be reached; None when it lives.

    Args:
        facts: Its record.
        events: What its guardian reported.
    """
    if facts.alive:
        return None
    if facts.rebooted:
        return PlaceLostError(
            f"sandbox {facts.sandbox_id} was lost when this machine restarted",
            concerns=facts.sandbox_id,
            hint="resume with --redeploy to make it again",
        )
    ended = next((event for event in reversed(reported(events)) if event.get("event") == "ended"), None)
    how = "was never finished" if facts.phase != "running" else f"has ended ({_ending(ended)})"
    return PlaceLostError(f"sandbox {facts.sandbox_id} {how}", concerns=facts.sandbox_id, hint="resume with --redeploy to make it again")


async def found_gone(facts: Facts, events: Path, *, seconds: float) -> PlaceLostError | None:
    """As `gone`, once its guardian has told how it ended.

    Args:
        facts: Its record.
        events: What its guardian reported.
        seconds: How long the guardian is waited for, which then ends too.
    """
    if facts.alive:
        return None
    guardian = Identity.load(facts.guardian)
    if guardian is not None and not facts.rebooted:
        await asyncio.to_thread(guardian.wait_gone, seconds)
    return gone(facts, events)


async def told_of_break(facts: Facts, events: Path, *, seconds: float) -> PlaceLostError | None:
    """As `found_gone`, of a sandbox whose connection broke: its first process lets go of that a moment before it is over."""
    first = Identity.load(facts.first)
    if first is not None:
        await asyncio.to_thread(first.wait_gone, seconds)
    return await found_gone(facts, events, seconds=seconds)


def _ending(event: Mapping[str, object] | None) -> str:
    match event:
        case {"signal": 9}:
            return "it was killed"
        case {"signal": number}:
            return f"signal {number}"
        case {"exit_code": 0}:
            return "its time was over, or it was told to"
        case {"exit_code": code}:
            return f"exit code {code}"
    return "nobody saw how"
