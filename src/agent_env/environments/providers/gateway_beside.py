"""A gateway environment beside a machine: a container each, servers on one network, and the gateway alone on the one that agents join."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import httpx

from agent_env.documents.records import DeployedEnvironment, DeployedPart
from agent_env.environments.contract import CONTROL_DOOR, DOOR, ContainerWanted, DeployPlan, Making, SandboxWanted, ServerPlan, WebsitePlan
from agent_env.environments.credentials import OWNER, credentials_of, database_url
from agent_env.environments.faults import EnvironmentUnreachableError, NotAdvertisedError
from agent_env.environments.images import gateway_source, name_of
from agent_env.environments.live import BACK, FRONT, RecordedEnvironment
from agent_env.environments.providers.gateway_parts import (
    ImageSays,
    Standing,
    backend_url,
    gateway_name,
    gateway_variables,
    have_image,
    needs_database,
    server_variables,
    website_entry,
    website_key,
)
from agent_env.environments.readiness import alive, listening
from agent_env.environments.records import DATABASE, GATEWAY, MACHINE
from agent_env.environments.servicedb import deploy_database
from agent_env.environments.website import (
    BACKEND_PORT,
    FRONTEND_PORT,
    HEALTH_PATH,
    backend_name,
    backend_wanted,
    frontend_name,
    frontend_wanted,
)
from agent_env.errors import DeadlineError, EngineFailedError, PortTakenError
from agent_env.places import Place, Shape
from agent_env.places.ports import candidates, is_free
from agent_env.waiting import poll, together

if TYPE_CHECKING:
    from agent_env.artifacts.image_artifacts import ImageSource

_WEB_PORT, _MCP_PORT = 8081, 8000
"""Of a database's own inspection tools, in their containers (reference)."""


async def deploy_beside(plan: DeployPlan, making: Making) -> Standing:
    """Makes everything. What it had made when it fails goes with its sandbox."""
    held = await making.sandbox(SandboxWanted(MACHINE), plan)
    return await _Beside(plan, making, held.sandbox.info.sandbox_id, held.provider.name).stand()


