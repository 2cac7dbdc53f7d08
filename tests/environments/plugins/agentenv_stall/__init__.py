"""A provider of environments as a package would bring it, written against the contract alone."""

from __future__ import annotations

from dataclasses import replace

from agent_env.documents.records import DeployedEnvironment
from agent_env.environments import ContainerWanted, DeployPlan, LiveEnvironment, Making, SandboxWanted, UrlEnvironment

MCP_PATH = "/v2/mcp"
PORT = 18080


class Stall:
    """One server beside a machine, at a port and a path of its own."""

    type = "stall"
    options = frozenset({"memory_bytes"})

    def problems(self, plan: DeployPlan) -> list[str]:
        return [] if plan.kind == "mcp_server" else ["a stall has one server"]

    async def deploy(self, plan: DeployPlan, making: Making) -> LiveEnvironment:
        held = await making.sandbox(SandboxWanted("stall"), plan)
        sandbox_id = held.sandbox.info.sandbox_id
        (server,) = plan.servers
        env = {"MCP_PORT": str(PORT), "ENVIRONMENT_NAME": server.name, "STOCK_MCP_PATH": MCP_PATH}
        place = await making.container(sandbox_id, ContainerWanted(server.name, server.image, env=env, ports=(PORT,)))
        at = place.ports[PORT]
        await making.lead(sandbox_id, {at: at, 18765: at})
        draft = DeployedEnvironment(
            env_id=plan.env_id,
            env_version=plan.env_version,
            env_provider_type=self.type,
            environment_card_url=f"http://127.0.0.1:{at}/.well-known/agent-env.json",
            environment_card={"name": server.name, "capabilities": {}},
            metadata={"deploy_step_id": plan.step_id},
            instance_id=plan.instance_id,
            sandbox_id=sandbox_id,
            sandbox_type=held.provider.name,
            container_id=place.id,
        )
        live = UrlEnvironment(draft, making, held)
        card = await ready(live)
        return UrlEnvironment(draft.model_copy(update={"environment_card": card}), making, held)

    async def attach(self, record: DeployedEnvironment, making: Making) -> LiveEnvironment:
        return await UrlEnvironment.found(record, making)

    async def destroy(self, record: DeployedEnvironment, making: Making) -> None:
        if record.sandbox_id is not None:
            await making.remove(record.sandbox_id)


async def ready(live: UrlEnvironment) -> dict[str, object]:
    from agent_env.environments import card_of

    try:
        return await card_of(live.control, place=None, seconds=60)
    finally:
        await live.aclose()


class Broken:
    """Can't even be made."""

    def __init__(self) -> None:
        raise OSError("the stall is closed")


class Misnamed(Stall):
    """Says that it is another."""

    type = "other"


class Vague(Stall):
    """Deploys, and records what nobody can use."""

    type = "stall_vague"

    async def deploy(self, plan: DeployPlan, making: Making) -> LiveEnvironment:
        live = await super().deploy(plan, making)
        assert isinstance(live, UrlEnvironment)
        named = replace(plan, env_id="x")
        return UrlEnvironment(live.record.model_copy(update={"environment_card": {"name": "somebody", "env": named.env_id}}), making)
