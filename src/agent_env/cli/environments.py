"""Environments as commands name them: folders, bundles, aliases, ids, and those of runs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from agent_env.cli.stored import recorded_as_up
from agent_env.errors import PlacementError

if TYPE_CHECKING:
    from agent_env.engine import Engine
    from agent_env.environments import LiveEnvironment
    from agent_env.stores.opening import Memory


async def written_environment(engine: Engine, what: str) -> str:
    """The id of an environment that is stored now: a stored one's own, or of what was written for a folder or bundle.

    Raises:
        NotFoundError: Nobody knows it.
        ProblemsError: Everything wrong with it.
    """
    from agent_env.bundles.model import BundleKind
    from agent_env.cli.named_documents import written

    return await written(BundleKind.ENV, what, engine.stores)


async def written_seed(engine: Engine, what: str, name: str) -> str:
    """The id of seed data that is stored now: a stored artifact's own, or of the artifact of that name in the environment's bundle.

    Raises:
        NotFoundError: The bundle has no artifact of that name.
        ProblemsError: Everything wrong with it.
    """
    from agent_env.bundles.model import BundleKind
    from agent_env.bundles.single_plans import bundle_of
    from agent_env.cli.named_documents import written

    bundle = bundle_of(BundleKind.ENV, what)
    if bundle is None or engine.stores.artifacts.find(name, None) is not None:
        return name
    return await written(BundleKind.ARTIFACT, f"{bundle}:{name}", engine.stores)


@asynccontextmanager
async def live_environment(target: str) -> AsyncIterator[LiveEnvironment]:
    """The environment of `RUN` or `RUN:ENVIRONMENT`."""
    from agent_env.cli.session import find_run, opened_engine

    run, _, env_id = target.partition(":")
    async with opened_engine() as engine, engine.environment_of_run(find_run(engine.stores, run).run_id, env_id or None) as live:
        yield live


def part_of(live: LiveEnvironment, server: str | None) -> str | None:
    """The server that is meant: the named one, or the only one; None means the environment's own place.

    Raises:
        PlacementError: There is none of that name.
    """
    if server is not None and server not in live.parts:
        raise PlacementError(f"there is no server {server!r}", concerns=server, hint=f"there are {', '.join(live.parts)}")
    return server or (next(iter(live.parts)) if len(live.parts) == 1 else None)


def deployed_of(memory: Memory) -> Iterator[dict[str, Any]]:
    """Environments of the newest runs whose sandboxes are recorded as being there."""
    for run_id, record in recorded_as_up(memory, "deployed_envs"):
        yield {
            "run": run_id,
            "env_id": record["env_id"],
            "provider": record.get("env_provider_type"),
            "mcp_url": record.get("mcp_url"),
            "expires_at_utc": record.get("expires_at_utc"),
        }
