"""The provider `gateway`: servers, websites and a database behind one gateway, beside a machine or in a sandbox each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import httpx
from agent_env_sdk.wire.card import EnvironmentCard

from agent_env.documents.records import DeployedEnvironment
from agent_env.environments.contract import DeployPlan, LiveEnvironment, Making
from agent_env.environments.faults import EnvironmentFailedError, ToolNameClashError
from agent_env.environments.http import read_json
from agent_env.environments.live import HEALTH, GatewayEnvironment
from agent_env.environments.providers.gateway_apart import deploy_apart
from agent_env.environments.providers.gateway_beside import deploy_beside
from agent_env.environments.providers.gateway_parts import Standing, refuse_elsewhere
from agent_env.environments.readiness import card_of, eager, listening
from agent_env.environments.records import DATABASE, GATEWAY, record_of
from agent_env.environments.servicedb import schema_problem
from agent_env.errors import ContainerNotRunningError, DeadlineError, InfrastructureError
from agent_env.places import Shape
from agent_env.places.endpoint import LOOPBACK
from agent_env.waiting import poll

_REFRESH = "/control/children/refresh"


class GatewayProvider:
    """Everything behind a gateway of ours, which is the environment's one address."""

    type = "gateway"
    options = frozenset(
        {
            *("ttl_seconds", "disk_bytes", "cpu", "memory_bytes", "gateway_mode", "env_state_type", "env_state_instance_id"),
            *("attribution", "secrets", "namespacing", "inspection", "unauthenticated_role"),
        }
    )

    def problems(self, plan: DeployPlan) -> Sequence[str]:
        """What a gateway can't stand before."""
        found = []
        if plan.options.env_state_type not in {None, "local_postgres"}:
            found.append(f"there is no state of type {plan.options.env_state_type!r}; there is local_postgres")
        if plan.options.env_state_instance_id is not None:
            found.append("a database of an earlier deployment can't be attached: every deployment has its own")
        for name in dict.fromkeys([*(server.name for server in plan.servers), *(website.name for website in plan.websites)]):
            why = schema_problem(name)
            if why is not None:
                found.append(why)
        return found

    async def deploy(self, plan: DeployPlan, making: Making) -> LiveEnvironment:
        """Deploys it."""
        capabilities = await making.capabilities()
        refuse_elsewhere(plan, making, capabilities)
        shape = capabilities.shape
        standing = await (deploy_beside if shape is Shape.MACHINE_BACKED else deploy_apart)(plan, making)
        draft = _draft(plan, standing)
        live = GatewayEnvironment(draft, making, shape=shape)
        try:
            making.tell("waiting for the gateway")
            card = await _ready(plan, standing, live, making)
        finally:
            await live.aclose()
        return GatewayEnvironment(_record(plan, standing, card, making), making, shape=shape)

    async def attach(self, record: DeployedEnvironment, making: Making) -> LiveEnvironment:
        """The same environment, from its record, with what the keeper carries told again."""
        if record.sandbox_id is None:
            raise InfrastructureError(f"environment {record.env_id!r} was recorded without a sandbox", concerns=record.env_id)
        held = await making.hold(record.sandbox_id, record.sandbox_type)
        live = GatewayEnvironment(record, making, shape=held.shape)
        if GATEWAY in record.parts:
            await live.carried(await live.place())
        return live

    async def destroy(self, record: DeployedEnvironment, making: Making) -> None:
        """Removes its sandboxes."""
        ids = {part.sandbox_id for part in record.parts.values()} | ({record.sandbox_id} if record.sandbox_id else set())
        for sandbox_id in sorted(ids):
            await making.remove(sandbox_id)


def _draft(plan: DeployPlan, standing: Standing) -> DeployedEnvironment:
    return DeployedEnvironment(
        env_id=plan.env_id,
        env_version=plan.env_version,
        env_provider_type=plan.provider,
        instance_id=plan.instance_id,
        sandbox_id=standing.own.sandbox_id,
        sandbox_type=standing.sandbox_type,
        parts=standing.parts,
    )


