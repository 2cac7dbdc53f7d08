"""The sandboxes of one run: journalled before they are made, attached once per process, destroyed with their rows closed.

It chooses ids, labels and tokens. Which step acts where is `run.py`'s question.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from agent_env.clock import Clock, timestamp
from agent_env.defaults import Limits
from agent_env.documents.network import NetworkPolicy
from agent_env.documents.records import DeployedSandbox
from agent_env.documents.updates import Json
from agent_env.engine.installation import EXPIRES_LABEL, RUN_LABEL, Installation
from agent_env.engine.teardown import DEFAULT_PROVIDER, Removal, TeardownReport, remove_all
from agent_env.errors import AgentEnvError, InfrastructureError, PlaceLostError, SandboxNotFoundError, UnsupportedError, UserError
from agent_env.ids import new_sandbox_id
from agent_env.places import Shape
from agent_env.sandboxes.contract import Provider, Sandbox, SandboxSpec
from agent_env.steps.contract import SandboxRequest
from agent_env.stores.records import OPEN_STATES, Lease, Resource, ResourceRow
from agent_env.waiting import deadline, shielded

if TYPE_CHECKING:
    from agent_env.engine.options import Providers
    from agent_env.stores import Journal

RESOURCE_KIND = "sandbox"
_NOTED = ("mode", "levels", "network")
EPOCH_BASE = "epoch_base"
"""Fact of an adopted sandbox: epochs of its earlier runs, so that its places see epochs that only grow."""


@dataclass(frozen=True)
class Held:
    """A live sandbox and what was said of its provider."""

    sandbox: Sandbox
    provider: Provider
    shape: Shape


class Sandboxes:
    """The sandboxes of one run in this process."""

    def __init__(
        self,
        lease: Lease,
        *,
        journal: Journal,
        providers: Providers,
        installation: Installation,
        default_provider: str,
        limits: Limits,
        clock: Clock,
        rows: Sequence[ResourceRow] = (),
    ) -> None:
        self._lease = lease
        self._journal = journal
        self._providers = providers
        self._installation = installation
        self._default_provider = default_provider or DEFAULT_PROVIDER
        self._limits = limits
        self._clock = clock
        self._rows: dict[str, ResourceRow] = {row.id: row for row in rows if row.kind == RESOURCE_KIND}
        self._held: dict[str, Held] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    def rows(self, *, attempts: Sequence[str] | None = None) -> list[ResourceRow]:
        """What may still exist, of some attempts or of all."""
        return [row for row in self._rows.values() if row.state in OPEN_STATES and (attempts is None or row.attempt_id in attempts)]

    def row(self, sandbox_id: str) -> ResourceRow | None:
        """The journal's row of a sandbox of this run."""
        return self._rows.get(sandbox_id)

    def notes(self) -> dict[str, Json]:
        """What the run's record says of its sandboxes: provider, how each limit holds, and the network that is in force."""
        return {
            row.name: {"sandbox_id": row.id, "provider": row.provider, **{key: row.facts[key] for key in _NOTED if key in row.facts}}
            for row in self._rows.values()
        }

    async def deploy(self, request: SandboxRequest, attempt_id: str) -> DeployedSandbox:
        """Makes a sandbox with the first provider of the request's chain that can.

        Raises:
            UnsupportedError: No provider of the chain can make it; says why of each.
            InfrastructureError: The last one failed.
        """
        chain = [name.strip() for name in (request.provider or self._default_provider).split(",") if name.strip()]
        refusals: list[str] = []
        failure: AgentEnvError | None = None
        for name in chain:
            try:
                return await self._deploy_with(name, request, attempt_id)
            except UnsupportedError as error:
                refusals.append(f"{name}: {error}")
            except InfrastructureError as error:
                failure = error
        if failure is not None:
            raise failure
        raise UnsupportedError(f"no provider can make sandbox {request.sandbox_name!r}", hint="; ".join(refusals) or "name a provider")

    async def _deploy_with(self, name: str, request: SandboxRequest, attempt_id: str) -> DeployedSandbox:
        provider = self._providers(name)
        async with deadline(self._limits.deploy_seconds, f"asking the provider {name!r} what it can do"):
            capabilities = await provider.capabilities()
        sandbox_id = new_sandbox_id(name)
        spec = self._spec(sandbox_id, request)
        problems = provider.problems(spec, capabilities)
        if problems:
            raise UnsupportedError("; ".join(problems))
        resource = Resource(
            sandbox_id,
            RESOURCE_KIND,
            name,
            request.sandbox_name,
            attempt_id,
            labels=spec.labels,
            facts={"mode": request.mode},
            expires_at=spec.labels[EXPIRES_LABEL],
        )
        await self._journal.intend(self._lease, resource)
        try:
            async with deadline(self._limits.deploy_seconds, f"creating sandbox {request.sandbox_name!r} with the provider {name!r}"):
                sandbox = await provider.create(spec)
            facts: dict[str, Json] = {
                **sandbox.info.facts,
                "mode": request.mode,
                "levels": {name: str(level) for name, level in sandbox.levels.items()},
                "network": str(sandbox.network.mode),
            }
            await self._journal.opened(self._lease, sandbox_id, facts)
        except BaseException:  # a cancellation too must not leave a half-made sandbox
            await shielded(self._undo(resource, provider), seconds=self._limits.cleanup_seconds, what=f"removing sandbox {sandbox_id}")
            raise
        held = self._held[sandbox_id] = Held(sandbox, provider, capabilities.shape)
        self._rows[sandbox_id] = self._live_row(resource, facts)
        return self._record(request, spec, held, name)

    async def _undo(self, resource: Resource, provider: Provider) -> None:
        """A sandbox whose making was cut. What can't be removed now keeps its open row, so teardown and gc find it."""
        self._rows[resource.id] = self._live_row(resource, resource.facts)
        await remove_all([Removal(resource.id, provider.name, resource.id)], self._providers, limits=self._limits, closed=self._closed)

    def _live_row(self, resource: Resource, facts: Mapping[str, Json]) -> ResourceRow:
        now = timestamp(self._clock.now())
        return ResourceRow(
            id=resource.id,
            run_id=self._lease.run_id,
            attempt_id=resource.attempt_id,
            epoch=self._lease.epoch,
            kind=resource.kind,
            provider=resource.provider,
            name=resource.name,
            state="live",
            labels=resource.labels,
            facts=facts,
            expires_at=resource.expires_at,
            created_at=now,
            changed_at=now,
        )

    def _spec(self, sandbox_id: str, request: SandboxRequest) -> SandboxSpec:
        labels = self._installation.labels(
            self._lease.run_id, sandbox_id, epoch=self._lease.epoch, ttl_seconds=request.ttl_seconds, clock=self._clock
        )
        return SandboxSpec(
            sandbox_id=sandbox_id,
            mode=request.mode,
            image=request.image,
            cpu=request.cpu,
            memory_bytes=request.memory_bytes,
            disk_bytes=request.disk_bytes,
            processes=self._limits.sandbox_processes,
            ttl_seconds=request.ttl_seconds,
            ports=tuple(request.exposed_ports) if request.port is None else (*request.exposed_ports, request.port),
            env=request.env,
            network=request.network,
            labels={**{f"agentenv.attribution.{key}": value for key, value in request.attribution.items()}, **labels},
            epoch=self._lease.epoch,
            token=self._installation.token(self._lease.run_id, sandbox_id),
        )

    def _record(self, request: SandboxRequest, spec: SandboxSpec, held: Held, provider: str) -> DeployedSandbox:
        sandbox, now = held.sandbox, self._clock.now()
        container = sandbox.info.facts.get("container_id")
        tunnels = {str(port): url for port, url in sandbox.published.tunnels.items()}
        network: NetworkPolicy = sandbox.network
        return DeployedSandbox(
            sandbox_name=request.sandbox_name,
            sandbox_id=spec.sandbox_id,
            sandbox_mode=request.mode,
            sandbox_type=provider,
            tunnel_urls=tunnels or None,
            created_at_utc=timestamp(now),
            expires_at_utc=timestamp(now + timedelta(seconds=request.ttl_seconds)),
            network_policy=network.model_dump(mode="json"),
            container_id=str(container) if container else None,
            placement=request.mode,
        )

    async def hold(self, sandbox_id: str, provider_name: str | None = None) -> Held:
        """The live handle of a sandbox of this run, attached when this process does not have it yet.

        Raises:
            PlaceLostError: It was recorded, and no longer exists.
            SandboxNotFoundError: Nobody knows it.
        """
        async with self._locks.setdefault(sandbox_id, asyncio.Lock()):
            if (held := self._held.get(sandbox_id)) is not None:
                return held
            row = self._rows.get(sandbox_id)
            if row is not None and row.state not in OPEN_STATES:
                raise PlaceLostError(f"sandbox {row.name!r} ({sandbox_id}) was removed", concerns=sandbox_id)
            name = row.provider if row is not None else provider_name or self._default_provider
            provider = self._providers(name)
            async with deadline(self._limits.connect_seconds, f"attaching to sandbox {sandbox_id}"):
                sandbox = await self._attach(provider, sandbox_id, row)
                shape = (await provider.capabilities()).shape
            held = self._held[sandbox_id] = Held(sandbox, provider, shape)
            return held

    async def _attach(self, provider: Provider, sandbox_id: str, row: ResourceRow | None) -> Sandbox:
        maker = row.labels.get(RUN_LABEL, self._lease.run_id) if row is not None else self._lease.run_id
        base = row.facts.get(EPOCH_BASE, 0) if row is not None else 0
        try:
            return await provider.attach(sandbox_id, epoch=int(base) + self._lease.epoch, token=self._installation.token(maker, sandbox_id))
        except SandboxNotFoundError as error:
            if row is None:
                raise
            raise PlaceLostError(f"sandbox {row.name!r} ({sandbox_id}) no longer exists", concerns=sandbox_id) from error

    async def take_over(self) -> dict[str, PlaceLostError]:
        """Attaches to everything that may still exist, so that an earlier owner loses its hold on it.

        Returns:
            What is gone, by sandbox id.
        """
        lost: dict[str, PlaceLostError] = {}

        async def take(sandbox_id: str) -> None:
            try:
                await self.hold(sandbox_id)
            except PlaceLostError as error:
                lost[sandbox_id] = error

        async with asyncio.TaskGroup() as group:
            for row in self.rows():
                if row.state == "live":
                    group.create_task(take(row.id))
        return lost

    async def stop_attempt(self, attempt_id: str) -> None:
        """Kills whatever still runs for an attempt in any machine place that this process holds."""

        async def stop(held: Held) -> None:
            place = await held.sandbox.machine()
            await place.stop_attempt(attempt_id)

        async with asyncio.TaskGroup() as group:
            for held in list(self._held.values()):
                group.create_task(stop(held))

    async def destroy(self, sandbox_ids: Sequence[str], *, stop: asyncio.Future[None] | None = None) -> TeardownReport:
        """Removes sandboxes and closes their rows."""
        removals = []
        for sandbox_id in sandbox_ids:
            row, held = self._rows.get(sandbox_id), self._held.pop(sandbox_id, None)
            if held is not None:
                await held.sandbox.aclose()
            if row is None and held is None:
                raise UserError(f"sandbox {sandbox_id} is not one of this run", concerns=sandbox_id)
            provider = row.provider if row is not None else self._default_provider
            removals.append(Removal(sandbox_id, provider, sandbox_id if row is not None else None))
            if row is not None:
                await self._journal.closing(sandbox_id)
        return await remove_all(removals, self._providers, limits=self._limits, closed=self._closed, stop=stop)

    async def _closed(self, removal: Removal) -> None:
        await self._journal.closed(removal.sandbox_id)
        if (row := self._rows.get(removal.sandbox_id)) is not None:
            self._rows[removal.sandbox_id] = replace(row, state="closed")

    async def aclose(self) -> None:
        """Lets go of every handle; the sandboxes stay."""
        for held in list(self._held.values()):
            await held.sandbox.aclose()
        self._held.clear()
