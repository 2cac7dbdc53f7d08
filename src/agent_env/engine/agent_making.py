"""What deploying an agent may ask of a run, beyond what an environment may. Implements `agents.contract.Making`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from agent_env import keeper
from agent_env.agents.contract import AgentPlan
from agent_env.documents.records import DeployedAgent
from agent_env.engine.making import RunMaking
from agent_env.engine.retelling import agent_token
from agent_env.engine.sandboxes import Held
from agent_env.errors import SandboxUnavailableError, UnsupportedError
from agent_env.places import Place, Shape
from agent_env.sandboxes.contract import LeadsToHost
from agent_env.steps.contract import SandboxRequest

if TYPE_CHECKING:
    from agent_env.stores.records import ResourceRow


class AgentMaking(RunMaking):
    """One attempt's making of an agent, or a run's looking for one."""

    @property
    def beside(self) -> list[ResourceRow]:
        """What this attempt put beside machines."""
        return self._shared.sandboxes.beside(attempts=[self._attempt_id]) if self._attempt_id else []

    async def agent_sandbox(self, plan: AgentPlan, *, env: Mapping[str, str], secrets: Mapping[str, str]) -> Held:
        """Journals and makes a sandbox that is the agent's container."""
        request = SandboxRequest(
            sandbox_name=plan.agent_name,
            mode="container",
            provider=self.sandbox_provider,
            image=await self.by_name(plan.image),
            port=plan.port,
            cpu=plan.cpu,
            memory_bytes=plan.memory_bytes,
            disk_bytes=plan.disk_bytes,
            ttl_seconds=plan.ttl_seconds,
            env=env,
            secrets=secrets,
            references=plan.references,
            network=plan.network,
            attribution=plan.attribution,
        )
        record = await self._shared.sandboxes.deploy(request, self._attempt_id)
        self.made.append(record.sandbox_id)
        return await self._shared.sandboxes.hold(record.sandbox_id)

    def agent_token(self, instance_id: str, sandbox_id: str | None) -> str:
        """The bearer token of a deployed agent."""
        sandboxes = self._shared.sandboxes
        return self.secret(agent_token(sandboxes.installation, sandboxes.maker(sandbox_id), instance_id))

    async def agent_place(self, record: DeployedAgent) -> Place:
        """Where an agent is. One that somebody started again is carried for again."""
        place = await self._placed(record)
        if record.container_id is None:
            return place
        from agent_env.containers import ContainerPlace

        if isinstance(place, ContainerPlace):
            life = await place.life()
            if self._shared.carried.get(place.id) != life:
                await self._lead(record, place, {})
                self._shared.carried[place.id] = life
        return place

    async def _placed(self, record: DeployedAgent) -> Place:
        if record.sandbox_id is None:
            raise SandboxUnavailableError(f"agent {record.agent_name!r} was recorded without a sandbox", concerns=record.agent_name)
        held = await self._shared.sandboxes.hold(record.sandbox_id, record.sandbox_type)
        if held.shape is Shape.CONTAINER_SHAPED or record.recorded == "on_machine":
            return await held.sandbox.machine()
        if record.container_id is not None and record.container_name is not None:
            return await self.place(record.sandbox_id, record.sandbox_type, (record.container_id, record.container_name))
        container = record.container_id or await self._shared.sandboxes.own_container(record.sandbox_id, held)
        if container is None:
            raise SandboxUnavailableError(
                f"agent {record.agent_name!r} was recorded without a container, and sandbox {record.sandbox_id} has none of its own",
                concerns=record.agent_name,
            )
        return await held.sandbox.container(container)

    def host_name(self, record: DeployedAgent) -> str | None:
        """What its container is called on the networks that it joined."""
        if record.container_id is None:
            return None
        beside = _beside(record)
        return f"{beside}-{record.sandbox_id}" if beside else f"agent-{record.sandbox_id}"

    async def log_tail(self, record: DeployedAgent) -> str:
        """The end of its container's log, without secrets."""
        from agent_env.containers.state import log_tail

        if record.container_id is None or record.sandbox_id is None:
            return ""
        engine = await self.engine(record.sandbox_id)
        return self._shared.redactor.redact(await log_tail(engine, record.container_id))

    async def join(self, sandbox_id: str, place: Place, network: str) -> None:
        """Puts a container of a sandbox on one more network."""
        from agent_env.containers import ContainerPlace, networks

        if not isinstance(place, ContainerPlace):
            raise UnsupportedError(f"{place.id} is no container of ours, and can join no network")
        await networks.join(await self.engine(sandbox_id), network, place.id, (place.name,), concerns=place.name)

    async def lead_agent(self, record: DeployedAgent, ports: Mapping[int, int]) -> None:
        """Makes ports of this machine's loopback answer on that of the agent's own place.

        Args:
            record: The agent.
            ports: Port of its loopback → port of this machine's; `keeper.MODELS` is the model broker.
        """
        await self._lead(record, await self._placed(record), ports)

    async def _lead(self, record: DeployedAgent, place: Place, ports: Mapping[int, int]) -> None:
        sandbox_id = str(record.sandbox_id)
        async with self._shared.leading.setdefault(place.id, asyncio.Lock()):  # what is led there grows: nobody may carry less than before
            if _beside(record) is not None and record.recorded == "in_container":
                await self._carry_beside(sandbox_id, record, place, ports)
                return
            held = await self._shared.sandboxes.hold(sandbox_id, record.sandbox_type)
            if isinstance(held.sandbox, LeadsToHost):
                await held.sandbox.lead_to_host(ports)

    async def _carry_beside(self, sandbox_id: str, record: DeployedAgent, place: Place, ports: Mapping[int, int]) -> None:
        from agent_env.containers import ContainerPlace
        from agent_env.keeper.records import Records

        assert isinstance(place, ContainerPlace)
        name = str(_beside(record))
        await self._shared.sandboxes.note_leads(sandbox_id, name, ports)
        called = keeper.called_beside(sandbox_id, name)
        known = Records(self.state_root).read(called)
        leads = {**self._shared.sandboxes.leads(sandbox_id, name), **ports}
        fresh = [keeper.ToHost(listen, port) for listen, port in leads.items()]
        kept = [each for each in (known.relays if known else ()) if each not in fresh]
        if relays := (*kept, *fresh):
            await keeper.carry(self.state_root, keeper.Carried(called, keeper.in_container(place), relays), limits=self.limits)


def _beside(record: DeployedAgent) -> str | None:
    """What an agent's container is called beside its machine; None of one that is its sandbox, or of a machine."""
    return record.container_name or record.installed_container
