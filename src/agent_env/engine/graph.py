"""The order of a task's steps, as a value. It knows nothing of what a step does, of time, or of the journal."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from agent_env.documents.task import ancestries


@dataclass(frozen=True)
class Graph:
    """Steps in list order and what each one waits for. Edges only point backwards, so there are no cycles."""

    order: tuple[str, ...]
    waits_for: Mapping[str, tuple[str, ...]]
    """Step → steps of this graph that must have ended before it starts. Only the nearest: what those waited for is left out where
    a step waits for everything before it, so that long sequential tasks stay small."""

    @cached_property
    def position(self) -> Mapping[str, int]:
        """Step → its index in the list."""
        return {step_id: index for index, step_id in enumerate(self.order)}

    @cached_property
    def _ancestry(self) -> Mapping[str, int]:
        found = ancestries([self.position[parent] for parent in self.waits_for[step_id]] for step_id in self.order)
        return dict(zip(self.order, found, strict=True))

    def ancestry(self, step_id: str) -> int:
        """Everything that has certainly ended when the step starts, as a set of bits by position: for questions about many steps."""
        return self._ancestry[step_id]

    def depends(self, step_id: str, other: str) -> bool:
        """Whether `other` has certainly ended when `step_id` starts."""
        return bool(self._ancestry[step_id] >> self.position[other] & 1)

    def before(self, step_id: str) -> tuple[str, ...]:
        """Everything that has certainly ended when the step starts, in list order."""
        bits = self._ancestry[step_id]
        return tuple(other for index, other in enumerate(self.order) if bits >> index & 1)

    def span(self, start: str) -> tuple[str, ...]:
        """A step and everything that depends on it, directly or not, in list order: what a retry from it does again."""
        if start not in self.position:
            return ()
        return tuple(other for other in self.order if other == start or self.depends(other, start))

    @cached_property
    def followers(self) -> Mapping[str, Sequence[str]]:
        """Step → the steps that wait for it, in list order."""
        found: dict[str, list[str]] = {step_id: [] for step_id in self.order}
        for step_id in self.order:
            for parent in self.waits_for[step_id]:
                found[parent].append(step_id)
        return found

    def ready(self, settled: Collection[str], started: Collection[str], among: Collection[str] | None = None) -> Iterator[str]:
        """Steps that may start now, in list order.

        Args:
            settled: Steps that ended in a way that lets others go on.
            started: Steps that run or ran; they are not offered again.
            among: Only these are looked at; None looks at all.
        """
        for step_id in self.order if among is None else sorted(among, key=self.position.__getitem__):
            if step_id not in started and all(parent in settled for parent in self.waits_for[step_id]):
                yield step_id

    def unhindered(self, running: Collection[str], started: Collection[str]) -> Iterator[str]:
        """Steps that depend on nothing that still runs or is still to come, in list order."""
        hindered = sum(1 << self.position[step_id] for step_id in running)
        for index, step_id in enumerate(self.order):
            if step_id in started:
                continue
            if not self._ancestry[step_id] & hindered:
                yield step_id
            hindered |= 1 << index

    def part(self, start: int, end: int | None) -> Graph:
        """The graph of the steps `[start, end)`. What came before counts as done, so nothing waits for it."""
        order = self.order[start:end]
        inside = frozenset(order)
        return Graph(order, {step_id: tuple(parent for parent in self.waits_for[step_id] if parent in inside) for step_id in order})


def build(steps: Iterable[tuple[str, Sequence[str] | None]]) -> Graph:
    """The graph of `(step id, depends_on)` pairs that `documents.task.parse_task` has found sound.

    `depends_on` None waits for all earlier steps; an empty one for none.
    """
    order: list[str] = []
    waits_for: dict[str, tuple[str, ...]] = {}
    since_last_barrier: list[str] = []
    for step_id, depends_on in steps:
        if depends_on is None:
            waits_for[step_id] = tuple(since_last_barrier)
            since_last_barrier = []
        else:
            waits_for[step_id] = tuple(dict.fromkeys(depends_on))
        since_last_barrier.append(step_id)
        order.append(step_id)
    return Graph(tuple(order), waits_for)
