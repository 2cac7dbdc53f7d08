"""An agent while it is served: its tasks, what is registered with it, and the ASGI application in front of them."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError
from starlette.applications import Starlette

from agent_env_sdk.wire.a2a import (
    A2A_PATH,
    JSON_RPC,
    V0_3,
    V1,
    AgentCapabilities,
    AgentCard,
    AgentExtension,
    AgentSkill,
    Message,
    SupportedInterface,
)
from agent_env_sdk.wire.agent_extensions import (
    AGENT_CONFIG,
    ATTRIBUTION_PROBE,
    CHANGELOG,
    IDEMPOTENT,
    MCP_CONFIG,
    MESSAGE_IDS,
    PEER_AGENTS,
    PEER_HEADERS,
    PER_MESSAGE_CONFIG,
    READBACK,
    SKILL_CONFIG,
    SNAPSHOT,
    STAGING,
    STANDARDS,
    TRAJECTORY,
    TRIGGERS,
    advertised,
)
from agent_env_sdk.wire.rpc import INVALID_PARAMS, RpcError

from .author import Agent, identity_of
from .changelog import Changelog
from .peers import PEERS_PATH, PEERS_SERVER, Peers
from .registrations import Registrations, schema_of
from .routes import routes
from .rpc import Rpc, problems
from .skills import Skills
from .snapshots import Snapshots
from .staging import FOLDER_VARIABLE, Staging
from .storage import Storage
from .tasks import Entry, Tasks
from .trajectories import Trajectories
from .triggers import Triggers
from .turns import McpServer, TaskRequest, TaskResult

_ATTRIBUTION: Final = ("project_id", "task_id")
"""Settings that say for whom a turn is."""


class Application:
    """What serves one agent.

    Args:
        agent: What is served.
        token: The bearer token that callers need; None: the server is open.
        state: The folder for what outlives a restart; None for the variable `AGENTENV_AGENT_STATE`, else a new one.

    Raises:
        AssemblyError: It can't be served as it is written.
    """

    def __init__(self, agent: Agent, *, token: str | None = None, state: Path | None = None) -> None:
        self.agent, self.token = agent, token
        self.identity = identity_of(agent)
        self.storage = Storage(state)
        agent.state = self.storage.folder / "agent"
        self.registered = Registrations(self.storage, agent.config)
        self.tasks = Tasks(self.storage, agent.run, self._prepare, self._ended)
        self.rpc = Rpc(self.tasks, self._check)
        self.trajectories = Trajectories(self.tasks, self.storage, agent.trajectory_format)
        self.skills = Skills(agent, agent.skills_folder, self.registered) if agent.skills_folder else None
        self.snapshots = Snapshots(agent, agent.workspace, self.registered, self.trajectories) if agent.workspace else None
        folder = self.storage.folder / "changelog"
        self.changelog = Changelog(agent.workspace, folder, lambda: self.port) if agent.workspace else None
        self.triggers = Triggers() if agent.triggers else None
        self.staging = Staging(None if FOLDER_VARIABLE in os.environ else self.storage.folder / "staging")
        self.peers = Peers(self.registered)
        self._seen: tuple[dict[str, str], datetime] | None = None
        self.port: int | None = None
        """Where it listens; known once it is served, and by requests."""

    def starlette(self) -> Starlette:
        """The ASGI application."""
        return Starlette(routes=list(routes(self)), lifespan=self._lifespan)

    def card(self, base: str | None = None) -> dict[str, Any]:
        """The card.

        Args:
            base: The address under which the agent was asked for it, for clients that take a card's addresses as they are;
                None leaves them relative.
        """
        config, identity = self.registered.config, self.identity
        url = f"{(base or '').rstrip('/')}{A2A_PATH}"
        card = AgentCard(
            name=config.name or identity.name,
            description=config.description or identity.description,
            version=identity.version,
            url=url,
            protocol_version=V0_3,
            preferred_transport=JSON_RPC,
            supported_interfaces=[SupportedInterface(url=url, protocol_version=version) for version in (V1, V0_3)],
            capabilities=AgentCapabilities(
                streaming=True, push_notifications=False, state_transition_history=False, extensions=self._extensions()
            ),
            default_input_modes=list(identity.input_modes),
            default_output_modes=list(identity.output_modes),
            skills=[
                AgentSkill(id=f"skill-{skill.name}", name=skill.name, description=skill.description, tags=["skill"])
                for skill in self.registered.skills.values()
            ],
            security_schemes={"bearer": {"type": "http", "scheme": "bearer"}} if self.token else None,
        )
        return card.to_json() | ({"security": [{"bearer": []}]} if self.token else {})

    def _extensions(self) -> list[AgentExtension]:
        schema = schema_of(self.agent.config)
        settings = {"supported": list(schema["properties"]), "schema": schema}
        found = [
            advertised(AGENT_CONFIG, ["set", "get"], told={"set": settings}, params={"features": [READBACK]}),
            AgentExtension(
                uri=PER_MESSAGE_CONFIG,
                description="A message's metadata may configure that message.",
                params={"key": AGENT_CONFIG, MESSAGE_IDS: IDEMPOTENT},
            ),
            advertised(MCP_CONFIG, ["add", "list", "upsert", "remove"]),
            advertised(TRAJECTORY, ["get"]),
            advertised(PEER_AGENTS, ["set", "list"], params={"features": [PEER_HEADERS]}),
        ]
        if self.skills is not None:
            found.append(advertised(SKILL_CONFIG, ["add", "list"]))
        if self.snapshots is not None:
            changes = ["enable-changelog", "apply-changelog"] if self.changelog is not None else []
            params = {"features": [CHANGELOG]} if changes else {}
            found.append(advertised(SNAPSHOT, ["save", "load", *changes], params=params))
        if self.told:
            found.append(advertised(ATTRIBUTION_PROBE, ["probe"]))
        if self.triggers is not None:
            found.append(advertised(TRIGGERS, ["register", "decide", "state"]))
        found += self.agent.extensions()
        if self.staging.max_bytes > 0:
            found.append(AgentExtension(uri=STAGING, description=STANDARDS[STAGING].description, params=self.staging.params()))
        return found

    def _check(self, message: Message) -> None:
        """Refuses a message whose own settings don't fit.

        Raises:
            RpcError: They don't.
        """
        try:
            self.registered.configured(_settings(message))
        except ValidationError as error:
            raise RpcError(INVALID_PARAMS, "the message's settings don't fit", {"detail": problems(error)}) from None

    def _prepare(self, entry: Entry) -> TaskRequest[Any]:
        message, registered = entry.message, self.registered
        config = registered.configured(_settings(message))
        seen = {name: str(value) for name in self.told if (value := getattr(config, name)) is not None}
        self._seen = (seen, datetime.now(UTC)) if seen else self._seen
        return TaskRequest(
            task_id=entry.task.id,
            context_id=entry.task.context_id,
            message_id=message.message_id,
            parts=tuple(message.parts),
            config=config,
            metadata=message.metadata or {},
            mcp_servers=self._servers(),
            skills=tuple(registered.skills.values()),
            peers=registered.peers,
            session_ref=registered.session(entry.task.context_id),
            record=self.storage.recorder(entry.task.id).append,
            **({"calls_over": self.changelog.calls_over} if self.changelog is not None else {}),
        )

    @property
    def told(self) -> list[str]:
        """Which of its settings say whose work it does."""
        return [name for name in _ATTRIBUTION if name in self.agent.config.model_fields]

    def attribution(self) -> dict[str, Any]:
        """What these were in the last turn that had any."""
        seen, at = self._seen or ({}, None)
        return {"last_seen_attribution": seen, **({"last_seen_at_utc": at.isoformat(timespec="milliseconds")} if at else {})}

    def _servers(self) -> dict[str, McpServer]:
        """What was registered, and the peers' own server where there are peers and nothing else has its name."""
        found = dict(self.registered.mcp)
        if self.registered.peers and self.port is not None:
            found.setdefault(PEERS_SERVER, McpServer(f"http://127.0.0.1:{self.port}{PEERS_PATH}"))
        return found

    def _ended(self, entry: Entry, result: TaskResult) -> None:
        if result.session_ref is not None:
            self.registered.set_session(entry.task.context_id, result.session_ref)

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        with self.storage.served():
            await self.agent.startup()
            try:
                async with self.tasks.running():
                    yield
            finally:
                await self.agent.shutdown()


def _settings(message: Message) -> Mapping[str, Any] | None:
    value = (message.metadata or {}).get(AGENT_CONFIG)
    if value is not None and not isinstance(value, dict):
        raise RpcError(INVALID_PARAMS, "the message's settings must be an object")
    return value


def asgi(agent: Agent, *, token: str | None = None, state: Path | None = None) -> Starlette:
    """The agent as an ASGI application, for any server that runs the lifespan.

    Args:
        agent: What is served.
        token: The bearer token that callers need; None: the server is open.
        state: The folder for what outlives a restart; None for the variable `AGENTENV_AGENT_STATE`, else a new one.

    Raises:
        AssemblyError: It can't be served as it is written.
    """
    return Application(agent, token=token, state=state).starlette()
