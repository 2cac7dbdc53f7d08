"""Registered triggers: what sets them off, and that each fire ends in a known way. A fault in one is told and stays its own."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from agent_env.gateway.calls import Calls, Made
from agent_env.gateway.catalogue import Catalogue
from agent_env.gateway.defaults import GatewayLimits
from agent_env.gateway.journal import Journal
from agent_env.gateway.marking import Caller
from agent_env.gateway.nursery import Nursery
from agent_env.gateway.triggers import registration, timing, values
from agent_env.gateway.triggers.armed import Armed, Cause, Status
from agent_env.gateway.triggers.clockwork import Clockwork
from agent_env.gateway.triggers.events import EventLog
from agent_env.gateway.triggers.fires import Fires
from agent_env.gateway.triggers.firing import ActionError
from agent_env.gateway.triggers.grammar import ActionWhen, StateWhen, TimeWhen, WebsiteWhen
from agent_env.gateway.triggers.patterns import SlowPatternError
from agent_env.gateway.triggers.roster import Roster

_SAFE = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})


class TriggerEngine:
    """See the module. It is the `calls.Watcher` and the `proxy.WebsiteWatcher` of a gateway that has triggers.

    Args:
        calls: Makes its own calls, and tells it of others'.
        catalogue: Which tools there are.
        websites: Which websites there are.
        journal: What it must still know after a restart.
        nursery: Where fires run.
        limits: How long and how many.
    """

    def __init__(
        self, calls: Calls, catalogue: Catalogue, journal: Journal, nursery: Nursery, *, websites: Sequence[str], limits: GatewayLimits
    ) -> None:
        self._calls = calls
        self._catalogue = catalogue
        self._websites = tuple(websites)
        self._nursery = nursery
        self._limits = limits
        self._roster = Roster(journal, nursery)
        self._events = EventLog(calls.ruling, limits)
        self._tell = self._events.tell
        self._axis = timing.Axis(lambda: calls.ruling.clock, calls.ruling.real, self._roster.kept_axis)
        self._roster.axis(self._axis)
        self._fires = Fires(calls, catalogue, self._roster, events=self._events, axis=self._axis, nursery=nursery)
        self._clockwork = Clockwork(
            lambda: calls.ruling.clock, self._roster, self._fires, axis=self._axis, events=self._events, limits=limits
        )
        self._resume()

    def _resume(self) -> None:
        causes = self._roster.restore(self._axis.generation)
        for trigger in self._roster:
            if trigger.status.in_flight:
                self._fires.resume(trigger, causes.get(trigger.id, ()))
            elif trigger.evaluating and isinstance(trigger.spec.when, StateWhen):
                self._nursery.soon(self._look_anew(trigger, trigger.spec.when), f"the check of trigger '{trigger.id}'")

    async def run(self) -> None:
        """Looks at the clock while a trigger waits for it."""
        await self._clockwork.run()

    def rearmed(self) -> None:
        """The clock was set or taken away."""
        self._clockwork.rearmed()

    # registration

    async def register(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """`POST /triggers/register`: all of it, or nothing.

        Raises:
            ValueError: Something in it can't be.
        """
        await self._catalogue.settle(self._limits.discovery_seconds)
        watch = self._roster.watch.after(body)
        specs = registration.triggers(body.get("triggers"), watch, self._websites, self._catalogue)
        for spec in specs:
            known = self._roster.get(spec.id)
            if known is not None and known.spec != spec:
                raise ValueError(f"trigger '{spec.id}': already registered with a different spec; remove it first or use a new id")
        added = [spec for spec in specs if self._roster.get(spec.id) is None]
        if len(self._roster) + len(added) > self._limits.triggers:
            raise ValueError(f"more than {self._limits.triggers} triggers")
        for spec in added:
            self._tell("added", self._roster.add(spec))
        self._roster.watching(watch)
        await self._roster.commit()
        self._clockwork.kick()
        return {"ok": True, "added": [spec.id for spec in specs], "all": [trigger.id for trigger in self._roster]}

    async def remove(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """`POST /triggers/remove`. A fire that waits is cancelled; unknown ids are passed over.

        Raises:
            ValueError: `ids` is no list of texts.
        """
        ids = body.get("ids")
        if not isinstance(ids, list) or not all(isinstance(each, str) and each for each in ids):
            raise ValueError("ids must be a list of non-empty strings")
        removed = [trigger for each in ids if (trigger := self._roster.drop(each)) is not None]
        for trigger in removed:
            self._tell("removed", trigger)
        await self._roster.commit()
        return {"ok": True, "removed": [trigger.id for trigger in removed]}

    async def clear(self) -> None:
        """`POST /triggers/clear`: as if none had ever been."""
        for trigger in self._roster:
            self._roster.drop(trigger.id)
        self._roster.watching(None)
        self._events.clear()
        await self._roster.commit()

    def state(self) -> dict[str, Any]:
        """`GET /triggers/state`."""
        return {"config": self._roster.watch.shown(), "triggers": [trigger.shown() for trigger in self._roster], **self._events.state()}

    # what calls tell

    def wants(self, caller: Caller) -> bool:
        """See `calls.Watcher`."""
        return self.wants_role(caller.role)

    def wants_role(self, role: str) -> bool:
        """See `proxy.WebsiteWatcher`."""
        return any(self._provoked_by(trigger, role) for trigger in self._roster)

    def causes(self, role: str) -> list[dict[str, Any]]:
        """See `calls.Watcher`."""
        return list(self._fires.firing.realizing.get(role, ()))

    async def seen(self, made: Made) -> None:
        """See `calls.Watcher`."""
        role, name = made.caller.role, made.entry.name
        candidates = self._candidates(role)
        self._clockwork.tick()
        if made.failed:
            return
        context = {"args": made.arguments, "result": values.result_value(made.result)}
        provoking = {"tool": name, "role": role}
        for trigger in candidates:
            await self._perhaps_cancel(trigger, name, context, provoking)
        matching = [each for each in candidates if isinstance(each.spec.when, ActionWhen) and each.spec.when.tool == name]
        held = await self._detect(matching, context, provoking)
        if not made.entry.tool.read_only:
            self._look_at_states(candidates, provoking)
        await self._roster.secure()
        await self._hold(held, provoking)

    def may_hold(self, role: str, app: str, method: str) -> bool:
        """See `proxy.WebsiteWatcher`."""
        return any(
            trigger.spec.barrier is not None
            and isinstance(trigger.spec.when, WebsiteWhen)
            and trigger.spec.when.app == app
            and trigger.spec.when.method in (None, method)
            for trigger in self._candidates(role)
        )

    async def requested(self, role: str, request: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
        """See `proxy.WebsiteWatcher`."""
        candidates = self._candidates(role)
        if not candidates:
            return
        self._clockwork.tick()
        provoking = {"source": "website", **request, "role": role}
        matching = [trigger for trigger in candidates if await self._is_about(trigger, request)]
        held = await self._detect(matching, {"args": arguments, "request": dict(request)}, provoking)
        if request["method"] not in _SAFE and request["status"] < 400:
            self._look_at_states(candidates, provoking)
        await self._roster.secure()
        await self._hold(held, provoking)

    async def _is_about(self, trigger: Armed, request: Mapping[str, Any]) -> bool:
        when = trigger.spec.when
        if not isinstance(when, WebsiteWhen) or when.app != request["app"] or when.method not in (None, request["method"]):
            return False
        try:
            if when.path is not None and not await values.holds(when.path, request["path"], self._limits):
                return False
            status = request["status"]
            return await values.holds(when.status, status, self._limits) if when.status is not None else status < 400
        except SlowPatternError as error:
            self._tell("eval_error", trigger, detail=str(error))
            return False

    def _candidates(self, role: str) -> list[Armed]:
        return [trigger for trigger in self._roster if self._provoked_by(trigger, role)]

    def _provoked_by(self, trigger: Armed, role: str) -> bool:
        when = trigger.spec.when
        roles = when.roles
        if roles is None and isinstance(when, TimeWhen) and when.unless is not None:
            roles = when.unless.roles
        if roles is not None:
            return role in roles
        return self._roster.watch.watches(role)

    async def _detect(self, matching: Sequence[Armed], context: Mapping[str, Any], provoking: Mapping[str, Any]) -> list[Armed]:
        """Sets off those whose `where` holds. Those that the provoking answer waits for."""
        held = []
        for trigger in matching:
            when = trigger.spec.when
            assert isinstance(when, ActionWhen | WebsiteWhen)
            if not await self._holds(trigger, when.where, context):
                continue
            if trigger.status is not Status.ARMED and not (when.repeat and trigger.status.in_flight):
                continue
            if self._fires.set_off(trigger, Cause(context, self._axis.elapsed()), provoking) and trigger.spec.barrier is not None:
                held.append(trigger)
        return held

    async def _holds(self, trigger: Armed, where: Mapping[str, Any], context: Mapping[str, Any]) -> bool:
        try:
            return await values.all_hold(where, context, self._limits)
        except SlowPatternError as error:
            self._tell("eval_error", trigger, detail=str(error))
            return False

    async def _hold(self, held: Sequence[Armed], provoking: Mapping[str, Any]) -> None:
        tasks = [trigger.task for trigger in held if trigger.task is not None]
        if not tasks:
            return
        asked = [trigger.spec.barrier.timeout_seconds for trigger in held if trigger.spec.barrier is not None]
        seconds = max(each if each is not None else self._limits.barrier_seconds for each in asked)
        _, late = await asyncio.wait(tasks, timeout=seconds)
        if late:
            ids = [trigger.id for trigger in held if trigger.task in late]
            fields = {"source": "trigger_engine", "trigger_ids": ids, "timeout_seconds": seconds, "provoking": dict(provoking)}
            self._calls.trajectory.add("trigger_barrier_timeout", {**fields, **self._calls.ruling.virtual_time()})

    def _look_at_states(self, candidates: Sequence[Armed], provoking: Mapping[str, Any]) -> None:
        for trigger in candidates:
            if trigger.status is Status.ARMED and isinstance(trigger.spec.when, StateWhen) and not trigger.evaluating:
                trigger.evaluating = True
                self._roster.note(trigger)
                self._nursery.soon(self._look(trigger, trigger.spec.when, provoking), f"the check of trigger '{trigger.id}'")

    async def _look_anew(self, trigger: Armed, when: StateWhen) -> None:
        """A check that a restart of the gateway cut."""
        await self._catalogue.complete(self._limits.discovery_seconds)
        await self._look(trigger, when, {"source": "restart"})

    async def _look(self, trigger: Armed, when: StateWhen, provoking: Mapping[str, Any]) -> None:
        try:
            matched = await self._fires.firing.check(when.check, {})
        except (ActionError, SlowPatternError, LookupError) as error:
            self._tell("eval_error", trigger, detail=str(error))
            matched = False
        trigger.evaluating = False
        if matched and trigger.status is Status.ARMED and self._roster.has(trigger):
            self._fires.set_off(trigger, Cause({}, self._axis.elapsed()), provoking)
        self._roster.keep(trigger)

    async def _perhaps_cancel(self, trigger: Armed, tool: str, context: Mapping[str, Any], provoking: Mapping[str, Any]) -> None:
        when = trigger.time
        if when is None or when.unless is None or when.unless.tool != tool or trigger.status is not Status.ARMED:
            return
        anchor = self._roster.get(when.after or "")
        if when.after is not None and not trigger.resolved and (anchor is None or not anchor.status.in_flight):
            return  # what it waits for has not happened yet
        if await self._holds(trigger, when.unless.where, context) and trigger.status is Status.ARMED:
            self._cancel(trigger, provoking=dict(provoking))

    def _cancel(self, trigger: Armed, **cause: Any) -> None:
        trigger.status, trigger.next_mark = Status.CANCELLED, None
        self._tell("cancelled", trigger, **cause)
        self._roster.keep(trigger)
        for other in self._roster:
            if other.time is not None and other.time.after == trigger.id and other.status is Status.ARMED:
                self._cancel(other, anchor=trigger.id)
