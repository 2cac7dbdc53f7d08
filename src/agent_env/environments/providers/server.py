"""The provider `server`: one server alone, without a gateway, in a container beside a machine or in a sandbox that is the container."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from agent_env_sdk.wire.names import HOST_VARIABLE, NAME_VARIABLE

from agent_env.documents.records import DeployedEnvironment, DeployedPart
from agent_env.environments.contract import DOOR, ContainerWanted, DeployPlan, Held, LiveEnvironment, Making, SandboxWanted, ServerPlan
from agent_env.environments.faults import EnvironmentFailedError
from agent_env.environments.images import name_of
from agent_env.environments.live import FRONT, RecordedEnvironment
from agent_env.environments.providers.gateway_parts import refuse_elsewhere
from agent_env.environments.readiness import card_of, listening
from agent_env.environments.records import MACHINE, record_of
from agent_env.errors import InfrastructureError
from agent_env.places import Place, Shape
from agent_env.places.endpoint import LOOPBACK
from agent_env.waiting import deadline


class ServerProvider:
    """One MCP server alone. Its card must arrive, and be named as the environment says; it must list tools, each name once."""

    type = "server"
    options = frozenset({"ttl_seconds", "disk_bytes", "cpu", "memory_bytes", "attribution", "secrets"})

    def problems(self, plan: DeployPlan) -> Sequence[str]:
        """It takes one MCP server and nothing else."""
        if plan.kind == "mcp_server" and len(plan.servers) == 1:
            return ()
        return [f"the provider 'server' deploys one mcp_server, and {plan.env_id!r} is a {plan.kind}"]

    async def deploy(self, plan: DeployPlan, making: Making) -> LiveEnvironment:
        """Deploys it."""
        (server,) = plan.servers
        capabilities = await making.capabilities()
        refuse_elsewhere(plan, making, capabilities)
        shape = capabilities.shape
        made = await (_beside_machine if shape is Shape.MACHINE_BACKED else _alone)(plan, server, making)
        held, part, place, url = made
        draft = DeployedEnvironment(
            env_id=plan.env_id,
            env_version=plan.env_version,
            env_provider_type=plan.provider,
            sandbox_id=part.sandbox_id,
            sandbox_type=held.provider.name,
            parts={server.name: part},
        )
        live = RecordedEnvironment(draft, making, shape=shape)
        try:
            making.tell(f"waiting for {server.name}")
            seconds = making.limits.environment_ready_seconds
            await listening(place, part.port, what=server.name, seconds=seconds, limits=making.limits)
            card = await card_of(live.client(), place=place, seconds=seconds)
            _check_name(card, server)
            await _check_tools(live, server)
        finally:
            await live.aclose()
        record = record_of(
            plan,
            making.clock,
            base_url=url,
            card=card,
            own=part,
            sandbox_type=held.provider.name,
            sandbox_ids={"mcp_server": {server.name: part.sandbox_id}},
            parts={server.name: part.model_dump(mode="json")},
        )
        return RecordedEnvironment(record, making, shape=shape)

    async def attach(self, record: DeployedEnvironment, making: Making) -> LiveEnvironment:
        """The same environment, from its record."""
        return await attached(record, making)

    async def destroy(self, record: DeployedEnvironment, making: Making) -> None:
        """Removes its sandbox."""
        if record.sandbox_id is not None:
            await making.remove(record.sandbox_id)


Made = tuple[Held, DeployedPart, Place, str]


async def _beside_machine(plan: DeployPlan, server: ServerPlan, making: Making) -> Made:
    held = await making.sandbox(SandboxWanted(MACHINE), plan)
    sandbox_id = held.sandbox.info.sandbox_id
    options = plan.options
    place = await making.container(
        sandbox_id,
        ContainerWanted(
            server.name,
            server.image,
            env=server_environment(server),
            kept=options.secrets,
            networks=(FRONT,),
            ports=(DOOR,),
            cpu=options.cpu,
            memory_bytes=options.memory_bytes,
        ),
    )
    at = place.ports[DOOR]
    # On the machine's own loopback the environment answers where this machine has it, and at the well-known port.
    await making.lead(sandbox_id, {at: at, DOOR: at})
    part = DeployedPart(
        kind="mcp_server",
        name=server.name,
        sandbox_id=sandbox_id,
        container_id=place.id,
        container_name=server.name,
        port=DOOR,
        host_port=at,
        image=name_of(server.image),
    )
    return held, part, place, f"http://{LOOPBACK}:{at}"


async def _alone(plan: DeployPlan, server: ServerPlan, making: Making) -> Made:
    wanted = SandboxWanted(
        server.name,
        mode="container",
        image=server.image,
        ports=(DOOR,),
        env=server_environment(server),
        kept=plan.options.secrets,
    )
    held = await making.sandbox(wanted, plan)
    sandbox = held.sandbox
    url = sandbox.published.tunnels.get(DOOR)
    if url is None:
        raise InfrastructureError(f"sandbox {sandbox.info.sandbox_id} does not publish port {DOOR}", concerns=server.name)
    part = DeployedPart(
        kind="mcp_server",
        name=server.name,
        sandbox_id=sandbox.info.sandbox_id,
        container_name=server.name,
        port=DOOR,
        host_port=sandbox.published.host_ports.get(DOOR),
        image=name_of(server.image),
    )
    return held, part, await sandbox.machine(), url


def server_environment(server: ServerPlan) -> dict[str, str]:
    """What a server without a database beside it is told (reference)."""
    return {
        HOST_VARIABLE: "0.0.0.0",
        NAME_VARIABLE: server.name,
        "MCP_PORT": str(DOOR),
        "SERVICE_NAME": server.name,
        "DATABASE_URL": f"sqlite:////tmp/{server.name}.sqlite",
    }


def _check_name(card: dict[str, object], server: ServerPlan) -> None:
    if card.get("name") != server.name:
        raise EnvironmentFailedError(
            f"the server of {server.name!r} has a card named {card.get('name')!r}",
            concerns=server.name,
            reason="wrong_name",
            hint="its card takes the name from the variable ENVIRONMENT_NAME; or mend environment_name",
        )


async def _check_tools(live: RecordedEnvironment, server: ServerPlan) -> None:
    async with deadline(live.limits.environment_tools_seconds, f"the tools of {server.name}"):
        names = Counter(str(tool["name"]) for tool in await live.client().tools())
    twice = sorted(name for name, count in names.items() if count > 1)
    if not names or twice:
        why = f"lists {', '.join(twice)} more than once" if twice else "lists no tool"
        raise EnvironmentFailedError(f"the server {server.name!r} {why}", concerns=server.name, reason="bad_tools")


async def attached(record: DeployedEnvironment, making: Making) -> RecordedEnvironment:
    """A lone server from its record, with what the keeper carries told again."""
    if record.sandbox_id is None:
        raise InfrastructureError(f"environment {record.env_id!r} was recorded without a sandbox", concerns=record.env_id)
    held = await making.hold(record.sandbox_id, record.sandbox_type)
    return RecordedEnvironment(record, making, shape=held.shape)
