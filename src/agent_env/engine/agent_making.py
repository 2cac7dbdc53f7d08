"""What deploying an agent may ask of a run, beyond what an environment may. Implements `agents.contract.Making`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from agent_env import keeper
from agent_env.agents.contract import A2A_PORT, AgentPlan
from agent_env.documents.records import DeployedAgent
from agent_env.engine.installation import RUN_LABEL
from agent_env.engine.making import RunMaking, carried_as, join_network
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
            port=A2A_PORT,
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
        row = self._shared.sandboxes.row(sandbox_id) if sandbox_id is not None else None
        maker = row.labels.get(RUN_LABEL, self._shared.run_id) if row is not None else self._shared.run_id
        return self.secret(self._shared.sandboxes.installation.token(maker, f"agent:{instance_id}"))

    async def agent_place(self, record: DeployedAgent) -> Place:
        """Where an agent is."""
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
        return f"{record.container_name}-{record.sandbox_id}" if record.container_name else f"agent-{record.sandbox_id}"

    async def log_tail(self, record: DeployedAgent) -> str:
        """The end of its container's log, without secrets."""
        from agent_env.containers.state import log_tail

        if record.container_id is None or record.sandbox_id is None:
            return ""
        engine = await self.engine(record.sandbox_id)
        return self._shared.redactor.redact(await log_tail(engine, record.container_id))

    async def join(self, sandbox_id: str, place: Place, network: str) -> None:
        """Puts a container of a sandbox on one more network."""
        from agent_env.containers import ContainerPlace

        if not isinstance(place, ContainerPlace):
            raise UnsupportedError(f"{place.id} is no container of ours, and can join no network")
        await join_network(await self.engine(sandbox_id), network, place, place.name)

    async def lead_agent(self, record: DeployedAgent, ports: Mapping[int, int]) -> None:
        """Makes ports of this machine's loopback answer on that of the agent's own place.

        Args:
            record: The agent.
            ports: Port of its loopback → port of this machine's; `keeper.MODELS` is the model broker.
        """
        sandbox_id = str(record.sandbox_id)
        if record.container_name is not None and record.recorded == "in_container":
            await self._carry_beside(sandbox_id, record, ports)
            return
        held = await self._shared.sandboxes.hold(sandbox_id, record.sandbox_type)
        if isinstance(held.sandbox, LeadsToHost):
            await held.sandbox.lead_to_host(ports)

    async def _carry_beside(self, sandbox_id: str, record: DeployedAgent, ports: Mapping[int, int]) -> None:
        from agent_env.containers import ContainerPlace
        from agent_env.keeper.records import Records

        place = await self.agent_place(record)
        assert isinstance(place, ContainerPlace)
        called = carried_as(sandbox_id, str(record.container_name))
        known = Records(self.state_root).read(called)
        fresh = [keeper.ToHost(listen, port) for listen, port in ports.items()]
        kept = [each for each in (known.relays if known else ()) if each not in fresh]
        carried = keeper.Carried(called, keeper.in_container(place), (*kept, *fresh))
        await keeper.carry(self.state_root, carried, limits=self.limits)
