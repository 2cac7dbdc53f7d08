"""Containers that steps start beside the machine of a sandbox: journalled first, made in its engine, found again by id.

They carry the labels and the token of their sandbox, are held to its network policy and its limits, and go with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent_env import keeper
from agent_env.documents.network import NetworkMode
from agent_env.documents.records import DeployedContainer, DeployedSandbox
from agent_env.documents.updates import Json
from agent_env.engine.image_progress import ImageProgress
from agent_env.engine.installation import EXPIRES_LABEL, HOME_LABEL, RUN_LABEL, SANDBOX_LABEL, seconds_left
from agent_env.engine.sandbox_records import CONTAINER_ID, IMAGE, SECRETS
from agent_env.engine.sandboxes import Held
from agent_env.engine.shared import Shared
from agent_env.engine.teardown import CONTAINER_KIND
from agent_env.errors import PlacementError, UnsupportedError, UserError
from agent_env.places import Shape
from agent_env.sandboxes.contract import LeadsToHost, SandboxSpec, TakesSecrets
from agent_env.steps.contract import ContainerRequest
from agent_env.steps.requests import GRANT_HINT, NETWORK_HINT, Volume, network_problem
from agent_env.stores.records import Resource
from agent_env.waiting import deadline

if TYPE_CHECKING:
    from agent_env.containers import ContainerSpec, Engine
    from agent_env.containers.spec import Mount
    from agent_env.images import Images
    from agent_env.steps.contract import Tell

_OWN_NETWORK = frozenset({"none", "host"})
_OF_CONTAINER = "container:"


def refuse_privileges(request: ContainerRequest, granted: frozenset[str]) -> None:
    """Refuses what goes beyond an ordinary container, unless this user's configuration grants it.

    Raises:
        UserError: It is not granted; says what, and what would grant it.
    """
    why = request.refusal(granted)
    if why is not None:
        raise UserError(why, concerns=request.container_name, hint=GRANT_HINT)


def images_on(engine: Engine, shared: Shared) -> Images:
    """The images of this installation on a sandbox's engine."""
    from agent_env.images import Images

    installation, redactor = shared.sandboxes.installation, shared.redactor
    return Images(
        engine,
        state_root=shared.state_root,
        home=installation.home,
        limits=shared.limits,
        keyring=installation.keyring(redactor.add),
        redact=redactor.redact,
        clock=shared.clock,
    )


async def start(shared: Shared, request: ContainerRequest, record: DeployedSandbox, attempt_id: str, tell: Tell) -> DeployedContainer:
    """Builds or fetches the image, journals the container, and starts it.

    Raises:
        AgentEnvError: See `steps.run.Run.start_container`.
    """
    refuse_privileges(request, shared.privileges)
    held = await shared.sandboxes.hold(record.sandbox_id, record.sandbox_type)
    if held.shape is not Shape.MACHINE_BACKED or record.recorded != "vm":
        raise UnsupportedError(
            f"sandbox {request.sandbox_name!r} is a container, and containers run beside machines",
            concerns=request.sandbox_name,
            hint="deploy one with sandbox_mode 'vm'",
        )
    return await _Start(shared, request, record, held, attempt_id).made(tell)


