"""Fires: one for each cause, one after the other, each ending in a known way. One that a restart of the gateway cut goes on where the
journal says that it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from agent_env_sdk.wire.clock import instant

from agent_env.gateway.calls import Calls
from agent_env.gateway.catalogue import Catalogue
from agent_env.gateway.nursery import Nursery
from agent_env.gateway.triggers.armed import Armed, Cause, Due, Progress, Status
from agent_env.gateway.triggers.events import EventLog
from agent_env.gateway.triggers.firing import Firing
from agent_env.gateway.triggers.roster import Roster
from agent_env.gateway.triggers.timing import Axis


class Fires:
    """See the module.

    Args:
        calls: Makes their calls.
        catalogue: Which tools there are.
        roster: Keeps how they stand.
        events: The log.
        axis: Virtual seconds.
        nursery: Where they run.
    """

    def __init__(self, calls: Calls, catalogue: Catalogue, roster: Roster, *, events: EventLog, axis: Axis, nursery: Nursery) -> None:
        self._calls = calls
        self._catalogue = catalogue
        self._roster = roster
        self._events = events
        self._tell = events.tell
        self._axis = axis
        self._nursery = nursery
        self._limits = calls.limits
        self.firing = Firing(calls, catalogue, axis, roster, events.tell)
        self.ended: Callable[[str], None] = lambda _id: None
        """Told the id of a trigger that has fired, or was due."""

    def set_off(self, trigger: Armed, cause: Cause, provoking: Mapping[str, Any]) -> bool:
        """A call set it off: now, or after the fires that go on. Whether there was room. Durable after the roster's `commit`."""
        if trigger.status.in_flight:
            if len(trigger.pending) >= self._limits.trigger_queue:
                self._tell("eval_error", trigger, detail=f"more than {self._limits.trigger_queue} calls wait for their turn")
                return False
            trigger.pending.append(self._roster.caused(trigger, cause))
            trigger.status = Status.QUEUED
            self._roster.note(trigger)
            self._tell("detected", trigger, provoking=dict(provoking), queued=len(trigger.pending))
            return True
        known = self._roster.caused(trigger, cause)
        self._begin(trigger)
        self._tell("detected", trigger, provoking=dict(provoking))
        trigger.task = self._nursery.soon(self._fire(trigger, known), f"trigger '{trigger.id}'")
        return True

    def fall_due(self, trigger: Armed, due: Due) -> None:
        """The clock set it off."""
        trigger.due = due
        self._begin(trigger)
        span = {"due": len(due.marks), "capped": due.capped, "first_mark": instant(due.marks[0]), "last_mark": instant(due.marks[-1])}
        self._tell("detected", trigger, provoking={"source": "clock"}, **span)
        trigger.task = self._nursery.soon(self._fire_marks(trigger), f"trigger '{trigger.id}'")

    def resume(self, trigger: Armed, causes: Sequence[Cause]) -> None:
        """Goes on with what an earlier life of the gateway had begun."""
        if trigger.due is not None:
            work = self._fire_marks(trigger)
        elif causes:
            trigger.pending.extend(causes[1:])
            trigger.status = Status.QUEUED if trigger.pending else Status.FIRING
            work = self._fire(trigger, causes[0])
        else:
            self._tell("failed", trigger, detail="the gateway was started again during the fire, and its cause is not known any more")
            trigger.status, trigger.progress = (Status.FAILED if trigger.time is not None else Status.ARMED), None
            self._roster.keep(trigger)
            return
        self._tell("resumed", trigger, action_index=trigger.progress.place if trigger.progress is not None else 0)
        trigger.task = self._nursery.soon(self._resumed(work), f"trigger '{trigger.id}', taken up again")

    async def _resumed(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await self._catalogue.complete(self._limits.discovery_seconds)
        except asyncio.CancelledError:
            work.close()
            raise
        await work

    def _begin(self, trigger: Armed) -> None:
        trigger.status = Status.FIRING
        trigger.detected_at = self._events.now()
        self._roster.keep(trigger)

    async def _fire(self, trigger: Armed, cause: Cause) -> None:
        """One fire for each call; those that came meanwhile have their turn. A failed one arms the trigger again."""
        repeat = bool(getattr(trigger.spec.when, "repeat", False))
        try:
            while trigger.status.in_flight:
                ok = await self._once(trigger, cause)
                self._roster.ended(cause)
                if ok:
                    self.ended(trigger.id)
                if trigger.pending:
                    cause = trigger.pending.popleft()
                    self._begin(trigger)
                else:
                    trigger.status = Status.ARMED if repeat or not ok else Status.FIRED
        finally:
            self._over(trigger, [cause, *trigger.pending], otherwise=Status.ARMED)

    async def _fire_marks(self, trigger: Armed) -> None:
        """One fire a mark; a failed one retires the trigger."""
        now, elapsed = self._axis.now(), self._axis.elapsed()
        try:
            while (due := trigger.due) is not None:
                if not due.marks:
                    trigger.status, trigger.due = (Status.FIRED if due.over else Status.ARMED), None
                    break
                behind = max(0.0, (now - due.marks[0]).total_seconds()) if now is not None else 0.0
                told = {"mark": instant(due.marks[0]), "capped": due.capped}
                if await self._once(trigger, Cause({}, elapsed - behind), **told):
                    trigger.due = Due(due.marks[1:], due.capped, due.over)
                    self._roster.note(trigger)
                else:
                    trigger.status, trigger.next_mark, trigger.due = Status.FAILED, None, None
        finally:
            self._over(trigger, (), otherwise=Status.FAILED)
        self.ended(trigger.id)

    def _over(self, trigger: Armed, causes: Sequence[Cause], *, otherwise: Status) -> None:
        """The fires have ended. One that was cancelled stays as it stands: its trigger was removed, or another life of the gateway goes on
        with it.
        """
        trigger.task = None
        running = asyncio.current_task()
        if running is not None and running.cancelling():
            return
        if trigger.status.in_flight:
            self._tell("failed", trigger, detail="the fire did not end", dropped=len(trigger.pending))
            trigger.status, trigger.next_mark, trigger.due, trigger.progress = otherwise, None, None, None
            trigger.pending.clear()
            for cause in causes:
                self._roster.ended(cause)
        self._roster.keep(trigger)

    async def _once(self, trigger: Armed, cause: Cause, **more: Any) -> bool:
        if trigger.progress is None:
            trigger.attempts += 1
            trigger.progress = Progress()
            self._roster.note(trigger)
            request = {"provoking_request": cause.context["request"]} if "request" in cause.context else {}
            tool = getattr(trigger.spec.when, "tool", None)
            fields = {"source": "trigger_engine", "trigger_id": trigger.id, "provoking_tool": tool, **request}
            self._calls.trajectory.add("trigger_fired", {**fields, **self._calls.ruling.virtual_time()})
        failed = await self.firing.actions(trigger, cause, trigger.progress)
        trigger.progress = None
        if failed is not None:
            self._tell("failed", trigger, action_index=failed)
            return False
        trigger.fire_count += 1
        trigger.fired_at = self._events.now()
        self._tell("fired", trigger, fire_count=trigger.fire_count, **more)
        return True
