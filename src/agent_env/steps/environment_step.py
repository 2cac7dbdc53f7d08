"""What every step on a deployed environment has: which one it means, and how it gets hold of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from agent_env_sdk.wire.names import ANY
from pydantic import Field

from agent_env.documents.updates import Json
from agent_env.environments.faults import NotAdvertisedError
from agent_env.errors import UserError
from agent_env.steps.contract import EntityRef, OnResume, Run, Step
from agent_env.steps.fields import OptionalName
from agent_env.steps.targets import EnvironmentTarget

if TYPE_CHECKING:
    from agent_env.environments import LiveEnvironment
    from agent_env.environments.client import EnvironmentClient


ON_AN_ENVIRONMENT = (EntityRef("env", "env_id"),)
NO_CARD, NOT_ADVERTISED = "no_env_card", "not_advertised"


class EnvironmentStep(Step):
    """A step on one deployed environment."""

    on_resume: ClassVar[OnResume] = OnResume.REPEAT
    entity_refs: ClassVar[tuple[EntityRef, ...] | None] = ON_AN_ENVIRONMENT
    own_fields: ClassVar[frozenset[str]] = frozenset({"env_step_id"})

    env_id: str = Field(min_length=1)
    """The deployed environment."""
    env_step_id: OptionalName = None
    """The step that deployed it, where several did."""

    @property
    def target(self) -> EnvironmentTarget:
        """The environment."""
        return EnvironmentTarget(self.env_id, self.env_step_id)

    async def live(self, run: Run) -> LiveEnvironment:
        """The environment, at hand.

        Raises:
            PlacementError: It is not deployed.
            SandboxUnavailableError: It was, and is not running.
        """
        return await run.environment(self.env_id, self.env_step_id)


def servers_of(live: LiveEnvironment) -> list[str]:
    """The names of an environment's MCP servers, in the order in which it has them."""
    return [name for name, part in live.parts.items() if part.kind == "mcp_server"]


def named_servers(live: LiveEnvironment, name: str, step_id: str) -> list[str]:
    """The servers that a name means: one part, or with `*` every MCP server.

    Raises:
        UserError: There is none.
    """
    if name == ANY:
        found = servers_of(live)
        if not found:
            raise UserError(f"environment {live.record.env_id!r} has no MCP server for {ANY!r} to mean", concerns=step_id)
        return found
    if name not in live.parts:
        there = ", ".join(map(repr, live.parts)) or "none"
        raise UserError(f"environment {live.record.env_id!r} has no server {name!r}", concerns=step_id, hint=f"it has {there}")
    return [name]


async def unadvertised(client: EnvironmentClient, uri: str) -> str | None:
    """Why a server's extension can't be called, in the reference's words; None when its card offers it."""
    try:
        await client.card()
    except NotAdvertisedError:
        return NO_CARD
    return None if await client.advertises(uri) else NOT_ADVERTISED


def entry(step: EnvironmentStep, **facts: Json) -> Mapping[str, Json]:
    """What the run's record keeps of a step: which one, on which environment, and what came of it."""
    return {"step_id": step.id, "env_id": step.env_id, **facts}
