"""What passes between the SDK and an agent's `run`: the request with all that belongs to it, words of progress, and the result."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, field_validator

from agent_env_sdk.wire.a2a import ErrorType, Usage
from agent_env_sdk.wire.agent_bodies import Peer
from agent_env_sdk.wire.parts import DataPart, Part, TextPart
from agent_env_sdk.wire.trajectory import Event

TIMEOUT_SECONDS = 600.0
"""How long a turn may take when nobody says; what deployed agents take."""


class WriteOnly:
    """In a config field's annotation: `Annotated[str, WriteOnly()]` is never read back."""


class AgentConfig(BaseModel):
    """What can be configured from outside, of an agent or of one message. Every field needs a default."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    name: str | None = None
    description: str | None = None
    role: str | None = None
    """The role under which the agent uses its environments."""
    timeout_seconds: float = Field(default=TIMEOUT_SECONDS, gt=0)
    """How long one turn may take."""

    @field_validator("name", "description")
    @classmethod
    def _said(cls, value: str | None) -> str | None:
        if value is not None and not value.strip():
            raise ValueError("must not be empty")
        return value


ConfigT = TypeVar("ConfigT", bound=AgentConfig)


@dataclass(frozen=True, slots=True)
class McpServer:
    """A server of tools that the agent may use."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Skill:
    """An installed skill."""

    name: str
    description: str
    skill_md: str | None = None
    folder: Path | None = None
    """Where its files are, when the agent keeps skills in a folder."""


async def _unheard(count: int) -> None:
    """Where no changes are recorded."""
    del count


@dataclass(frozen=True, slots=True)
class TaskRequest(Generic[ConfigT]):
    """One turn: what was asked, and under which settings. Settings don't change while the turn runs."""

    task_id: str
    context_id: str
    """The conversation. Turns of one conversation run one after another."""
    message_id: str
    parts: tuple[Part, ...]
    config: ConfigT
    metadata: Mapping[str, Any]
    mcp_servers: Mapping[str, McpServer]
    skills: tuple[Skill, ...]
    peers: tuple[Peer, ...]
    session_ref: str | None
    """What the last turn of this conversation gave back, also before a restart."""
    record: Callable[[Event | Mapping[str, Any]], None] = field(repr=False)
    """Appends an event to the trajectory: of the normalised model, or a native one as it is."""
    calls_over: Callable[[int], Awaitable[None]] = field(default=_unheard, repr=False)
    """To be awaited when so many calls of tools are over, before the next one: keeps what they changed, where somebody asked for that."""

    @property
    def text(self) -> str:
        """The text parts, joined by newlines."""
        return "\n".join(part.text for part in self.parts if isinstance(part, TextPart))


@dataclass(frozen=True, slots=True)
class Progress:
    """A word from within a turn, for whoever watches."""

    text: str


@dataclass(frozen=True, slots=True)
class TaskError:
    """Why a turn failed."""

    code: str
    message: str
    type: ErrorType = "agent_error"


@dataclass(frozen=True, slots=True)
class TaskResult:
    """How a turn ended."""

    parts: tuple[Part, ...] = ()
    usage: Usage = field(default_factory=Usage)
    error: TaskError | None = None
    rejected: bool = False
    """The agent won't do it, as against having failed at it."""
    session_ref: str | None = None
    """Kept for the conversation's next turn; None leaves the last one."""

    @classmethod
    def said(cls, text: str, *, usage: Usage | None = None, structured: Any = None, session_ref: str | None = None) -> TaskResult:
        """An answer.

        Args:
            text: What is said; an empty one is left out.
            usage: What the turn took.
            structured: A value that was asked for by `output_format`.
            session_ref: Kept for the next turn.
        """
        parts: list[Part] = [TextPart(text=text)] if text else []
        if structured is not None:
            parts.append(DataPart(data={"structured_output": structured}))
        return cls(tuple(parts), usage or Usage(), session_ref=session_ref)

    @classmethod
    def failed(
        cls, code: str, message: str, *, type: ErrorType = "agent_error", parts: Sequence[Part] = (), usage: Usage | None = None
    ) -> TaskResult:
        """A failure, with what was said until then."""
        return cls(tuple(parts), usage or Usage(), TaskError(code, message, type))
