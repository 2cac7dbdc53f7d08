"""Machines of the fake cloud that have a container engine beside them, reached over the wire of the cloud."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from agent_env.containers import ContainerSpec, Engine, EngineEndpoint, attach, deploy, release_shared, remove_all
from agent_env.containers.spec import HOME, SANDBOX, SHARED
from agent_env.containers.state import not_running
from agent_env.errors import InfrastructureError, PlaceLostError, PlacementError
from agent_env.places import Place
from agent_env.sandboxes.contract import Capabilities, SandboxInfo, SandboxSpec
from agent_env.sandboxes.remote import RemoteSandbox
from agent_env.waiting import shielded
from agentenv_fake_cloud.provider import RemotePaths

OWN = "agentenv.own-container"
"""With which the cloud remembers the container that a sandbox is."""


@dataclass(frozen=True)
class EngineSandbox(RemoteSandbox):
    """A machine with an engine, or the one container of it that the sandbox is."""

    docker: Engine
    token: str
    epoch: int
    places: dict[str, Place] = field(default_factory=dict)

    async def engine(self) -> Engine:
        """The engine beside the machine."""
        return self.docker

    async def container(self, container_id: str) -> Place:
        """A container of this sandbox, by id."""
        if container_id not in self.places:
            own = container_id == self.info.facts.get("container_id")
            name = f"agent-{self.info.sandbox_id}" if own else container_id[:12]
            try:
                place = await attach(self.docker, container_id, token=self.token, epoch=self.epoch)
            except PlaceLostError as error:
                raise await not_running(self.docker, container_id, name, otherwise=error) from error
            if place.labels.get(SANDBOX) != self.info.sandbox_id:
                await place.aclose()
                raise PlacementError(f"the container {name!r} is not one of sandbox {self.info.sandbox_id}", concerns=name)
            self.places[container_id] = place
        return self.places[container_id]

    async def aclose(self) -> None:
        """Lets go of every connection."""
        while self.places:
            await self.places.popitem()[1].aclose()
        await self.docker.aclose()
        await super().aclose()


class RemoteEngines(RemotePaths):
    """Machines that run containers."""

    name = "remote_engines"

    async def capabilities(self) -> Capabilities:
        return replace(await super().capabilities(), containers=True, egress=frozenset({"allow_all"}))

    async def create(self, spec: SandboxSpec) -> RemoteSandbox:
        made = await super().create(spec)
        if spec.mode != "container":
            return made
        try:
            async with await self._engine() as engine:
                place = await deploy(engine, self._container(spec))
                await place.aclose()
            await self._wire.ask("note", name=spec.sandbox_id, labels={OWN: place.id}, served={str(p): at for p, at in place.ports.items()})
            return await self.attach(spec.sandbox_id, epoch=spec.epoch, token=spec.token)
        except BaseException:  # whatever went wrong, the machine must not stay without its container
            with contextlib.suppress(InfrastructureError):
                what = f"removing machine {spec.sandbox_id}"
                await shielded(self.destroy(spec.sandbox_id), seconds=self._limits.cleanup_seconds, what=what)
            raise
        finally:
            await made.aclose()

    @staticmethod
    def _container(spec: SandboxSpec) -> ContainerSpec:
        limits = {"cpu": spec.cpu, "memory_bytes": spec.memory_bytes, "processes": spec.processes, "ttl_seconds": spec.ttl_seconds}
        told = {"labels": spec.labels, "token": spec.token, "epoch": spec.epoch, "env": spec.env, "secrets": spec.secrets}
        return ContainerSpec(
            name=f"agent-{spec.sandbox_id}", image=str(spec.image), role="agent", network=SHARED, ports=spec.ports, **told, **limits
        )

    async def attach(self, sandbox_id: str, *, epoch: int, token: str) -> EngineSandbox:
        found = await super().attach(sandbox_id, epoch=epoch, token=token)
        parts = {name: getattr(found, name) for name in RemoteSandbox.__dataclass_fields__}
        return EngineSandbox(**parts, docker=await self._engine(), token=token, epoch=epoch)

    async def destroy(self, sandbox_id: str) -> bool:
        async with await self._engine() as engine:
            removed = await remove_all(engine, {SANDBOX: sandbox_id})
            for home in {each.labels.get(HOME, "") for each in removed.gone} - {""}:
                await release_shared(engine, home)  # a cloud's machine would go, with its engine and all that is in it
        return await super().destroy(sandbox_id)

    async def _engine(self) -> Engine:
        return Engine(EngineEndpoint(str(await self._wire.ask("engine"))), limits=self._limits)

    @staticmethod
    def _info(machine: Mapping[str, object]) -> SandboxInfo:
        info = RemotePaths._info(machine)
        own = info.labels.get(OWN)
        labels = {name: value for name, value in info.labels.items() if name != OWN}
        return replace(info, labels=labels, facts={**info.facts, **({"container_id": own} if own else {})})
