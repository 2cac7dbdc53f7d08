"""`agent-env run` of one task: a JSON file, or a stored task."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_env.cli.batch import Job, Presentation, run_jobs
from agent_env.cli.output import line, write_json
from agent_env.cli.session import artifacts_of, configuration, opened_stores
from agent_env.cli.tasks import planned, planned_file, seeds_of, start_context
from agent_env.errors import ProblemsError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent_env.artifacts import Artifacts
    from agent_env.engine import Engine, TaskPlan
    from agent_env.stores import Documents


def run_single(text: str, file: Path | None, given: Mapping[str, Any], how: Presentation, *, overrides: Mapping[str, Any]) -> int:
    """Runs it as often as asked and returns the exit code.

    Args:
        text: What the user typed.
        file: The task's file; None takes a stored task of the id `text`.
        given: The options of `run`.
        how: What is shown and written.
        overrides: `user_overrides` of each run.
    """
    import secrets

    from agent_env.bundles.work import default_concurrency, derived_seed
    from agent_env.engine import RunOptions

    def plan(documents: Documents, artifacts: Artifacts) -> TaskPlan:
        if file is not None:
            return planned_file(artifacts, file, task_id_of(file), overrides=overrides, strict=given["strict"])
        return planned(documents, artifacts, text, overrides=overrides, strict=given["strict"])

    rows: list[dict[str, Any]] = list(seeds_of(given["seeds"])) if given["seeds"] else [{}]
    if given["dry_run"]:
        return _dry_run(plan, text, given["attempts"] * len(rows), as_json=given["as_json"])
    config = configuration()
    group = secrets.token_hex(16)
    context = start_context(None, agent_model=given["model"], agent_artifact_id=None)

    def prepare(engine: Engine) -> list[Job]:
        task = plan(engine.stores.documents, engine.stores.artifacts)
        jobs = []
        for number, row in enumerate(rows * given["attempts"]):
            seed = row if given["seed"] is None else {"seed": derived_seed(given["seed"], text, number), **row}
            options = RunOptions(
                seed=seed,
                context=context,
                keep=given["keep"],
                pause_on_failure=given["pause_on_failure"],
                group_id=group,
                attempt_index=number,
                attempt_count=len(rows) * given["attempts"],
                overrides=overrides,
            )
            jobs.append(Job(text, task.seeded(seed), options))
        return jobs

    return run_jobs(prepare, given["concurrency"] or config.run.concurrency or default_concurrency(config.limits), how)


def task_id_of(file: Path) -> str:
    """The id of a task that is only a file: from its path where that can be an id, else its name."""
    from agent_env.ids import home_folder, local_id_root

    try:
        return local_id_root(file.resolve().with_suffix(""), home_folder(os.environ))
    except ProblemsError:
        return file.stem


def _dry_run(plan: Any, text: str, runs: int, *, as_json: bool) -> int:
    with opened_stores() as stores:
        task = plan(stores.documents, artifacts_of(stores))
    warnings = [str(warning) for warning in task.warnings]
    if as_json:
        tasks = [{"task": text, "id": task.task_id, "steps": len(task.steps)}]
        write_json({"dry_run": True, "entries": [], "tasks": tasks, "runs": runs, "warnings": warnings})
        return 0
    line("Dry run: nothing is written or run.")
    for warning in warnings:
        line(f"warning: {warning}")
    line(f"would run: {text} ({len(task.steps)} steps)")
    line(f"{runs} run{'s' if runs != 1 else ''}")
    return 0
