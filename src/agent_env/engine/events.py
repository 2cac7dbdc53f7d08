"""What happens in a run, told as it happens: to the journal, to observers, and to whoever listens on the control socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from agent_env.clock import Clock, timestamp
from agent_env.documents.updates import Json

if TYPE_CHECKING:
    from agent_env.redaction import Redactor
    from agent_env.stores import Journal, Lease

RUN_STARTED, RUN_FINISHED, TEARDOWN = "run_started", "run_finished", "teardown"
STEP_STARTED, STEP_PROGRESS, STEP_DONE = "step_started", "step_progress", "step_done"
STEP_FAILED, STEP_RETRIED = "step_failed", "step_retried"
CLEAN_UP_FAILED = "clean_up_failed"
"""Something that a step or a retry left could not be stopped or removed; teardown tries again."""
REVIEW_ASKED = "review_asked"
"""A step waits for a person's decision."""
EGRESS_REFUSED = "egress_refused"
"""A sandbox asked for what its network policy does not allow; each host, port and reason once, and at most a hundred of a sandbox."""
BACKLOG_EVENTS = 10_000
"""What a listener may lag behind; one that lags more is let go and can ask again from where it was."""


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened. `seq` grows by one within a run."""

    run_id: str
    seq: int
    at: str
    kind: str
    step_id: str | None
    payload: Mapping[str, Json]

    def to_json(self) -> dict[str, Json]:
        """A line of the control socket."""
        return {
            "run_id": self.run_id,
            "seq": self.seq,
            "at": self.at,
            "kind": self.kind,
            "step_id": self.step_id,
            "payload": dict(self.payload),
        }


class Observer(Protocol):
    """Whoever watches a run in the same process."""

    def on_event(self, event: Event) -> None:
        """Called on the event loop, in order. Must not block."""
        ...


class EventStream:
    """The events of one run in this process. Everything is redacted before anybody sees it."""

    def __init__(self, lease: Lease, journal: Journal, redactor: Redactor, clock: Clock, observers: Iterable[Observer]) -> None:
        self._lease = lease
        self._journal = journal
        self._redactor = redactor
        self._clock = clock
        self._observers = tuple(observers)
        self._listeners: set[asyncio.Queue[Event | None]] = set()

    def emit(self, kind: str, step_id: str | None = None, /, **payload: Json) -> Event:
        """Tells everybody. The journal keeps it with its next commit."""
        safe = self._redactor.redact(payload) if kind != STEP_STARTED else payload  # that one holds nothing but our own words
        seq = self._journal.event(self._lease, kind, step_id, safe)
        event = Event(self._lease.run_id, seq, timestamp(self._clock.now()), kind, step_id, safe)
        for observer in self._observers:
            observer.on_event(event)
        for listener in list(self._listeners):
            try:
                listener.put_nowait(event)
            except asyncio.QueueFull:
                self._listeners.discard(listener)
        return event

    async def follow(self) -> AsyncGenerator[Event, None]:
        """Events from now on, until the run is over."""
        listener: asyncio.Queue[Event | None] = asyncio.Queue(BACKLOG_EVENTS)
        self._listeners.add(listener)
        try:
            while (event := await listener.get()) is not None:
                yield event
                if listener.empty() and listener not in self._listeners:
                    return
        finally:
            self._listeners.discard(listener)

    @asynccontextmanager
    async def following(self) -> AsyncIterator[AsyncIterator[Event]]:
        """`follow`, closed when the block ends."""
        async with aclosing(self.follow()) as events:
            yield events

    def close(self) -> None:
        """Ends every listener's stream."""
        for listener in list(self._listeners):
            if listener.full():
                listener.get_nowait()
            listener.put_nowait(None)
