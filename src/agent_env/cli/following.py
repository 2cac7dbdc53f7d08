"""A run's events: the stored ones, then the live ones over its control socket, without polling."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from agent_env.cli.output import note, reader_left

if TYPE_CHECKING:
    from agent_env.config import Config
    from agent_env.stores import EventRow, Journal

PAGE = 1000
_TRIES = 4
"""How often a run is asked that a process has: that may be one of another machine, which nobody here hears."""


def stored_events(journal: Journal, run_id: str, after: int) -> Iterator[EventRow]:
    """All stored events after a number, read page by page."""
    while page := journal.events(run_id, after=after, limit=PAGE):
        yield from page
        after = page[-1].seq


def summaries(journal: Journal, run_id: str) -> dict[str, str]:
    """What each finished attempt said of itself, by its id."""
    done = (event.payload for event in stored_events(journal, run_id, 0) if event.kind == "step_done")
    return {payload["attempt_id"]: payload["summary"] for payload in done if payload.get("summary")}


async def follow_events(
    config: Config, run_id: str, *, after: int, show: Callable[[dict[str, Any]], None], is_owned: Callable[[], bool]
) -> int:
    """Shows what happens from now on, until the run is over or the reader of our output has left.

    A run that has only just begun does not listen yet: while a process has it, which `is_owned` tells, it is asked a few times.

    Returns:
        The number of the last event that was shown: what is stored after it happened while nobody told us.
    """
    from agent_env.engine.control import run_folder, stream
    from agent_env.waiting import pause

    heard, folder = False, run_folder(config.state_root, run_id)
    for _ in range(_TRIES):
        async for event in stream(folder, {"do": "events", "after": after}):
            heard = True
            if _is_event(event):
                show(dict(event))
                after = event["seq"]
            if reader_left():
                break
        if heard or not is_owned():
            break
        await pause(config.limits.control_delay_seconds)
    if not heard:
        note(f"no process on this machine runs {run_id} now")
    return after


def _is_event(answer: Mapping[str, Any]) -> bool:
    return "seq" in answer
