"""`agent-env run` of one task: a JSON file, or a stored task."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_env.cli.batch import Job, Presentation, run_jobs
from agent_env.cli.models import of_models
from agent_env.cli.output import line, note, warn, write_json
from agent_env.cli.session import asked_configuration, opened_stores, stores_of
from agent_env.cli.tasks import planned, planned_file, start_context, with_chosen_agents, with_seeds
from agent_env.diagnostics import Diagnostics
from agent_env.errors import ProblemsError
from agent_env.wording import counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agent_env.bundles.single_work import SingleWork
    from agent_env.engine import TaskPlan
    from agent_env.engine.options import Stores
    from agent_env.errors import Problem


def run_single(
    text: str,
    file: Path | None,
    given: Mapping[str, Any],
    how: Presentation | None,
    *,
    overrides: Mapping[str, Any],
    wrong: Diagnostics,
) -> int:
    """Runs it as often as asked and returns the exit code.

    Args:
        text: What the user typed.
        file: The task's file; None takes a stored task of the id `text`.
        given: The options of `run`.
        how: What is shown and written; None where something is wrong with it.
        overrides: `user_overrides` of each run.
        wrong: What is wrong with the options; it is told with everything else, and nothing runs.
    """
    from agent_env.bundles.calls import earlier_call
    from agent_env.bundles.named_agents import refuse_unknown, without_effect
    from agent_env.bundles.sources import source_of
    from agent_env.bundles.verdict import attempt_label
    from agent_env.documents.seeds import row_name
    from agent_env.engine import RunOptions
    from agent_env.ids import new_group_id

    def plan(stores: Stores, wrong: Diagnostics) -> tuple[TaskPlan | None, list[dict[str, str]]]:
        def read() -> TaskPlan:
            if file is not None:
                return planned_file(stores.known_artifacts, file, task_id_of(file), overrides=overrides, strict=given["strict"])
            return planned(stores.documents, stores.known_artifacts, text, overrides=overrides, strict=given["strict"])

        return with_seeds(read, given["seeds"], wrong, numbered=given["seed"] is not None, strict=given["strict"])

    asked_of_models = wrong.of(lambda: of_models(given)) or {}
    if given["dry_run"]:
        return _dry_run(plan, text, given, overrides, wrong, models=asked_of_models)
    group = new_group_id()
    source = {"source": source_of(file)} if file is not None else {}
    context = start_context(None, agent_model=given["model"], agent_artifact_id=None)

    def prepare(stores: Stores, wrong: Diagnostics) -> list[Job]:
        task, found = plan(stores, wrong)
        if task is None:
            wrong.of(lambda: refuse_unknown(overrides, stores), given="--agent")
            return []
        chosen = with_chosen_agents(task, overrides, stores, wrong)
        if wrong:
            return [Job(text, task, RunOptions(overrides=chosen, **asked_of_models))]
        warn([*task.warnings, *without_effect([task], overrides)])
        work = _work_of(text, task, found, given, {**chosen, **asked_of_models})
        earlier = earlier_call(stores.journal, work.call, task=task.task_id) if given["resume"] else None
        if earlier is not None and not given["quiet"]:
            note(earlier.said())
        rows = found or [{}]
        jobs = []
        for number, (seed, key) in enumerate(work.runs):
            row = rows[number % len(rows)]
            options = RunOptions(
                seed=seed,
                context=context,
                keep=given["keep"],
                pause_on_failure=given["pause_on_failure"],
                group_id=(earlier.group_id if earlier else None) or group,
                attempt_index=number,
                attempt_count=len(work.runs),
                overrides=chosen,
                work_key=key,
                call={**work.stored, **source},
                **asked_of_models,
            )
            which = f"{text} [{row_name(number % len(rows) + 1, row)}]" if found else text
            label = attempt_label(which, number // len(rows), given["attempts"])
            before = earlier.runs.get(key) if earlier else None
            jobs.append(Job(text, task.seeded(seed), options, label=label, before=before, redeploy=given["redeploy"]))
        return jobs

    return run_jobs(prepare, given["concurrency"], how, group, wrong, again="the same command with --resume")


def _work_of(
    text: str, task: TaskPlan, rows: Sequence[Mapping[str, str]], given: Mapping[str, Any], options: Mapping[str, Any]
) -> SingleWork:
    from agent_env.bundles.single_work import single_work

    asked = {**options, "agent_model": given["model"]}
    return single_work(text, task, rows=rows, attempts=given["attempts"], seed=given["seed"], options=asked)


def task_id_of(file: Path) -> str:
    """The id of a task that is only a file: from its path where that can be an id, else its name."""
    from agent_env.ids import home_folder, local_id_root

    try:
        return local_id_root(Path(os.path.realpath(file)).with_suffix(""), home_folder(os.environ))
    except ProblemsError:
        return file.stem


def _dry_run(
    plan: Any, text: str, given: Mapping[str, Any], overrides: Mapping[str, Any], wrong: Diagnostics, *, models: Mapping[str, Any]
) -> int:
    from agent_env.bundles.calls import earlier_call
    from agent_env.bundles.named_agents import needs_of, refuse_unknown, with_agents, without_effect
    from agent_env.cli.preflight import refuse_unable

    config = asked_configuration(wrong)
    unknown: Sequence[Problem] | None = None
    with opened_stores(config) as memory:
        stores = stores_of(memory, config)
        if stores.certain:
            wrong.of(lambda: refuse_unknown(overrides, stores), given="--agent")
        task, rows = plan(stores, wrong)
        if task is not None:
            needs, replayed = needs_of((), stores), given["replay"] is not None
            unknown = wrong.of(lambda: refuse_unable(config, {task.source: task}, overrides, needs, replayed=replayed))
        wrong.tell()
        earlier = None
        if given["resume"]:
            named = with_agents([task], overrides, stores, default_id=None, dry_run=True)
            work = _work_of(text, task, rows, given, {**named, **models})
            earlier = earlier_call(stores.journal, work.call, task=task.task_id)
    remarks = [*without_effect([task], overrides), *(unknown or ())]
    runs = given["attempts"] * max(1, len(rows))
    warnings = [str(warning) for warning in (*task.warnings, *remarks)]
    if given["as_json"]:
        tasks = [{"task": text, "id": task.task_id, "steps": len(task.steps)}]
        resume = {"resume": earlier.to_json()} if earlier is not None else {}
        write_json({"dry_run": True, "entries": [], "tasks": tasks, "runs": runs, **resume, "warnings": warnings})
        return 0
    line("Dry run: nothing is written or run.")
    for warning in warnings:
        line(f"warning: {warning}")
    line(f"would run: {text} ({counted(len(task.steps), 'step')})")
    if earlier is not None:
        line(earlier.said())
    line(counted(runs, "run") if earlier is None else f"{counted(earlier.counts()['begin'], 'run')}{earlier.also()}")
    return 0
