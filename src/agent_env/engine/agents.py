"""The agents of one run: deployed with what cleans up after a failure, found again from their records, once in each process."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from agent_env_sdk.wire.a2a import TOKEN_VARIABLE

from agent_env import keeper
from agent_env.agents.contract import AgentPlan, LiveAgent, McpServer
from agent_env.agents.deploy import attach, deploy, new_instance_id
from agent_env.agents.live import RecordedAgent
from agent_env.agents.lookup import StoredAgents
from agent_env.agents.outfit import Outfit, give
from agent_env.broker.contract import KEY_VARIABLE, MODELS_PORT, ModelAccess, Role
from agent_env.documents.network import NetworkMode
from agent_env.documents.records import DeployedAgent, DeployedEnvironment
from agent_env.engine import agent_docker
from agent_env.engine.agent_making import AgentMaking
from agent_env.engine.fallback import first_that_can, links
from agent_env.engine.prompts import Prompts
from agent_env.engine.retelling import agent_reference, models_reference
from agent_env.engine.shared import Shared
from agent_env.environments.readiness import answers
from agent_env.environments.records import GATEWAY
from agent_env.errors import InfrastructureError, UserError
from agent_env.places import Shape, View
from agent_env.places.ports import candidates, is_free
from agent_env.sandboxes.contract import SandboxSpec
from agent_env.waiting import deadline, shielded

if TYPE_CHECKING:
    from agent_env.environments import AgentAccess, LiveEnvironment
    from agent_env.steps.contract import AgentRequest, InstallRequest, Tell

_URL_VARIABLE = "LITELLM_BASE_URL"
Used = tuple[str, str, int, str]


@dataclass(frozen=True)
class _Wanted:
    """An agent that is being deployed."""

    request: AgentRequest
    plan: AgentPlan
    environments: Sequence[LiveEnvironment]
    attempt_id: str
    tell: Tell


class Agents:
    """The agents of one run in this process.

    Args:
        shared: The run.
    """

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._live: dict[str, RecordedAgent] = {}
        self._makings: list[AgentMaking] = []
        self._lives: dict[str, str] = {}
        """Of installed agents: the life of their place in which they were found running."""
        self._locks: dict[str, asyncio.Lock] = {}
        self.prompts = Prompts(shared)

    async def deploy(self, request: AgentRequest, attempt_id: str, tell: Tell, scratch: Path) -> tuple[DeployedAgent, list[Used]]:
        """Deploys with the first provider of sandboxes that can, and gives the agent its outfit.

        Returns:
            The record, and the documents that it was made from.

        Raises:
            NotFoundError: There is no such agent, or no image of it.
            UserError: It can't be deployed as asked.
            UnsupportedError: No provider of sandboxes can; says why of each.
            InfrastructureError: It did not come up; nothing of it is left.
        """
        shared = self._shared
        lookup = StoredAgents(shared.stores.artifacts, scratch, limits=shared.limits)
        plan = await asyncio.to_thread(partial(self._plan, request, lookup))
        environments = [await self._environment(env_id, step_id, attempt_id, tell) for env_id, step_id in request.environments]
        wanted = _Wanted(request, plan, environments, attempt_id, tell)
        if plan.sandbox_id is not None:
            record = await self._deploy_with(str(plan.sandbox_type), wanted)
            return record, list(lookup.used)
        chain = links(request.provider or shared.agents.provider or shared.sandboxes.default_provider)

        async def make(name: str, passed_over: Sequence[str]) -> DeployedAgent:
            if passed_over:
                tell(f"{name}, because {'; '.join(passed_over)}")
            return await self._deploy_with(name, wanted)

        record = await first_that_can(chain, make, what=f"agent {request.agent_name!r}", limits=shared.limits)
        return record, list(lookup.used)

    def _plan(self, request: AgentRequest, lookup: StoredAgents) -> AgentPlan:
        agent_id = request.agent_id or self._shared.agents.agent_id
        if agent_id is None:
            raise UserError("no agent is named, and none is configured", hint="set a2a_agent_id, or agents.default_a2a_agent_id")
        document = lookup.agent(agent_id, request.agent_version)
        instance_id = new_instance_id(document.id)
        disk = max(request.disk_bytes, int(document.min_disk_size_gb * (1 << 30)))
        defaults = {name: value for name, value in document.default_env_vars.items() if name not in request.secrets}
        return AgentPlan(
            agent_name=request.agent_name,
            agent_id=document.id,
            agent_version=document.version,
            image=lookup.image(document.docker_image_artifact),
            sandbox_id=request.sandbox_id,
            sandbox_type=request.sandbox_type,
            env={**defaults, **(agent_docker.variables(request.agent_name) if request.docker else {}), **request.env},
            secrets=request.secrets,
            references={**request.references, TOKEN_VARIABLE: agent_reference(instance_id)},
            role=request.role,
            cpu=request.cpu,
            memory_bytes=request.memory_bytes,
            disk_bytes=disk,
            ttl_seconds=request.ttl_seconds,
            network=request.network,
            attribution=request.attribution,
            instance_id=instance_id,
            default_model=document.default_model,
            takes_credentials=document.takes_credentials,
        )

    async def _environment(self, env_id: str, step_id: str | None, attempt_id: str, tell: Tell) -> LiveEnvironment:
        record = self._shared.environment_record(env_id, step_id)
        return await self._shared.live_environments().live(record, attempt_id, tell)

    async def _standing_on(self, plan: AgentPlan, making: AgentMaking) -> AgentPlan:
        """Where places share this machine's loopback, it is one of many there: it takes a port that is free, and answers nobody outside."""
        if plan.sandbox_id is not None or SandboxSpec("", network=plan.network).network_mode is not NetworkMode.ALLOW_ALL:
            return plan
        able = await making.capabilities()
        if able.shape is not Shape.CONTAINER_SHAPED or able.own_network:
            return plan
        return replace(plan, port=next(filter(is_free, candidates())), shared_loopback=True)

    async def _with_models(self, plan: AgentPlan, request: AgentRequest, tell: Tell) -> AgentPlan:
        """With what it asks models by. An agent that needs none, or brings its own key, is given nothing."""
        if not plan.takes_credentials or KEY_VARIABLE in {*request.env, *request.secrets}:
            return plan
        own = request.env.get(_URL_VARIABLE)
        access = await self._shared.models().access(
            plan.agent_name, role=request.model_role, model=plan.default_model, base_url=own, shared_loopback=plan.shared_loopback
        )
        if access is None:
            tell(f"no model is configured, so agent {plan.agent_name} is given none")
            return plan
        given = {name: value for name, value in access.variables().items() if name not in plan.secrets}
        env = {name: value for name, value in plan.env.items() if name not in given}
        if _URL_VARIABLE in given and not urlsplit(given[_URL_VARIABLE]).password:
            env[_URL_VARIABLE] = given.pop(_URL_VARIABLE)  # an address is no secret, and an engine tells it again by itself
        references = {**await asyncio.to_thread(self._references, plan.agent_name, request.model_role, access, given), **plan.references}
        secrets, model = {**given, **plan.secrets}, access.model or plan.default_model
        return replace(plan, env=env, secrets=secrets, references=references, brokered=access.brokered, default_model=model)

    def _references(self, agent_name: str, role: Role, access: ModelAccess, given: Mapping[str, str]) -> dict[str, str]:
        """By which it can be told again what it asks models by, also by a process that was not there."""
        if access.brokered:
            return {KEY_VARIABLE: models_reference(agent_name, role)} if KEY_VARIABLE in given else {}
        return {name: self._shared.models().reference_of(value) for name, value in given.items() if value}

    async def _deploy_with(self, provider: str, wanted: _Wanted) -> DeployedAgent:
        making = AgentMaking(self._shared, attempt_id=wanted.attempt_id, sandbox_provider=provider, tell=wanted.tell, env_id="")
        live: RecordedAgent | None = None
        try:
            request = wanted.request
            if request.docker:
                await agent_docker.refuse(request, self._shared.privileges, making)
            plan = await self._standing_on(replace(wanted.plan, sandbox=provider), making)
            plan = await self._with_models(plan, request, wanted.tell)
            live = await deploy(plan, making)
            if request.docker:
                image = self._shared.agents.docker_image
                await agent_docker.given(live, making, image, cpu=request.cpu, memory_bytes=request.memory_bytes)
            await self._fitted_out(live, making, replace(wanted, plan=plan))
        except BaseException:  # a cancellation too must not leave half an agent
            seconds = self._shared.limits.teardown_seconds
            await shielded(self._undo(live, making), seconds=seconds, what=f"removing agent {wanted.plan.agent_name!r}")
            raise
        self._makings.append(making)
        self._live[_key(live.record)] = live
        return live.record

    async def _undo(self, live: RecordedAgent | None, making: AgentMaking) -> None:
        """Removes what a failed deployment had made. What resists keeps its open row, so teardown and gc find it."""
        if live is not None:
            await live.aclose()
        await making.aclose()
        for sandbox_id in reversed(making.made):
            with suppress(InfrastructureError):
                await making.remove(sandbox_id)
        await self._shared.sandboxes.remove_containers(making.beside)

    # ways

    async def _fitted_out(self, live: RecordedAgent, making: AgentMaking, wanted: _Wanted) -> None:
        request, record = wanted.request, live.record
        if wanted.plan.brokered and not wanted.plan.shared_loopback:
            await making.lead_agent(record, {MODELS_PORT: keeper.MODELS})
        servers = [await self._way(environment, live, making, request.role) for environment in wanted.environments]
        outfit = Outfit(
            servers=servers,
            name=request.agent_name if request.named else None,
            description=request.description,
            role=request.role,
            system_prompt=request.system_prompt,
            skills=tuple(request.skills),
        )
        for what in await give(live, outfit):
            wanted.tell(f"agent {record.agent_name} does not take {what}")
        if request.prepare is not None:
            await request.prepare(live)
        await live.card(refresh=True)  # its name and skills are in it now
        live.recorded(a2a_card=dict(live.client.raw_card or {}))

    async def _way(self, environment: LiveEnvironment, live: RecordedAgent, making: AgentMaking, role: str | None) -> McpServer:
        """How this agent gets to an environment: by a network that both are on, else by a port of its own loopback."""
        access = await self._joined(environment, live, making, role)
        if access is None:
            access = await environment.agent_access(role, view=View.MACHINE)
            port = urlsplit(access.url).port
            if port is not None:
                await making.lead_agent(live.record, {port: port})
        return McpServer(access.url, {name: making.secret(value) for name, value in access.headers.items()}, access.name)

    async def _joined(self, environment: LiveEnvironment, live: RecordedAgent, making: AgentMaking, role: str | None) -> AgentAccess | None:
        """The way by a network; None where there is none that both can be on."""
        record = live.record
        held = await making.hold(str(record.sandbox_id), record.sandbox_type)
        if held.shape is not Shape.MACHINE_BACKED or held.sandbox.network.mode is not NetworkMode.ALLOW_ALL:
            return None
        try:
            access = await environment.agent_access(role)
        except LookupError:
            return None
        if access.network is None:
            return None
        theirs = environment.record.sandbox_id
        if theirs is None or (await making.engine(theirs)).endpoint != (await making.engine(str(record.sandbox_id))).endpoint:
            return None
        await making.join(str(record.sandbox_id), await live.place(), access.network)
        return access

    async def way_to_peer(self, source: DeployedAgent, peer: DeployedAgent, attempt_id: str, tell: Tell) -> McpServer:
        """How one agent reaches another: its address as seen from there, and the token that it wants.

        Raises:
            UserError: The other one has no address.
        """
        if peer.api_url is None:
            raise UserError(f"agent {peer.agent_name!r} has no address", concerns=peer.agent_name)
        if peer.sandbox_id is None or source.sandbox_id is None:
            return McpServer(peer.api_url, {}, peer.agent_name)
        making = AgentMaking(self._shared, attempt_id=attempt_id, sandbox_provider="", tell=tell, env_id="")
        self._makings.append(making)
        port = urlsplit(peer.api_url).port
        if port is not None:
            await making.lead_agent(source, {port: port})
        token = making.agent_token(peer.instance_id or peer.sandbox_id, peer.sandbox_id)
        return McpServer(peer.api_url, {"Authorization": f"Bearer {token}"}, peer.agent_name)

    async def way_to_executor(self, environment: DeployedEnvironment, agent: DeployedAgent, attempt_id: str, tell: Tell) -> McpServer:
        """How an environment's gateway reaches an agent: its address as seen from there, and the token that it wants.

        Raises:
            UserError: It has no address.
        """
        if agent.a2a_url is None:
            raise UserError(f"agent {agent.agent_name!r} has no address, so it can't carry out instructions", concerns=agent.agent_name)
        gateway, port = environment.parts.get(GATEWAY), urlsplit(agent.a2a_url).port
        if agent.sandbox_id is None:
            return McpServer(agent.a2a_url, {}, agent.agent_name)
        making = AgentMaking(self._shared, attempt_id=attempt_id, sandbox_provider="", tell=tell, env_id=environment.env_id)
        self._makings.append(making)
        if gateway is not None and port is not None:
            beside = DeployedAgent(
                agent_name=gateway.name,
                api_url=None,
                sandbox_id=gateway.sandbox_id,
                sandbox_type=environment.sandbox_type,
                container_id=gateway.container_id,
                container_name=gateway.container_name if gateway.container_id is not None else None,
                placement="in_container",
            )
            await making.lead_agent(beside, {port: port})
        token = making.agent_token(agent.instance_id or agent.sandbox_id, agent.sandbox_id)
        return McpServer(agent.a2a_url, {"Authorization": f"Bearer {token}"}, agent.agent_name)

    async def install(self, request: InstallRequest, attempt_id: str, tell: Tell, scratch: Path) -> tuple[DeployedAgent, list[Used]]:
        """Installs an agent into a place that is there already; see `installing`."""
        from agent_env.engine.installing import Installing

        shared = self._shared
        lookup = StoredAgents(shared.stores.artifacts, scratch, limits=shared.limits)
        provider = request.sandbox_type or links(shared.sandboxes.default_provider)[0]
        making = AgentMaking(shared, attempt_id=attempt_id, sandbox_provider=provider, tell=tell, env_id="")
        self._makings.append(making)
        asked = replace(request, agent_id=request.agent_id or shared.agents.agent_id)
        live = await Installing(shared, asked, attempt_id, tell, making).made(lookup)
        self._live[_key(live.record)] = live
        return live.record, list(lookup.used)

    # finding

    async def live(self, record: DeployedAgent, attempt_id: str, tell: Tell, *, needed: bool = False) -> LiveAgent:
        """A deployed agent at hand, attached when this process does not have it yet.

        Args:
            record: Its record.
            attempt_id: Whose processes those are that are started for it.
            tell: Hears what is done.
            needed: It is to do something: an installed one that runs no more, because its place was started again, is started again.

        Raises:
            SandboxUnavailableError: It is gone.
        """
        key = _key(record)
        async with self._locks.setdefault(key, asyncio.Lock()):
            if key not in self._live:
                provider = record.sandbox_type or links(self._shared.sandboxes.default_provider)[0]
                making = AgentMaking(self._shared, attempt_id=attempt_id, sandbox_provider=provider, tell=tell, env_id="")
                self._makings.append(making)
                async with deadline(self._shared.limits.deploy_seconds, f"reaching agent {record.agent_name!r}"):
                    self._live[key] = await attach(record, making)
                if record.brokered:  # a keeper that was started since does not know the run's models
                    await self._shared.models().access(record.agent_name, shared_loopback=record.shared_loopback)
            live = self._live[key]
            if needed and record.installed and record.agent_id is not None:
                async with deadline(self._shared.limits.deploy_seconds, f"starting agent {record.agent_name!r} again"):
                    await self._running(live, attempt_id, tell)
            return live

    async def _running(self, live: RecordedAgent, attempt_id: str, tell: Tell) -> None:
        """Starts an installed agent again if nothing answers at its port; asked once in each life of its place."""
        from agent_env.containers import ContainerPlace
        from agent_env.engine.installing import installed_again

        place = await live.place()
        life = await place.life() if isinstance(place, ContainerPlace) else ""
        key = _key(live.record)
        if self._lives.get(key) != life and not await answers(place, live.port):
            tell(f"starting agent {live.record.agent_name} again: nothing of it runs in its place")
            provider = live.record.sandbox_type or links(self._shared.sandboxes.default_provider)[0]
            making = AgentMaking(self._shared, attempt_id=attempt_id, sandbox_provider=provider, tell=tell, env_id="")
            self._makings.append(making)
            await installed_again(self._shared, live.record, attempt_id, tell, making)
        self._lives[key] = life

    async def aclose(self) -> None:
        """Lets go of every connection; the agents go on."""
        while self._live:
            _, live = self._live.popitem()
            await live.aclose()
        while self._makings:
            await self._makings.pop().aclose()


def _key(record: DeployedAgent) -> str:
    return f"{record.agent_name} {record.instance_id or record.sandbox_id or record.api_url}"
