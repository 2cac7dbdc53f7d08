"""The prompts of one run that agents work on, journalled before they are sent, so that none is ever sent twice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from agent_env.documents.updates import Json
from agent_env.engine.installation import SANDBOX_LABEL
from agent_env.engine.teardown import PROMPT_KIND
from agent_env.stores.records import Resource

if TYPE_CHECKING:
    from agent_env.engine.shared import Shared

_PROVIDER = "a2a"


class Prompts:
    """Rows of the journal, one a prompt, by its message's id.

    Args:
        shared: The run.
    """

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._open: set[str] = set()

    async def note(self, message_id: str, agent_name: str, attempt_id: str, facts: Mapping[str, Json]) -> None:
        """Writes down what finds it again; merged key by key with what was known."""
        journal, lease = self._shared.stores.journal, self._shared.lease
        if message_id not in self._open and self.noted(message_id) is None:
            labels = {SANDBOX_LABEL: sandbox_id} if (sandbox_id := self._sandbox_of(agent_name)) else {}
            resource = Resource(message_id, PROMPT_KIND, _PROVIDER, agent_name, attempt_id, labels=labels, facts=dict(facts))
            await journal.intend(lease, resource)
        else:
            await journal.opened(lease, message_id, facts)
        self._open.add(message_id)

    def _sandbox_of(self, agent_name: str) -> str | None:
        records = self._shared.context().get("deployed_agents") or ()
        return next((each.get("sandbox_id") for each in records if each.get("agent_name") == agent_name), None)

    def noted(self, message_id: str) -> Mapping[str, Json] | None:
        """What is written down of it, also after its end: its id is its attempt's, so nobody else's prompt can have it."""
        row = self._shared.stores.journal.resource(message_id)
        return row.facts if row is not None and row.run_id == self._shared.run_id else None

    async def over(self, message_id: str) -> None:
        """It has ended."""
        self._open.discard(message_id)
        await self._shared.stores.journal.closed(message_id)
