"""What a user's configuration says of agents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent_env.defaults import AGENT_DOCKER_IMAGE

if TYPE_CHECKING:
    from agent_env.config import Config


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """What is meant where a step says nothing."""

    agent_id: str | None = None
    """The agent (`agents.default_a2a_agent_id`)."""
    provider: str | None = None
    """Where agents are put (`sandbox.agent_default`); None is where all sandboxes are."""
    human_url: str | None = None
    """Where people answer (`conversations.default_human_a2a_url`)."""
    docker_image: str = AGENT_DOCKER_IMAGE
    """Of a container engine for an agent alone (`agents.docker_image`)."""

    @classmethod
    def of(cls, config: Config) -> AgentSettings:
        """Those of a configuration."""
        return cls(config.default_agent_id, config.sandbox.agent_default or None, config.human_a2a_url, config.get("agents.docker_image"))
