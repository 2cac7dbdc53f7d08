"""A live handle on a sandbox that is an unpacked image, and its one place."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from agent_env.defaults import Limits
from agent_env.errors import UnsupportedError
from agent_env.keeper import Watch
from agent_env.places import Place, PlaceKind
from agent_env.places.helper import HelperConfig
from agent_env.places.helper.connection import Connection
from agent_env.places.helper.greeting import enter
from agent_env.sandboxes.confined import link
from agent_env.sandboxes.confined.place import ConfinedPlace
from agent_env.sandboxes.confined.records import EVENTS, Facts
from agent_env.sandboxes.confined.sandbox import ConfinedSandbox, Lead
from agent_env.sandboxes.rootfs.making import LOG

if TYPE_CHECKING:
    from agent_env.containers import Engine


class RootfsPlace(ConfinedPlace):
    """The sandbox itself: a container, whose limits are held as a confined machine's are."""

    @property
    def kind(self) -> PlaceKind:
        """A container."""
        return PlaceKind.CONTAINER

    async def enter(self, config: HelperConfig) -> None:
        """Starts the image's own command, once the place has its limits and its network.

        Raises:
            SandboxUnavailableError: A network is demanded and can't be had. Else as `greeting.enter`.
        """
        if config.network_seconds and config.demanded:
            await link.await_network(self._connection, self._log, self._limits)
        await enter(self._connection, config, self._limits)


class RootfsSandbox(ConfinedSandbox):
    """A sandbox that is its own container."""

    def __init__(self, facts: Facts, folder: Path, connection: Connection, *, limits: Limits, watch: Watch | None, lead: Lead) -> None:
        place = RootfsPlace(connection, facts, events=folder / EVENTS, log=Path(facts.work_dir) / LOG, limits=limits)
        super().__init__(facts, place, watch=watch, lead=lead)
        self._own = place

    async def enter(self, config: HelperConfig) -> None:
        """Starts the image's own command. Raises as `RootfsPlace.enter`."""
        await self._own.enter(config)

    async def container(self, container_id: str) -> Place:
        """There are none beside it.

        Raises:
            UnsupportedError: Always.
        """
        self._refuse(f"the container {container_id[:12]!r} can't be in it")

    async def engine(self) -> Engine:
        """There is none.

        Raises:
            UnsupportedError: Always.
        """
        self._refuse("there is no container engine in it")

    def _refuse(self, why: str) -> NoReturn:
        raise UnsupportedError(
            f"sandbox {self._facts.sandbox_id} is itself a container: {why}",
            concerns=self._facts.sandbox_id,
            hint="deploy one of a machine-backed provider, such as 'local', for what starts containers",
        )

    async def answer_on_host(self, ports: Mapping[int, int]) -> None:
        """Makes ports of the place's own loopback answer on this machine's; see `contract.AnswersOnHost`."""
        await self._lead(self._facts.sandbox_id, answers=ports)
