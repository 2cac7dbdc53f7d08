"""The triggers of a gateway that may never have any: what they need is loaded when the first is registered, or was in another life."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agent_env.gateway.calls import Calls, Made
from agent_env.gateway.catalogue import Catalogue
from agent_env.gateway.journal import Journal
from agent_env.gateway.marking import Caller
from agent_env.gateway.nursery import Nursery

if TYPE_CHECKING:
    from agent_env.gateway.triggers.engine import TriggerEngine

WATCH_KEY = "triggers"
"""In the journal: there were triggers."""


class Triggers:
    """See the module. What it is asked is answered by `engine.TriggerEngine`; without one, nobody watches.

    Args:
        calls: Makes their calls, and tells them of others'.
        catalogue: Which tools there are.
        journal: What they must still know after a restart.
        nursery: Where fires run.
        websites: Which websites there are.
    """

    def __init__(self, calls: Calls, catalogue: Catalogue, journal: Journal, nursery: Nursery, websites: Sequence[str]) -> None:
        self._calls = calls
        self._catalogue = catalogue
        self._journal = journal
        self._nursery = nursery
        self._websites = websites
        self._engine: TriggerEngine | None = None
        if journal.get(WATCH_KEY) is not None:
            self.engine()

    def engine(self) -> TriggerEngine:
        """The engine, loaded if it was not."""
        if self._engine is None:
            from agent_env.gateway.triggers.engine import TriggerEngine

            made = TriggerEngine(
                self._calls, self._catalogue, self._journal, self._nursery, websites=self._websites, limits=self._calls.limits
            )
            self._nursery.soon(made.run(), "looking at the clock")
            self._engine = made
        return self._engine

    def rearmed(self) -> None:
        """The clock was set or taken away."""
        if self._engine is not None:
            self._engine.rearmed()

    def wants(self, caller: Caller) -> bool:
        """See `calls.Watcher`."""
        return self._engine is not None and self._engine.wants(caller)

    async def seen(self, made: Made) -> None:
        """See `calls.Watcher`."""
        if self._engine is not None:
            await self._engine.seen(made)

    def causes(self, role: str) -> list[dict[str, Any]]:
        """See `calls.Watcher`."""
        return self._engine.causes(role) if self._engine is not None else []

    def wants_role(self, role: str) -> bool:
        """See `proxy.WebsiteWatcher`."""
        return self._engine is not None and self._engine.wants_role(role)

    def may_hold(self, role: str, app: str, method: str) -> bool:
        """See `proxy.WebsiteWatcher`."""
        return self._engine is not None and self._engine.may_hold(role, app, method)

    async def requested(self, role: str, request: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
        """See `proxy.WebsiteWatcher`."""
        if self._engine is not None:
            await self._engine.requested(role, request, arguments)
