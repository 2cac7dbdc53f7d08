"""What one call has to do: tasks, seeds and attempts as a list of runs, each with a key that depends on content alone."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agent_env.bundles.materialising import Written
from agent_env.bundles.model import COLLECTION_OF, BundleKind
from agent_env.bundles.planned import BundlePlan, PlannedTask
from agent_env.bundles.verdict import Wanted, attempt_label
from agent_env.defaults import Limits
from agent_env.documents.seeds import SEED_KEY, row_name
from agent_env.documents.updates import Json


@dataclass(frozen=True, slots=True)
class WorkItem:
    """One run that a call has to bring to its end."""

    task: PlannedTask
    attempt: int
    """From 0."""
    attempts: int
    seed: Mapping[str, Json]
    key: str
    """Of the task's name in its bundle, its steps, the files that it uses, the seed, the attempt and the overrides: not of ids, versions,
    or where the bundle lies."""

    content: str = ""
    """Of the task's steps and of the files that it uses."""
    row: int | None = None
    """Which row of the seeds it is filled with, from 0; None without seeds."""
    rows: int = 1
    """How many there are."""

    @property
    def wanted(self) -> Wanted:
        """The run as its user asked for it."""
        return Wanted(self.task.name, self.attempt + 1, self.label)

    @property
    def label(self) -> str:
        """How people tell it from the other runs of the call."""
        named = self.task.name if self.row is None else f"{self.task.name} [{row_name(self.row + 1, self.seed)}]"
        return attempt_label(named, self.attempt // self.rows, self.attempts // self.rows)


def plan_work(
    written: Written,
    *,
    attempts: int = 1,
    seeds: Sequence[Mapping[str, Json]] = (),
    seed: int | None = None,
    overrides: Mapping[str, Json] | None = None,
) -> list[WorkItem]:
    """The runs of a call, attempt by attempt, so that every task has had its first before any has its second.

    Args:
        written: The plan and the content of its entries.
        attempts: Runs of each task and seed.
        seeds: Placeholder values; one run for each of them. None given is one run without any.
        seed: Fills `<seed>` with a number of its own for each run.
        overrides: `user_overrides`, which are part of what the work is.
    """
    contents = contents_of(written)
    items: list[WorkItem] = []
    per_task = list(seeds) or [{}]
    total = attempts * len(per_task)
    for attempt in range(attempts):
        for task in written.plan.tasks:
            for number, values in enumerate(per_task):
                index = attempt * len(per_task) + number
                filled = (
                    {**values, SEED_KEY: derived_seed(seed, task.name, index)}
                    if seed is not None and SEED_KEY not in values
                    else dict(values)
                )
                content = contents[task.id, task.name]
                key = content_digest([task.name, content, filled, index, overrides or {}])
                items.append(WorkItem(task, index, total, filled, key, content, number if seeds else None, len(per_task)))
    return items


def derived_seed(seed: int, task: str, attempt: int) -> int:
    """A number from 0 to 2³¹-1 that depends on these three alone, on every machine."""
    data = hashlib.sha256(f"{seed}\0{task}\0{attempt}".encode()).digest()
    return int.from_bytes(data[:4], "big") & 0x7FFFFFFF


def contents_of(written: Written) -> dict[tuple[str, str], str]:
    """Of each task: a digest of what it says and of what it uses."""
    plan = written.plan
    contents = {(write.collection, write.entry.id): entry.content for write, entry in zip(plan.writes, written.entries, strict=True)}
    found: dict[tuple[str, str], str] = {}
    resolved = {write.entry.id: write.resolved for write in plan.writes if write.entry.kind is BundleKind.TASK}
    for task in plan.tasks:
        own = resolved.get(task.id)
        if own is None or own.entry.task is None:
            found[task.id, task.name] = content_digest([list(task.plan.documents), _pins(plan, ())])
            continue
        used = {reference.written: contents.get((COLLECTION_OF[reference.kind], reference.id), "") for reference in own.references}
        stored = [reference.id for reference in own.references if reference.entry is None]
        found[task.id, task.name] = content_digest([list(own.entry.task.steps), used, _pins(plan, stored)])
    return found


def _pins(plan: BundlePlan, ids: Iterable[str]) -> dict[str, int]:
    wanted = set(ids)
    return {id: version for (_, id), version in plan.pinned.items() if id in wanted}


def content_digest(value: Json) -> str:
    """Tells one piece of work from another."""
    from agent_env.stores import digest_of

    return digest_of({"work": value})


def default_concurrency(limits: Limits) -> int:
    """Runs at once: four a core and at least four, as long as the free memory has `Limits.run_memory_bytes` for each."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    wanted = max(4, 4 * cores)
    free = free_memory_bytes()
    return wanted if free is None else max(1, min(wanted, free // limits.run_memory_bytes))


def free_memory_bytes() -> int | None:
    """What this machine, or the control group that we are in, has left; None where that is not told."""
    known = [value for value in (_of_machine(), *_of_group()) if value is not None]
    return min(known) if known else None


def _of_machine() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    available = fields.get("MemAvailable", "").split()
    return int(available[0]) * 1024 if available else None


def _of_group() -> Iterator[int | None]:
    for limit, used in (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")):
        try:
            most, now = ((Path("/sys/fs/cgroup") / name).read_text().strip() for name in (limit, used))
        except OSError:
            continue
        if most.isdecimal() and now.isdecimal():
            yield max(0, int(most) - int(now))
