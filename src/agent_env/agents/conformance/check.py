"""What checks of an agent are about, and what they are given."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from agent_env_sdk.wire.a2a import CARD_PATHS
from agent_env_sdk.wire.agent_extensions import method_of

from agent_env import conformance
from agent_env.agents.contract import Outgoing, Turn
from agent_env.agents.faults import AgentFailedError, AgentUnreachableError
from agent_env.conformance import SkippedError, Verdict, holds

if TYPE_CHECKING:
    from agent_env.agents.live import RecordedAgent

__all__ = ["Area", "Check", "Gate", "SkippedError", "Subject", "Verdict", "holds"]

PRIVATE = "an agent of its own (check what can be deployed, or --write)"


class Gate(StrEnum):
    """What checks are about, in the reference's words where it has some."""

    CARD = "agent_card"
    CORE = "core_protocol"
    """Messages, tasks, streams, cancelling, and their errors."""
    ACCESS = "access"
    """Who may speak with it."""
    CONFIG = "agent_config"
    """Identity, role and settings."""
    MCP = "mcp_config"
    SKILLS = "skill_config"
    TRAJECTORY = "trajectory"
    PEERS = "peer_agents"
    TRIGGERS = "triggers"
    STAGING = "staging"
    SNAPSHOT = "snapshot"
    MODALITIES = "modalities"
    """Files that travel in messages."""
    CHANGELOG = "changelog"
    """What calls of tools change, recorded and replayed."""
    INSTALL = "install"
    """Being put where something is already."""
    ATTRIBUTION = "attribution_probe"
    """Whose work it does."""
    MODEL = "model"
    """What only an agent with a working model does."""


@dataclass(frozen=True)
class Subject:
    """The agent under test."""

    agent: RecordedAgent
    private: Callable[[], AbstractAsyncContextManager[RecordedAgent]] | None = None
    """Brings up another one of the same, for a check that changes it; None: there is only this one."""
    may_write: bool = False
    """Without others, this one itself may be changed."""
    has_token: bool = True
    """It was given a token that it should ask for."""
    prompt_seconds: float = 60.0
    """What one prompt may take."""
    seen: dict[str, Any] = field(default_factory=dict)
    """What a check has found out for later ones."""

    async def unreachable(self) -> str | None:
        """Why no connection to the agent comes about; None where one does."""
        try:
            await self.agent.client.probe("GET", CARD_PATHS[0])
        except AgentUnreachableError as error:
            return None if error.sent else str(error)
        except AgentFailedError:
            return None
        return None

    @asynccontextmanager
    async def own(self) -> AsyncIterator[RecordedAgent]:
        """An agent that the check may change.

        Raises:
            SkippedError: There is none.
        """
        if self.private is not None:
            async with self.private() as agent:
                yield agent
        elif self.may_write:
            yield self.agent
        else:
            raise SkippedError(PRIVATE)

    def taken(self) -> Turn:
        """The first prompt's turn.

        Raises:
            SkippedError: The agent made no task of it.
        """
        turn = self.seen.get("turn")
        if not isinstance(turn, Turn) or turn.task_id is None:
            raise SkippedError("a prompt that was taken")
        return turn

    async def needs(self, uri: str, *operations: str) -> None:
        """Skips the check of an agent that does not advertise these.

        Raises:
            SkippedError: It does not.
        """
        card = await self.agent.card()
        for name in operations:
            if method_of(card, uri, name) is None:
                raise SkippedError(f"{uri.rpartition(':')[2]} {name}")

    async def ask(
        self,
        text: str,
        *,
        agent: RecordedAgent | None = None,
        context_id: str | None = None,
        message_id: str | None = None,
        parts: Sequence[Mapping[str, Any]] = (),
        **config: Any,
    ) -> Turn:
        """A turn with the agent, whatever it comes to."""
        message = Outgoing(
            parts=[{"kind": "text", "text": text}, *parts],
            message_id=message_id or str(uuid.uuid4()),
            context_id=context_id or str(uuid.uuid4()),
            config=config,
            timeout_seconds=self.prompt_seconds,
        )
        return await (agent or self.agent).ask(message)


Area = conformance.Area[Subject]
Check = conformance.Check[Subject]
