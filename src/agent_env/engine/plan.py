"""A task as it will run: typed steps, their graph, and everything that can be known to be wrong before anything starts."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, Protocol

from agent_env.documents.context import override_problems
from agent_env.documents.reading import at
from agent_env.documents.seeds import substitute
from agent_env.documents.spelling import near
from agent_env.documents.task import TaskDocument, parse_task
from agent_env.documents.updates import Json
from agent_env.engine.graph import Graph, build
from agent_env.engine.mending import mended, step_position
from agent_env.engine.names import name_problems, unprintable_names
from agent_env.errors import NotFoundError, Problem, ProblemsError
from agent_env.steps.contract import Step, UnreadableError, apart
from agent_env.steps.registry import meant_type, read_step


class ArtifactSource(Protocol):
    """Where a plan looks artifacts up: the stores, or what a dry run predicts."""

    def get(self, id: str, version: int | None = None) -> Any:
        """The artifact's document. Raises `NotFoundError`."""
        ...

    def files(self, id: str, version: int | None = None) -> Mapping[str, Any]:
        """Its files by relative name. Raises `NotFoundError`."""
        ...

    def environment(self, id: str, version: int | None = None) -> Mapping[str, Json] | None:
        """An environment's document, or None."""
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
    preset_context: Mapping[str, Json] | None = field(default_factory=dict)
    """What the run starts with; None could not be read."""
    warnings: tuple[Problem, ...] = ()
    origin: tuple[Mapping[str, Json], ...] = ()
    """The steps before a seed was put in."""
    steps_path: str = "$"
    """Where the list of steps stands in what was read."""

    def path_of(self, index: int) -> str:
        """The JSON path of a step, by its position in the list."""
        return at(self.steps_path, index)

    def between(self, start: int, end: int | None) -> TaskPlan:
        """As far as the steps at these positions go, which alone are going to run: of the others nothing is known."""
        return replace(self, steps={step_id: self.steps[step_id] for step_id in self.graph.order[start:end] if step_id in self.steps})

    def deployers(self, step_id: str, type: str, **fields: Json) -> Sequence[Step]:
        """Steps before `step_id` of that type with those field values.

        Raises:
            UnreadableError: There is none, and one that could not be read may have been meant to be it.
        """
        names = tuple(fields)
        if (type, names) not in self._alike:
            self._alike[type, names] = self._by_values(type, names)
        alike, unreadable = self._alike[type, names]
        before = self.graph.ancestry(step_id)
        found = [step for step in alike.get(repr(list(fields.values())), ()) if before >> self.graph.position[step.id] & 1]
        if not found and before & unreadable:
            raise UnreadableError(f"whether a step before {step_id!r} is such a {type}")
        return found

    @cached_property
    def _alike(self) -> dict[tuple[str, tuple[str, ...]], tuple[dict[str, list[Step]], int]]:
        """What `_by_values` gave, so that each of very many steps can ask for those like it."""
        return {}

    def _by_values(self, type: str, names: tuple[str, ...]) -> tuple[dict[str, list[Step]], int]:
        """Steps of a type by the values of some fields; and, as bits by position, those of which nobody can tell."""
        alike: dict[str, list[Step]] = {}
        unreadable = 0
        for step_id in self.graph.order if len(self.steps) < len(self.graph.order) else ():
            if step_id not in self.steps:
                unreadable |= 1 << self.graph.position[step_id]
        for step in self.steps.values():
            if step.type_name == type:
                try:
                    values = [getattr(step, name) if name in step.__class__.model_fields else None for name in names]
                except UnreadableError:
                    unreadable |= 1 << self.graph.position[step.id]
                else:
                    alike.setdefault(repr(values), []).append(step)
        return alike, unreadable

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

    def environment(self, id: str, version: int | None = None) -> Mapping[str, Json] | None:
        """An environment's document, or None."""
        return None if self.artifacts is None else self.artifacts.environment(id, version)

    def preset(self, list: str) -> Sequence[Mapping[str, Json]]:
        """Records that the run starts with. Raises `UnreadableError` where they could not be read."""
        if self.preset_context is None:
            raise UnreadableError("the context that the run starts with")
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
        filled = replace(self, documents=documents, steps=steps, graph=graph, origin=origin)
        problems = list(_own_problems(filled, self.source))
        if problems:
            raise ProblemsError(problems)
        return filled


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


def plan_document(
    data: Json, *, source: str, task_id: str | None = None, version: int | None = None, strict: bool = False, **options: Any
) -> TaskPlan:
    """Reads and checks a task from its JSON, so that what is wrong with its graph hides nothing of what is wrong with its steps.

    Args:
        data: A list of steps, or the stored form.
        source: Its file or id, as messages will name it.
        task_id: The task's id; overrides that of the stored form.
        version: Its version in the stores, if it comes from there.
        strict: Warnings are problems.
        options: Further arguments of `plan_task`.

    Raises:
        ProblemsError: Everything wrong with it, at once.
    """
    found: list[Problem] = []
    task = parse_task(data, source=source, task_id=task_id, strict=strict, problems=found)
    if version is not None:
        task = replace(task, version=version)
    return plan_task(task, source=source, strict=strict, found=found, **options)


