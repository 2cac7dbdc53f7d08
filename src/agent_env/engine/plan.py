"""A task as it will run: typed steps, their graph, and everything that can be known to be wrong before anything starts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from agent_env.documents.seeds import substitute
from agent_env.documents.spelling import near
from agent_env.documents.task import TaskDocument, parse_task
from agent_env.documents.updates import Json
from agent_env.engine.graph import Graph, build
from agent_env.engine.names import name_problems
from agent_env.errors import NotFoundError, Problem, ProblemsError
from agent_env.steps.contract import Step
from agent_env.steps.registry import read_step


class ArtifactSource(Protocol):
    """Where a plan looks artifacts up: the stores, or what a dry run predicts."""

    def get(self, id: str, version: int | None = None) -> Any:
        """The artifact's document. Raises `NotFoundError`."""
        ...

    def files(self, id: str, version: int | None = None) -> Mapping[str, Any]:
        """Its files by relative name. Raises `NotFoundError`."""
        ...


@dataclass(frozen=True)
class TaskPlan:
    """A task that is ready to run. Implements `steps.contract.Plan`."""

    task_id: str
    version: int | None
    source: str
    documents: tuple[Mapping[str, Json], ...]
    """The steps as they are written: what a run stores, and what a resume reads."""
    steps: Mapping[str, Step]
    graph: Graph
    artifacts: ArtifactSource | None = None
    preset_context: Mapping[str, Json] = field(default_factory=dict)
    warnings: tuple[Problem, ...] = ()
    origin: tuple[Mapping[str, Json], ...] = ()
    """The steps before a seed was put in."""

    def deployers(self, step_id: str, type: str, **fields: Json) -> Sequence[Step]:
        """Steps before `step_id` of that type with those field values."""
        return [
            step
            for step in self.before(step_id)
            if step.type_name == type and all(getattr(step, name, None) == value for name, value in fields.items())
        ]

    def step(self, step_id: str) -> Step | None:
        """A step of this task."""
        return self.steps.get(step_id)

    def before(self, step_id: str) -> Sequence[Step]:
        """Every step that is certain to have ended when `step_id` starts, in list order."""
        return [self.steps[other] for other in self.graph.before(step_id) if other in self.steps]

    def artifact(self, id: str, version: int | None) -> Mapping[str, Json] | None:
        """An artifact's document, or None."""
        if self.artifacts is None:
            return None
        try:
            document = self.artifacts.get(id, version)
        except NotFoundError:
            return None
        return document if isinstance(document, Mapping) else dict(document.body)

    def artifact_files(self, id: str, version: int | None) -> Sequence[str] | None:
        """The relative file names of a file artifact or universe, or None when it is not that."""
        if self.artifacts is None:
            return None
        try:
            return sorted(self.artifacts.files(id, version))
        except NotFoundError:
            return None

    def preset(self, list: str) -> Sequence[Mapping[str, Json]]:
        """Records that the run starts with."""
        records = self.preset_context.get(list)
        return records if isinstance(records, Sequence) and not isinstance(records, str) else ()

    def seeded(self, seed: Mapping[str, Json]) -> TaskPlan:
        """The same task with a seed's values put in. Raises `ProblemsError` when a value doesn't fit its field."""
        if not seed:
            return self
        origin = self.origin or self.documents
        documents = tuple(substitute(list(origin), seed))
        if documents == origin:
            return self
        task = parse_task([dict(document) for document in documents], source=self.source, task_id=self.task_id)
        steps, graph, _ = read_steps(task, source=self.source)
        return replace(self, documents=documents, steps=steps, graph=graph, origin=origin)


class Suite:
    """What the tasks of one suite have in common: equal steps are typed once, graphs of one form are built once. Both are frozen."""

    def __init__(self) -> None:
        self._steps: dict[str, Step] = {}
        self._graphs: dict[tuple[tuple[str, tuple[str, ...] | None], ...], Graph] = {}

    def step(self, document: Mapping[str, Json], *, source: str, path: str, strict: bool) -> tuple[Step, list[Problem]]:
        """`read_step`, once for each content. A step with warnings is read each time, because they name their file."""
        key = json.dumps(document)
        found = self._steps.get(key)
        if found is not None:
            return found, []
        step, warnings = read_step(document, source=source, path=path, strict=strict)
        if not warnings:
            self._steps[key] = step
        return step, warnings

    def graph(self, form: tuple[tuple[str, tuple[str, ...] | None], ...]) -> Graph:
        """`build`, once for each form."""
        found = self._graphs.get(form)
        if found is None:
            found = self._graphs[form] = build(form)
        return found


