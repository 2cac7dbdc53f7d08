"""Keeps the installation's keeper told of a run's models, for as long as the run's process lives: also a keeper that replaces another."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent_env.defaults import Limits
from agent_env.errors import InfrastructureError
from agent_env.keeper.client import _NOBODY, _connected, _request, _start
from agent_env.keeper.records import Records
from agent_env.waiting import back_off, deadline

_LONGEST_PAUSE = 4


class ModelsTold:
    """One process's word about models. `tell` as often as there is something new, then `aclose`.

    Args:
        state_root: The installation's state folder.
        database: The run database's URL.
        limits: Deadlines.
    """

    def __init__(self, state_root: Path, database: str, *, limits: Limits) -> None:
        self._records = Records(state_root)
        self._limits = limits
        self._request: dict[str, Any] = {"do": "models", "database": database, "endpoints": {}, "listen": False}
        self._task: asyncio.Task[None] | None = None
        self._port: asyncio.Future[int | None] | None = None

    async def tell(self, endpoints: Mapping[str, Mapping[str, Any]], *, listen: bool = False) -> int | None:
        """Tells of endpoints; what was told before stays.

        Args:
            endpoints: What a grant calls them → themselves, with their keys.
            listen: For a place that shares this machine's loopback.

        Returns:
            The port of this machine's loopback, where one was asked for.

        Raises:
            InfrastructureError: The keeper can't be started, or refuses.
            DeadlineError: It does not answer.
        """
        known = self._request["endpoints"]
        told = self._task is not None and not listen and all(known.get(name) == each for name, each in endpoints.items())
        if told and self._port is not None:
            return await asyncio.shield(self._port)
        self._request = {**self._request, "endpoints": {**known, **endpoints}, "listen": listen or self._request["listen"]}
        await self.aclose()
        self._records.make()
        self._port = asyncio.get_running_loop().create_future()
        self._task = asyncio.ensure_future(self._stand_by(self._port))
        async with deadline(self._limits.deploy_seconds, "the keeper's model broker"):
            return await asyncio.shield(self._port)

    async def aclose(self) -> None:
        """Ends; the keeper knows what it was told for as long as it lives."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})

    async def _stand_by(self, port: asyncio.Future[int | None]) -> None:
        failures = 0
        while True:
            try:
                async with _connected(self._records.folder) as (reader, writer):
                    answer = await _request(reader, writer, self._request)
                    failures = 0
                    if not port.done():
                        port.set_result(answer.get("port"))
                    while await reader.readline():
                        continue
            except (*_NOBODY, ConnectionError):
                failures += 1
                await self._started(port)
            except (OSError, ValueError, InfrastructureError) as error:
                failures += 1
                if not port.done():
                    port.set_exception(error)
            if failures > 1:
                await back_off(min(failures, _LONGEST_PAUSE), limits=self._limits)

    async def _started(self, port: asyncio.Future[int | None]) -> None:
        try:
            await _start(self._records.folder, self._limits)
        except InfrastructureError as error:
            if not port.done():
                port.set_exception(error)
