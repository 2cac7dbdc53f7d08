"""Saves an agent's state, and has an agent take one up, by way of the store that the agent itself serves.

The agent writes to its own store over loopback, so nothing has to be reachable from its place; we read it there with the agent's token.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from agent_env_sdk.wire.agent_extensions import SNAPSHOT

from agent_env.agents.contract import LiveAgent
from agent_env.agents.faults import AgentFailedError
from agent_env.agents.staging import staged
from agent_env.clock import Clock
from agent_env.defaults import GIB, Limits
from agent_env.errors import TransferError

Json = Any
OBJECTS: Final[Mapping[str, int]] = {"trajectory": 1 * GIB, "workspace": 5 * GIB}
"""What a state consists of, and how large each may be (reference)."""


async def save(agent: LiveAgent, context_id: str, folder: Path, *, limits: Limits, clock: Clock, seconds: float) -> dict[str, Path]:
    """A conversation's state as files in a folder.

    Raises:
        AgentNotAdvertisedError: The agent can't save, or has no store of its own.
        AgentFailedError: It could not.
        TransferError: What it saved did not arrive as it was.
    """
    async with staged(agent, limits, clock) as staging:
        targets = {name: staging.target(name, most) for name, most in OBJECTS.items()}
        answer = await agent.invoke(SNAPSHOT, "save", {"context_id": context_id, "objects": targets}, seconds=seconds)
        uploaded = answer.get("objects") if isinstance(answer, Mapping) else None
        missing = [name for name in OBJECTS if not isinstance((uploaded or {}).get(name), Mapping)]
        if missing:
            raise AgentFailedError(
                f"agent {agent.record.agent_name!r} saved no {' and no '.join(missing)}",
                concerns=agent.record.agent_name,
                reason="incomplete",
            )
        files = {}
        for name, most in OBJECTS.items():
            files[name] = folder / name
            digest = await agent.get_file(staging.path(name), files[name], limit_bytes=most, seconds=limits.transfer_seconds)
            told = uploaded[name] if uploaded else {}
            if told.get("sha256") not in {None, digest} or told.get("size_bytes") not in {None, files[name].stat().st_size}:
                raise TransferError(f"the agent's {name} is not what it says it saved", concerns=agent.record.agent_name)
        return files


async def load(agent: LiveAgent, files: Mapping[str, Path], *, context_id: str | None, limits: Limits, clock: Clock, seconds: float) -> str:
    """Has an agent take a state up. Returns under which id its conversation goes on.

    Raises:
        AgentNotAdvertisedError: The agent can't.
        AgentFailedError: It could not.
    """
    async with staged(agent, limits, clock) as staging:
        sources = {name: await staging.put(name, file) for name, file in files.items()}
        body: dict[str, Json] = {"objects": sources}
        if context_id is not None:
            body["target_context_id"] = context_id
        answer = await agent.invoke(SNAPSHOT, "load", body, seconds=seconds)
    found = answer.get("context_id") if isinstance(answer, Mapping) else None
    if not isinstance(found, str):
        raise AgentFailedError(f"agent {agent.record.agent_name!r} does not say which conversation it took up", reason="bad_answer")
    return found
