"""What a plan of a bundle consists of: what would be written, and what would run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agent_env.bundles.model import KINDS, Bundle, Entry
from agent_env.bundles.references import ResolvedEntry
from agent_env.documents.seeds import SeedTable
from agent_env.engine.plan import TaskPlan
from agent_env.errors import Problem

if TYPE_CHECKING:
    from agent_env.images import BuildContext


@dataclass(frozen=True, slots=True)
class Write:
    """An entry whose document must be there before tasks run."""

    resolved: ResolvedEntry
    bundle_id: str
    """Id root of the bundle that it comes from."""
    context: BuildContext | None = None
    """What an image is built from."""

    @property
    def entry(self) -> Entry:
        """The entry as parsed."""
        return self.resolved.entry

    @property
    def collection(self) -> str:
        """Where its document is kept."""
        return KINDS[self.resolved.entry.kind].collection


@dataclass(frozen=True, slots=True)
class PlannedTask:
    """A task that is ready to run."""

    id: str
    name: str
    """How people call it: `tasks/hello.json`, or an id of the stores."""
    plan: TaskPlan
    version: int | None = None
    """Known where the task is in the stores already."""


@dataclass(frozen=True, slots=True)
class PlannedEval:
    """An eval and the tasks that it names, by position in the plan's tasks."""

    id: str
    name: str
    tasks: tuple[int, ...]


@dataclass(frozen=True)
class BundlePlan:
    """Everything a run of a bundle will do."""

    bundle: Bundle
    writes: tuple[Write, ...]
    """In the order of writing: what others need comes first, tasks and evals last."""
    tasks: tuple[PlannedTask, ...]
    unsound: Mapping[str, TaskPlan] = field(default_factory=dict)
    """Tasks with something wrong, by name, as far as they could be read: asked about with the others, and never run."""
    evals: tuple[PlannedEval, ...] = ()
    skipped: tuple[str, ...] = ()
    """Tasks that no selected eval names."""
    warnings: tuple[Problem, ...] = ()
    pinned: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Documents of the stores that are used unpinned → the newest version while planning."""
    seeds: SeedTable | None = None
    """The file of seeds that was given: a run of each task for each of its rows."""

    @property
    def plans(self) -> Mapping[str, TaskPlan]:
        """Every task that could be read, by name."""
        return {**{task.name: task.plan for task in self.tasks}, **self.unsound}
