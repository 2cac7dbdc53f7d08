"""The sandboxes of one run: journalled before they are made, attached once per process, destroyed with their rows closed.

It chooses ids, labels and tokens. Which step acts where is `run.py`'s question.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from agent_env.clock import Clock
from agent_env.defaults import Limits
from agent_env.documents.records import DeployedSandbox
from agent_env.documents.updates import Json
from agent_env.engine.fallback import first_that_can, links
from agent_env.engine.installation import EXPIRES_LABEL, HOME_LABEL, RUN_LABEL, SANDBOX_LABEL, Installation
from agent_env.engine.ownership import Elsewhere
from agent_env.engine.retelling import values_of
from agent_env.engine.sandbox_records import (
    CONTAINER_ID,
    EPOCH_BASE,
    KEEPING,
    LEADS,
    RESOURCE_KIND,
    SECRETS,
    facts_of,
    notes_of,
    record_of,
    row_of,
    spec_of,
)
from agent_env.engine.teardown import CONTAINER_KIND, DEFAULT_PROVIDER, Removal, TeardownReport, remove_all
from agent_env.errors import (
    ContainerNotRunningError,
    PlaceLostError,
    SandboxNotFoundError,
    SandboxUnavailableError,
    UnsupportedError,
    UserError,
)
from agent_env.ids import new_sandbox_id
from agent_env.places import Shape
from agent_env.sandboxes.contract import MayBeAway, PreparesImages, Provider, Sandbox, TakesSecrets
from agent_env.sandboxes.reporting import Reporting
from agent_env.steps.contract import SandboxRequest
from agent_env.stores.records import OPEN_STATES, Lease, Resource, ResourceRow
from agent_env.waiting import deadline, shielded

if TYPE_CHECKING:
    from agent_env.engine.options import Providers
    from agent_env.stores import Journal
    from agent_env.stores.secrets import Secrets


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
        refused: Callable[[str, Mapping[str, object]], None] = lambda *_: None,
        secrets: Secrets | None = None,
    ) -> None:
        self._lease = lease
        self._refused = refused
        self._secrets = secrets
        self._journal = journal
        self._providers = providers
        self.installation = self._installation = installation
        self._default_provider = default_provider or DEFAULT_PROVIDER
        self._limits = limits
        self._clock = clock
        self._rows: dict[str, ResourceRow] = {row.id: row for row in rows if row.kind == RESOURCE_KIND}
        self._beside: dict[str, ResourceRow] = {row.id: row for row in rows if row.kind == CONTAINER_KIND}
        self._held: dict[str, Held] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    def rows(self, *, attempts: Sequence[str] | None = None) -> list[ResourceRow]:
        """What may still exist, of some attempts or of all."""
        return [row for row in self._rows.values() if self._is_open(row) and (attempts is None or row.attempt_id in attempts)]

    def elsewhere(self) -> dict[str, Elsewhere]:
        """What this run's record names and is another installation's to use and remove, by sandbox id."""
        known = {row.id: self.installation.ownership.elsewhere(row.labels) for row in self._rows.values() if row.state in OPEN_STATES}
        return {sandbox_id: found for sandbox_id, found in known.items() if found is not None}

    def _is_open(self, row: ResourceRow) -> bool:
        return row.state in OPEN_STATES and self.installation.ownership.elsewhere(row.labels) is None

    def beside(self, sandbox_id: str | None = None, *, attempts: Sequence[str] | None = None) -> list[ResourceRow]:
        """Containers beside the machine of a sandbox, or of all, that may still exist."""
        return [
            row
            for row in self._beside.values()
            if self._is_open(row)
            and (sandbox_id is None or row.labels.get(SANDBOX_LABEL) == sandbox_id)
            and (attempts is None or row.attempt_id in attempts)
        ]

    def note(self, resource: Resource, facts: Mapping[str, Json]) -> None:
        """A container beside a machine is being made, or was."""
        self._beside[resource.id] = row_of(resource, facts, self._lease, self._clock)

    def leads(self, sandbox_id: str, name: str) -> dict[int, int]:
        """Port of a container's own loopback → port of this machine's: what was made to answer there, beside a machine."""
        row = next((row for row in self.beside(sandbox_id) if row.name == name), None)
        found: Mapping[str, int] = (row.facts.get(LEADS) if row is not None else None) or {}
        return {int(listen): port for listen, port in found.items()}

    async def note_leads(self, sandbox_id: str, name: str, ports: Mapping[int, int]) -> None:
        """Writes down what else is to answer there: of a container that somebody starts again, the keeper has forgotten it."""
        row, known = next((row for row in self.beside(sandbox_id) if row.name == name), None), self.leads(sandbox_id, name)
        if row is None or known.items() >= ports.items():
            return
        facts = {LEADS: {str(listen): port for listen, port in {**known, **ports}.items()}}
        await self._journal.opened(self._lease, row.id, facts)
        self._beside[row.id] = replace(row, facts={**row.facts, **facts})

    def owner(self, sandbox_id: str) -> tuple[int, str]:
        """The epoch and the token by which this process owns the places of a sandbox."""
        row = self._rows.get(sandbox_id)
        base = row.facts.get(EPOCH_BASE, 0) if row is not None else 0
        return int(base) + self._lease.epoch, self._installation.token(self.maker(sandbox_id), sandbox_id)

    def provider(self, name: str) -> Provider:
        """The provider of that name, as this run knows it."""
        return self._providers(name)

    @property
    def default_provider(self) -> str:
        """Where sandboxes are made that name no provider; may be a chain."""
        return self._default_provider

    def row(self, sandbox_id: str) -> ResourceRow | None:
        """The journal's row of a sandbox of this run."""
        return self._rows.get(sandbox_id)

    def notes(self) -> dict[str, Json]:
        """What the run's record says of its sandboxes: provider, how each limit holds, and the network that is in force."""
        return notes_of(self._rows.values())

    async def deploy(self, request: SandboxRequest, attempt_id: str) -> DeployedSandbox:
        """Makes a sandbox with the first provider of the request's chain that can; the record says which, and why others did not.

        Raises:
            UnsupportedError: No provider of the chain can make it; says why of each.
            InfrastructureError: None did; says why of each.
        """
        chain = links(request.provider or self._default_provider)

        async def make(name: str, passed_over: Sequence[str]) -> DeployedSandbox:
            return await self._deploy_with(name, request, attempt_id, passed_over)

        return await first_that_can(chain, make, what=f"sandbox {request.sandbox_name!r}", limits=self._limits)

    async def _deploy_with(self, name: str, request: SandboxRequest, attempt_id: str, passed_over: Sequence[str]) -> DeployedSandbox:
        provider = self._providers(name)
        async with deadline(self._limits.deploy_seconds, f"asking the provider {name!r} what it can do"):
            capabilities = await provider.capabilities()
        sandbox_id = new_sandbox_id(name)
        spec = spec_of(request, sandbox_id, self._lease, installation=self._installation, limits=self._limits, clock=self._clock)
        problems = provider.problems(spec, capabilities)
        if problems:
            raise (provider.away(spec) if isinstance(provider, MayBeAway) else None) or UnsupportedError("; ".join(problems))
        if request.mode == "container" and request.image is not None and isinstance(provider, PreparesImages):
            # Before the making begins: what a registry needs is not the sandbox's time.
            await provider.prepare_image(request.image, lambda _: None)
        resource = Resource(
            sandbox_id,
            RESOURCE_KIND,
            name,
            request.sandbox_name,
            attempt_id,
            labels=spec.labels,
            facts={"mode": request.mode, **({"passed_over": list(passed_over)} if passed_over else {})},
            expires_at=spec.labels[EXPIRES_LABEL],
        )
        await self._journal.intend(self._lease, resource)
        try:
            async with deadline(self._limits.deploy_seconds, f"creating sandbox {request.sandbox_name!r} with the provider {name!r}"):
                sandbox = await provider.create(spec)
            facts = facts_of(request, sandbox, resource.facts)
            await self._journal.opened(self._lease, sandbox_id, facts)
        except BaseException:  # a cancellation too must not leave a half-made sandbox
            await shielded(self._undo(resource, provider), seconds=self._limits.cleanup_seconds, what=f"removing sandbox {sandbox_id}")
            raise
        self._held[sandbox_id] = Held(sandbox, provider, capabilities.shape)
        self._hear(sandbox_id, sandbox)
        row = self._rows[sandbox_id] = row_of(resource, facts, self._lease, self._clock)
        return record_of(request, row, sandbox, self._clock)

    async def _undo(self, resource: Resource, provider: Provider) -> None:
        """A sandbox whose making was cut. What can't be removed now keeps its open row, so teardown and gc find it."""
        self._rows[resource.id] = row_of(resource, resource.facts, self._lease, self._clock)
        await remove_all([Removal(resource.id, provider.name, resource.id)], self._providers, limits=self._limits, closed=self._closed)

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
                raise PlaceLostError(f"sandbox {row.name!r} ({sandbox_id}) was removed", concerns=sandbox_id, hint=KEEPING)
            if row is not None and (elsewhere := self.installation.ownership.elsewhere(row.labels)) is not None:
                raise elsewhere.lost(row)
            name = row.provider if row is not None else provider_name or links(self._default_provider)[0]
            provider = self._providers(name)
            async with deadline(self._limits.connect_seconds, f"attaching to sandbox {sandbox_id}"):
                sandbox = await self._attach(provider, sandbox_id, row)
                shape = (await provider.capabilities()).shape
            held = self._held[sandbox_id] = Held(sandbox, provider, shape)
            self._hear(sandbox_id, sandbox)
            return held

    def _hear(self, sandbox_id: str, sandbox: Sandbox) -> None:
        if isinstance(sandbox, Reporting):
            sandbox.report_to(partial(self._refused, sandbox_id))

    async def _attach(self, provider: Provider, sandbox_id: str, row: ResourceRow | None) -> Sandbox:
        epoch, token = self.owner(sandbox_id)
        if isinstance(provider, TakesSecrets):
            await self._remind(provider, sandbox_id, row)
        try:
            return await provider.attach(sandbox_id, epoch=epoch, token=token)
        except SandboxNotFoundError as error:
            if row is None:
                raise
            raise PlaceLostError(f"sandbox {row.name!r} ({sandbox_id}) no longer exists", concerns=sandbox_id) from error

    async def _remind(self, provider: TakesSecrets, sandbox_id: str, row: ResourceRow | None) -> None:
        """What containers were told in confidence, should somebody have started them again: as far as the references have values."""
        known = [(sandbox_id, row), *((str(other.facts.get(CONTAINER_ID)), other) for other in self.beside(sandbox_id))]
        for of, told in known:
            if told is not None and (references := told.facts.get(SECRETS)):
                provider.remember(of, await self.told(sandbox_id, references))

    async def told(self, sandbox_id: str, references: Mapping[str, str]) -> dict[str, str]:
        """What a container of a sandbox was told in confidence, as far as its references have values now."""
        resolve = partial(values_of, references, installation=self._installation, run_id=self.maker(sandbox_id), secrets=self._secrets)
        return await asyncio.to_thread(resolve)

    def maker(self, sandbox_id: str | None) -> str:
        """The run that made a sandbox: this one, or the one that it was adopted from."""
        row = self._rows.get(sandbox_id) if sandbox_id is not None else None
        return row.labels.get(RUN_LABEL, self._lease.run_id) if row is not None else self._lease.run_id

    async def own_container(self, sandbox_id: str, held: Held) -> str | None:
        """The container that a record without an id means, pinned from now on; None where nothing says which.

        It is what the provider or the journal recorded; else the one that has exactly our name for it and the sandbox's label.
        """
        row = self._rows.get(sandbox_id)
        pinned = (row.facts if row is not None else {}).get(CONTAINER_ID) or held.sandbox.info.facts.get(CONTAINER_ID)
        if pinned is None:
            pinned = await self._labelled_container(sandbox_id, held)
            if pinned is not None and row is not None:
                await self._journal.opened(self._lease, sandbox_id, {CONTAINER_ID: pinned})
                self._rows[sandbox_id] = replace(row, facts={**row.facts, CONTAINER_ID: pinned})
        return None if pinned is None else str(pinned)

    async def _labelled_container(self, sandbox_id: str, held: Held) -> str | None:
        from agent_env.containers import objects

        try:
            engine = await held.sandbox.engine()
        except UnsupportedError:
            return None
        labels = {SANDBOX_LABEL: sandbox_id, HOME_LABEL: self._installation.home}
        found = [each.id for each in await objects.containers(engine, labels) if each.name == f"agent-{sandbox_id}"]
        return found[0] if len(found) == 1 else None

    async def take_over(self) -> dict[str, SandboxUnavailableError]:
        """Attaches to everything that may still exist, so that an earlier owner loses its hold on it.

        What a removal was begun of may be whole, where its engine was away; half of it is as good as gone.

        Returns:
            What is gone, or another installation's, by sandbox id.
        """
        lost: dict[str, SandboxUnavailableError] = {
            sandbox_id: elsewhere.lost(self._rows[sandbox_id]) for sandbox_id, elsewhere in self.elsewhere().items()
        }

        async def take(sandbox_id: str, gone: type[SandboxUnavailableError] | tuple[type[SandboxUnavailableError], ...]) -> None:
            try:
                await self.hold(sandbox_id)
            except gone as error:
                lost[sandbox_id] = error

        async with asyncio.TaskGroup() as group:
            for row in self.rows():
                if row.state == "live":
                    group.create_task(take(row.id, (PlaceLostError, ContainerNotRunningError)))
                elif row.state == "closing":
                    group.create_task(take(row.id, SandboxUnavailableError))
        return lost

    async def remove_containers(self, rows: Sequence[ResourceRow]) -> None:
        """Removes containers beside machines, and closes their rows. One that resists keeps its row, and goes with its sandbox."""
        from agent_env.containers import objects
        from agent_env.containers.spec import ROLE

        for row in rows:
            held = await self.hold(row.labels[SANDBOX_LABEL])
            engine = await held.sandbox.engine()
            labels = {SANDBOX_LABEL: row.labels[SANDBOX_LABEL], HOME_LABEL: self._installation.home, ROLE: row.name}
            for found in await objects.containers(engine, labels):
                await objects.remove_container(engine, found.id)
            await self._journal.closed(row.id)
            self._beside[row.id] = replace(row, state="closed")

    async def stop_attempt(self, attempt_id: str) -> None:
        """Kills whatever still runs for an attempt in any place that this process holds."""

        async def stop(held: Held, container_id: str | None) -> None:
            # In a container that is over nothing runs; one that we did not start can't tell what an attempt left.
            with suppress(ContainerNotRunningError, UnsupportedError):
                place = await (held.sandbox.machine() if container_id is None else held.sandbox.container(container_id))
                await place.stop_attempt(attempt_id)

        async with asyncio.TaskGroup() as group:
            for sandbox_id, held in list(self._held.items()):
                for container_id in self._places_of(sandbox_id, held):
                    group.create_task(stop(held, container_id))

    def _places_of(self, sandbox_id: str, held: Held) -> list[str | None]:
        """Where commands of a sandbox may run: its containers by their ids, and None for its machine or itself."""
        row = self._rows.get(sandbox_id)
        own = (row.facts if row is not None else {}).get(CONTAINER_ID) or held.sandbox.info.facts.get(CONTAINER_ID)
        alone = own is not None and held.shape is Shape.MACHINE_BACKED
        beside = [str(each.facts[CONTAINER_ID]) for each in self.beside(sandbox_id) if CONTAINER_ID in each.facts]
        return [str(own) if alone else None, *beside]

    async def destroy(self, sandbox_ids: Sequence[str], *, stop: asyncio.Future[None] | None = None) -> TeardownReport:
        """Removes sandboxes and closes their rows; what is another installation's is only reported."""
        removals, elsewhere = [], self.elsewhere()
        for sandbox_id in (each for each in sandbox_ids if each not in elsewhere):
            row, held = self._rows.get(sandbox_id), self._held.pop(sandbox_id, None)
            if held is not None:
                await held.sandbox.aclose()
            if row is not None:
                provider = row.provider
            elif held is not None:
                provider = held.provider.name
            else:
                raise UserError(f"sandbox {sandbox_id} is not one of this run", concerns=sandbox_id)
            removals.append(Removal(sandbox_id, provider, sandbox_id if row is not None else None))
            if row is not None:
                await self._journal.closing(sandbox_id)
        report = await remove_all(removals, self._providers, limits=self._limits, closed=self._closed, stop=stop)
        return replace(report, elsewhere={each: elsewhere[each] for each in sandbox_ids if each in elsewhere})

    async def _closed(self, removal: Removal) -> None:
        await self._journal.closed(removal.sandbox_id)
        for beside in self.beside(removal.sandbox_id):
            await self._journal.closed(beside.id)
            self._beside[beside.id] = replace(beside, state="closed")
        if (row := self._rows.get(removal.sandbox_id)) is not None:
            self._rows[removal.sandbox_id] = replace(row, state="closed")

    async def aclose(self) -> None:
        """Lets go of every handle; the sandboxes stay."""
        for held in list(self._held.values()):
            await held.sandbox.aclose()
        self._held.clear()
