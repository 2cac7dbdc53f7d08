"""Which step runs when. It knows the graph, how attempts end, and who may stop a run; not what a step does or where it is recorded.

- A step starts when all that it waits for has ended; independent steps run at once.
- A tolerated failure lets others go on. A fatal one launches nothing new; what is in flight runs to its end (as in the reference).
- A failed step with retries left takes its span back: what runs of the span is stopped, everything else goes on undisturbed.
- After a fatal failure or a cancellation, `always_run` steps still run, once nothing that they wait for can run any more.
- A first cancellation stops ordinary steps, a second one stops everything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from agent_env.engine.graph import Graph
from agent_env.engine.signals import Cancellation


@dataclass(frozen=True, slots=True)
class Rule:
    """What the scheduler needs to know of a step."""

    tolerated: bool = False
    always_run: bool = False
    retry_from: str | None = None
    max_retries: int = 0


@dataclass(frozen=True, slots=True)
class Ended:
    """An attempt that is over and recorded."""

    step_id: str
    attempt_id: str
    error: BaseException | None = None


class Conductor(Protocol):
    """What carries the scheduler's decisions out."""

    async def attempt(self, step_id: str, *, retry: int, closing: bool) -> Ended:
        """Runs one attempt to its end and records it. Raises only what stops the whole run.

        Args:
            step_id: Which step.
            retry: 0, or how many retries led here: the attempt pauses accordingly.
            closing: The run has failed or was cancelled, and this is clean-up.
        """
        ...

    async def roll_back(self, failed: Ended, span: Sequence[str], *, retry: int) -> None:
        """Takes the attempts of a span back before it runs again."""
        ...


class Phase(StrEnum):
    """How far a run is."""

    OPEN = "open"
    CLOSING = "closing"
    """Failed or cancelled: only `always_run` steps start."""
    STOPPED = "stopped"
    """Cancelled twice: nothing starts."""


@dataclass(frozen=True, slots=True)
class Drive:
    """How a graph ended."""

    fatal: Ended | None
    tolerated: tuple[Ended, ...]
    cancelled: bool
    """Stopped before it had failed, and before every step had run."""
    left: tuple[str, ...]
    """Steps that never ran to their end."""


