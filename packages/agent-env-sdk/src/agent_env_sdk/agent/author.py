"""What an author writes: a class with one `run`, and a decorator that says what its card holds."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

from pydantic import ValidationError

from agent_env_sdk.wire.agent_bodies import SkillBundle, SkillInline
from agent_env_sdk.wire.trajectory import SDK_FORMAT

from .turns import AgentConfig, Progress, Skill, TaskRequest, TaskResult

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

    from agent_env_sdk.wire.a2a import AgentExtension

C = TypeVar("C", bound=type)
IDENTITY: Final = "__agent_env_agent__"


class AssemblyError(TypeError):
    """The agent can't be served as it is written; the message says what to change."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What a card says of an agent at first."""

    name: str
    description: str = ""
    version: str = "1"
    input_modes: tuple[str, ...] = ("text",)
    output_modes: tuple[str, ...] = ("text",)


def agent(
    name: str, *, description: str = "", version: str = "1", input_modes: Iterable[str] = ("text",), output_modes: Iterable[str] = ("text",)
) -> Callable[[C], C]:
    """Says what the class's card holds."""
    identity = Identity(name, description, version, tuple(input_modes), tuple(output_modes))

    def mark(cls: C) -> C:
        setattr(cls, IDENTITY, identity)
        return cls

    return mark


class Agent:
    """An agent. Subclasses implement `run`; everything else has a default.

    `run` is a coroutine that returns a `TaskResult`, or an asynchronous generator that yields `Progress` and a `TaskResult`
    last. It is cancelled when its task is; turns of one conversation run one after another, those of others at once. What
    it raises ends the task as failed by the infrastructure, and the client reads only a number to look up in the log.
    """

    config: ClassVar[type[AgentConfig]] = AgentConfig
    """Which settings the agent takes."""
    skills_folder: Path | None = None
    """Where installed skills are written, one folder each; None: the agent takes no skills."""
    workspace: Path | None = None
    """The folder that snapshots hold; None: the agent has no snapshots."""
    trajectory_format: str = SDK_FORMAT
    """What the recorded events are."""
    triggers: bool = False
    """Whether the agent plays a user by triggers that are registered with it."""
    state: Path | None = None
    """Set by the server: a folder of the agent's own, which outlives a restart as tasks and trajectories do."""
    max_request_bytes: int = 256 * 1024 * 1024
    """The longest request that is read: attachments travel inside messages."""

    def run(self, request: TaskRequest[Any]) -> Awaitable[TaskResult] | AsyncIterator[Progress | TaskResult]:
        """Does one turn."""
        raise AssemblyError(f"{type(self).__name__} has no run for task {request.task_id}")

    async def startup(self) -> None:
        """Called before the first request."""

    async def shutdown(self) -> None:
        """Called after the last one."""

    async def skill_added(self, skill: Skill, source: SkillInline | SkillBundle) -> None:
        """Called when a skill's files are in place, before it is listed."""
        del skill, source

    async def save_context(self, context_id: str) -> bytes:
        """What a snapshot keeps of a conversation beside its trajectory and session reference."""
        del context_id
        return b""

    async def load_context(self, context_id: str, saved: bytes) -> None:
        """Takes up what `save_context` gave, under this id."""
        del context_id, saved

    def extensions(self) -> Iterable[AgentExtension]:
        """Further entries of the card, for what `routes` serves."""
        return ()

    def routes(self) -> Iterable[BaseRoute]:
        """Further routes of the server."""
        return ()


def identity_of(agent: Agent) -> Identity:
    """What the agent's card says at first.

    Raises:
        AssemblyError: The class is not marked, `run` is no coroutine or asynchronous generator, or a setting has no default.
    """
    cls = type(agent)
    found: Identity | None = getattr(cls, IDENTITY, None)
    if found is None:
        raise AssemblyError(f"{cls.__name__} needs the decorator @agent(name=...)")
    if cls.run is Agent.run or not (inspect.iscoroutinefunction(agent.run) or inspect.isasyncgenfunction(agent.run)):
        raise AssemblyError(
            f"{cls.__name__}.run must be `async def`, so that a turn can be cancelled; use asyncio.to_thread for what blocks"
        )
    settings = cls.config.model_config
    if settings.get("extra") != "forbid" or not settings.get("frozen"):
        raise AssemblyError(f"{cls.config.__name__} must stay frozen and closed")
    try:
        cls.config()
    except ValidationError as error:
        names = ", ".join(".".join(map(str, each["loc"])) for each in error.errors(include_input=False))
        raise AssemblyError(f"each field of {cls.config.__name__} needs a default; {names} has none") from None
    return found
