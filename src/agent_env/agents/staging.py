"""The store that an agent serves itself: a way for files to and from an agent that nothing has to be reachable for from its place.

The agent reads and writes there over loopback; we do with the agent's token.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from agent_env_sdk.wire.agent_extensions import STAGING, STANDARDS, find
from agent_env_sdk.wire.names import STAGING_HEADER

from agent_env.agents.contract import LiveAgent
from agent_env.agents.faults import AgentNotAdvertisedError
from agent_env.clock import Clock
from agent_env.defaults import Limits
from agent_env.errors import InfrastructureError
from agent_env.waiting import shielded

Json = Any
OCTETS: Final = "application/octet-stream"
_CAPABILITY_BYTES: Final = 24
NOWHERE: Final = "https://staging.invalid"
"""Agents take HTTPS addresses alone; the path below it is their own."""


@dataclass(frozen=True, slots=True)
class Staging:
    """A corner of the store that an agent serves."""

    agent: LiveAgent
    prefix: str
    limits: Limits
    expires_at: str

    def path(self, name: str) -> str:
        """Where an object is."""
        return f"{self.prefix}/{name}"

    async def put(self, name: str, file: Path) -> dict[str, Json]:
        """Puts a file there. Returns what lets the agent read it.

        Raises:
            AgentFailedError: The agent does not take it.
        """
        await self.agent.put_file(self.path(name), file, media_type=OCTETS, seconds=self.limits.transfer_seconds)
        size = (await asyncio.to_thread(file.stat)).st_size
        return {"media_type": OCTETS, "max_bytes": max(size, 1), "size_bytes": size, "read": self.grant(name, "http-get")}

    def target(self, name: str, most: int) -> dict[str, Json]:
        """What lets the agent write an object there."""
        return {"media_type": OCTETS, "max_bytes": most, "write": self.grant(name, "http-put")}

    def grant(self, name: str, kind: str) -> dict[str, Json]:
        """What lets the agent read or write an object there."""
        path = self.path(name)
        return {"kind": kind, "url": f"{NOWHERE}{path}", "expires_at": self.expires_at, "headers": {STAGING_HEADER: path}}


@asynccontextmanager
async def staged(agent: LiveAgent, limits: Limits, clock: Clock) -> AsyncIterator[Staging]:
    """A corner of the agent's store for as long as the block runs; what is in it is removed afterwards.

    Raises:
        AgentNotAdvertisedError: The agent serves none.
    """
    extension = find(await agent.card(), STAGING)
    if extension is None:
        name = agent.record.agent_name
        raise AgentNotAdvertisedError(f"agent {name!r} has no store of its own ({STAGING}) that its state could go through", concerns=name)
    endpoint = str((extension.params or {}).get("endpoint") or STANDARDS[STAGING].path)
    prefix = f"{endpoint.rstrip('/')}/{secrets.token_urlsafe(_CAPABILITY_BYTES)}"
    until = clock.now() + timedelta(seconds=2 * limits.transfer_seconds)
    staging = Staging(agent, prefix, limits, until.strftime("%Y-%m-%dT%H:%M:%SZ"))
    try:
        yield staging
    finally:
        with suppress(InfrastructureError):  # the state is safe already; a corner that stays goes with the agent
            await shielded(agent.delete(f"{prefix}/"), seconds=limits.cleanup_seconds, what="clearing the agent's store")
