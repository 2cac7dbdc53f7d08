"""From a bundle to what would be written and run. Reads the stores, writes nothing.

`plan_folder` reads, resolves and plans in one round, so that whoever mends a bundle sees all of its problems at once.
"""

from __future__ import annotations

import gc
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_env.bundles.documents import UNWRITABLE, WRITABLE, PlannedArtifacts, image_context
from agent_env.bundles.entries import DOCKERFILE
from agent_env.bundles.environments import IMAGE_TYPE, clash_problems, provider_problem, server_name
from agent_env.bundles.lookups import Lookups, PlanStores, alias_of
from agent_env.bundles.model import BundleKind, Entry
from agent_env.bundles.neighbours import Neighbours
from agent_env.bundles.parse import read_bundle, sorted_problems
from agent_env.bundles.planned import BundlePlan, PlannedEval, PlannedTask, Write
from agent_env.bundles.references import Reference, ResolvedBundle, ResolvedEntry, Unknown
from agent_env.bundles.resolve import resolve_bundle
from agent_env.bundles.seeding import seed_findings
from agent_env.documents.seeds import read_csv
from agent_env.documents.spelling import near
from agent_env.documents.task import TaskDocument, parse_task
from agent_env.documents.updates import Json
from agent_env.engine.plan import Suite, TaskPlan, plan_task
from agent_env.environments.registry import provider_types
from agent_env.errors import AgentEnvError, Problem, ProblemsError
from agent_env.steps.contract import EntityRef
from agent_env.steps.registry import meant_type, step_class

if TYPE_CHECKING:
    from agent_env.images import BuildContext


def declared_refs(type: str) -> tuple[EntityRef, ...] | Unknown | None:
    """The references that a registered step type declares; those of a misspelt type are those of the type that is meant."""
    try:
        return step_class(meant_type(type) or type).entity_refs
    except AgentEnvError:
        return Unknown.TYPE


def plan_folder(
    root: Path | str,
    stores: PlanStores,
    *,
    tasks: Sequence[str] = (),
    evals: Sequence[str] = (),
    everything: bool = False,
    id_root: str | None = None,
    name: str | None = None,
    overrides: Mapping[str, Json] | None = None,
    strict: bool = False,
    seeds: Path | None = None,
    numbered: bool = False,
    given: Collection[str] = (),
    environ: Mapping[str, str] | None = None,
) -> BundlePlan:
    """Reads, resolves and plans a folder.

    Args:
        root: The folder.
        stores: Where documents of other origin are looked up.
        tasks: Names or ids of tasks to run.
        evals: Names or ids of evals to run. With neither: all evals if there are any, else all tasks.
        everything: Plan all tasks and evals, for a check.
        id_root: What ids start with, for an installed bundle.
        name: The bundle's name, for an installed one.
        overrides: `user_overrides` of the runs.
        strict: Warnings are problems.
        seeds: A CSV file of seeds, which the tasks' placeholders are held against.
        numbered: `<seed>` is filled with a number for each run.
        given: Placeholders that are filled by other means.
        environ: Where `HOME` is looked up.

    Raises:
        ProblemsError: Everything wrong, in one round. Its `readable` is the plan as far as the folder can be read.
    """
    with _uncollected():
        reading = read_bundle(root, id_root=id_root, name=name, strict=strict, environ=environ)
        neighbours = Neighbours(reading.bundle.id_root, declared_refs)
        resolved, problems = resolve_bundle(reading.bundle, declared_refs, partial(alias_of, stores, neighbours))
        planner = Planner(resolved, stores, neighbours, overrides=overrides or {}, strict=strict)
        planner.problems += [*reading.problems, *problems]
        plan = planner.plan(tasks, evals, everything=everything, unread=bool(reading.problems))
        plan = planner.with_seeds(plan, seeds, numbered=numbered, given=given)
    if planner.problems:
        raise ProblemsError(sorted_problems(planner.problems), readable=plan)
    return plan


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without searching for unreachable circles: what a plan makes, it keeps, so each search would look at all of it for nothing."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def plan_bundle(
    resolved: ResolvedBundle, stores: PlanStores, *, tasks: Sequence[str] = (), evals: Sequence[str] = (), strict: bool = False
) -> BundlePlan:
    """Plans a bundle that is resolved already. Raises `ProblemsError` with everything wrong."""
    planner = Planner(resolved, stores, Neighbours(resolved.bundle.id_root, declared_refs), overrides={}, strict=strict)
    plan = planner.plan(tasks, evals, everything=False, unread=False)
    if planner.problems:
        raise ProblemsError(sorted_problems(planner.problems))
    return plan