def plan_task(
    task: TaskDocument,
    *,
    source: str = "task",
    artifacts: ArtifactSource | None = None,
    overrides: Mapping[str, Json] | None = None,
    preset: Mapping[str, Json] | None = None,
    strict: bool = False,
    suite: Suite | None = None,
) -> TaskPlan:
    """Reads and checks a task.

    Args:
        task: The document.
        source: Its file or id, as messages will name it.
        artifacts: Where its artifacts are looked up.
        overrides: `user_overrides` of the run; their `step_params` must name steps.
        preset: The context that the run starts with: its records count as provided.
        strict: Warnings are problems.
        suite: Shared by the tasks that are planned together.

    Raises:
        ProblemsError: Everything wrong with it, at once.
    """
    problems: list[Problem] = []
    warnings: list[Problem] = list(task.warnings)
    steps, graph, remarks = read_steps(task, source=source, strict=strict, problems=problems, suite=suite)
    warnings.extend(remarks)
    plan = TaskPlan(task.id, task.version, source, tuple(task.steps), steps, graph, artifacts, preset or {})
    problems.extend(_named(source, _override_problems(steps, overrides or {})))
    for fatal, problem in name_problems(steps, graph, preset or {}):
        (problems if fatal else warnings).append(replace(problem, file=source))
    problems.extend(_own_problems(plan, source))
    problems = list(dict.fromkeys(problems))
    if problems or (strict and warnings):
        raise ProblemsError([*problems, *(warnings if strict else ())])
    return replace(plan, warnings=tuple(warnings)) if warnings else plan


def read_steps(
    task: TaskDocument, *, source: str, strict: bool = False, problems: list[Problem] | None = None, suite: Suite | None = None
) -> tuple[Mapping[str, Step], Graph, list[Problem]]:
    """Typed steps, their graph, and warnings.

    Args:
        task: The document.
        source: Its file or id, for the messages.
        strict: Unknown keys are problems.
        problems: Takes what is wrong, so that the rest can still be checked; None raises it.
        suite: Shared by the tasks that are read together.

    Raises:
        ProblemsError: Everything wrong with the steps.
    """
    suite = suite or Suite()
    found: list[Problem] = []
    warnings: list[Problem] = []
    steps: dict[str, Step] = {}
    for index, document in enumerate(task.steps):
        try:
            step, remarks = suite.step(document, source=source, path=f"$[{index}]", strict=strict)
        except ProblemsError as error:
            found.extend(error.problems)
        else:
            steps[step.id] = step
            warnings.extend(remarks)
    if found and problems is None:
        raise ProblemsError(found)
    if problems is not None:
        problems.extend(found)
    return steps, suite.graph(tuple((envelope.id, envelope.depends_on) for envelope in task.envelopes)), warnings


def _own_problems(plan: TaskPlan, source: str) -> Iterator[Problem]:
    for index, document in enumerate(plan.documents):
        step = plan.steps.get(str(document.get("id")))
        if step is not None and step.id in plan.graph.position:
            for problem in step.problems(plan):
                yield replace(problem, file=problem.file or source, path=f"$[{index}]{problem.path or ''}")


def _override_problems(steps: Mapping[str, Step], overrides: Mapping[str, Json]) -> Iterator[Problem]:
    step_params = overrides.get("step_params") or {}
    if not isinstance(step_params, Mapping):
        yield Problem("step_params maps step ids to their parameters", path="user_overrides.step_params")
        return
    for step_id in step_params:
        if step_id not in steps:
            meant = near(step_id, steps)
            hint = f"did you mean {meant!r}?" if meant else f"its steps: {', '.join(steps)}"
            yield Problem(f"step_params names the step {step_id!r}, which the task lacks", path="user_overrides.step_params", hint=hint)


def _named(source: str, problems: Iterable[Problem]) -> Iterator[Problem]:
    return (replace(problem, file=source) for problem in problems)
