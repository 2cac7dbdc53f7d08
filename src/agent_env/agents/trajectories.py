"""Keeps what an agent records: page by page while it works, where it can, so that what a crash cuts off is kept too; whole at the end,
where it can't. The events are kept as they are.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agent_env_sdk.wire.agent_extensions import TRAJECTORY, card_request_accepts, method_of

from agent_env.agents.client import AgentClient
from agent_env.agents.contract import Trajectory
from agent_env.agents.faults import AgentFailedError
from agent_env.errors import AgentEnvError
from agent_env.waiting import poll, shielded

Json = Any
_PAGE = 1000
_UNKNOWN = frozenset({400, 404})
"""Statuses of an agent that records nothing of what is asked for, or not yet."""


@dataclass(frozen=True, slots=True)
class Page:
    """Some events."""

    format: str | None
    state: str
    events: list[Json]
    next: int
    more: bool


async def pages(client: AgentClient, key: Mapping[str, str], *, after: int = 0) -> AsyncGenerator[Page, None]:
    """What is recorded of a task or a conversation from a position on, as far as it goes now.

    Args:
        client: Speaks with the agent.
        key: `task_id` or `context_id`.
        after: Where to go on, of an agent that has pages.

    Raises:
        AgentUnreachableError: The agent does not answer.
        AgentFailedError: It answers with a fault, or with pages that lead nowhere.
    """
    entry = method_of(await client.card(), TRAJECTORY, "get")
    if entry is None:
        return
    request, paged = entry.get("request") or {}, pages_of(entry)
    if not paged and (after or (request and not card_request_accepts(request, key))):
        return
    try:
        while True:
            body = {**key, "after": after, "limit": _PAGE} if paged else dict(key)
            page = _page(await client.invoke(TRAJECTORY, "get", body), after)
            if page.more and page.events and page.next <= after:
                told = f"agent {client.name!r} has more of its trajectory after {after}, and says to go on at {page.next}"
                raise AgentFailedError(told, concerns=client.name, reason="bad_answer")
            yield page
            after = page.next
            if not page.more or not page.events:
                return
    except AgentFailedError as error:
        if error.status not in _UNKNOWN:
            raise


def pages_of(entry: Mapping[str, Json]) -> bool:
    """Whether an agent tells its events while it works."""
    return card_request_accepts(entry.get("request") or {}, {"task_id", "after", "limit"})


def _page(answer: Json, after: int) -> Page:
    fields = answer if isinstance(answer, Mapping) else {}
    if isinstance(whole := fields.get("trajectory"), list):
        return Page(None, "completed", whole, len(whole), more=False)
    events, told, spelled = fields.get("events"), fields.get("next"), fields.get("format")
    events = events if isinstance(events, list) else []
    following = told if type(told) is int else after + len(events)
    return Page(spelled if isinstance(spelled, str) else None, str(fields.get("state")), events, following, fields.get("has_more") is True)


async def read(client: AgentClient, key: Mapping[str, str]) -> Trajectory | None:
    """What is recorded so far, in memory; None where nothing is. Raises as `pages`."""
    found: Trajectory | None = None
    events: list[Json] = []
    size = 0
    async for page in pages(client, key):
        size += len(json.dumps(page.events))
        if size > client.limits.agent_trajectory_bytes:
            return replace(found, truncated=True) if found else Trajectory(page.format, page.state, [], truncated=True)
        events += page.events
        found = Trajectory(page.format or (found.format if found else None), page.state, events)
    return found


class Keeping:
    """A task's trajectory, as a file of one event a line.

    Args:
        client: Speaks with the agent.
        path: The file; its folder exists.
    """

    def __init__(self, client: AgentClient, path: Path) -> None:
        self._client, self._path = client, path
        self._position = 0
        self._size = 0
        self.format: str | None = None
        self.count = 0
        self.truncated = False

    async def follow(self, task_id: str, *, every_seconds: float, within_seconds: float) -> None:
        """Keeps up with a task until this is cancelled; what can't be had now is had later, or not at all."""
        with suppress(AgentEnvError):
            entry = method_of(await self._client.card(), TRAJECTORY, "get")
            if entry is not None and pages_of(entry):
                await self._followed(task_id, every_seconds, within_seconds)

    async def _followed(self, task_id: str, every_seconds: float, within_seconds: float) -> None:
        limits = replace(self._client.limits, poll_first_seconds=every_seconds, poll_max_seconds=every_seconds)
        first = True

        async def look() -> None:
            nonlocal first
            if first:  # a short turn is over before it is worth a question
                first = False
                return
            with suppress(AgentEnvError):
                await self._take(task_id)

        await poll(look, within_seconds=within_seconds, what="the turn's end", limits=limits)

    async def rest(self, task_id: str) -> None:
        """What came since, now that the turn is over. Raises as `pages`."""
        await self._take(task_id)

    async def _take(self, task_id: str) -> None:
        async for page in pages(self._client, {"task_id": task_id}, after=self._position):
            # A turn's end cancels the following: what was received is kept by then, or not counted.
            seconds = self._client.limits.cleanup_seconds
            await shielded(self._turned(page), seconds=seconds, what="writing what the agent recorded")

    async def _turned(self, page: Page) -> None:
        await self.add(page.events)
        self._position = page.next
        self.format = page.format or self.format

    async def add(self, events: Iterable[Json]) -> None:
        """Adds events of our own making, or an agent's."""
        lines = [json.dumps(event, ensure_ascii=False) + "\n" for event in events]
        size = sum(len(line) for line in lines)
        if self._size + size > self._client.limits.agent_trajectory_bytes:
            self.truncated = True
            return
        await asyncio.to_thread(_append, self._path, lines)
        self._size += size
        self.count += len(lines)

    def array(self, target: Path) -> Path:
        """The same as one JSON array, in another file."""
        with target.open("w", encoding="utf-8") as out:
            out.write("[")
            for index, line in enumerate(_lines(self._path)):
                out.write(("," if index else "") + line.rstrip("\n"))
            out.write("]")
        return target

    def events(self, *, limit_bytes: int) -> list[Json] | None:
        """All of them in memory; None where they are too many."""
        if self._size > limit_bytes:
            return None
        return [json.loads(line) for line in _lines(self._path)]


def _append(path: Path, lines: list[str]) -> None:
    with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
        file.writelines(lines)


def _lines(path: Path) -> Iterator[str]:
    if path.exists():
        with path.open(encoding="utf-8", newline="\n") as file:
            yield from file
