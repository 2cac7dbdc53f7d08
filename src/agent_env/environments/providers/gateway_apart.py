"""A gateway environment on a provider whose sandboxes are containers: a sandbox each, and ways between their loopbacks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agent_env_sdk.wire.names import DATABASE_VARIABLE

from agent_env.documents.records import DeployedEnvironment, DeployedPart
from agent_env.environments.contract import DOOR, DeployPlan, Held, Making, SandboxWanted, ServerPlan
from agent_env.environments.credentials import DATABASE_PORT, READER, database_url, gateway_key, key_sandbox
from agent_env.environments.faults import EnvironmentUnreachableError, NotAdvertisedError
from agent_env.environments.images import gateway_source, name_of
from agent_env.environments.live import RecordedEnvironment
from agent_env.environments.providers.gateway_parts import (
    ImageSays,
    Standing,
    gateway_name,
    gateway_variables,
    needs_database,
    says,
    server_variables,
    wants_database,
)
from agent_env.environments.readiness import alive, listening
from agent_env.environments.records import DATABASE, GATEWAY
from agent_env.environments.servicedb import deploy_database_apart
from agent_env.errors import EngineFailedError, InfrastructureError, PortTakenError, UnsupportedError
from agent_env.places import Place, Shape
from agent_env.places.endpoint import LOOPBACK
from agent_env.places.ports import candidates, is_free
from agent_env.waiting import together

if TYPE_CHECKING:
    from agent_env.artifacts.image_artifacts import ImageSource

AGENT_DOOR = 18768
"""Of a gateway that is alone in its sandbox: there the well-known port is the control door's, for scripts that run beside it."""
_FIRST_SERVER = 18800
"""Ports of the gateway's own loopback that lead to its servers."""


async def deploy_apart(plan: DeployPlan, making: Making) -> Standing:
    """Makes everything. What it had made when it fails is the caller's to remove.

    Raises:
        UnsupportedError: The environment needs what stands beside a machine alone.
    """
    needs = [
        *(["websites"] if plan.websites else []),
        *(["the database's inspection tools"] if plan.options.inspection else []),
    ]
    if needs:
        raise UnsupportedError(
            f"environment {plan.env_id!r} has {' and '.join(needs)}, which stand beside a machine, and the sandboxes of "
            f"{making.sandbox_provider!r} are containers",
            concerns=plan.env_id,
            hint="deploy it with 'local'",
        )
    capabilities = await making.capabilities()
    apart = _Apart(plan, making, capabilities.own_network, capabilities.on_this_machine)
    if wants_database(plan):
        apart.refuse_database_elsewhere()
    return await apart.stand()