class Scheduler:
    """Drives one graph to its end, once."""

    def __init__(
        self,
        graph: Graph,
        rules: Mapping[str, Rule],
        conductor: Conductor,
        cancellation: Cancellation,
        *,
        done: Collection[str] = (),
        retries: Mapping[str, int] | None = None,
    ) -> None:
        self._graph = graph
        self._rules = rules
        self._conductor = conductor
        self._cancellation = cancellation
        self._settled = set(done)
        """Ended so that others may go on."""
        self._over = set(done)
        """Settled, failed for good, or never going to run."""
        self._retries = dict(retries or {})
        self._delay: dict[str, int] = {}
        self._running: dict[str, asyncio.Task[Ended]] = {}
        self._candidates = set(graph.order)
        """Steps of which something that they wait for has changed: only those are looked at, for a task may have very many."""
        self._phase = Phase.OPEN
        self._cancelled = False
        self._fatal: Ended | None = None
        self._tolerated: dict[str, Ended] = {}

    async def drive(self) -> Drive:
        """Runs what is ready until nothing is.

        Raises:
            BaseException: What an attempt could not record (storage, a lost lease): everything in flight was cancelled.
        """
        try:
            async with asyncio.TaskGroup() as group:
                while self._launch(group):
                    await self._wait()
                    self._obey()
                    for step_id in sorted(self._running, key=self._graph.position.__getitem__):
                        await self._collect(step_id)
        except BaseExceptionGroup as errors:
            raise first_error(errors) from None
        left = tuple(step_id for step_id in self._graph.order if step_id not in self._settled and not self._is_fatal(step_id))
        return Drive(self._fatal, tuple(self._tolerated.values()), self._cancelled and bool(left), left)

    def _launch(self, group: asyncio.TaskGroup) -> bool:
        self._obey()
        if self._phase is not Phase.STOPPED:
            closing = self._phase is Phase.CLOSING
            for step_id in self._closers() if closing else self._ready():
                work = self._conductor.attempt(step_id, retry=self._delay.pop(step_id, 0), closing=closing)
                self._running[step_id] = group.create_task(work, name=f"step {step_id}")
        return bool(self._running)

    def _ready(self) -> list[str]:
        started = {step_id for step_id in self._candidates if step_id in self._running or step_id in self._over}
        ready = list(self._graph.ready(self._settled, started, self._candidates))
        self._candidates.clear()
        return ready

    def _closers(self) -> list[str]:
        return list(self._graph.unhindered(self._running, {*self._running, *self._over}))

    async def _wait(self) -> None:
        waited: set[asyncio.Future[Any]] = {*self._running.values()}
        if (signal := self._cancellation.next) is not None:
            waited.add(signal)
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)

    def _obey(self) -> None:
        if self._cancellation.asked and self._phase is Phase.OPEN:
            self._cancelled = True
            self._close()
            self._stop(step_id for step_id in self._running if not self._rules[step_id].always_run)
        if self._cancellation.insisted and self._phase is not Phase.STOPPED:
            self._phase = Phase.STOPPED
            self._stop(self._running)

    def _stop(self, step_ids: Iterable[str]) -> None:
        for step_id in list(step_ids):
            self._running[step_id].cancel()

    def _close(self) -> None:
        self._phase = Phase.CLOSING
        for step_id in self._graph.order:
            if step_id not in self._running and not self._rules[step_id].always_run:
                self._over.add(step_id)

    async def _collect(self, step_id: str) -> None:
        task = self._running.get(step_id)
        if task is None or not task.done():
            return
        del self._running[step_id]
        if task.cancelled():
            self._over.add(step_id)
            return
        ended = task.result()
        if ended.error is None:
            self._settle(step_id)
            self._over.add(step_id)
            self._tolerated.pop(step_id, None)
        else:
            await self._failed(ended)

    def _settle(self, step_id: str) -> None:
        self._settled.add(step_id)
        self._candidates.update(self._graph.followers[step_id])

    async def _failed(self, ended: Ended) -> None:
        rule = self._rules[ended.step_id]
        used = self._retries.get(ended.step_id, 0)
        if self._phase is Phase.OPEN and rule.retry_from is not None and used < rule.max_retries:
            await self._retry(ended, rule.retry_from, used + 1)
            return
        self._over.add(ended.step_id)
        if rule.tolerated:
            self._settle(ended.step_id)
            self._tolerated[ended.step_id] = ended
            return
        self._fatal = self._fatal or ended
        if self._phase is Phase.OPEN:
            self._close()

    async def _retry(self, ended: Ended, start: str, retry: int) -> None:
        self._retries[ended.step_id] = retry
        span = [step_id for step_id in self._graph.order if step_id in {ended.step_id, *self._graph.span(start)}]
        stopped = [self._running.pop(step_id) for step_id in span if step_id in self._running]
        for task in stopped:
            task.cancel()
        if stopped:
            await asyncio.wait(stopped)
        await self._conductor.roll_back(ended, span, retry=retry)
        for step_id in span:
            self._settled.discard(step_id)
            self._over.discard(step_id)
            self._tolerated.pop(step_id, None)
        self._candidates.update(span)
        first = next((step_id for step_id in span if step_id == start), span[0])
        self._delay[first] = retry

    def _is_fatal(self, step_id: str) -> bool:
        return self._fatal is not None and self._fatal.step_id == step_id


def first_error(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first of several errors, which made the others happen."""
    first = errors.exceptions[0]
    return first_error(first) if isinstance(first, BaseExceptionGroup) else first
