"""What environments' providers may ask of a run: sandboxes and containers, journalled before they are made. Implements `Making`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

from agent_env import keeper
from agent_env.documents.updates import Json
from agent_env.engine.containers import images_on
from agent_env.engine.image_progress import ImageProgress
from agent_env.engine.installation import EXPIRES_LABEL, HOME_LABEL, RUN_LABEL, SANDBOX_LABEL, seconds_left
from agent_env.engine.sandbox_records import CONTAINER_ID, IMAGE, SECRETS
from agent_env.engine.sandboxes import Held
from agent_env.engine.shared import Shared
from agent_env.engine.teardown import CONTAINER_KIND
from agent_env.environments.contract import ContainerWanted, DeployPlan, SandboxWanted
from agent_env.errors import (
    AgentEnvError,
    ContainerNotRunningError,
    EngineDeniedError,
    EngineUnavailableError,
    InternalError,
    SandboxUnavailableError,
    UnsupportedError,
)
from agent_env.places import Place, Shape
from agent_env.sandboxes.contract import AnswersOnHost, BuildsImages, Capabilities, LeadsToHost
from agent_env.sandboxes.reading import ReadsImages
from agent_env.steps.contract import SandboxRequest, Tell
from agent_env.stores.records import Resource
from agent_env.waiting import deadline

if TYPE_CHECKING:
    from agent_env.artifacts.image_artifacts import ImageSource
    from agent_env.containers import ContainerPlace, ContainerSpec, Engine
    from agent_env.images import HeldImage, Images
    from agent_env.images.oci.manifests import ImageConfig


class RunMaking:
    """One attempt's making, or a run's looking: places stay connected until `aclose`.

    Args:
        shared: The run.
        attempt_id: Whose resources these are.
        sandbox_provider: The provider of sandboxes, one and no chain.
        tell: Hears what goes on.
        env_id: The environment, for messages and records.
    """

    def __init__(self, shared: Shared, *, attempt_id: str, sandbox_provider: str, tell: Tell, env_id: str) -> None:
        self.limits = shared.limits
        self.clock = shared.clock
        self.state_root = shared.state_root
        self.sandbox_provider = sandbox_provider
        self.settings = shared.environments
        self._shared = shared
        self._attempt_id = attempt_id
        self._tell = tell
        self._env_id = env_id
        self._places: dict[str, ContainerPlace] = {}
        self._engine: Engine | None = None
        self._opening = asyncio.Lock()
        self._connecting: dict[str, asyncio.Lock] = {}
        self.made: list[str] = []
        """Ids of the sandboxes that it made: what is to be removed when the deployment fails."""

    # sandboxes

    async def capabilities(self) -> Capabilities:
        """What the provider of sandboxes can do."""
        provider = self._shared.sandboxes.provider(self.sandbox_provider)
        async with deadline(self.limits.deploy_seconds, f"asking the provider {self.sandbox_provider!r} what it can do"):
            return await provider.capabilities()

    async def sandbox(self, wanted: SandboxWanted, plan: DeployPlan) -> Held:
        """Journals and makes a sandbox."""
        options = plan.options
        request = SandboxRequest(
            sandbox_name=f"{plan.env_id}/{wanted.name}",
            mode=wanted.mode,
            provider=self.sandbox_provider,
            image=await self.by_name(wanted.image) if wanted.image is not None else None,
            cpu=wanted.cpu or options.cpu or self.limits.sandbox_cpu,
            memory_bytes=wanted.memory_bytes or options.memory_bytes or self.limits.sandbox_memory_bytes,
            disk_bytes=wanted.disk_bytes or options.disk_bytes or self.limits.sandbox_disk_bytes,
            ttl_seconds=options.ttl_seconds,
            exposed_ports=tuple(wanted.ports),
            env=wanted.env,
            secrets={**wanted.secrets, **wanted.kept},
            references=await self._kept(wanted.kept),
            attribution=options.attribution,
            restart=wanted.restart,
            leads=wanted.leads,
        )
        record = await self._shared.sandboxes.deploy(request, self._attempt_id)
        self.made.append(record.sandbox_id)
        return await self._shared.sandboxes.hold(record.sandbox_id)

    async def by_name(self, image: ImageSource) -> str:
        """What a provider that knows images by name alone is told: what has to be built or loaded is in this machine's engine by then."""
        if isinstance(image, str):
            return image
        from agent_env.images import BuildRequest

        provider, name = self._shared.sandboxes.provider(self.sandbox_provider), image.name.tagged_name
        if isinstance(provider, BuildsImages) and isinstance(image, BuildRequest):
            await provider.build_image(image, ImageProgress(self._tell))
            return name
        try:
            await self._have(await self._engine_here(), image)
        except UnsupportedError as error:
            raise UnsupportedError(
                f"the provider {self.sandbox_provider!r} runs images by name, and {name} has to be built first: {error.message}",
                concerns=name,
                hint="use a provider that builds images, such as 'local', or push the image to a registry and name it",
            ) from error
        return f"docker-daemon:{name}"

    async def _engine_here(self) -> Engine:
        """This machine's own engine, asked for once."""
        from agent_env.containers import engine_problem, open_engine

        async with self._opening:
            if self._engine is None:
                try:
                    engine = open_engine(os.environ, limits=self.limits)
                except (EngineUnavailableError, EngineDeniedError) as error:
                    raise UnsupportedError(f"there is no container engine here: {error}") from error
                why = await engine_problem(engine)
                if why is not None:
                    await engine.aclose()
                    raise UnsupportedError(f"there is no container engine here: {why}")
                self._engine = engine
            return self._engine

    async def image_config(self, image: ImageSource) -> ImageConfig | None:
        """What an image says of itself, where the provider of sandboxes can tell."""
        provider = self._shared.sandboxes.provider(self.sandbox_provider)
        if not isinstance(provider, ReadsImages):
            return None
        return await provider.image_config(await self.by_name(image), ImageProgress(self._tell))

    async def images(self, sandbox_id: str | None = None) -> Images:
        """The images of a sandbox's engine, or of this machine's own."""
        return images_on(await (self._engine_here() if sandbox_id is None else self.engine(sandbox_id)), self._shared)

    async def hold(self, sandbox_id: str, sandbox_type: str | None) -> Held:
        """A sandbox of this run."""
        return await self._shared.sandboxes.hold(sandbox_id, sandbox_type)

    async def remove(self, sandbox_id: str) -> None:
        """Removes a sandbox with all that is beside it."""
        row = self._shared.sandboxes.row(sandbox_id)
        if row is None or row.state == "closed":
            return
        report = await self._shared.sandboxes.destroy([sandbox_id])
        for why in report.failed.values():
            raise SandboxUnavailableError(f"sandbox {sandbox_id} could not be removed: {why}", concerns=sandbox_id)

    # containers

    async def container(self, sandbox_id: str, wanted: ContainerWanted) -> ContainerPlace:
        """Journals and starts a container beside a sandbox's machine."""
        from agent_env.containers import deploy

        sandboxes, journal = self._shared.sandboxes, self._shared.stores.journal
        held = await sandboxes.hold(sandbox_id)
        if held.shape is not Shape.MACHINE_BACKED:
            raise InternalError(f"sandbox {sandbox_id} is a container, and has none beside it")
        engine = await held.sandbox.engine()
        row = sandboxes.row(sandbox_id)
        labels = {**(row.labels if row is not None else {}), SANDBOX_LABEL: sandbox_id, HOME_LABEL: sandboxes.installation.home}
        labels.setdefault(RUN_LABEL, self._shared.run_id)
        resource = Resource(
            f"{sandbox_id}.{wanted.name}",
            CONTAINER_KIND,
            held.provider.name,
            wanted.name,
            self._attempt_id,
            labels=labels,
            expires_at=labels.get(EXPIRES_LABEL),
        )
        own = (self._shared.networks.get(engine, name, labels) for name in wanted.networks)
        image, networks = await asyncio.gather(self._have(engine, wanted.image), asyncio.gather(*own))
        await journal.intend(self._shared.lease, resource)
        sandboxes.note(resource, {})
        async with deadline(self.limits.deploy_seconds, f"starting container {wanted.name!r}"):
            place = await deploy(engine, self._spec(sandbox_id, wanted, image.id, labels, networks))
            self._places[place.id] = place
        facts: dict[str, Json] = {CONTAINER_ID: place.id, "ports": {str(port): at for port, at in place.ports.items()}}
        facts[IMAGE] = {"name": wanted.image if isinstance(wanted.image, str) else wanted.image.name.tagged_name, "id": image.id}
        if references := {**wanted.references, **await self._kept(wanted.kept)}:
            facts[SECRETS] = references
        await journal.opened(self._shared.lease, resource.id, facts)
        sandboxes.note(resource, facts)
        return place

    def _spec(
        self, sandbox_id: str, wanted: ContainerWanted, image_id: str, labels: Mapping[str, str], networks: list[str]
    ) -> ContainerSpec:
        from agent_env.containers.spec import SHARED, ContainerSpec, Privileges

        epoch, token = self._shared.sandboxes.owner(sandbox_id)
        row = self._shared.sandboxes.row(sandbox_id)
        limits: Mapping[str, Json] = (row.facts.get("limits") if row is not None else None) or {}
        return ContainerSpec(
            name=f"{wanted.name}-{sandbox_id}",
            image=image_id,
            labels=labels,
            token=token,
            epoch=epoch,
            relay_token=keeper.relay_token(self.state_root, keeper.called_beside(sandbox_id, wanted.name)) if wanted.relayed else "",
            role=wanted.name,
            argv=wanted.argv,
            entrypoint=wanted.entrypoint,
            user=wanted.user,
            hold=wanted.hold,
            restart=wanted.restart,
            env=wanted.env,
            secrets={**wanted.secrets, **wanted.kept},
            ttl_seconds=seconds_left(labels, self.clock),
            cpu=wanted.cpu or float(limits.get("cpu") or 0.0),
            memory_bytes=wanted.memory_bytes or int(limits.get("memory") or 0),
            processes=int(limits.get("processes") or 0),
            network=networks[0] if networks else SHARED,
            further_networks=tuple(networks[1:]),
            aliases=(wanted.name,) if networks else (),
            ports=tuple(wanted.ports),
            privileges=Privileges(privileged=wanted.privileged),
        )

    async def network(self, sandbox_id: str, name: str) -> str | None:
        """The engine's id of a network of a sandbox's own."""
        own = {SANDBOX_LABEL: sandbox_id, HOME_LABEL: self._shared.sandboxes.installation.home}
        return await self._shared.networks.find(await self.engine(sandbox_id), name, own)

    async def place(
        self,
        sandbox_id: str,
        sandbox_type: str | None,
        container: tuple[str, str] | None,
        secrets: Mapping[str, str] | None = None,
        *,
        revived: Callable[[Place], Awaitable[None]] | None = None,
    ) -> Place:
        """A container of a sandbox, or the sandbox itself."""
        held: Held = await self._shared.sandboxes.hold(sandbox_id, sandbox_type)
        if container is None:
            return await held.sandbox.machine()
        container_id, name = container
        async with self._connecting.setdefault(container_id, asyncio.Lock()):
            place: Place
            if revived is None:
                place = await self._attached(held, container_id, name, secrets)
                return place
            try:
                place = await self._ready(held, container_id, name, secrets)
            except SandboxUnavailableError as ended:
                await self._start_again(held, container_id, name, ended)
                place = await self._ready(held, container_id, name, secrets)
                await revived(place)
            return place

    async def _attached(self, held: Held, container_id: str, name: str, secrets: Mapping[str, str] | None) -> ContainerPlace:
        from agent_env.containers import attach

        if container_id not in self._places:
            sandbox_id = held.sandbox.info.sandbox_id
            epoch, token = self._shared.sandboxes.owner(sandbox_id)
            relay = keeper.relay_token(self.state_root, keeper.called_beside(sandbox_id, name))
            engine = await held.sandbox.engine()
            told = {**(secrets or {}), **await self._told(sandbox_id, name)}
            self._places[container_id] = await attach(engine, container_id, token=token, epoch=epoch, secrets=told, relay_token=relay)
        return self._places[container_id]

    async def _kept(self, values: Mapping[str, str]) -> Mapping[str, str]:
        """The references by which secrets can be told again."""
        keep = self._shared.stores.secrets.keep
        return {name: await asyncio.to_thread(keep, value) for name, value in values.items()}

    async def _told(self, sandbox_id: str, name: str) -> Mapping[str, str]:
        """What a container was told, by the references that its row keeps."""
        row = next((row for row in self._shared.sandboxes.beside(sandbox_id) if row.name == name), None)
        references: Mapping[str, str] = (row.facts.get(SECRETS) if row is not None else None) or {}
        return await self._shared.sandboxes.told(sandbox_id, references)

    async def _ready(self, held: Held, container_id: str, name: str, secrets: Mapping[str, str] | None) -> ContainerPlace:
        """The same, connected at this moment."""
        place = await self._attached(held, container_id, name, secrets)
        await place.ready()
        return place

    async def _start_again(self, held: Held, container_id: str, name: str, ended: SandboxUnavailableError) -> None:
        from agent_env.containers import start_again

        self._tell(f"starting {name} again: {ended.message}")
        try:
            await start_again(await held.sandbox.engine(), container_id)
        except AgentEnvError as why:
            message = f"{ended.message} It can't be started again: {why.message}"
            raise SandboxUnavailableError(message, concerns=ended.concerns, hint=ended.hint) from why

    async def engine(self, sandbox_id: str) -> Engine:
        """The container engine of a sandbox's machine."""
        return await (await self._shared.sandboxes.hold(sandbox_id)).sandbox.engine()

    async def image(self, sandbox_id: str, wanted: ImageSource) -> str:
        """Has an image present in the engine of a sandbox."""
        return (await self._have(await self.engine(sandbox_id), wanted)).id

    async def _have(self, engine: Engine, wanted: ImageSource) -> HeldImage:
        from agent_env.images import SavedImage

        images, progress = images_on(engine, self._shared), ImageProgress(self._tell)
        if isinstance(wanted, str):
            return await images.get(wanted, tell=progress)
        return await (images.load(wanted, progress) if isinstance(wanted, SavedImage) else images.build(wanted, progress))

    # ways between places

    async def lead(self, sandbox_id: str, ports: Mapping[int, int]) -> None:
        """Makes ports of this machine's loopback answer on that of a sandbox's own place."""
        held = await self._shared.sandboxes.hold(sandbox_id)
        if isinstance(held.sandbox, LeadsToHost):
            await held.sandbox.lead_to_host(ports)

    async def answer(self, sandbox_id: str, ports: Mapping[int, int]) -> bool:
        """Makes ports of a sandbox's own loopback answer on this machine's."""
        held = await self._shared.sandboxes.hold(sandbox_id)
        if not (await held.provider.capabilities()).own_network:
            return False
        if not isinstance(held.sandbox, AnswersOnHost):
            raise UnsupportedError(f"the provider {held.provider.name!r} can't lead from this machine to a sandbox's own loopback")
        await held.sandbox.answer_on_host(ports)
        return True

    async def relay(self, sandbox_id: str, place: Place, name: str, ports: Mapping[int, int]) -> None:
        """Makes ports of a container's own loopback answer on this machine's."""
        from agent_env.containers import ContainerPlace

        if not isinstance(place, ContainerPlace):
            raise InternalError(f"{place.id} is no container of ours, so nothing is relayed to it")
        from agent_env.keeper.records import Records

        called = keeper.called_beside(sandbox_id, name)
        known = Records(self.state_root).read(called)
        relays: list[keeper.FromHost | keeper.ToHost] = [keeper.FromHost(at, port) for port, at in ports.items()]
        leads = [keeper.ToHost(listen, at) for listen, at in self._shared.sandboxes.leads(sandbox_id, name).items()]  # as to executors
        relays += [*leads, *(each for each in (known.relays if known else ()) if isinstance(each, keeper.ToHost) and each not in leads)]
        carried = keeper.Carried(called, keeper.in_container(place), tuple(relays))
        try:
            await keeper.carry(self.state_root, carried, limits=self.limits)
        except ContainerNotRunningError as error:  # it ended after the last look at it
            place.lost(error)
            raise

    # words

    def derive(self, sandbox_id: str, *words: str) -> str:
        """A secret of a sandbox that only this installation can make."""
        maker = self._shared.sandboxes.maker(sandbox_id)
        return self.secret(self._shared.sandboxes.installation.token(maker, ":".join((sandbox_id, *words))))

    def secret(self, value: str) -> str:
        """The value, which no log, event or record shows from now on."""
        self._shared.redactor.add(value)
        return value

    def tell(self, message: str) -> None:
        """Tells whoever watches."""
        self._tell(message)

    async def aclose(self) -> None:
        """Lets go of connections to containers; they go on."""
        while self._places:
            _, place = self._places.popitem()
            await place.aclose()
        engine, self._engine = self._engine, None
        if engine is not None:
            await engine.aclose()
