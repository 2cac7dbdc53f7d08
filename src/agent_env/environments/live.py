"""An environment at hand: whatever deployed it, its places, addresses and clients come from its record alone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, runtime_checkable

import httpx
from agent_env_sdk.wire.names import ROLE_HEADER, normal_role

from agent_env.documents.records import DeployedEnvironment, DeployedPart
from agent_env.documents.spelling import near
from agent_env.environments.client import EnvironmentClient
from agent_env.environments.contract import CONTROL_DOOR, DEFAULT_ROLE, AgentAccess, Life, Making, Part
from agent_env.environments.credentials import OWNER, credentials_of, database_password, gateway_key, key_sandbox
from agent_env.environments.faults import EnvironmentUnreachableError
from agent_env.environments.http import new_client, read_json
from agent_env.environments.readiness import eager, listening
from agent_env.environments.records import DATABASE, GATEWAY
from agent_env.environments.tunnel import GetPlace, PlaceTransport
from agent_env.errors import ContainerNotRunningError, PlacementError, SandboxUnavailableError
from agent_env.places import Endpoint, Place, Published, Shape, View
from agent_env.places.endpoint import LOOPBACK
from agent_env.waiting import poll, together

Json = Any
FRONT = "front"
BACK = "back"
HEALTH = "/control/health"
CARRIER = "keeper"
"""Among the lives of a gateway's parts: the process by which this machine's loopback leads to the control door."""
_SERVED = {"mcp_server", "website"}


class RecordedEnvironment:
    """An environment that stands in sandboxes of ours.

    Args:
        record: The record.
        making: Reaches the places.
        shape: Of the provider of its sandboxes.
        own_loopback: Its places have a loopback of their own.
    """

    def __init__(self, record: DeployedEnvironment, making: Making, *, shape: Shape, own_loopback: bool = True) -> None:
        self.limits = making.limits
        self._record = record
        self._making = making
        self._shape = shape
        self._own_loopback = own_loopback
        self._clients: dict[str, EnvironmentClient] = {}
        self._served = {name: part for name, part in record.parts.items() if part.kind in _SERVED}
        self._own = record.parts.get(GATEWAY) or next(iter(self._served.values()))

    @property
    def record(self) -> DeployedEnvironment:
        """What the run's context keeps of it."""
        return self._record

    @property
    def parts(self) -> Mapping[str, Part]:
        """Its servers and websites."""
        return {
            key: Part(part.name, "website" if part.kind == "website" else "mcp_server", part.image) for key, part in self._served.items()
        }

    @property
    def has_gateway(self) -> bool:
        """Clock, triggers, trajectory and changes are there to be asked for."""
        return GATEWAY in self._record.parts

    # speaking

    def client(self, name: str | None = None) -> EnvironmentClient:
        """Speaks with one of its servers itself."""
        key, part = self._part(name)
        if key not in self._clients:
            card = self._record.environment_card if not self.has_gateway else None
            self._clients[key] = self._speaking(partial(self._place, part), part.port, part.name, card)
        return self._clients[key]

    @property
    def control(self) -> EnvironmentClient:
        """Speaks with the environment as a whole."""
        if not self.has_gateway:
            return self.client()
        if GATEWAY not in self._clients:
            name = self._record.server_name or self._record.env_id
            place = partial(self._place, self._own)
            self._clients[GATEWAY] = self._speaking(place, self._control_port, name, self._record.environment_card)
        return self._clients[GATEWAY]

    @property
    def _control_port(self) -> int:
        return self._own.control_port or CONTROL_DOOR

    def _speaking(self, place: GetPlace, port: int, name: str, card: Mapping[str, Json] | None) -> EnvironmentClient:
        limits = self._making.limits
        http = new_client(PlaceTransport(place), limits)
        return EnvironmentClient(f"http://{LOOPBACK}:{port}", http=http, name=name, card=card, limits=limits)

    def _part(self, name: str | None) -> tuple[str, DeployedPart]:
        if name is None and len(self._served) == 1:
            return next(iter(self._served.items()))
        if name is not None and name in self._served:
            return name, self._served[name]
        known = sorted(self._served)
        if name is None:
            raise PlacementError(f"environment {self._record.env_id!r} has several servers ({', '.join(known)}), and none is named")
        meant = near(name, known)
        raise PlacementError(
            f"environment {self._record.env_id!r} has no server {name!r}; it has {', '.join(known)}",
            concerns=name,
            hint=f"did you mean {meant!r}?" if meant else None,
        )

    # places

    async def place(self, name: str | None = None) -> Place:
        """The container of a part, or the environment's own."""
        return await self._place(self._own if name is None else self._part(name)[1])

    async def _place(self, part: DeployedPart) -> Place:
        container = (part.container_id, part.container_name or part.name) if part.container_id else None
        told = credentials_of(self._making, part, self._key_sandbox, database=DATABASE in self._record.parts)
        return await self._making.place(part.sandbox_id, self._record.sandbox_type, container, told, revived=self._reviver(part))

    def _reviver(self, part: DeployedPart) -> Callable[[Place], Awaitable[None]] | None:
        """What is to be done when a part's container was started again; None for those that would have forgotten what they held."""
        del part
        return None

    async def life(self) -> Life:
        """See `contract.TellsLife`."""
        started: dict[str, str] = {}
        ended: dict[str, str] = {}

        async def ask(key: str, part: DeployedPart) -> None:
            try:
                started[key] = await self._life_of(part)
            except SandboxUnavailableError as error:
                if self._reviver(part) is None:
                    ended[key] = error.message
                else:  # it ended between the look at it and the question; the next look starts it again
                    started[key] = await self._life_of(part)

        await together(ask(key, part) for key, part in self._record.parts.items())
        return Life(started, ended)

    async def _life_of(self, part: DeployedPart) -> str:
        place = await self._place(part)
        return await place.life() if isinstance(place, _Started) else ""

    async def begin_changes(self, name: str) -> None:
        """What a server holds now is the beginning, and no change."""
        from agent_env.environments.servicedb import watch_again

        database, part = self._record.parts.get(DATABASE), self._part(name)[1]
        if database is not None:
            await watch_again(await self._place(database), self._making, database.sandbox_id, part.name)

    async def machine(self) -> Place:
        """Where `run_code` acts."""
        if self._shape is Shape.CONTAINER_SHAPED:
            return await self.place()
        return await self._making.place(self._sandbox_id, self._record.sandbox_type, None)

    @property
    def _key_sandbox(self) -> str:
        return key_sandbox(self._served)

    @property
    def _sandbox_id(self) -> str:
        if self._record.sandbox_id is None:
            raise SandboxUnavailableError(f"environment {self._record.env_id!r} was recorded without a sandbox")
        return self._record.sandbox_id

    # addresses

    def endpoint(self, name: str | None = None) -> Endpoint:
        """Where it answers, as a whole with every right, or one of its parts."""
        part = self._own if name is None else self._part(name)[1]
        port = self._control_port if name is None and self.has_gateway else part.port
        at = part.control_host_port if name is None and self.has_gateway else part.host_port
        published = _published(port, at)
        sibling = part.container_name if self._shape is Shape.MACHINE_BACKED else None
        return Endpoint(port, published=published, sibling_name=None if name is None and self.has_gateway else sibling)

    def script_urls(self) -> tuple[str | None, str | None]:
        """`url` and `mcp_url` for a script in `machine()`."""
        endpoint = self.endpoint()
        view = View.INSIDE if self._shape is Shape.CONTAINER_SHAPED else View.MACHINE
        base = endpoint.seen_from(view)
        recorded, server = self._record.environment_url, self._record.server_url
        if recorded is None:
            return None, endpoint.published.on_machine(server) if server else None
        path = (server or "").removeprefix(recorded) or "/mcp"
        return base, f"{base}{path}"

    # agents

    async def agent_access(self, role: str | None = None, *, view: View = View.SIBLING) -> AgentAccess:
        """How an agent of a role gets in."""
        part = self._own
        published = _published(part.port, part.host_port)
        sibling = part.container_name if self._shape is Shape.MACHINE_BACKED else None
        endpoint = Endpoint(part.port, self._mcp_path, published=published, sibling_name=sibling)
        joined = view is View.SIBLING and self._shape is Shape.MACHINE_BACKED
        network = await self._making.network(self._sandbox_id, FRONT) if joined else None
        return AgentAccess(endpoint.seen_from(view), self._agent_headers(role), self._record.server_name, network)

    @property
    def _mcp_path(self) -> str:
        base, server = self._record.environment_url, self._record.server_url
        return server.removeprefix(base) if base and server and server.startswith(base) else "/mcp"

    def _agent_headers(self, role: str | None) -> Mapping[str, str]:
        """A lone server keeps no door: a role is what its caller says, as far as the server cares."""
        normal = normal_role(role)
        return {ROLE_HEADER: normal} if normal else {}

    async def aclose(self) -> None:
        """Lets go of connections."""
        while self._clients:
            _, client = self._clients.popitem()
            await client.aclose()