def document_problems(data: Json, **options: Any) -> list[Problem]:
    """Everything that `plan_document` finds wrong."""
    try:
        plan_document(data, **options)
    except ProblemsError as error:
        return list(error.problems)
    return []


def plan_task(
    task: TaskDocument,
    *,
    source: str = "task",
    artifacts: ArtifactSource | None = None,
    overrides: Mapping[str, Json] | None = None,
    preset: Mapping[str, Json] | None = MappingProxyType({}),
    strict: bool = False,
    suite: Suite | None = None,
    found: Sequence[Problem] = (),
) -> TaskPlan:
    """Reads and checks a task.

    Args:
        task: The document.
        source: Its file or id, as messages will name it.
        artifacts: Where its artifacts are looked up.
        overrides: `user_overrides` of the run; their `step_params` must name steps.
        preset: The context that the run starts with: its records count as provided. None could not be read, so it may provide anything.
        strict: Warnings are problems.
        suite: Shared by the tasks that are planned together.
        found: What `parse_task` found wrong with its envelope; it is told together with the rest.

    Raises:
        ProblemsError: Everything wrong with it, at once. Its `readable` is the plan as far as the task can be read, which is never run.
    """
    problems: list[Problem] = list(found)
    warnings: list[Problem] = list(task.warnings)
    unsure: Collection[str] = ()
    if found:
        task, unsure = mended(task, found)
    steps, graph, remarks = read_steps(task, source=source, strict=strict, problems=problems, suite=suite)
    warnings.extend(remarks)
    plan = TaskPlan(task.id, task.version, source, tuple(task.steps), steps, graph, artifacts, preset, steps_path=task.steps_path)
    problems.extend(_named(source, _override_problems(steps, overrides or {})))
    unread = {str(document.get("id")): _with_meant_type(document) for document in task.steps if document.get("id") not in steps}
    for fatal, problem in name_problems(plan, preset, unsure, unread) if preset is not None else ():
        (problems if fatal else warnings).append(replace(problem, file=source))
    problems.extend(_own_problems(plan, source))
    problems = sorted(dict.fromkeys(problems), key=step_position)
    if problems or (strict and warnings):
        raise ProblemsError([*problems, *(warnings if strict else ())], readable=plan)
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
        if "type" not in document:  # a mended one, of which it was told already
            continue
        path = at(task.steps_path, index)
        try:
            step, remarks = suite.step(document, source=source, path=path, strict=strict)
        except ProblemsError as error:
            found.extend(error.problems)
            readable = error.readable if isinstance(error.readable, Step) else None
            if problems is not None and (meant := readable or _as_meant(document, source, path, suite, found)) is not None:
                steps[str(document["id"])] = meant
                found.extend(unprintable_names(meant, source, path))
        else:
            steps[step.id] = step
            warnings.extend(remarks)
            found.extend(unprintable_names(step, source, path))
    if found and problems is None:
        raise ProblemsError(found)
    if problems is not None:
        problems.extend(found)
    return steps, suite.graph(tuple((envelope.id, envelope.depends_on) for envelope in task.envelopes)), warnings


def _as_meant(document: Mapping[str, Json], source: str, path: str, suite: Suite, found: list[Problem]) -> Step | None:
    """A step of a misspelt type read as the one that was meant, so that one wrong word hides nothing else that is wrong."""
    as_meant = _with_meant_type(document)
    if as_meant is document:
        return None
    try:
        return suite.step(as_meant, source=source, path=path, strict=False)[0]
    except ProblemsError as error:
        found.extend(problem for problem in error.problems if problem.path != f"{path}.type")
        return error.readable if isinstance(error.readable, Step) else None


def _with_meant_type(document: Mapping[str, Json]) -> Mapping[str, Json]:
    meant = meant_type(document.get("type"))
    return document if meant is None else {**document, "type": meant}


def _own_problems(plan: TaskPlan, source: str) -> Iterator[Problem]:
    for index, document in enumerate(plan.documents):
        step = plan.steps.get(str(document.get("id")))
        if step is not None and step.id in plan.graph.position:
            for problem in apart(_problems(step, plan)):
                yield replace(problem, file=problem.file or source, path=f"{plan.path_of(index)}{problem.path or ''}")


def _problems(step: Step, plan: TaskPlan) -> Iterator[Problem]:
    yield from step.problems(plan)


def _override_problems(steps: Mapping[str, Step], overrides: Mapping[str, Json]) -> Iterator[Problem]:
    if wrong := override_problems(overrides, None, "user_overrides"):
        yield from wrong
        return
    for step_id in overrides.get("step_params") or {}:
        if step_id not in steps:
            meant = near(step_id, steps)
            hint = f"did you mean {meant!r}?" if meant else f"its steps: {', '.join(steps)}"
            yield Problem(f"step_params names the step {step_id!r}, which the task lacks", path="user_overrides.step_params", hint=hint)


def _named(source: str, problems: Iterable[Problem]) -> Iterator[Problem]:
    return (replace(problem, file=source) for problem in problems)
