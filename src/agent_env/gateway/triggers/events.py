"""The log of what triggers did: the first events and the latest, with how many are gone in between."""

from __future__ import annotations

from collections import deque
from typing import Any

from agent_env.clock import SystemClock, timestamp
from agent_env.gateway.defaults import GatewayLimits
from agent_env.gateway.ruling import Ruling
from agent_env.gateway.triggers.armed import Armed

_FAILURES = frozenset({"failed", "eval_error"})
_TOLD_CHARACTERS = 300


class EventLog:
    """See the module.

    Args:
        ruling: Knows the virtual time.
        limits: How many events are kept.
    """

    def __init__(self, ruling: Ruling, limits: GatewayLimits) -> None:
        self._ruling = ruling
        self._most_first = limits.trigger_events_first
        self._wall = SystemClock()
        self._sequence = 0
        self._first: list[dict[str, Any]] = []
        self._last: deque[dict[str, Any]] = deque(maxlen=limits.trigger_events_last)

    def now(self) -> str:
        """Real time, as events carry it."""
        return timestamp(self._wall.now())

    def tell(self, kind: str, trigger: Armed, **more: Any) -> None:
        """Adds an event. Of a failure the trigger itself keeps count, because the log may lose it."""
        self._sequence += 1
        if "detail" in more and isinstance(more["detail"], str):
            more["detail"] = more["detail"][:_TOLD_CHARACTERS]
        virtual = self._ruling.virtual_time()
        event = {"seq": self._sequence, "ts": self.now(), **virtual, "kind": kind, "trigger_id": trigger.id, **more}
        (self._first if len(self._first) < self._most_first else self._last).append(event)
        if kind in _FAILURES:
            trigger.failure_count += 1
            trigger.last_failure_at = event["ts"]

    def clear(self) -> None:
        """Begins anew."""
        self._sequence = 0
        self._first.clear()
        self._last.clear()

    def state(self) -> dict[str, Any]:
        """As `/triggers/state` tells it."""
        events = [*self._first, *self._last]
        return {"events": events, "events_dropped": self._sequence - len(events)}