async def _ready(plan: DeployPlan, standing: Standing, live: GatewayEnvironment, making: Making) -> Mapping[str, object]:
    """Waits until the gateway has found every server, and returns its card."""
    limits, control = making.limits, live.control
    port, seconds = standing.own.control_port or 0, limits.environment_ready_seconds
    await listening(standing.place, port, what="the gateway", seconds=seconds, limits=limits)
    health: dict[str, object] = {}

    async def settled() -> bool | None:
        nonlocal health
        async with control.request("GET", HEALTH) as answer:
            health = await read_json(answer, "the gateway's health", limit_bytes=limits.environment_answer_bytes)
            return True if answer.status_code == httpx.codes.OK else None

    try:
        # Its servers listen by now; it may have looked for them before, and would look again by itself only later.
        async with control.request("POST", _REFRESH):
            pass
        await poll(settled, within_seconds=seconds, what="the gateway to find its servers", limits=eager(limits))
    except DeadlineError as error:
        raise await _missing(error, health, live) from error
    clashes = health.get("tool_name_clashes")
    if clashes and isinstance(clashes, dict) and not plan.options.namespacing:
        told = "; ".join(f"{tool!r} of {' and '.join(servers)}" for tool, servers in sorted(clashes.items()))
        raise ToolNameClashError(
            f"servers of environment {plan.env_id!r} have tools of the same name: {told}",
            concerns=plan.env_id,
            hint="rename one, or deploy with namespacing, which puts the server's name before such tools",
        )
    return await _whole_card(live, standing)


async def _whole_card(live: GatewayEnvironment, standing: Standing) -> Mapping[str, object]:
    """The gateway's card with every server's that has one: later loads and extensions go by it."""
    control, seconds = live.control, live.limits.environment_ready_seconds
    lost: list[str] = []

    async def whole() -> Mapping[str, object] | None:
        nonlocal lost
        card = await card_of(control, place=standing.place, seconds=seconds)
        listed = {child.name for child in EnvironmentCard.model_validate(card).children_environments or ()}
        lost = sorted(standing.with_card - listed)
        if not lost:
            return card
        async with control.request("POST", _REFRESH):  # it asked while the server was not there yet, and goes by that for a while
            return None

    try:
        return await poll(whole, within_seconds=seconds, what="the gateway's whole card", limits=live.limits)
    except DeadlineError as error:
        message = f"the gateway's card leaves out {', '.join(lost)}"
        raise EnvironmentFailedError(message, concerns=lost[0] if lost else None, reason="children_missing") from error


async def _missing(error: DeadlineError, health: Mapping[str, object], live: GatewayEnvironment) -> InfrastructureError:
    """Which server it waited for, and what became of that."""
    missing = health.get("missing")
    for name in missing if isinstance(missing, list) else ():
        try:
            await (await live.place(str(name))).ledger()
        except ContainerNotRunningError as ended:
            return ended
        except InfrastructureError:
            continue
    names = ", ".join(map(str, missing)) if isinstance(missing, list) else "its servers"
    return DeadlineError(f"{error.message}: the gateway can't reach {names}", concerns=names)


def _record(plan: DeployPlan, standing: Standing, card: Mapping[str, object], making: Making) -> DeployedEnvironment:
    own = standing.own
    base = f"http://{LOOPBACK}:{own.control_host_port}"
    mcp_servers = {part.name: part.sandbox_id for part in standing.parts.values() if part.kind == "mcp_server"}
    apart = any(part.sandbox_id != own.sandbox_id for part in standing.parts.values())
    ids: dict[str, object] = {"gateway_server": own.sandbox_id} if apart or plan.kind == "multi" else {}
    if apart:
        ids["mcp_server"] = mcp_servers
        database = standing.parts.get(DATABASE)
        if database is not None:
            ids["service_db"] = {DATABASE: database.sandbox_id}
    return record_of(
        plan,
        making.clock,
        base_url=base,
        card=card,
        own=own,
        sandbox_type=standing.sandbox_type,
        sandbox_ids=ids,
        gateway_url=base,
        gateway_mode=plan.options.gateway_mode,
        db_web_url=standing.urls.get("db_web_url"),
        db_mcp_url=standing.urls.get("db_mcp_url"),
        website_frontend_urls={website.name: f"{base}/website/{website.name}/" for website in plan.websites} or None,
        parts={name: part.model_dump(mode="json") for name, part in standing.parts.items()},
    )
