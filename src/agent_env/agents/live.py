"""A deployed agent at hand: its place, address, client and conversations come from its record alone, in any process."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from agent_env_sdk.wire.a2a import AgentCard
from agent_env_sdk.wire.agent_extensions import (
    AGENT_CONFIG,
    CONFIG_FIELDS,
    MCP_CONFIG,
    card_request_accepts,
    method_of,
    supported_config,
    takes_message_config,
)

from agent_env.agents import trajectories
from agent_env.agents.client import AgentClient
from agent_env.agents.contract import A2A_PORT, End, Ended, Making, McpServer, Outgoing, Trajectory, Turn, Update
from agent_env.agents.conversation import Conversation, patient_card
from agent_env.agents.faults import AgentFailedError
from agent_env.documents.records import DeployedAgent
from agent_env.environments.http import new_client
from agent_env.environments.readiness import alive
from agent_env.environments.tunnel import PlaceTransport
from agent_env.errors import AgentEnvError, InternalError, PlacementError
from agent_env.places import Endpoint, Place, Published, Shape, View
from agent_env.places.endpoint import LOOPBACK

Json = Any
_CONFLICT = 409


class RecordedAgent:
    """An agent that the run recorded.

    Args:
        record: The record.
        making: Reaches its place.
        shape: Of its sandbox's provider; None for an agent that is known by its address alone.
        token: Its bearer token.
    """

    def __init__(self, record: DeployedAgent, making: Making, *, shape: Shape | None, token: str | None) -> None:
        self._record = record
        self._making = making
        self._shape = shape
        self._token = token
        self._configuring = asyncio.Lock()
        base, transport = self._reached()
        self.client = AgentClient(base, new_client(transport, making.limits), name=record.agent_name, token=token, limits=making.limits)

    def _reached(self) -> tuple[str, httpx.AsyncBaseTransport | None]:
        """Through its place's helper, where it has one of ours: nothing has to be published, and no port can be somebody else's."""
        if self._shape is not None:
            return f"http://{LOOPBACK}:{self.port}", PlaceTransport(self.place)
        if not self._record.api_url:
            raise InternalError(f"agent {self._record.agent_name!r} was recorded with neither a place nor an address")
        return self._record.api_url, None

    @property
    def record(self) -> DeployedAgent:
        """What the run's context keeps of it."""
        return self._record

    def recorded(self, **changes: Json) -> None:
        """Changes its record, while it is being deployed."""
        self._record = self._record.model_copy(update=changes)

    @property
    def port(self) -> int:
        """Where it listens in its place."""
        return self._record.a2a_port or A2A_PORT

    # the card and what it offers

    async def card(self, *, refresh: bool = False) -> AgentCard:
        """Its card."""
        return await self.client.card(refresh=refresh)

    async def supports(self, uri: str, operation: str) -> bool:
        """Whether its card advertises an operation of an extension."""
        return await self.client.supports(uri, operation)

    async def invoke(self, uri: str, operation: str, body: Mapping[str, Json] | None = None, *, seconds: float | None = None) -> Json:
        """Calls an operation of an extension."""
        return await self.client.invoke(uri, operation, body, seconds=seconds)

    async def get_file(self, path: str, to: Path, *, limit_bytes: int, seconds: float) -> str:
        """Reads what it serves under a path into a file."""
        return await self.client.get_file(path, to, limit_bytes=limit_bytes, seconds=seconds)

    async def put_file(self, path: str, source: Path, *, media_type: str, seconds: float) -> None:
        """Writes a file to a path that it serves."""
        await self.client.put_file(path, source, media_type=media_type, seconds=seconds)

    def secret_name(self, purpose: str) -> str | None:
        """A name that only this deployment knows; derived from its token, from which it does not tell anything."""
        return None if self._token is None else hashlib.sha256(f"{purpose}\0{self._token}".encode()).hexdigest()[:43]

    async def delete(self, path: str) -> None:
        """Removes what is under a path."""
        await self.client.delete(path)

    async def configure(self, fields: Mapping[str, Json]) -> Mapping[str, Json]:
        """Sets those of `CONFIG_FIELDS` that its card takes."""
        taken = await self._taken(fields)
        if taken:
            await self.client.invoke(AGENT_CONFIG, "set", taken)
        return taken

    async def _taken(self, fields: Mapping[str, Json]) -> dict[str, Json]:
        supported = supported_config(await self.card())
        return {name: value for name, value in fields.items() if name in CONFIG_FIELDS and name in supported and value is not None}

    async def wire(self, servers: Sequence[McpServer]) -> None:
        """Registers MCP servers, replacing those of the same name."""
        card = await self.card()
        upserts, adds = method_of(card, MCP_CONFIG, "upsert"), method_of(card, MCP_CONFIG, "add")
        if adds is None and upserts is None:
            return
        async with asyncio.TaskGroup() as group:
            for server in servers:
                if upserts is not None and server.name:
                    body = {"url": server.url, "headers": dict(server.headers), "name": server.name}
                    group.create_task(self.client.invoke(MCP_CONFIG, "upsert", body, seconds=self.client.limits.agent_wire_seconds))
                else:
                    group.create_task(self._add(server, adds or {}))

    async def _add(self, server: McpServer, entry: Mapping[str, Json]) -> None:
        """Older agents take only what their card tells of, and know no replacing: one that is there already is left."""
        request = entry.get("request") or {}
        body: dict[str, Json] = {"url": server.url}
        for name, value in (("headers", dict(server.headers) or None), ("name", server.name)):
            if value and (not request or card_request_accepts(request, {*body, name})):
                body[name] = value
        try:
            await self.client.invoke(MCP_CONFIG, "add", body, seconds=self.client.limits.agent_wire_seconds)
        except AgentFailedError as error:
            if error.status != _CONFLICT:
                raise

    # conversations

    async def prompt(self, message: Outgoing) -> AsyncGenerator[Update, None]:
        """Sends a message and tells how it goes."""
        async with self._settings(message) as (config, missed):
            conversation = Conversation(self.client, message, alive=self._alive, config=config, missed=missed)
            async with aclosing(conversation.updates()) as updates:
                async for update in updates:
                    yield update

    @asynccontextmanager
    async def _settings(self, message: Outgoing) -> AsyncIterator[tuple[dict[str, Json], AgentEnvError | None]]:
        """The turn's own settings: with the message where the agent takes them there; else set before, one turn at a time."""
        try:
            with_message = takes_message_config(await patient_card(self.client, self._alive))
            taken = await self._taken({"timeout_seconds": message.timeout_seconds, **message.config})
        except AgentEnvError as error:
            yield {}, error
            return
        if with_message or not taken or message.known_task is not None:
            yield taken, None
            return
        async with self._configuring:
            try:
                await self.client.invoke(AGENT_CONFIG, "set", taken)
            except AgentFailedError as error:
                error.add_note("while its settings for this turn were set")
                raise
            yield {}, None

    async def ask(self, message: Outgoing) -> Turn:
        """The same, for whoever needs only the ending."""
        turn: Turn | None = None
        async with aclosing(self.prompt(message)) as updates:
            async for update in updates:
                if isinstance(update, Ended):
                    turn = update.turn
        return turn or Turn(End.LOST, message.message_id, context_id=message.context_id)

    async def cancel(self, task_id: str) -> None:
        """Asks the agent to end a task."""
        await self.client.cancel(task_id)

    async def trajectory(self, task_id: str | None = None, *, context_id: str | None = None) -> Trajectory | None:
        """What it recorded so far."""
        key = {"task_id": task_id} if task_id is not None else {"context_id": str(context_id)}
        return await trajectories.read(self.client, key)

    async def recorded_since(self, task_id: str, position: int) -> AsyncGenerator[Sequence[Json], None]:
        """What it recorded of a task from a position on."""
        async with aclosing(trajectories.pages(self.client, {"task_id": task_id}, after=position)) as pages:
            async for page in pages:
                yield page.events

    def keeping(self, path: Path) -> trajectories.Keeping:
        """What keeps a turn's trajectory in a file."""
        return trajectories.Keeping(self.client, path)

    # its place

    async def place(self) -> Place:
        """Its container, or the machine that it is installed on."""
        record = self._record
        if record.sandbox_id is None or self._shape is None:
            raise PlacementError(f"agent {record.agent_name!r} is known by its address alone, and has no place of this run")
        return await self._making.agent_place(record)

    async def _alive(self) -> None:
        if self._shape is not None:
            await alive(await self.place())

    def url(self, view: View = View.PROCESS) -> str:
        """Its base address, seen from there."""
        record = self._record
        if record.api_url is None:
            raise LookupError(f"agent {record.agent_name!r} has no address")
        if self._shape is None:
            return record.api_url
        at = httpx.URL(record.api_url).port
        published = Published({self.port: record.api_url}, {self.port: at} if at else {}, (LOOPBACK,))
        return Endpoint(self.port, published=published, sibling_name=self._making.host_name(record)).seen_from(view).rstrip("/")

    async def log_tail(self) -> str:
        """The end of its container's log."""
        return await self._making.log_tail(self._record)

    async def aclose(self) -> None:
        """Lets go of connections."""
        await self.client.aclose()
