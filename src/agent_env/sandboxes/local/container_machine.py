"""A container plays the machine of a sandbox: where this machine can confine nothing but has a container engine (macOS, a hardened Linux).

To whoever uses it, it is the machine of the provider `local`: one user, its own `/app`, `/work` and `/loaded`, a `sudo` that runs what it
is given, and containers beside it. What differs is where its programs come from: a configured image instead of this machine.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from agent_env import keeper
from agent_env.documents.network import NetworkMode
from agent_env.errors import InfrastructureError, UnsupportedError
from agent_env.places import Missing, Place, Published, Shape, Upload
from agent_env.places.endpoint import is_local
from agent_env.sandboxes.confined.processes import MARKER
from agent_env.sandboxes.confined.publish import write_port_map
from agent_env.sandboxes.confined.records import Facts
from agent_env.sandboxes.contract import Capabilities, Level, SandboxInfo, SandboxSpec
from agent_env.sandboxes.local.container_records import KEEPER, ON_BRIDGE
from agent_env.sandboxes.local.container_sandbox import ContainerSandbox, container_info
from agent_env.sandboxes.local.containers import Containers
from agent_env.sandboxes.local.options import DEFAULT_IMAGE
from agent_env.sandboxes.local.view import SUDO

if TYPE_CHECKING:
    from agent_env.containers import ContainerSpec, Engine
    from agent_env.sandboxes.local.container_sandbox import Family

_SHELL, _SUDO = PurePosixPath("/bin/sh"), PurePosixPath("/usr/local/bin/sudo")
_FOLDERS = {PurePosixPath(f"/{name}"): mode for name, mode in (("app", 0o755), ("work", 0o755), ("loaded", 0o755), ("tmp", 0o1777))}
_ENVIRONMENT = {"HOME": "/root", "USER": "root", "LOGNAME": "root", "SHELL": "/bin/sh", "LANG": "C.UTF-8"}
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "ftp_proxy")


@dataclass
class MachineContainers(Containers):
    """Makes, finds and removes containers that are machines."""

    image: str = DEFAULT_IMAGE

    async def capabilities(self) -> Capabilities:
        """What such machines can do on the engine that is here.

        Raises:
            InfrastructureError: The engine does not answer.
        """
        info = await self.engines.client().info()
        levels = {name: Level.HARD if name in info.limits else Level.NONE for name in ("memory", "processes", "cpu", "disk")}
        weak = [f"{name} is not limited" for name, level in levels.items() if level is Level.NONE]
        return Capabilities(
            shape=Shape.MACHINE_BACKED,
            egress=frozenset(NetworkMode),
            limits={**levels, "ttl": Level.HARD},
            containers=True,
            publish=True,
            on_this_machine=info.on_this_machine,
            notes=[f"a container of {self.image} at {self.engines.where} plays the machine", *weak],
        )

    async def create(self, spec: SandboxSpec, undo: Callable[[str], Awaitable[None]]) -> ContainerSandbox:
        """Makes the container, with what every machine has. See `Containers.create`.

        Raises:
            UnsupportedError: The configured image can't be a machine.
            ImageNotFoundError: There is no such image.
            InfrastructureError: It could not be made.
        """
        return await super().create(replace(spec, image=self.image), undo)

    async def _made(self, engine: Engine, spec: SandboxSpec, facts: Facts) -> ContainerSandbox:
        made = await super()._made(engine, spec, facts)
        assert isinstance(made, MachineSandbox)
        try:
            await furnish(await made.machine(), self.image)
        except BaseException:  # whatever went wrong, connections that nobody holds must not stay
            await made.aclose()
            raise
        return made

    def _first_facts(self, spec: SandboxSpec, engine: Engine, levels: Mapping[str, Level]) -> Facts:
        return replace(super()._first_facts(spec, engine, levels), machine_image=self.image)

    def _container_spec(self, spec: SandboxSpec, facts: Facts, image_id: str) -> ContainerSpec:
        made = super()._container_spec(spec, facts, image_id)
        how = facts.network["how"]
        proxies = self._proxies() if how in ON_BRIDGE else keeper.proxy_environment() if how == KEEPER else {}
        return replace(
            made,
            role="sandbox",
            argv=(),
            hold=True,
            user="0:0",
            cwd="/app",
            relay_token=self._relay_token(facts),
            env={**_ENVIRONMENT, **proxies},
            # A machine's variables are nobody else's to see, so none of them is told to the engine.
            secrets={**spec.env, **spec.secrets, MARKER: spec.sandbox_id},
        )

    def _secrets(self, facts: Facts) -> Mapping[str, Mapping[str, str]]:
        own = {MARKER: facts.sandbox_id, **self.engines.told.get(facts.sandbox_id, {})}
        return ChainMap({str(facts.container_id): own}, self.engines.told)

    def _proxies(self) -> dict[str, str]:
        """Of this user's proxies, those that a container reaches too."""
        found = {name: self.environ[name] for each in _PROXIES for name in (each, each.upper()) if self.environ.get(name)}
        return {name: value for name, value in found.items() if name.lower() == "no_proxy" or not _on_loopback(value)}

    def _note(self, facts: Facts, ports: dict[int, int]) -> None:
        """The record, and the map for other tools; no marker, which would say that the sandbox is a container."""
        self.records.write(facts)
        try:
            write_port_map(Path(facts.work_dir), ports)
        except OSError as error:
            raise InfrastructureError(f"can't write into {facts.work_dir}: {error.strerror}", concerns=facts.sandbox_id) from error

    async def _handle(self, facts: Facts, place: Place, family: Family) -> MachineSandbox:
        watch = None
        try:
            if await self._carry(facts, place):
                watch = keeper.Watch(self.state_root, facts.sandbox_id, limits=self.limits).start()
            return MachineSandbox(facts, place, family, watch=watch, lead=self.lead)
        except BaseException:  # as above
            await family.aclose()
            raise


class MachineSandbox(ContainerSandbox):
    """A sandbox whose machine is a container."""

    @property
    def info(self) -> SandboxInfo:
        """What the journal keeps of it: a machine, whose container is nobody's to name."""
        info = container_info(self._facts, alive=True)
        return replace(info, facts={name: value for name, value in info.facts.items() if name != "container_id"})

    @property
    def published(self) -> Published:
        """Its ports on this machine's loopback. On the machine that it plays, a service answers under its own port (C5)."""
        return replace(super().published, host_ports={})

    async def machine(self) -> Place:
        """The machine place."""
        return self._place


async def furnish(place: Place, image: str) -> None:
    """Gives a container what every machine of this provider has and its image lacks.

    Raises:
        UnsupportedError: The image has no shell, so it can't be a machine.
    """
    found = await place.stat([_SHELL, PurePosixPath("/usr/bin/sudo"), *_FOLDERS])
    if isinstance(found[_SHELL], Missing):
        raise UnsupportedError(
            f"the image {image} has no /bin/sh, so a container of it can't play a machine",
            concerns=image,
            hint=f"set machine_image in [sandbox.providers.local.config] to one that has, such as {DEFAULT_IMAGE}",
        )
    uploads = [Upload(folder, None, mode=mode) for folder, mode in _FOLDERS.items() if isinstance(found[folder], Missing)]
    # Set-id programs gain nothing in such a container, so an image's own sudo would only fail.
    await place.put([*uploads, Upload(_SUDO, SUDO.encode(), mode=0o755)], owner="0:0")


def _on_loopback(proxy: str) -> bool:
    return is_local(proxy if "://" in proxy else f"http://{proxy}")