class Planner:
    """Follows what was chosen to all that it needs; collects what is wrong in `problems`."""

    def __init__(
        self, resolved: ResolvedBundle, stores: PlanStores, neighbours: Neighbours, *, overrides: Mapping[str, Json], strict: bool
    ) -> None:
        self.problems: list[Problem] = []
        self._resolved = resolved
        self._bundle = resolved.bundle
        self._stores = stores
        self._overrides = overrides
        self._strict = strict
        self._of_entry = {entry.entry.path: entry for entry in reversed(resolved.entries)}
        self._warnings = list(self._bundle.warnings)
        self._suite = Suite()
        self._lookups = Lookups(self._bundle, stores, neighbours, self.problems)
        self._contexts: dict[str, BuildContext] = {}
        """Of images that are built, by path of their entry."""
        self._servers: dict[str, tuple[str, str]] = {}
        """Environments that are ready, by id: type, and the name of the server."""
        self._unsound: dict[str, TaskPlan] = {}

    def plan(self, tasks: Sequence[str], evals: Sequence[str], *, everything: bool, unread: bool) -> BundlePlan:
        """The chosen tasks and evals, and what they need."""
        chosen_evals, chosen_tasks = self._selection(tasks, evals, everything=everything)
        if not chosen_evals and not chosen_tasks and not unread and not self.problems:
            message = "has no tasks or evals to run"
            self.problems.append(Problem(message, str(self._bundle.root), hint="put a task into tasks/<name>.json"))
        closure = self._closure([*chosen_evals, *chosen_tasks])
        artifacts = PlannedArtifacts(self._stores, closure, self._bundle.broken_names)
        planned: dict[tuple[str, int | None], PlannedTask] = {}
        for resolved in closure:
            if resolved.task is not None:
                self._plan_task(resolved.task, resolved.entry.path, artifacts, planned, resolved.entry.found)
        planned_evals = [self._plan_eval(resolved, planned, artifacts) for resolved in closure if resolved.entry.kind is BundleKind.EVAL]
        positions = {key: index for index, key in enumerate(planned)}
        used = {resolved.entry.path for resolved in closure}
        evals_of = [
            PlannedEval(entry.id, entry.path, tuple(positions[key] for key in keys if key in positions)) for entry, keys in planned_evals
        ]
        return BundlePlan(
            bundle=self._bundle,
            writes=tuple(
                Write(resolved, self._lookups.root_of(resolved.entry), self._contexts.get(resolved.entry.path)) for resolved in closure
            ),
            tasks=tuple(planned.values()),
            unsound=self._unsound,
            evals=tuple(evals_of),
            skipped=tuple(entry.path for entry in self._bundle.of(BundleKind.TASK) if entry.path not in used and not (tasks or evals)),
            warnings=sorted_problems(self._warnings),
            pinned=self._lookups.pinned,
        )

    def plan_entry(self, entry: Entry) -> BundlePlan:
        """One entry and what it needs, without any task."""
        closure = self._closure([self._of_entry[entry.path]])
        writes = tuple(Write(each, self._lookups.root_of(each.entry), self._contexts.get(each.entry.path)) for each in closure)
        return BundlePlan(
            bundle=self._bundle, writes=writes, tasks=(), warnings=sorted_problems(self._warnings), pinned=self._lookups.pinned
        )

    def with_seeds(self, plan: BundlePlan, file: Path | None, *, numbered: bool, given: Collection[str] = ()) -> BundlePlan:
        """The plan with the seeds of a file; what they and the placeholders of the tasks don't have in common is noted."""
        try:
            table = read_csv(file) if file is not None else None
        except ProblemsError as error:
            self.problems += error.problems
            return plan
        tasks, all_read = {task.name: task.plan for task in plan.tasks}, all(kind is not BundleKind.TASK for kind, _ in self._bundle.broken)
        how = {"numbered": numbered, "strict": self._strict, "all_read": all_read}
        problems, warnings = seed_findings(table, tasks, plan.unsound, given=given, **how)
        self.problems += problems
        return replace(plan, seeds=table, warnings=sorted_problems([*plan.warnings, *warnings]))

    def _selection(
        self, tasks: Sequence[str], evals: Sequence[str], *, everything: bool
    ) -> tuple[list[ResolvedEntry], list[ResolvedEntry]]:
        all_evals, all_tasks = self._bundle.of(BundleKind.EVAL), self._bundle.of(BundleKind.TASK)
        if everything:
            chosen = (all_evals, all_tasks)
        elif tasks or evals:
            chosen = (tuple(self._named(evals, all_evals, "eval")), tuple(self._named(tasks, all_tasks, "task")))
        else:
            chosen = (all_evals, () if all_evals else all_tasks)
        return [self._of_entry[entry.path] for entry in chosen[0]], [self._of_entry[entry.path] for entry in chosen[1]]

    def _named(self, wanted: Sequence[str], entries: Sequence[Entry], kind: str) -> Iterator[Entry]:
        known = {key: entry for entry in entries for key in (entry.path, entry.id, entry.name)}
        for name in dict.fromkeys(wanted):
            entry = known.get(name)
            if entry is not None:
                yield entry
                continue
            if any(broken == (kind, name) for broken in self._bundle.broken):
                continue
            meant = near(name, [entry.name for entry in entries])
            hint = f"did you mean {meant!r}?" if meant else f"it has {', '.join(entry.name for entry in entries[:10]) or 'none'}"
            self.problems.append(Problem(f"the bundle has no {kind} {name!r}", f"--{kind}", hint=hint))

    def _closure(self, chosen: Sequence[ResolvedEntry]) -> list[ResolvedEntry]:
        """The chosen entries and everything of the bundle that they need, needed ones first; within that, by kind and name."""
        # By path: entries of two kinds may have the same name, and so the same id, which names a document only within its collection.
        state: dict[str, bool] = {}
        order: list[ResolvedEntry] = []

        def visit(resolved: ResolvedEntry, trail: tuple[ResolvedEntry, ...]) -> None:
            if state.get(resolved.entry.path):
                return
            if resolved.entry.path in state:
                start = next(index for index, entry in enumerate(trail) if entry is resolved)
                loop = " → ".join(entry.entry.path for entry in (*trail[start:], resolved))
                self.problems.append(Problem(f"its references go in a circle: {loop}", resolved.entry.config_file))
                return
            state[resolved.entry.path] = False
            for reference in resolved.references:
                needed = self._lookups.needed(reference, self._of_entry)
                if needed is not None:
                    visit(needed, (*trail, resolved))
                else:
                    self._lookups.check(reference)
            state[resolved.entry.path] = True
            order.append(self._ready(resolved))

        for resolved in sorted(chosen, key=lambda resolved: resolved.entry.sort_key):
            visit(resolved, ())
        late = (BundleKind.TASK, BundleKind.EVAL)
        return [
            *(resolved for resolved in order if resolved.entry.kind not in late),
            *(resolved for kind in late for resolved in order if resolved.entry.kind is kind),
        ]

    def _ready(self, resolved: ResolvedEntry) -> ResolvedEntry:
        """An entry as it can be written; what it needs is ready already."""
        entry = resolved.entry
        if entry.type not in WRITABLE.get(entry.kind, ()):
            what = f"{entry.kind}s of type {entry.type!r}"
            self.problems.append(Problem(f"{what} can't be used by this version of agent-env", entry.path, hint=UNWRITABLE.get(entry.type)))
        elif entry.type == IMAGE_TYPE:
            self._read_context(entry)
        elif entry.kind is BundleKind.ENV:
            return self._environment(resolved)
        return resolved

    def _read_context(self, entry: Entry) -> None:
        dockerfile = entry.files.get(DOCKERFILE)
        folder = entry.folder or (dockerfile.parent if dockerfile is not None else None)
        if folder is None or not (folder / entry.config.get("dockerfile", DOCKERFILE)).is_file():
            return  # a name in a registry; or a Dockerfile that is not there, of which was told already
        try:
            context = image_context(entry, folder)
        except ProblemsError as error:
            self.problems += error.problems
            return
        if context is not None:
            self._contexts[entry.path] = context

    def _environment(self, resolved: ResolvedEntry) -> ResolvedEntry:
        """With the name of its server, and held against its provider and the other parts."""
        entry = resolved.entry
        problem = provider_problem(entry, provider_types())
        images = [reference.entry.path for found in resolved.by_key.values() for reference in found if reference.entry is not None]
        context = next((self._contexts[path] for path in images if path in self._contexts), None)
        name, wrong = server_name(entry, context)
        self.problems += [each for each in (problem, wrong) if each is not None]
        if entry.type == "multi":
            children = [part for found in resolved.by_key.values() for reference in found if (part := self._part(reference)) is not None]
            self.problems += clash_problems(entry, children)
        if name is None:
            return resolved
        self._servers[entry.id] = (entry.type, name)
        return replace(resolved, entry=replace(entry, config={**entry.config, "environment_name": name}))

    def _part(self, reference: Reference) -> tuple[str, str] | None:
        """Type and name of a part of a multi; None where something is wrong with it already."""
        if reference.id in self._servers:
            return self._servers[reference.id]
        stored = self._stores.documents.get("envs", reference.id, reference.version)
        if stored is None:
            return None
        return stored.type, str(stored.body.get("environment_name") or stored.body.get("service_name"))

    def _plan_task(
        self,
        task: TaskDocument,
        name: str,
        artifacts: PlannedArtifacts,
        planned: dict[tuple[str, int | None], PlannedTask],
        found: Sequence[Problem] = (),
    ) -> None:
        """Plans a task, or as much of it as can be read. Of a field of which something is told already, nothing more is said."""
        told = {problem.path for problem in self.problems if problem.file == name and _is_of_a_field(problem)}
        options: dict[str, Any] = {"artifacts": artifacts, "overrides": self._overrides, "strict": self._strict, "suite": self._suite}
        try:
            plan = plan_task(task, source=name, found=found, **options)
        except ProblemsError as error:
            self.problems += [problem for problem in error.problems if problem.path not in told]
            if isinstance(error.readable, TaskPlan):
                self._unsound[name] = error.readable
            return
        self._warnings += plan.warnings
        planned[task.id, task.version] = PlannedTask(task.id, name, plan, task.version)

    def _plan_eval(
        self, resolved: ResolvedEntry, planned: dict[tuple[str, int | None], PlannedTask], artifacts: PlannedArtifacts
    ) -> tuple[Entry, list[tuple[str, int | None]]]:
        keys: list[tuple[str, int | None]] = []
        for reference in resolved.by_key.get("tasks", ()):
            keys.append((reference.id, reference.version))
            if reference.entry is None and keys[-1] not in planned:
                document = self._stores.documents.get("tasks", reference.id, reference.version)
                if document is not None:
                    self._plan_stored(document.body, reference, artifacts, planned)
        return resolved.entry, keys

    def _plan_stored(
        self,
        body: Mapping[str, Json],
        reference: Reference,
        artifacts: PlannedArtifacts,
        planned: dict[tuple[str, int | None], PlannedTask],
    ) -> None:
        """A task of the stores that an eval names."""
        found: list[Problem] = []
        try:
            task = parse_task(body.get("steps"), source=reference.id, task_id=reference.id, problems=found)
        except ProblemsError as error:
            self.problems += error.problems
            return
        self._plan_task(replace(task, version=reference.version), reference.id, artifacts, planned, found)


def _is_of_a_field(problem: Problem) -> bool:
    """Not of a step as a whole, or of the whole task."""
    return problem.path is not None and problem.path.count(".") > problem.path.startswith("$.steps[")


def plan_bundle_named(
    text: str, stores: PlanStores, *, tasks: Sequence[str] = (), evals: Sequence[str] = (), everything: bool = False, strict: bool = False
) -> BundlePlan:
    """`plan_folder` of what a person named: a folder or an installed bundle.

    Raises:
        NotFoundError: Nothing has that name.
        ProblemsError: Everything wrong, in one round.
    """
    from agent_env.bundles.installed import find_bundle

    found = find_bundle(text)
    return plan_folder(
        found.folder, stores, tasks=tasks, evals=evals, everything=everything, id_root=found.id_root, name=found.name, strict=strict
    )
