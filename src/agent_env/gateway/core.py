"""The gateway put together: what is behind it, what it remembers, what it shows."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from agent_env.gateway.backend import Backend
from agent_env.gateway.calls import Calls
from agent_env.gateway.catalogue import Catalogue
from agent_env.gateway.changelog import Changelog
from agent_env.gateway.child import Child
from agent_env.gateway.config import Settings
from agent_env.gateway.following import Following
from agent_env.gateway.journal import Journal
from agent_env.gateway.listing import PROMPTS, RESOURCES, TEMPLATES, Listed
from agent_env.gateway.mcp import McpEndpoint
from agent_env.gateway.nursery import Nursery, nursery
from agent_env.gateway.proxy import Proxy
from agent_env.gateway.ruling import Ruling
from agent_env.gateway.trajectory import Trajectory
from agent_env.gateway.triggers.entrance import Triggers
from agent_env.redaction import Redactor

GET_TIME: dict[str, Any] = {
    "name": "get_time",
    "title": "Current time",
    "description": "Tells the current date and time. Use it whenever the time matters: the clock of the machine you run on may be wrong.",
    "inputSchema": {
        "type": "object",
        "properties": {
            "time_zone": {"type": "string", "description": "IANA name of a time zone, such as Europe/Oslo, to get the local time too."}
        },
    },
    "annotations": {"readOnlyHint": True},
}
LIST_WEBSITES: dict[str, Any] = {
    "name": "list_website_urls",
    "title": "Websites",
    "description": "Lists the websites of this environment with their addresses.",
    "inputSchema": {"type": "object", "properties": {}},
    "annotations": {"readOnlyHint": True},
}

_OTHERS = (PROMPTS, RESOURCES, TEMPLATES)


def _tool(value: dict[str, Any]) -> Listed:
    return Listed(value["name"], json.dumps(value), value)


class Gateway:
    """See the module. Made by `gateway()`."""

    def __init__(self, settings: Settings, nursery: Nursery) -> None:
        self.settings = settings
        self.config = settings.config
        self.limits = settings.limits
        self.nursery = nursery
        self.journal = Journal(settings.state / "journal.jsonl", self.limits.journal_bytes)
        redactor = Redactor([settings.key.decode("latin-1"), *([settings.database_url] if settings.database_url else [])])
        self.trajectory = Trajectory(settings.state, self.limits, redactor)
        self.backends = [Backend(server, self.limits) for server in self.config.servers]
        self.ruling = Ruling(self.journal, self.limits, self._refreshed)
        changelog = Changelog(settings.database_url, self.limits) if settings.database_url else None
        self.calls = Calls(self.ruling, self.trajectory, changelog, self.limits, consistent=self.config.mode == "consistent")
        speaking = [backend for backend in self.backends if not backend.server.website]
        children = [Child(backend, self.limits, nursery, self._refreshed) for backend in speaking]
        self.catalogue = Catalogue(children, namespacing=self.config.namespacing, own=self._own_tools)
        following = Following(self.journal, self.limits)
        for child in children:
            child.wishes = partial(following.wishes, child)
            child.updated = partial(following.changed, child.name)
        self.mcp = McpEndpoint(settings, self.catalogue, self.ruling, self.calls, following=following, nursery=nursery)
        self.proxy = Proxy(self.backends, self.calls, self.limits)
        self.calls.websites = self.proxy.websites
        websites = [server.name for server in self.config.websites]
        self.triggers = Triggers(self.calls, self.catalogue, self.journal, nursery, websites)
        self.calls.watcher = self.triggers
        self.proxy.watcher = self.triggers
        self.ruling.armed = self.triggers.rearmed

    def start(self) -> None:
        """Begins to look for the servers."""
        self.nursery.soon(self.trajectory.write_forever(), "writing the trajectory")
        for child in self.catalogue.children:
            self.nursery.soon(child.run(), f"keeping in touch with '{child.name}'")
        for backend in self.backends:
            self.nursery.soon(backend.card(), f"reading the card of '{backend.server.name}'")

    async def drain(self) -> bool:
        """Takes no further calls and waits for those in progress. Whether all ended in time."""
        self.mcp.draining = True
        self.catalogue.release()
        self.catalogue.refresh()  # wakes open streams, which end
        try:
            async with asyncio.timeout(self.limits.drain_seconds):
                await self.calls.idle()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """Lets go of everything outside this process."""
        await asyncio.gather(*(child.close() for child in self.catalogue.children))
        await self.proxy.close()
        if self.calls.changelog is not None:
            await self.calls.changelog.close()
        self.trajectory.flush_now()
        self.journal.close()

    def health(self) -> dict[str, Any]:
        """How it and what is behind it are."""
        children = [child.status() for child in self.catalogue.children]
        missing = [child["name"] for child in children if child["required"] and not child["ready"]]
        known = all(child.settled.is_set() for child in self.catalogue.children)
        clashing = bool(self.catalogue.clashes)
        status = "draining" if self.mcp.draining else "ready"
        if status == "ready" and missing:
            status = "unavailable" if known else "starting"
        elif status == "ready" and (clashing or not all(child["ready"] for child in children)):
            status = "degraded"
        changelog = self.calls.changelog
        return {
            "status": status,
            "missing": missing,
            "children": children,
            "cards": {backend.server.proxy_key: backend.card_error for backend in self.backends if backend.card_error},
            "tool_name_clashes": {name: list(sources) for name, sources in self.catalogue.clashes.items()},
            "clashes": {
                kind.key: {name: list(sources) for name, sources in found.items()}
                for kind in _OTHERS
                if (found := self.catalogue.clashing(kind))
            },
            "unauthenticated_role": self.config.unauthenticated_role,
            "calls_in_progress": self.calls.in_progress,
            "streams": self.mcp.streams,
            "journal_position": self.journal.position,
            "trajectory_dropped": self.trajectory.dropped,
            "changelog": None if changelog is None else changelog.error or "ok",
            "pid": os.getpid(),
        }

    def _refreshed(self) -> None:
        self.catalogue.refresh()

    def _own_tools(self) -> Sequence[Listed]:
        websites = any(backend.server.frontend for backend in self.backends)
        return [*([_tool(GET_TIME)] if self.ruling.clock is not None else []), *([_tool(LIST_WEBSITES)] if websites else [])]


@asynccontextmanager
async def gateway(settings: Settings) -> AsyncIterator[Gateway]:
    """A gateway that runs, and closes at the block's end."""
    made: Gateway | None = None
    try:
        async with nursery() as tasks:
            made = Gateway(settings, tasks)
            made.start()
            yield made
    finally:
        if made is not None:
            await made.close()
