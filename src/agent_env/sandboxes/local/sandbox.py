"""A live handle on a sandbox of this machine, and its machine place."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from agent_env.defaults import Limits
from agent_env.places import Place
from agent_env.places.helper.connection import Connection
from agent_env.sandboxes.confined.place import ConfinedPlace
from agent_env.sandboxes.confined.records import EVENTS, HOST, LOG, Facts
from agent_env.sandboxes.confined.sandbox import ConfinedSandbox, Lead
from agent_env.sandboxes.local.container_sandbox import CONTAINER_MARKER, Family, container_name
from agent_env.sandboxes.local.host_place import AppInFolder

if TYPE_CHECKING:
    from agent_env.containers import Engine
    from agent_env.keeper import Watch as KeeperWatch


class HostMachine(AppInFolder, ConfinedPlace):
    """The bare host, where nothing is confined and `/app` is the work folder."""


class LocalSandbox(ConfinedSandbox):
    """A sandbox of this machine: one confined machine place."""

    def __init__(
        self,
        facts: Facts,
        folder: Path,
        connection: Connection,
        *,
        limits: Limits,
        watch: KeeperWatch | None,
        lead: Lead,
        beside: Callable[[], Awaitable[Family]],
    ) -> None:
        kind = HostMachine if facts.confiner == HOST else ConfinedPlace
        place = kind(connection, facts, events=folder / EVENTS, log=folder / LOG, limits=limits)
        if isinstance(place, HostMachine):
            place.app = PurePosixPath(facts.work_dir)
        super().__init__(facts, place, watch=watch, lead=lead)
        self._beside = beside
        self._family: Family | None = None

    @property
    def work_dir(self) -> Path:
        """Its folder on this machine, which is the place's root."""
        return Path(self._facts.work_dir)

    @property
    def container_name(self) -> str:
        """What a container of its own would be called."""
        return container_name(self._facts.sandbox_id)

    @property
    def owns_container(self) -> bool:
        """A container of its own was recorded by the marker file."""
        return (self.work_dir / CONTAINER_MARKER).is_file()

    async def container(self, container_id: str) -> Place:
        """A container that stands beside its machine, by id.

        Raises:
            UnsupportedError: No container engine is beside it.
            ContainerNotRunningError: It is not running, or is gone.
            PlacementError: It is another sandbox's.
        """
        return await (await self._containers()).place(container_id)

    async def engine(self) -> Engine:
        """The container engine beside its machine; from now on the sandbox's removal asks it too.

        Raises:
            UnsupportedError: There is none.
        """
        return (await self._containers()).engine

    async def _containers(self) -> Family:
        if self._family is None:
            self._family = await self._beside()
        return self._family

    async def aclose(self) -> None:
        """Lets go of the connections; the sandbox goes on."""
        if self._family is not None:
            await self._family.aclose()
        await super().aclose()