@dataclass(frozen=True)
class _Start:
    """One container on its way."""

    shared: Shared
    request: ContainerRequest
    record: DeployedSandbox
    held: Held
    attempt_id: str

    @property
    def sandbox_id(self) -> str:
        return self.record.sandbox_id

    async def made(self, tell: Tell) -> DeployedContainer:
        from agent_env.containers import deploy

        shared, request = self.shared, self.request
        self._refuse_a_second()
        engine = await self.held.sandbox.engine()
        image_id, image_name = await self._image(engine, tell)
        await shared.sandboxes.remove_containers([row for row in shared.sandboxes.beside(self.sandbox_id) if row.name == self.role])
        row = shared.sandboxes.row(self.sandbox_id)
        labels = {**(row.labels if row is not None else {}), SANDBOX_LABEL: self.sandbox_id, HOME_LABEL: shared.sandboxes.installation.home}
        labels.setdefault(RUN_LABEL, shared.run_id)
        resource = Resource(
            f"{self.sandbox_id}.{request.container_name}",
            CONTAINER_KIND,
            self.held.provider.name,
            self.role,
            self.attempt_id,
            labels=labels,
            expires_at=labels.get(EXPIRES_LABEL),
        )
        await shared.stores.journal.intend(shared.lease, resource)
        shared.sandboxes.note(resource, {})
        async with deadline(shared.limits.deploy_seconds, f"starting container {request.container_name!r}"):
            place = await deploy(engine, await self._spec(engine, image_id, labels))
        facts: dict[str, Json] = {CONTAINER_ID: place.id, "ports": {str(port): at for port, at in place.ports.items()}}
        facts[IMAGE] = {"name": image_name, "id": image_id}
        await place.aclose()
        if isinstance(self.held.provider, TakesSecrets):
            self.held.provider.remember(place.id, request.secrets)
        if request.references:
            facts[SECRETS] = dict(request.references)
        await shared.stores.journal.opened(shared.lease, resource.id, facts)
        shared.sandboxes.note(resource, facts)
        if place.ports and isinstance(self.held.sandbox, LeadsToHost):
            await self.held.sandbox.lead_to_host(dict(place.ports))
        return DeployedContainer(
            container_name=request.container_name,
            sandbox_name=request.sandbox_name,
            sandbox_id=self.sandbox_id,
            image_tag=image_name,
            ports=list(request.ports),
            network=request.network,
            container_id=place.id,
        )

    @property
    def role(self) -> str:
        return self.request.container_name

    def _refuse_a_second(self) -> None:
        for known in self._records():
            if known.get("container_name") == self.request.container_name:
                raise UserError(
                    f"container {self.request.container_name!r} runs on sandbox {self.request.sandbox_name!r} already",
                    concerns=self.request.container_name,
                    hint="give one of them another container_name",
                )

    def _records(self) -> Sequence[Mapping[str, Json]]:
        """The containers that stand in the run's context."""
        known = (self.shared.context().get("metadata") or {}).get("deployed_docker_containers") or ()
        return [each for each in known if each.get("sandbox_name") == self.request.sandbox_name]

    async def _image(self, engine: Engine, tell: Tell) -> tuple[str, str]:
        from agent_env.images import SavedImage

        images, wanted, progress = images_on(engine, self.shared), self.request.image, ImageProgress(tell)
        if isinstance(wanted, str):
            return (await images.get(wanted, tell=progress)).id, wanted
        if isinstance(wanted, SavedImage):
            return (await images.load(wanted, progress)).id, wanted.name.tagged_name
        return (await images.build(wanted, progress)).id, wanted.name.tagged_name

    async def _spec(self, engine: Engine, image_id: str, labels: Mapping[str, str]) -> ContainerSpec:
        from agent_env.containers import ContainerSpec, Privileges

        shared, request = self.shared, self.request
        epoch, token = shared.sandboxes.owner(self.sandbox_id)
        row = shared.sandboxes.row(self.sandbox_id)
        limits: Mapping[str, Json] = (row.facts.get("limits") if row is not None else None) or {}
        network = await self._network(engine, request.network, labels)
        alone = network in _OWN_NETWORK or network.startswith(_OF_CONTAINER)
        privileges = Privileges(request.privileged, tuple(request.capabilities), tuple(request.devices))
        return ContainerSpec(
            name=f"{request.container_name}-{self.sandbox_id}",
            image=image_id,
            labels=labels,
            token=token,
            epoch=epoch,
            relay_token=keeper.relay_token(shared.state_root, keeper.called_beside(self.sandbox_id, self.role)),
            role=self.role,
            argv=request.argv,
            entrypoint=request.entrypoint,
            hold=request.hold,
            env=request.env,
            secrets=request.secrets,
            ttl_seconds=seconds_left(labels, self.shared.clock),
            cpu=float(limits.get("cpu") or 0.0),
            memory_bytes=int(limits.get("memory") or 0),
            processes=int(limits.get("processes") or 0),
            shared_memory_bytes=request.shared_memory_bytes,
            network=network,
            further_networks=[await self._network(engine, name, labels) for name in request.extra_networks],
            aliases=() if alone else (request.container_name,),
            ports=() if alone else tuple(request.ports),
            mounts=await self._mounts(engine, labels),
            privileges=privileges,
        )

    async def _network(self, engine: Engine, name: str | None, labels: Mapping[str, str]) -> str:
        """The engine's network that a name of the task means. A container reaches no more than its sandbox may."""
        from agent_env.containers.spec import SHARED

        mode = SandboxSpec(self.sandbox_id, network=self.held.sandbox.network).network_mode
        if problem := network_problem(mode, self.request.sandbox_name, [name]):
            raise UnsupportedError(problem, concerns=self.request.container_name, hint=NETWORK_HINT)
        if mode is NetworkMode.NONE:
            return "none"
        if name is None:
            return SHARED
        if name in _OWN_NETWORK:
            return name
        if name.startswith(_OF_CONTAINER):
            return _OF_CONTAINER + self._started(name.removeprefix(_OF_CONTAINER))
        return await self.shared.networks.get(engine, name, labels)

    def _started(self, container_name: str) -> str:
        known = {str(each.get("container_name")): str(each.get("container_id")) for each in self._records()}
        if container_name not in known:
            raise PlacementError(
                f"this run started no container {container_name!r} on sandbox {self.request.sandbox_name!r} (started: {sorted(known)})",
                concerns=container_name,
            )
        return known[container_name]

    async def _mounts(self, engine: Engine, labels: Mapping[str, str]) -> list[Mount]:
        from agent_env.containers import volumes
        from agent_env.containers.spec import Mount

        mounts = []
        for text in self.request.volumes:
            volume = Volume.parse(text)
            if volume.of_machine:
                mounts.append(Mount(volume.folder, volume.source, "bind", read_only=volume.read_only))
            else:
                full = f"{volume.source}-{self.sandbox_id}"
                await volumes.create(engine, full, labels)
                mounts.append(Mount(volume.folder, full, read_only=volume.read_only))
        return mounts
