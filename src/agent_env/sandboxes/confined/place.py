"""A confined place: the helper's, with what this machine knows of its end."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from agent_env.defaults import Limits
from agent_env.errors import SandboxUnavailableError
from agent_env.places import Command, Completed, Ending, PlaceKind
from agent_env.places.helper.connection import Connection
from agent_env.places.helper.execution import NoNetworkError
from agent_env.places.helper.place import HelperPlace
from agent_env.places.helper.process import HelperProcess
from agent_env.sandboxes.confined.ending import gone, told_of_break
from agent_env.sandboxes.confined.launch import log_tail
from agent_env.sandboxes.confined.records import Facts


class ConfinedPlace(HelperPlace):
    """The one place of a confined sandbox."""

    def __init__(self, connection: Connection, facts: Facts, *, events: Path, log: Path, limits: Limits) -> None:
        super().__init__(connection, place_id=facts.sandbox_id, kind=PlaceKind.MACHINE, labels=facts.labels, limits=limits)
        connection.explain = partial(gone, facts, events)
        connection.bounds = facts.limits
        self._facts = facts
        self._events = events
        self._log = log

    async def run(self, command: Command) -> Completed:
        """As the contract says. Of a lost one, the detail says what became of the place."""
        try:
            completed = await super().run(command)
        except NoNetworkError as error:
            raise self._explained(error) from error
        if completed.ending is not Ending.LOST:
            return completed
        why = await told_of_break(self._facts, self._events, seconds=self._limits.kill_grace_seconds)
        return completed if why is None else replace(completed, detail=why.message)

    async def start(self, command: Command) -> HelperProcess:
        """As the contract says."""
        try:
            return await super().start(command)
        except NoNetworkError as error:
            raise self._explained(error) from error

    def _explained(self, error: NoNetworkError) -> SandboxUnavailableError:
        return SandboxUnavailableError(f"{error.message}{log_tail(self._log)}", concerns=self.id)