@runtime_checkable
class _Started(Protocol):
    """A place that knows when it was started."""

    async def life(self) -> str: ...


class GatewayEnvironment(RecordedEnvironment):
    """An environment behind a gateway of ours."""

    def _reviver(self, part: DeployedPart) -> Callable[[Place], Awaitable[None]] | None:
        """A gateway keeps what was decided in its files, and a database what was committed; both have it back."""
        if part is self._own:
            return self._revived
        return self._database_revived if part.kind == "database" else None

    async def _database_revived(self, place: Place) -> None:
        """Waits until it has gone through what it wrote down, and answers again; servers and gateway connect anew by themselves."""
        from agent_env.environments.servicedb import answering

        database = self._record.parts[DATABASE]
        await answering(place, database_password(self._making, database.sandbox_id, OWNER), self._making, database.port)

    async def _revived(self, place: Place) -> None:
        """Waits until it serves again, with its servers as far as they are there, and has the keeper carry for it again."""
        await self.carried(place)
        await listening(place, self._control_port, what="the gateway", seconds=self.limits.environment_ready_seconds, limits=self.limits)

        async def here() -> Place:
            return place

        asking = self._speaking(here, self._control_port, "the gateway", None)

        async def settled() -> bool | None:
            async with asking.request("GET", HEALTH) as answer:
                return None if (await self._read(answer)).get("status") == "starting" else True

        try:
            seconds = self.limits.environment_ready_seconds
            await poll(settled, within_seconds=seconds, what="the gateway to know its servers", limits=eager(self.limits))
        finally:
            await asking.aclose()

    async def carried(self, place: Place) -> None:
        """Has the keeper carry the control door to where this machine has it."""
        own = self._own
        if own.container_id is not None and own.control_port and own.control_host_port:
            await self._making.relay(own.sandbox_id, place, own.container_name or own.name, {own.control_port: own.control_host_port})

    async def _stood(self) -> None:
        """Has it running and carried for. One that ends between the look at it and the carrying is started again by the next look."""
        for _ in range(self.limits.environment_repeats):
            try:
                await self.carried(await self.place())
            except ContainerNotRunningError:
                continue
            return
        await self.carried(await self.place())

    async def life(self) -> Life:
        """See `contract.TellsLife`; also of the process in the gateway's container, and of what carries for it."""
        from agent_env.keeper import recorded_owner

        await self._stood()
        stands = await super().life()

        async def answers() -> str | None:
            try:
                async with self.control.request("GET", HEALTH) as answer:
                    return str((await self._read(answer)).get("pid"))
            except EnvironmentUnreachableError:  # it may end at this very moment: whoever asks again starts it again
                return None

        seconds = self.limits.environment_ready_seconds
        pid = await poll(answers, within_seconds=seconds, what="the gateway's answer", limits=eager(self.limits))
        keeper = recorded_owner(self._making.state_root) if self._own.control_host_port else None
        lives = {GATEWAY: f"{stands.started.get(GATEWAY)} {pid}", CARRIER: str(keeper.pid) if keeper is not None else ""}
        return replace(stands, started={**stands.started, **lives})

    async def _read(self, answer: httpx.Response) -> Mapping[str, Json]:
        said = await read_json(answer, "the gateway's health", limit_bytes=self.limits.environment_answer_bytes)
        return said if isinstance(said, Mapping) else {}

    def _agent_headers(self, role: str | None) -> Mapping[str, str]:
        """The token is the role."""
        from agent_env.gateway.tokens import agent_token

        key = gateway_key(self._making, self._key_sandbox).encode()
        token = agent_token(key, normal_role(role) or DEFAULT_ROLE, nonce=_nonce(self._record.instance_id or self._sandbox_id))
        return {"Authorization": f"Bearer {self._making.secret(token)}"}


def _published(port: int, at: int | None) -> Published:
    """A port as this machine's loopback has it."""
    return Published() if at is None else Published({port: f"http://{LOOPBACK}:{at}"}, {port: at}, (LOOPBACK,))


def _nonce(text: str) -> str:
    """Letters, digits and dashes of a text: the same token for the same role of the same environment, so that a resume has it."""
    return "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in text)
