"""States of agents as artifacts: what `snapshot_agent_state`, `restore_agent_state`, `deploy_agent` and `prompt_agent` share."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from agent_env.agents import snapshots
from agent_env.clock import timestamp
from agent_env.errors import UserError

if TYPE_CHECKING:
    from agent_env.agents import LiveAgent
    from agent_env.steps.contract import Run

Json = Any
LOAD_SECONDS: Final = 600.0
"""Taking a state up (reference: a call that moves objects)."""


async def saved(run: Run, agent: LiveAgent, context_id: str, artifact_id: str, folder: Path, *, seconds: float) -> dict[str, Json]:
    """Has an agent save a conversation with its workspace. Returns what the run's context keeps of the new artifact.

    Raises:
        AgentNotAdvertisedError: The agent can't save.
        InfrastructureError: It could not.
    """
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
    files = await snapshots.save(agent, context_id, folder, limits=run.limits, clock=run.clock, seconds=seconds)
    made = await asyncio.to_thread(run.artifacts.put_universe, artifact_id, files)
    stored = run.artifacts.files(made.id, made.version)
    return {
        "id": made.id,
        "version": made.version,
        "bundle_object_url": stored["workspace"].url,
        "trajectory_object_url": stored["trajectory"].url,
        "source_agent_name": agent.record.agent_name,
        "source_context_id": context_id,
        "captured_at_utc": timestamp(run.clock.now()),
    }


async def restored(
    run: Run, agent: LiveAgent, artifact_id: str, version: int | None, *, context_id: str | None, concerns: str
) -> Mapping[str, Json]:
    """Has an agent take a saved state up. Returns what the run's context keeps of that.

    Raises:
        NotFoundError: There is no such state.
        UserError: The artifact is no agent's state.
        AgentNotAdvertisedError: The agent can't take one up.
        InfrastructureError: It could not.
    """
    document = run.artifacts.get(artifact_id, version)
    run.used("artifacts", document.id, document.version, document.digest)
    stored = run.artifacts.files(document.id, document.version)
    if set(stored) != set(snapshots.OBJECTS):
        raise UserError(f"artifact {document.id!r} is no agent's state", concerns=concerns, hint="snapshot_agent_state makes them")
    files = {name: run.artifacts.path(ref) for name, ref in stored.items()}
    taken = await snapshots.load(agent, files, context_id=context_id, limits=run.limits, clock=run.clock, seconds=LOAD_SECONDS)
    return {
        "agent_name": agent.record.agent_name,
        "context_id": taken,
        "source_artifact_id": document.id,
        "source_artifact_version": document.version,
    }
