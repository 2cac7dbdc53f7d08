"""The container half of the provider `local`: sandboxes that are one container of this machine's engine, and what stands beside a machine.

What is recorded decides which container is meant: its id, and the labels of its sandbox. A name alone is believed once, where a sandbox is
known by the marker in its work folder and by nothing else, and is pinned to the id from then on.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import ChainMap
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_env import keeper
from agent_env.clock import SystemClock
from agent_env.defaults import Limits
from agent_env.documents.network import NetworkPolicy
from agent_env.errors import (
    EngineUnavailableError,
    InfrastructureError,
    NotFoundError,
    PlaceLostError,
    SandboxNotFoundError,
)
from agent_env.places import Place
from agent_env.places.ports import candidates, is_free
from agent_env.sandboxes.confined.records import Facts, Records, read_labels
from agent_env.sandboxes.contract import Level, SandboxInfo, SandboxSpec
from agent_env.sandboxes.local.container_records import BRIDGE, KEEPER, ON_BRIDGE, adopted_facts, first_facts, marker_of, note, prepare
from agent_env.sandboxes.local.container_sandbox import ContainerSandbox, Family, container_name, listed_info
from agent_env.sandboxes.local.engines import Engines
from agent_env.stores.installation import home_of

if TYPE_CHECKING:
    from agent_env.containers import ContainerPlace, ContainerSpec, Engine
    from agent_env.images import BuildRequest, Images, Keyring, OnProgress


@dataclass
class Containers:
    """Makes, finds and removes containers for the sandboxes of one state folder."""

    state_root: Path
    records: Records
    engines: Engines
    limits: Limits
    work_root: Callable[[], Path]
    environ: Mapping[str, str]
    keyring: Callable[[], Keyring]
    allow_private: Sequence[str] = ()

    # making

    async def create(self, spec: SandboxSpec, undo: Callable[[str], Awaitable[None]]) -> ContainerSandbox:
        """Makes a sandbox that is a container. The record is written first.

        Args:
            spec: What is to be made.
            undo: Removes what a failure or a cancellation left of it; never told of a sandbox that was there before.

        Raises:
            UserError: A sandbox of that id exists.
            EngineUnavailableError: No engine answers.
            ImageNotFoundError: There is no such image.
            InfrastructureError: It could not be made.
        """
        engine = self.engines.client()
        info = await engine.info()
        levels = {name: Level.HARD if name in info.limits else Level.NONE for name in ("cpu", "memory", "processes", "disk")}
        facts = self._first_facts(spec, engine, {**levels, "ttl": Level.HARD})
        self.records.open(facts)
        async with contextlib.AsyncExitStack() as failed:
            failed.push_async_callback(undo, spec.sandbox_id)
            made = await self._made(engine, spec, facts)
            failed.pop_all()
        return made

    async def _made(self, engine: Engine, spec: SandboxSpec, facts: Facts) -> ContainerSandbox:
        image, _ = await asyncio.gather(self.images(engine, spec).get(str(spec.image)), asyncio.to_thread(prepare, facts, spec))
        place = await self._deployed(engine, spec, facts, image.id)
        # Without a network the engine publishes nothing: there the keeper does.
        ports = dict(place.ports) if facts.network["how"] == BRIDGE else dict(zip(spec.ports, filter(is_free, candidates()), strict=False))
        made_of = {"name": str(spec.image), "id": image.id}
        served = {str(inner): port for inner, port in ports.items()}
        facts = replace(facts, phase="running", container_id=place.id, ports=served, image=made_of)
        await asyncio.to_thread(self._note, facts, ports)
        family = Family(engine, facts, token=spec.token, epoch=spec.epoch, relay_token=self._relays_of(facts), own=place)
        return await self._handle(facts, place, family)

    def images(self, engine: Engine, spec: SandboxSpec | None = None) -> Images:
        """The images of this installation on that engine."""
        from agent_env.containers.spec import HOME
        from agent_env.images import Images

        home = (spec.labels.get(HOME) if spec is not None else None) or home_of(self.state_root)
        return Images(engine, state_root=self.state_root, home=home, limits=self.limits, keyring=self.keyring())

    async def build_image(self, request: BuildRequest, tell: OnProgress) -> None:
        """Builds an image that will run beside a machine."""
        await self.images(self.engines.client()).build(request, tell)

    async def prepare_image(self, name: str, tell: OnProgress) -> None:
        """Has an image present, so that the sandbox that needs it starts at once."""
        await self.images(self.engines.client()).get(name, tell=tell)

    def _first_facts(self, spec: SandboxSpec, engine: Engine, levels: Mapping[str, Level]) -> Facts:
        return first_facts(spec, engine, levels, work_root=self.work_root())

    async def _deployed(self, engine: Engine, spec: SandboxSpec, facts: Facts, image_id: str) -> ContainerPlace:
        from agent_env.containers import deploy

        return await deploy(engine, self._container_spec(spec, facts, image_id))

    def _container_spec(self, spec: SandboxSpec, facts: Facts, image_id: str) -> ContainerSpec:
        from agent_env.containers import SHARED, ContainerSpec

        how = facts.network["how"]
        return ContainerSpec(
            name=str(facts.container_name),
            image=image_id,
            labels=spec.labels,
            token=spec.token,
            epoch=spec.epoch,
            relay_token=self._relay_token(facts),
            role="agent",
            env={**(keeper.proxy_environment() if how == KEEPER else {}), **spec.env},
            secrets=spec.secrets,
            ttl_seconds=spec.ttl_seconds,
            cpu=spec.cpu,
            memory_bytes=spec.memory_bytes,
            processes=spec.processes,
            restart=spec.restart,
            disk_bytes=spec.disk_bytes,
            network=SHARED if how in ON_BRIDGE else "none",
            ports=tuple(spec.ports) if how == BRIDGE else (),
        )

    def _note(self, facts: Facts, ports: dict[int, int]) -> None:
        note(self.records, facts, ports)

    # finding

    async def attach(self, facts: Facts, *, epoch: int, token: str) -> ContainerSandbox:
        """A handle on a recorded one, with its ports as the engine has them now.

        Raises:
            PlaceLostError: Its making was cut.
            ContainerNotRunningError: Its container is not running, or is gone.
        """
        if facts.phase != "running" or facts.container_id is None:
            raise PlaceLostError(
                f"sandbox {facts.sandbox_id} was never finished", concerns=facts.sandbox_id, hint="resume with --redeploy to make it again"
            )
        engine = self.engines.client(facts.engine)
        family = Family(engine, facts, token=token, epoch=epoch, relay_token=self._relays_of(facts), secrets=self._secrets(facts))
        place = await family.place(facts.container_id)
        return await self._handle(facts, place, family)

    async def adopt(self, sandbox_id: str, folder: Path, *, epoch: int, token: str) -> ContainerSandbox:
        """A sandbox that only its work folder tells of, by the marker there: found once by its exact name, and recorded by its id.

        Raises:
            SandboxNotFoundError: The folder has no such marker, or no container of that name is this sandbox's.
        """
        engine = self.engines.client()
        found = await self._marked(engine, sandbox_id, folder)
        if found is None:
            raise SandboxNotFoundError(
                f"no sandbox {sandbox_id!r} on this machine: its folder {folder} names no container that is its own", concerns=sandbox_id
            )
        from agent_env.containers.spec import HOME, SANDBOX

        known = {HOME: home_of(self.state_root), SANDBOX: sandbox_id}
        written = (found.get("Config") or {}).get("Labels") or {}
        facts = adopted_facts(sandbox_id, folder, engine, str(found["Id"]), known=known, written=written)
        family = Family(engine, facts, token=token, epoch=epoch, reduced=True)
        place = await family.place(str(found["Id"]))
        self.records.open(facts)
        return await self._handle(facts, place, family)

    async def _marked(self, engine: Engine, sandbox_id: str, folder: Path) -> dict[str, Any] | None:
        """The container that the marker of a folder names, if it is not another sandbox's."""
        from agent_env.containers import objects
        from agent_env.containers.spec import HOME, SANDBOX

        name = container_name(sandbox_id)
        if marker_of(folder) != name:
            return None
        try:
            found = await objects.inspect(engine, name)
        except NotFoundError:
            return None
        labels = (found.get("Config") or {}).get("Labels") or {}
        ours = read_labels(folder)
        strange = labels.get(SANDBOX, sandbox_id) != sandbox_id or (HOME in ours and labels.get(HOME) != ours[HOME])
        return None if strange or str(found["Name"]).lstrip("/") != name else found

    async def _handle(self, facts: Facts, place: Place, family: Family) -> ContainerSandbox:
        watch = None
        try:
            if await self._carry(facts, place):
                watch = keeper.Watch(self.state_root, facts.sandbox_id, limits=self.limits).start()
            return ContainerSandbox(facts, place, family, watch=watch, lead=self.lead)
        except BaseException:  # whatever went wrong, connections that nobody holds must not stay
            await family.aclose()
            raise

    async def _carry(self, facts: Facts, place: Place) -> bool:
        """The keeper's relays: where there is no network, the way out that the list allows and the way in to the ports; and what it is
        led to.
        """
        from agent_env.containers import ContainerPlace

        relays = self._relays(facts) if isinstance(place, ContainerPlace) else ()
        if relays and isinstance(place, ContainerPlace):
            carried = keeper.Carried(facts.sandbox_id, keeper.in_container(place), tuple(relays))
            await keeper.carry(self.state_root, carried, limits=self.limits)
        return bool(relays)

    def _relays(self, facts: Facts) -> Sequence[keeper.Egress | keeper.FromHost | keeper.ToHost]:
        relays: list[keeper.Egress | keeper.FromHost | keeper.ToHost] = []
        if facts.network["how"] != BRIDGE:
            relays += [keeper.FromHost(port, int(served)) for served, port in facts.ports.items()]
        if facts.network["how"] == KEEPER:
            relays.append(keeper.egress_of(NetworkPolicy.model_validate(facts.network["policy"]), self.allow_private))
        return [*relays, *(keeper.ToHost(int(listen), port) for listen, port in facts.leads.items())]

    async def lead(self, sandbox_id: str, place: Place, ports: Mapping[int, int]) -> None:
        """Ports of this machine's loopback answer on the container's own too, until the sandbox is gone."""
        facts = self.records.read(sandbox_id)
        if facts is None:
            raise SandboxNotFoundError(f"no sandbox {sandbox_id!r} on this machine", concerns=sandbox_id)
        if ports:
            facts = replace(facts, leads={**facts.leads, **{str(listen): port for listen, port in ports.items()}})
            await asyncio.to_thread(self.records.write, facts)
        await self._carry(facts, place)

    def _secrets(self, facts: Facts) -> Mapping[str, Mapping[str, str]]:
        """What containers are told again, by id: the sandbox's own as it was told for the sandbox."""
        own = self.engines.told.get(facts.sandbox_id, {})
        return ChainMap({str(facts.container_id): own}, self.engines.told)

    def _relay_token(self, facts: Facts) -> str:
        return keeper.relay_token(self.state_root, facts.sandbox_id)

    def _relays_of(self, facts: Facts) -> Callable[[str], str]:
        """What each container of a sandbox lets relays in by, by its role."""

        def token(role: str) -> str:
            place = keeper.called_beside(facts.sandbox_id, role) if role else facts.sandbox_id
            return keeper.relay_token(self.state_root, place)

        return token

    def beside(self, facts: Facts, *, epoch: int, token: str) -> Family:
        """The containers that stand beside a machine of this sandbox.

        Raises:
            AgentEnvError: The environment names no engine.
        """
        relays, told = self._relays_of(facts), self.engines.told
        return Family(self.engines.client(facts.engine or None), facts, token=token, epoch=epoch, relay_token=relays, secrets=told)

    async def list(self, labels: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        """What the engine itself knows of sandboxes with these labels; nothing where none answers."""
        if await self.engines.problem() is not None:
            return
        from agent_env.containers import labelled
        from agent_env.containers.spec import HOME, SANDBOX

        if not {HOME, SANDBOX} & labels.keys():
            labels = {**labels, HOME: home_of(self.state_root)}  # the engine is everybody's
        found: dict[str, SandboxInfo] = {}
        for each in await labelled(self.engines.client(), labels):
            info = listed_info(each)
            if info is not None and (info.sandbox_id not in found or info.alive):
                found[info.sandbox_id] = info
        for info in found.values():
            yield info

    # removing

    async def remove(self, sandbox_id: str, facts: Facts | None, folders: Sequence[Path]) -> bool:
        """Removes what an engine has of a sandbox, by its labels and ids. Returns whether there was anything.

        Raises:
            InfrastructureError: Something is left, or no engine answers although the sandbox has containers.
        """
        known = facts is not None and bool(facts.labels)
        if not known:
            problem = await self.engines.problem()
            if problem is not None:
                if any(marker_of(folder) for folder in folders):
                    raise EngineUnavailableError(f"the container of {sandbox_id} can't be removed: {problem}", hint=problem.hint)
                return False
        from agent_env.containers.objects import remove_container  # only now: a place without a container needs no client of an engine

        engine = self.engines.client(facts.engine if facts is not None and known else None)
        gone = await self._remove_labelled(engine, sandbox_id, facts, folders)
        for folder in folders if facts is None else ():
            found = await self._marked(engine, sandbox_id, folder)
            gone |= found is not None and await remove_container(engine, str(found["Id"]))
        if facts is not None and facts.container_id is not None:  # one that was made elsewhere carries no labels of ours
            gone |= await remove_container(engine, facts.container_id)
        return gone

    async def _remove_labelled(self, engine: Engine, sandbox_id: str, facts: Facts | None, folders: Sequence[Path]) -> bool:
        from agent_env.containers import remove_all
        from agent_env.containers.spec import HOME, SANDBOX

        homes = {labels[HOME] for labels in (facts.labels if facts else {}, *map(read_labels, folders)) if HOME in labels}
        gone = False
        for home in sorted(homes or {home_of(self.state_root)}):
            removed = await remove_all(engine, {HOME: home, SANDBOX: sandbox_id})
            if removed.left:
                raise InfrastructureError(
                    f"the container engine keeps what belongs to sandbox {sandbox_id}: {'; '.join(removed.left.values())}",
                    concerns=sandbox_id,
                    hint="try again later: agent-env gc",
                )
            gone |= bool(removed.gone)
            self.engines.release_later(engine, home)
        return gone

    async def sweep(self) -> None:
        """Removes what sandboxes share in the engine and none uses any more: the network, older versions' helpers, and what a kill left."""
        if await self.engines.problem() is not None:
            return
        from agent_env.containers import release_shared
        from agent_env.containers.volumes import remove_cut_installs, remove_old_helpers

        engine, home = self.engines.client(), home_of(self.state_root)
        await remove_cut_installs(engine, home, before=SystemClock().now().timestamp() - self.limits.engine_seconds)
        await release_shared(engine, home, settled_seconds=self.limits.network_settle_seconds)
        await remove_old_helpers(engine)