@dataclass
class _Apart:
    plan: DeployPlan
    making: Making
    own_network: bool
    on_this_machine: bool
    said: dict[str, ImageSays] = field(default_factory=dict)
    parts: dict[str, DeployedPart] = field(default_factory=dict)
    with_card: set[str] = field(default_factory=set)
    sandbox_type: str = ""
    database: DeployedPart | None = None
    ports: Iterator[int] = field(default_factory=lambda: filter(is_free, candidates()))

    def refuse_database_elsewhere(self) -> None:
        """Raises `UnsupportedError` where servers can't reach a database."""
        if not self.on_this_machine:
            raise UnsupportedError(
                f"environment {self.plan.env_id!r} has a database, whose servers reach it over this machine's loopback, and the sandboxes "
                f"of {self.making.sandbox_provider!r} are elsewhere",
                concerns=self.plan.env_id,
                hint="deploy it with 'local', or 'rootfs'",
            )

    async def stand(self) -> Standing:
        plan = self.plan
        image = await gateway_source(plan, self.making)
        await together(self._look(server) for server in plan.servers)
        if needs_database(plan, self.said.values()):
            self.refuse_database_elsewhere()
            self.making.tell("starting the database")
            names, port = [server.name for server in plan.servers], self._port(DATABASE_PORT)
            source = plan.database.get("db") or self.making.settings.database_image
            self.database = (await deploy_database_apart(plan, self.making, source, names, port)).part
        await together(self._server(server) for server in plan.servers)
        own, place = await self._gateway(image)
        parts = {server.name: self.parts[server.name] for server in plan.servers}
        parts |= {DATABASE: self.database} if self.database is not None else {}
        return Standing(own, place, self.sandbox_type, {**parts, GATEWAY: own}, self.with_card)

    def _database_url(self, database: DeployedPart, role: str, schema: str | None = None) -> str:
        """How a sandbox reaches the database: over its own loopback, which leads there, or over this machine's."""
        at = f"{LOOPBACK}:{DATABASE_PORT if self.own_network else database.host_port}"
        return database_url(self.making, database.sandbox_id, role, schema=schema, at=at)

    @property
    def _leads(self) -> Mapping[int, int]:
        return {DATABASE_PORT: int(self.database.host_port or 0)} if self.database is not None and self.own_network else {}

    def _port(self, wanted: int) -> int:
        """A port inside a sandbox: the well-known one where it has ports of its own, else whatever is free on this machine."""
        return wanted if self.own_network else next(self.ports)

    # servers

    async def _look(self, server: ServerPlan) -> None:
        """What its image says, where the provider of sandboxes can tell."""
        name, config = name_of(server.image), await self.making.image_config(server.image)
        labels, exposed = (config.labels, config.exposed_ports) if config is not None else ({}, ())
        self.said[server.name] = says(name, labels=labels, exposed=exposed, name=name)

    async def _server(self, server: ServerPlan) -> None:
        making, port = self.making, self._port(self.said[server.name].port)
        wanted = SandboxWanted(
            server.name,
            mode="container",
            image=server.image,
            ports=(port,),
            env=server_variables(server, port, database=self.database is not None),
            secrets={DATABASE_VARIABLE: self._database_url(self.database, server.name, server.name)} if self.database is not None else {},
            kept=self.plan.options.secrets,
            leads=self._leads,
        )
        making.tell(f"starting {server.name}")
        held = await making.sandbox(wanted, self.plan)
        place = await held.sandbox.machine()
        self.sandbox_type = held.provider.name
        self.parts[server.name] = DeployedPart(
            kind="mcp_server",
            name=server.name,
            sandbox_id=held.sandbox.info.sandbox_id,
            container_name=server.name,
            port=port,
            host_port=_published(held, port),
            image=name_of(server.image),
        )
        await listening(place, port, what=server.name, seconds=making.limits.environment_ready_seconds, limits=making.limits)
        if await self._has_card(server.name):
            self.with_card.add(server.name)

    async def _has_card(self, name: str) -> bool:
        part = self.parts[name]
        record = DeployedEnvironment(
            env_id=self.plan.env_id,
            env_version=self.plan.env_version,
            env_provider_type="gateway",
            sandbox_id=part.sandbox_id,
            sandbox_type=self.sandbox_type,
            parts={name: part},
        )
        live = RecordedEnvironment(record, self.making, shape=Shape.CONTAINER_SHAPED)
        try:
            await live.client(name).raw_card()
        except NotAdvertisedError:
            return False
        except EnvironmentUnreachableError:
            await alive(await live.place(name))
            raise
        finally:
            await live.aclose()
        return True

    # the gateway

    async def _gateway(self, image: ImageSource) -> tuple[DeployedPart, Place]:
        from agent_env.gateway.config import DATABASE_VARIABLE as GATEWAY_DATABASE
        from agent_env.gateway.config import KEY_VARIABLE

        making, plan = self.making, self.plan
        agents, control = self._port(AGENT_DOOR), self._port(DOOR)
        ways = self._ways()
        reads = {GATEWAY_DATABASE: self._database_url(self.database, READER)} if self.database is not None else {}
        servers: list[Mapping[str, object]] = [
            {"name": name, "url": f"http://{LOOPBACK}:{port}", "mcp_path": self.said[name].mcp_path} for name, (port, _) in ways.items()
        ]
        wanted = SandboxWanted(
            GATEWAY,
            mode="container",
            image=image,
            ports=(agents,),
            restart=True,
            env=gateway_variables(
                plan,
                gateway_name(plan),
                servers,
                agent_door=f"0.0.0.0:{agents}",
                control_door=f"{LOOPBACK}:{control}",
                clock_url=f"http://{LOOPBACK}:{agents}/clock/time",
            ),
            secrets={KEY_VARIABLE: gateway_key(making, key_sandbox(self.parts)), **reads},
            leads=self._leads,
        )
        making.tell("starting the gateway")
        held = await making.sandbox(wanted, plan)
        sandbox_id = held.sandbox.info.sandbox_id
        part = DeployedPart(
            kind="gateway",
            name=GATEWAY,
            sandbox_id=sandbox_id,
            container_name=GATEWAY,
            port=agents,
            host_port=_published(held, agents),
            control_port=control,
            image=name_of(image),
        )
        if self.own_network:
            await making.lead(sandbox_id, dict(ways.values()))
            for name in ways:
                await making.lead(self.parts[name].sandbox_id, {agents: int(part.host_port or agents)})
        at = await self._answering(sandbox_id, control)
        return part.model_copy(update={"control_host_port": at}), await held.sandbox.machine()

    def _ways(self) -> Mapping[str, tuple[int, int]]:
        """Server → port of the gateway's own loopback, and port of this machine's that it leads to."""
        found = {}
        for number, server in enumerate(self.plan.servers):
            at = int(self.parts[server.name].host_port or 0)
            found[server.name] = (_FIRST_SERVER + number if self.own_network else at, at)
        return found

    async def _answering(self, sandbox_id: str, control: int) -> int:
        """A port of this machine's loopback that leads to the control door."""
        if not self.own_network:
            return control
        for at in filter(is_free, candidates(self.making.limits.port_attempts)):
            try:
                await self.making.answer(sandbox_id, {control: at})
            except PortTakenError:
                continue
            return at
        raise EngineFailedError("no free port of this machine is left for the gateway's control door", concerns=GATEWAY)


def _published(held: Held, port: int) -> int:
    published = held.sandbox.published
    if port not in published.tunnels:
        raise InfrastructureError(f"sandbox {held.sandbox.info.sandbox_id} does not publish port {port}")
    return published.host_ports.get(port, port)
