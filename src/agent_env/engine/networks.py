"""The networks of a sandbox's own, on which its containers meet: made on first need, once, however many ask for one at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from agent_env.engine.installation import HOME_LABEL, SANDBOX_LABEL

if TYPE_CHECKING:
    from agent_env.containers import Engine


class OwnNetworks:
    """Those that a run's sandboxes have. An engine lets two networks have one name, and then takes that name from nobody."""

    def __init__(self) -> None:
        self._making: dict[str, asyncio.Lock] = {}

    async def find(self, engine: Engine, name: str, labels: Mapping[str, str]) -> str | None:
        """The engine's id of a sandbox's network of that name; None where there is none.

        Args:
            engine: The engine of the sandbox's machine.
            name: The network's name in the task.
            labels: The sandbox's.
        """
        from agent_env.containers import objects

        own = {label: labels[label] for label in (SANDBOX_LABEL, HOME_LABEL)}
        return next((each.id for each in await objects.networks(engine, own) if each.name == _called(name, labels)), None)

    async def get(self, engine: Engine, name: str, labels: Mapping[str, str]) -> str:
        """As `find`, made where there is none.

        Raises:
            EngineFailedError: No address range is left.
        """
        from agent_env.containers.networks import own_network

        async with self._making.setdefault(_called(name, labels), asyncio.Lock()):
            found = await self.find(engine, name, labels)
            return found or (await own_network(engine, _called(name, labels), labels)).id


def _called(name: str, labels: Mapping[str, str]) -> str:
    return f"{name}-{labels[SANDBOX_LABEL]}"
