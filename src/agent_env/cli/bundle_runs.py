"""`agent-env run` of a bundle: what is asked of `bundles`, and what is shown of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agent_env.bundles.named_agents import needs_of, refuse_unknown, without_effect
from agent_env.bundles.verdict import Result
from agent_env.cli.batch import Agenda, Presentation, conclude, context_file, cut_short_by
from agent_env.cli.models import of_models
from agent_env.cli.output import line, note, warn, write_json
from agent_env.cli.progress import Watcher, watching
from agent_env.cli.session import asked_configuration, opened_engine, opened_stores, stores_of
from agent_env.diagnostics import Diagnostics
from agent_env.errors import UsageError

if TYPE_CHECKING:
    from agent_env.bundles.calls import Earlier
    from agent_env.bundles.installed import Found
    from agent_env.bundles.materialising import Written
    from agent_env.bundles.planned import BundlePlan
    from agent_env.bundles.run import BundleRunRequest, TaskRun
    from agent_env.bundles.work import WorkItem
    from agent_env.config import Config
    from agent_env.engine import Event
    from agent_env.engine.options import Stores
    from agent_env.errors import Problem


class Observer:
    """Passes on to the watcher what concerns single runs, and collects their results."""

    def __init__(self, watcher: Watcher, how: Presentation, overrides: Mapping[str, Any]) -> None:
        self.agenda = Agenda()
        self._watcher = watcher
        self._how = how
        self._overrides = overrides
        self._speaks = not (how.quiet or how.as_json)

    def on_written(self, written: Written) -> None:
        """Says which entries have a new version; what is unchanged is not worth a line."""
        warn([*written.plan.warnings, *without_effect([task.plan for task in written.plan.tasks], self._overrides)])
        if self._speaks:
            for entry in written.entries:
                if entry.changed:
                    note(str(entry))

    def on_earlier(self, earlier: Earlier) -> None:
        """Says what goes on, or why a new group begins."""
        if not self._how.quiet:
            note(earlier.said())

    def on_work(self, items: Sequence[WorkItem], concurrency: int, group_id: str) -> None:
        """Knows how much there is to do."""
        self._watcher.total = len(items)
        self.agenda = Agenda(group_id, {id(item): item.wanted for item in items}, results=self.agenda.results, kept=self.agenda.kept)
        if self._speaks and len(items) > 1:
            note(f"{len(items)} runs, {min(concurrency, len(items))} at once")

    def on_started(self, item: WorkItem, run_id: str) -> None:
        """Gives the run the name of its task."""
        self.agenda.begin(id(item), run_id)
        self._watcher.begin(run_id, item.label)

    def on_event(self, event: Event) -> None:
        """Passes it on."""
        self._watcher.on_event(event)

    def on_outcome(self, run: TaskRun) -> None:
        """Keeps the result, and writes the run's context where that was asked for."""
        self.agenda.results.append(run.result)
        self.agenda.not_started.pop(id(run.item), None)
        if not run.reused:
            self.agenda.end(run.outcome)
        if self._how.contexts is not None:
            path = context_file(self._how.contexts, run.outcome.task_id, run.outcome)
            self.agenda.contexts[run.outcome.run_id] = path.name

    def on_wait(self, bundle_id: str) -> None:
        """Says why nothing happens."""
        note(f"waiting: another process writes the documents of {bundle_id}")


def run_found(found: Found, given: Mapping[str, Any], how: Presentation | None, *, overrides: Mapping[str, Any], wrong: Diagnostics) -> int:
    """Runs a bundle, shows its results and returns the exit code.

    Args:
        found: The bundle.
        given: The options of `run`.
        how: What is shown and written; None where something is wrong with it.
        overrides: `user_overrides` of each run.
        wrong: What is wrong with the options; it is told with everything else, and nothing runs.
    """
    from agent_env.bundles.report import summary_lines
    from agent_env.bundles.run import run_bundle

    request, config = _request(found, given, overrides, wrong), asked_configuration(wrong)
    if wrong:
        with opened_stores(config) as memory:
            _sound_plan(request, config, stores_of(memory, config), wrong, replayed=given["replay"] is not None)
    assert how is not None
    ordered: list[Result] = []
    said: list[str] = []
    with watching(quiet=how.quiet or how.as_json) as watcher:
        observer = Observer(watcher, how, overrides)

        async def work() -> None:
            async with opened_engine(config) as engine:
                done = await run_bundle(request, engine, config=config, observer=observer)
                ordered.extend(run.result for run in done.runs)
                said.extend(summary_lines(done))

        cut = cut_short_by(work)
    if cut is None and not ordered:
        raise UsageError(f"{found.name or found.folder} has no tasks to run", hint="agent-env bundle show BUNDLE")
    observer.agenda.results = ordered or observer.agenda.results
    return conclude(observer.agenda, watcher, how, cut, said, again="the same command with --resume")


def dry_run(found: Found, given: Mapping[str, Any], *, overrides: Mapping[str, Any]) -> int:
    """Shows everything that a run would find out before it starts anything."""
    from agent_env.bundles.report import dry_run_lines, dry_run_report
    from agent_env.bundles.run import predicted

    wrong = Diagnostics()
    request = _request(found, given, overrides, wrong)
    config = asked_configuration(wrong)
    with opened_stores(config) as memory:
        stores = stores_of(memory, config)
        plan, unknown = _sound_plan(request, config, stores, wrong, replayed=given["replay"] is not None)
        done = predicted(request, plan, stores, stores.journal)
    remarks = [*without_effect(plan.plans.values(), overrides), *unknown]
    if given["as_json"]:
        report = dry_run_report(done)
        write_json({**report, "warnings": [*report["warnings"], *map(str, remarks)]})
        return 0
    warn([*done.plan.warnings, *remarks])
    for text in dry_run_lines(done):
        line(text)
    return 0


def _sound_plan(
    request: BundleRunRequest, config: Config, stores: Stores, wrong: Diagnostics, *, replayed: bool
) -> tuple[BundlePlan, Sequence[Problem]]:
    """The plan of what is asked for, and what could not be found out of it. Raises everything wrong, with what was found before."""
    from agent_env.bundles.run import plan_request
    from agent_env.cli.preflight import refuse_unable

    if stores.certain:
        wrong.of(lambda: refuse_unknown(request.overrides, stores), given="--agent")
    plan = wrong.of(lambda: plan_request(request, stores))
    unknown: Sequence[Problem] | None = None
    if plan is not None:
        needs = needs_of(plan.writes, stores)
        unknown = wrong.of(lambda: refuse_unable(config, plan.plans, request.overrides, needs, replayed=replayed))
    wrong.tell()
    assert plan is not None
    return plan, unknown or ()


def _request(found: Found, given: Mapping[str, Any], overrides: Mapping[str, Any], wrong: Diagnostics) -> BundleRunRequest:
    from agent_env.bundles.run import BundleRunRequest

    return BundleRunRequest(
        folder=found.folder,
        id_root=found.id_root,
        name=found.name,
        tasks=given["tasks"],
        evals=given["evals"],
        attempts=given["attempts"],
        seeds_file=given["seeds"],
        seed=given["seed"],
        concurrency=given["concurrency"],
        keep=given["keep"],
        pause_on_failure=given["pause_on_failure"],
        resume=given["resume"],
        redeploy=given["redeploy"],
        model=given["model"],
        models=wrong.of(lambda: of_models(given)) or {},
        overrides=overrides,
        strict=given["strict"],
    )
