"""The registered triggers, in order, and what a restart of the gateway must still know of them: how each stands, and what set off the
fires that have not ended.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace

from agent_env.errors import StorageError
from agent_env.gateway.journal import Journal
from agent_env.gateway.nursery import Nursery, log
from agent_env.gateway.triggers.armed import Armed, Cause
from agent_env.gateway.triggers.entrance import WATCH_KEY
from agent_env.gateway.triggers.grammar import Trigger
from agent_env.gateway.triggers.registration import Watch
from agent_env.gateway.triggers.timing import Axis

_TRIGGER = "trigger/"
_CAUSE = "trigger-cause/"
_AXIS = "trigger-axis"


class Roster:
    """See the module.

    Args:
        journal: Where it is kept.
        nursery: Where what nobody waits for is written.
    """

    def __init__(self, journal: Journal, nursery: Nursery) -> None:
        self._journal = journal
        self._nursery = nursery
        self._triggers: dict[str, Armed] = {}
        self._numbers = self._causes = 0
        self._committing: asyncio.Task[None] | None = None
        self.watch = Watch()
        self.kept_axis = journal.get(_AXIS)

    def __iter__(self) -> Iterator[Armed]:
        """All, in the order of their registration."""
        return iter(list(self._triggers.values()))

    def __len__(self) -> int:
        """How many."""
        return len(self._triggers)

    def get(self, trigger_id: str) -> Armed | None:
        """The trigger of that id."""
        return self._triggers.get(trigger_id)

    def has(self, trigger: Armed) -> bool:
        """Whether it is still registered."""
        return self._triggers.get(trigger.id) is trigger

    # changes: they hold at once, and are durable after `commit`

    def add(self, spec: Trigger) -> Armed:
        """Registers one."""
        self._numbers += 1
        made = self._triggers[spec.id] = Armed(spec, self._numbers)
        self.note(made)
        return made

    def drop(self, trigger_id: str) -> Armed | None:
        """Takes one away, with its fire."""
        trigger = self._triggers.pop(trigger_id, None)
        if trigger is not None:
            if trigger.task is not None:
                trigger.task.cancel()
            self._journal.note(_TRIGGER + trigger_id, None)
            for key, value in self._journal.under(_CAUSE):
                if value["trigger"] == trigger_id:
                    self._journal.note(_CAUSE + key, None)
        return trigger

    def watching(self, watch: Watch | None) -> None:
        """Whose calls matter from now on; None for nobody's, as before the first registration."""
        self.watch = watch if watch is not None else Watch()
        self._journal.note(WATCH_KEY, watch.to_json() if watch is not None else None)

    def note(self, trigger: Armed) -> None:
        """How a trigger stands now."""
        if self.has(trigger):
            self._journal.note(_TRIGGER + trigger.id, trigger.to_json())

    def keep(self, trigger: Armed) -> None:
        """The same, durable in a moment, many at once."""
        self.note(trigger)
        if self._committing is None or self._committing.done():
            self._committing = self._nursery.soon(self.secure(), "keeping how triggers stand")

    def caused(self, trigger: Armed, cause: Cause) -> Cause:
        """A fire was set off. Gives the cause as the journal knows it."""
        self._causes += 1
        numbered = replace(cause, number=self._causes)
        value = {"trigger": trigger.id, "context": dict(cause.context), "since": cause.since}
        self._journal.note(f"{_CAUSE}{self._causes}", value)
        return numbered

    def ended(self, cause: Cause) -> None:
        """A fire ended."""
        if cause.number:
            self._journal.note(f"{_CAUSE}{cause.number}", None)

    def axis(self, axis: Axis) -> None:
        """Where the axis of virtual seconds begins anew."""
        self._journal.note(_AXIS, axis.to_json())

    async def commit(self) -> None:
        """Makes all of it durable.

        Raises:
            StorageError: It could not be written.
        """
        await self._journal.commit()

    async def secure(self) -> None:
        """`commit`, where what follows happens in any case."""
        try:
            await self.commit()
        except StorageError as error:
            log.warning("how triggers stand may be forgotten: %s", error)

    # another life

    def restore(self, generation: int) -> Mapping[str, list[Cause]]:
        """Takes up what an earlier life left. Gives the causes of fires that had not ended, by trigger, oldest first.

        Args:
            generation: Of the clock that is known now.
        """
        watch = self._journal.get(WATCH_KEY)
        if watch is None:
            return {}
        self.watch = Watch.from_json(watch)
        kept = [Armed.from_json(raw, generation) for _, raw in self._journal.under(_TRIGGER)]
        self._triggers = {trigger.id: trigger for trigger in sorted(kept, key=lambda each: each.number)}
        self._numbers = max((trigger.number for trigger in kept), default=0)
        causes: dict[str, list[Cause]] = defaultdict(list)
        for number, value in sorted((int(key), value) for key, value in self._journal.under(_CAUSE)):
            self._causes = number
            causes[value["trigger"]].append(Cause(value["context"], value["since"], number))
        return causes
