"""An environment known by its addresses: one that a plug-in deployed, or whose record was written elsewhere or before there were cards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import httpx
from agent_env_sdk.wire.card import EnvironmentCard
from agent_env_sdk.wire.names import ROLE_HEADER, RPC_PATH, normal_role
from pydantic import ValidationError

from agent_env.documents.records import DeployedEnvironment
from agent_env.documents.spelling import near
from agent_env.environments.client import EnvironmentClient
from agent_env.environments.contract import AgentAccess, Held, Making, Part
from agent_env.environments.http import new_client
from agent_env.errors import PlacementError
from agent_env.places import Endpoint, Place, Published, Shape, View
from agent_env.places.endpoint import LOOPBACK

Json = Any
_HTTP_PORT, _HTTPS_PORT = 80, 443


class UrlEnvironment:
    """See the module. Made by `found`, and by plug-ins.

    Args:
        record: The record.
        making: Reaches its sandbox, if it has one.
        held: That sandbox.
    """

    def __init__(self, record: DeployedEnvironment, making: Making, held: Held | None = None) -> None:
        self._record = record
        self._making = making
        self._held = held
        self._clients: dict[str, EnvironmentClient] = {}
        self._cards = _cards(record)

    @classmethod
    async def found(cls, record: DeployedEnvironment, making: Making) -> Self:
        """The environment of a record, with the sandbox that it names at hand.

        Raises:
            SandboxUnavailableError: That sandbox is gone.
        """
        held = await making.hold(record.sandbox_id, record.sandbox_type) if record.sandbox_id is not None else None
        return cls(record, making, held)

    @property
    def record(self) -> DeployedEnvironment:
        """What the run's context keeps of it."""
        return self._record

    @property
    def parts(self) -> Mapping[str, Part]:
        """The servers that its card names; without a card, the environment itself."""
        return {name: Part(name, "mcp_server") for name in [*self._cards] or [self._name]}

    @property
    def _name(self) -> str:
        return self._record.server_name or self._record.env_id

    @property
    def has_gateway(self) -> bool:
        """Its record is that of a gateway environment."""
        return self._record.shape == "gateway"

    def client(self, name: str | None = None) -> EnvironmentClient:
        """Speaks with one of its servers, under the address that the environment's card gives for it."""
        parts = self.parts
        key = name if name is not None else next(iter(parts)) if len(parts) == 1 else None
        if key is None:
            raise PlacementError(f"environment {self._record.env_id!r} has several servers ({', '.join(sorted(parts))}), and none is named")
        if key not in parts:
            meant = near(key, sorted(parts))
            raise PlacementError(
                f"environment {self._record.env_id!r} has no server {key!r}; it has {', '.join(sorted(parts))}",
                concerns=key,
                hint=f"did you mean {meant!r}?" if meant else None,
            )
        if key not in self._clients:
            self._clients[key] = self._speaking(key, self._cards.get(key))
        return self._clients[key]

    def _speaking(self, name: str, card: EnvironmentCard | None) -> EnvironmentClient:
        base, mcp_url = self._record.environment_url, self._record.server_url
        alone = card is None or not (self._record.environment_card or {}).get("children_environments")
        if base is None:
            base = (mcp_url or "").removesuffix("/").removesuffix("/mcp")
        elif card is not None and not alone:
            base = f"{base}/{card.url.removesuffix(RPC_PATH).strip('/')}".rstrip("/")
        known = self._record.environment_card if alone else None
        http = new_client(None, self._making.limits)
        return EnvironmentClient(base, http=http, name=name, card=known, mcp_url=mcp_url if alone else None, limits=self._making.limits)

    @property
    def control(self) -> EnvironmentClient:
        """Speaks with the environment as a whole."""
        if "" not in self._clients:
            base = self._record.environment_url or (self._record.server_url or "").removesuffix("/mcp")
            http: httpx.AsyncClient = new_client(None, self._making.limits)
            card, mcp_url = self._record.environment_card, self._record.server_url
            self._clients[""] = EnvironmentClient(base, http=http, name=self._name, card=card, mcp_url=mcp_url, limits=self._making.limits)
        return self._clients[""]

    # places

    async def place(self, name: str | None = None) -> Place:
        """The container that its record names."""
        record = self._record
        if record.sandbox_id is None or self._held is None:
            raise PlacementError(f"environment {record.env_id!r} was deployed without a sandbox, so it has no place", concerns=name)
        if record.container_id is not None:
            return await self._making.place(record.sandbox_id, record.sandbox_type, (record.container_id, name or record.env_id))
        if self._held.shape is Shape.CONTAINER_SHAPED:
            return await self._held.sandbox.machine()
        raise PlacementError(f"the record of environment {record.env_id!r} names no container", concerns=name)

    async def begin_changes(self, name: str) -> None:
        """Nobody here keeps a log of its changes."""
        del name

    async def machine(self) -> Place:
        """The machine that its record names."""
        if self._held is None:
            raise PlacementError(f"environment {self._record.env_id!r} was deployed without a sandbox, so no script can run beside it")
        if self._held.shape is Shape.CONTAINER_SHAPED:
            return await self.place()
        return await self._held.sandbox.machine()

    # addresses

    @property
    def _published(self) -> Published:
        return self._held.sandbox.published if self._held is not None else Published()

    def endpoint(self, name: str | None = None) -> Endpoint:
        """Where it answers, as its record says; parts share its address."""
        url = httpx.URL(self.client(name).base_url if name is not None else self.control.base_url)
        port = url.port or (_HTTPS_PORT if url.scheme == "https" else _HTTP_PORT)
        base = str(url.copy_with(raw_path=b"/")).rstrip("/")
        tunnels = {**self._published.tunnels, port: base}
        path = url.raw_path.decode().rstrip("/")
        published = Published(tunnels, self._published.host_ports, self._published.addresses or (LOOPBACK,))
        return Endpoint(port, path, url.scheme, published)

    def script_urls(self) -> tuple[str | None, str | None]:
        """`url` and `mcp_url` as they are reached from its machine."""
        base, server = self._record.environment_url, self._record.server_url
        seen = self._published.on_machine
        return seen(base) if base else None, seen(server) if server else None

    async def agent_access(self, role: str | None = None, *, view: View = View.SIBLING) -> AgentAccess:
        """As its record says: it keeps no door of ours."""
        url = self._record.server_url
        if not url:
            raise LookupError(f"environment {self._record.env_id!r} was recorded without an MCP endpoint")
        normal = normal_role(role)
        seen = self._published.on_machine(url) if view is View.MACHINE else url
        return AgentAccess(seen, {ROLE_HEADER: normal} if normal else {}, self._record.server_name)

    async def aclose(self) -> None:
        """Lets go of connections."""
        while self._clients:
            _, client = self._clients.popitem()
            await client.aclose()


def _cards(record: DeployedEnvironment) -> dict[str, EnvironmentCard]:
    """Server → its card, as the record has it."""
    if record.environment_card is None:
        return {}
    try:
        card = EnvironmentCard.model_validate(record.environment_card)
    except ValidationError:
        return {}
    return {child.name: child for child in card.children_environments or [card]}