@dataclass
class _Beside:
    plan: DeployPlan
    making: Making
    sandbox_id: str
    sandbox_type: str
    said: dict[str, ImageSays] = field(default_factory=dict)
    parts: dict[str, DeployedPart] = field(default_factory=dict)
    places: dict[str, Place] = field(default_factory=dict)
    urls: dict[str, str] = field(default_factory=dict)
    with_card: set[str] = field(default_factory=set)
    database: bool = False

    async def stand(self) -> Standing:
        plan = self.plan
        await together(self._look(server) for server in plan.servers)
        self.database = needs_database(plan, self.said.values())
        prepared: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        works: list[Coroutine[object, object, None]] = [self._database(prepared), self._gateway()]
        works += [self._server(server, prepared) for server in plan.servers]
        works += [self._website(website, prepared) for website in plan.websites]
        try:
            await together(works)
        finally:
            prepared.cancel()
        own = self.parts[GATEWAY]
        return Standing(own, self.places[GATEWAY], self.sandbox_type, self._in_order(), self.with_card, self.urls)

    def _in_order(self) -> dict[str, DeployedPart]:
        """As the document names them, whichever was there first."""
        named = [server.name for server in self.plan.servers]
        for website in self.plan.websites:
            named += [website_key(self.plan, website.name), frontend_name(website.name)]
        return {key: self.parts[key] for key in (*named, DATABASE, GATEWAY) if key in self.parts}

    async def _look(self, server: ServerPlan) -> None:
        self.said[server.name] = await have_image(self.making, self.sandbox_id, server.image)

    # the database

    async def _database(self, prepared: asyncio.Future[None]) -> None:
        plan, making = self.plan, self.making
        if self.database:
            making.tell("starting the database")
            names = [*(server.name for server in plan.servers), *(website.name for website in plan.websites)]
            image = plan.database.get("db") or making.settings.database_image
            made = await deploy_database(making, self.sandbox_id, image, names, networks=(BACK,))
            self.parts[DATABASE], self.places[DATABASE] = made.part, made.place
            if plan.options.inspection:
                await self._inspection()
        prepared.set_result(None)

    async def _inspection(self) -> None:
        """The database's own tools, which see everything in it: only where somebody asked for them."""
        url = database_url(self.making, self.sandbox_id, OWNER)
        for key, name, variable, port, path in (
            ("web", "pgweb", "PGWEB_DATABASE_URL", _WEB_PORT, "/"),
            ("mcp", "db-mcp", "DATABASE_URI", _MCP_PORT, "/mcp"),
        ):
            image: ImageSource | None = self.plan.database.get(key)
            if image is not None:
                wanted = ContainerWanted(name, image, secrets={variable: url}, networks=(BACK,), ports=(port,))
                place = await self.making.container(self.sandbox_id, wanted)
                self.urls[f"db_{key}_url"] = f"http://127.0.0.1:{place.ports[port]}{path}"

    # servers

    async def _server(self, server: ServerPlan, prepared: asyncio.Future[None]) -> None:
        if self.database:
            await asyncio.shield(prepared)
        said, options = self.said[server.name], self.plan.options
        part = self._part("mcp_server", server.name, server.name, said.port, name_of(server.image))
        wanted = ContainerWanted(
            server.name,
            said.id,
            env=server_variables(server, said.port, database=self.database),
            secrets=credentials_of(self.making, part, self.sandbox_id, database=self.database),
            kept=options.secrets,
            networks=(BACK,),
            cpu=options.cpu,
            memory_bytes=options.memory_bytes,
        )
        place = await self._made(server.name, part, wanted)
        seconds = self.making.limits.environment_ready_seconds
        await listening(place, said.port, what=server.name, seconds=seconds, limits=self.making.limits)
        if await self._has_card(server.name):
            self.with_card.add(server.name)

    async def _website(self, website: WebsitePlan, prepared: asyncio.Future[None]) -> None:
        if self.database:
            await asyncio.shield(prepared)
        key = website_key(self.plan, website.name)
        backend = self._part("website", website.name, backend_name(website.name), BACKEND_PORT, name_of(website.backend_image))
        frontend = self._part("frontend", website.name, frontend_name(website.name), FRONTEND_PORT, name_of(website.frontend_image))
        told = credentials_of(self.making, backend, self.sandbox_id, database=self.database)
        wanted = replace(backend_wanted(website, secrets=told, networks=(BACK,)), kept=self.plan.options.secrets)
        places = await asyncio.gather(
            self._made(key, backend, wanted), self._made(frontend_name(website.name), frontend, frontend_wanted(website, networks=(BACK,)))
        )
        limits, seconds = self.making.limits, self.making.limits.environment_ready_seconds
        for place, part in zip(places, (backend, frontend), strict=True):
            await listening(place, part.port, what=str(part.container_name), seconds=seconds, limits=limits)
        await self._healthy(key)
        if await self._has_card(key):
            self.with_card.add(website.name)

    def _part(self, kind: str, name: str, container: str, port: int, image: str) -> DeployedPart:
        return DeployedPart(kind=kind, name=name, sandbox_id=self.sandbox_id, container_name=container, port=port, image=image)

    async def _made(self, key: str, part: DeployedPart, wanted: ContainerWanted) -> Place:
        self.making.tell(f"starting {wanted.name}")
        place: Place = await self.making.container(self.sandbox_id, wanted)
        self.parts[key] = part.model_copy(update={"container_id": place.id})
        self.places[key] = place
        return place

    def _looking(self, key: str) -> RecordedEnvironment:
        record = DeployedEnvironment(
            env_id=self.plan.env_id,
            env_version=self.plan.env_version,
            env_provider_type="gateway",
            sandbox_id=self.sandbox_id,
            sandbox_type=self.sandbox_type,
            parts={key: self.parts[key]},
        )
        return RecordedEnvironment(record, self.making, shape=Shape.MACHINE_BACKED)

    async def _has_card(self, key: str) -> bool:
        """Whether a server that listens has a card; one that has none is from before cards."""
        live = self._looking(key)
        try:
            await live.client(key).raw_card()
        except NotAdvertisedError:
            return False
        except EnvironmentUnreachableError:
            await alive(await live.place(key))
            raise
        finally:
            await live.aclose()
        return True

    async def _healthy(self, key: str) -> None:
        """Waits for a backend that says how it is; one that does not know that path answers all the same."""
        live = self._looking(key)

        async def asked() -> bool | None:
            with suppress(EnvironmentUnreachableError, DeadlineError):
                async with live.client(key).request("GET", HEALTH_PATH) as answer:
                    return True if answer.status_code < httpx.codes.INTERNAL_SERVER_ERROR else None
            return None

        try:
            limits = self.making.limits
            await poll(asked, within_seconds=limits.environment_ready_seconds, what=f"{key} to be healthy", limits=limits)
        finally:
            await live.aclose()

    # the gateway

    async def _gateway(self) -> None:
        plan, making = self.plan, self.making
        image = await gateway_source(plan, making)
        servers: list[Mapping[str, object]] = [
            {"name": server.name, "url": f"http://{server.name}:{self.said[server.name].port}", "mcp_path": self.said[server.name].mcp_path}
            for server in plan.servers
        ]
        servers += [
            website_entry(website.name, backend_url(website.name, BACKEND_PORT), f"http://{frontend_name(website.name)}:{FRONTEND_PORT}")
            for website in plan.websites
        ]
        part = self._part("gateway", GATEWAY, GATEWAY, DOOR, name_of(image)).model_copy(update={"control_port": CONTROL_DOOR})
        wanted = ContainerWanted(
            GATEWAY,
            image,
            env=gateway_variables(
                plan,
                gateway_name(plan),
                servers,
                agent_door=f"0.0.0.0:{DOOR}",
                control_door=f"127.0.0.1:{CONTROL_DOOR}",
                clock_url=f"http://{GATEWAY}:{DOOR}/clock/time",
            ),
            secrets=credentials_of(making, part, self.sandbox_id, database=self.database),
            networks=(FRONT, BACK),
            ports=(DOOR,),
            relayed=True,
            restart=True,
        )
        making.tell("starting the gateway")
        place = await making.container(self.sandbox_id, wanted)
        self.places[GATEWAY] = place
        limits, agents = making.limits, place.ports[DOOR]
        self.parts[GATEWAY] = part.model_copy(update={"container_id": place.id, "host_port": agents})

        async def relayed() -> None:
            at = await self._relayed(place, agents)
            self.parts[GATEWAY] = self.parts[GATEWAY].model_copy(update={"control_host_port": at})

        seconds = limits.environment_ready_seconds
        await together([relayed(), listening(place, CONTROL_DOOR, what="the gateway", seconds=seconds, limits=limits)])

    async def _relayed(self, place: Place, agents: int) -> int:
        """A port of this machine's loopback that leads to the control door.

        On the machine's own loopback: the control door, at that port and at the well-known one, and the agents' door at its port.
        """
        limits = self.making.limits
        for at in filter(is_free, candidates(limits.port_attempts)):
            try:
                await self.making.relay(self.sandbox_id, place, GATEWAY, {CONTROL_DOOR: at})
            except PortTakenError:
                continue
            await self.making.lead(self.sandbox_id, {DOOR: at, at: at, agents: agents})
            return at
        raise EngineFailedError("no free port of this machine is left for the gateway's control door", concerns=GATEWAY)
