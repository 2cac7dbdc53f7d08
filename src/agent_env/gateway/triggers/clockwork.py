"""Triggers of the clock: which are due, and when those that follow another one are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime

from agent_env_sdk.wire.clock import VirtualClock, instant, parse_duration

from agent_env.gateway.defaults import GatewayLimits
from agent_env.gateway.triggers import schedule, timing
from agent_env.gateway.triggers.armed import Armed, Status
from agent_env.gateway.triggers.events import EventLog
from agent_env.gateway.triggers.fires import Fires
from agent_env.gateway.triggers.grammar import TimeWhen
from agent_env.gateway.triggers.roster import Roster


class Clockwork:
    """See the module.

    Args:
        clock: Gives the clock as it is now.
        roster: The triggers.
        fires: Sets them off.
        axis: Virtual seconds.
        events: The log.
        limits: How often it looks, and how many marks it catches up with at once.
    """

    def __init__(
        self,
        clock: Callable[[], VirtualClock | None],
        roster: Roster,
        fires: Fires,
        *,
        axis: timing.Axis,
        events: EventLog,
        limits: GatewayLimits,
    ) -> None:
        self._clock = clock
        self._roster = roster
        self._fires = fires
        self._axis = axis
        self._tell = events.tell
        self._limits = limits
        self._kick = asyncio.Event()
        fires.ended = self._anchor

    async def run(self) -> None:
        """Looks at the clock while a trigger waits for it."""
        while True:
            if not self._timed():
                self._kick.clear()
                await self._kick.wait()
            try:
                async with asyncio.timeout(self._limits.trigger_tick_seconds):
                    self._kick.clear()
                    await self._kick.wait()
            except TimeoutError:
                self.tick()

    def kick(self) -> None:
        """Something changed that it may wait for."""
        self._kick.set()

    def rearmed(self) -> None:
        """The clock was set or taken away."""
        self._axis.reset()
        self._roster.axis(self._axis)
        self._kick.set()

    def tick(self) -> None:
        """Sets off what is due."""
        clock, now = self._clock(), self._axis.now()
        if clock is None or now is None:
            return
        for trigger in self._roster:
            when = trigger.time
            if when is None or trigger.status is not Status.ARMED:
                continue
            self._reckon(trigger, when, clock.t0)
            if trigger.next_mark is None or now < trigger.next_mark:
                continue
            due = schedule.due(trigger, when, clock.t0, now, most=self._limits.trigger_marks)
            if due.marks:
                self._fires.fall_due(trigger, due)
            else:
                trigger.status = Status.FIRED if due.over else trigger.status
                self._roster.keep(trigger)

    def _timed(self) -> bool:
        return self._axis.now() is not None and any(
            trigger.time is not None and (trigger.status is Status.ARMED or trigger.status.in_flight) for trigger in self._roster
        )

    def _reckon(self, trigger: Armed, when: TimeWhen, t0: datetime) -> None:
        """Its first mark, anew where the clock was set since."""
        if when.after is not None:
            return
        if trigger.resolved and trigger.generation != self._axis.generation:
            dropped = instant(trigger.next_mark) if trigger.next_mark is not None else None
            self._tell("reanchored", trigger, generation=self._axis.generation, dropped_mark=dropped)
            trigger.resolved, trigger.next_mark = False, None
            trigger.restart_gaps()
        if not trigger.resolved:
            trigger.next_mark, trigger.resolved = schedule.first_mark(trigger, when, t0), True
            trigger.generation = self._axis.generation
            self._roster.keep(trigger)

    def _anchor(self, fired: str) -> None:
        """Those that follow this one know their mark now."""
        now = self._axis.now()
        for trigger in self._roster if now is not None else ():
            when = trigger.time
            if now is None or when is None or when.after != fired or trigger.resolved or trigger.status is not Status.ARMED:
                continue
            trigger.next_mark, trigger.resolved = timing.later(now, parse_duration(when.offset)), True
            self._tell("anchored", trigger, anchor=fired, mark=instant(trigger.next_mark))
            self._roster.keep(trigger)
        self._kick.set()
