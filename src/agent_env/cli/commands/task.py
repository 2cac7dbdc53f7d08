"""`agent-env task`: single tasks of the store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from agent_env.cli.completing import AGENTS, MODELS, PROVIDERS, RUNS, TASK_IDS
from agent_env.cli.frame import MOST_RUNS, FilePath, FiniteRange, Group
from agent_env.cli.models import MODEL_OPTIONS, of_models
from agent_env.cli.output import json_option, line, warn, write_json
from agent_env.cli.session import asked_configuration, opened_stores, stores_of
from agent_env.cli.stored import list_newest, one_id, page_options, remove
from agent_env.diagnostics import Diagnostics
from agent_env.errors import ProblemsError

if TYPE_CHECKING:
    from agent_env.cli.batch import Job, Presentation
    from agent_env.engine.options import Stores
    from agent_env.stores import Document

F = TypeVar("F", bound=Callable[..., Any])

OVERRIDES = (
    "user_model",
    "judge_model",
    "litellm_api_key",
    "judge_litellm_api_key",
    "apply_trajectory_filter",
    "a2a_agent_id",
    "sandbox",
    "agent_sandbox",
    "env_sandbox",
    "gateway_env_id",
    "service_db_env_id",
    "env_state_type",
    "env_state_instance_id",
)
"""Options that become `user_overrides` under the same name."""


@click.group(cls=Group)
def task() -> None:
    """Store, check and run single tasks.

    A task is a JSON list of steps. `agent-env run FILE.json` runs one without storing it.
    """


@task.command()
@click.argument("file", type=FilePath(path_type=Path))
@click.option("--id", "id", required=True, shell_complete=TASK_IDS, help="The task's id.")
@click.option("--skip-validation", is_flag=True, help="Store it although steps have problems.")
@json_option
def create(file: Path, id: str, skip_validation: bool, as_json: bool) -> None:
    """Store the JSON list of steps in FILE as a new version of a task."""
    from agent_env.cli.files import read_document
    from agent_env.cli.tasks import COLLECTION
    from agent_env.engine.literals import without_literals
    from agent_env.errors import Problem
    from agent_env.ids import check_id

    found = Diagnostics()
    _, named = found.judged(lambda: check_id(id, what="task id"))
    data, sound = found.judged(lambda: read_document(file))
    if sound and not isinstance(data, list):
        found.add([Problem("a task file is a JSON list of steps", str(file), "$")])
    config = asked_configuration(found)
    with opened_stores(config) as memory:
        stores = stores_of(memory, config)

        def read() -> Sequence[Mapping[str, Any]]:
            return _steps(data, str(file), id if named else COLLECTION, stores, skip_validation=skip_validation)

        steps = found.of(read) if isinstance(data, list) else None
        found.tell()
        assert steps is not None
        stored = stores.documents.put(COLLECTION, id, "task", {"steps": list(without_literals(steps, stores.secrets.keep))})
    if as_json:
        write_json({"id": id, "version": stored.version, "digest": stored.digest})
    else:
        line(f"{id}: v{stored.version}")


def _steps(data: Any, source: str, id: str, stores: Stores, *, skip_validation: bool) -> Sequence[Mapping[str, Any]]:
    from agent_env.documents.task import parse_task
    from agent_env.engine import plan_document

    if skip_validation:
        return parse_task(data, source=source, task_id=id).steps
    try:
        return plan_document(data, source=source, task_id=id, artifacts=stores.known_artifacts).documents
    except ProblemsError as error:
        error.hint = "nothing was saved; --skip-validation saves it anyway"
        raise


@task.command()
@one_id(TASK_IDS, "The task's id.")
@click.option("--version", type=click.IntRange(min=1), help="The newest one when absent.")
@json_option
def get(id: str, version: int | None, as_json: bool) -> None:
    """Print a task's steps, as `task create` reads them."""
    from agent_env.cli.tasks import stored_task

    del as_json
    with opened_stores() as stores:
        write_json(stored_task(stores.documents, id, version).body.get("steps", []))


@task.command()
@one_id(TASK_IDS, "The task's id.")
@click.option("--version", type=click.IntRange(min=1), help="The newest one when absent.")
@click.option("--strict", is_flag=True, help="Warnings are problems.")
@json_option
def validate(id: str, version: int | None, strict: bool, as_json: bool) -> None:
    """Say everything that is wrong with a stored task, without running it."""
    from agent_env.cli.preflight import unable
    from agent_env.cli.tasks import planned, unfilled

    found = Diagnostics()
    config = asked_configuration(found)
    with opened_stores(config) as memory:
        stores = stores_of(memory, config)
        plan = found.of(lambda: planned(stores.documents, stores.known_artifacts, id, version, strict=strict))
        remarks = found.of(lambda: unable(config, {plan.source: plan}, strict=strict)) if plan is not None else None
    found.tell()
    assert plan is not None
    warnings = [str(warning) for warning in (*plan.warnings, *unfilled(plan), *(remarks or ()))]
    if as_json:
        write_json({"id": id, "version": plan.version, "steps": len(plan.steps), "warnings": warnings, "problems": []})
        return
    warn(warnings)
    line(f"{id} v{plan.version}: {len(plan.steps)} steps; no problems found")


@task.command("list")
@page_options
def list_(*, contains: str | None, limit: int, offset: int, as_json: bool) -> None:
    """List the newest version of each stored task."""
    from agent_env.cli.tasks import COLLECTION

    def facts(document: Document) -> dict[str, int]:
        return {"steps": len(document.body.get("steps", []))}

    list_newest(COLLECTION, facts, limit=limit, offset=offset, as_json=as_json, id_contains=contains)


@task.command()
@click.argument("id", nargs=-1, required=True, shell_complete=TASK_IDS)
@click.option("--version", type=click.IntRange(min=1), help="Only this version; all when absent.")
@json_option
def rm(id: tuple[str, ...], version: int | None, as_json: bool) -> None:
    """Remove stored tasks. Their runs stay."""
    from agent_env.cli.tasks import COLLECTION

    remove(COLLECTION, id, version, as_json=as_json)


@task.command("get-instance")
@one_id(RUNS, "The instance's or run's id.")
@json_option
def get_instance(id: str, as_json: bool) -> None:
    """Print a run's state and its whole context."""
    import json

    from agent_env.cli.rows import details_json, interrupted, state
    from agent_env.cli.session import context_of, find_run

    with opened_stores() as stores:
        stored = stores.journal.load(find_run(stores, id).run_id)
        stopped = interrupted(stores.journal, stored.run)
    context = context_of(stored)
    if as_json:
        write_json({**details_json(stored, stopped=stopped), "context": context})
        return
    line(f"instance {stored.run.instance_id}  task {stored.run.task_id}  {state(stored.run, stopped=stopped)}")
    for attempt in stored.attempts:
        line(f"  {attempt.step_id}: {'taken back' if attempt.superseded else attempt.state}")
    if stored.run.error:
        line(f"error: {stored.run.error.get('code')}: {stored.run.error.get('message')}")
    line(f"Context: {json.dumps(context, ensure_ascii=False)}")


def shared_options(function: F) -> F:
    """The options that `run` and `run-batch` of a task have in common."""
    for option in reversed(
        (
            one_id(TASK_IDS, "The task's id."),
            click.option("--version", type=click.IntRange(min=1), help="The newest one when absent."),
            click.option(
                "--output-dir",
                "--output",
                "output_dir",
                type=FilePath(file_okay=False, path_type=Path),
                help="Folder for the runs' contexts; none are written without.",
            ),
            click.option("--agent-model", "--model", shell_complete=MODELS, help="The model that solves."),
            click.option("--user-model", shell_complete=MODELS, help="The model of the user simulator."),
            click.option("--judge-model", shell_complete=MODELS, help="The model that grades rubrics."),
            click.option("--agent-artifact-id", help="An agent's artifact that the run is recorded to be of; it deploys nothing."),
            click.option("--litellm-api-key", help="Key for models; better in the configuration, where arguments don't show it."),
            click.option("--judge-litellm-api-key", help="The same for judges."),
            click.option(
                "--apply-trajectory-filter/--no-trajectory-filter", default=None, help="Whether judges see filtered trajectories."
            ),
            *MODEL_OPTIONS,
            click.option("--sandbox", shell_complete=PROVIDERS, help="Provider of sandboxes, over what the task says."),
            click.option("--agent-sandbox", shell_complete=PROVIDERS, help="Provider of agents' sandboxes."),
            click.option("--env-sandbox", shell_complete=PROVIDERS, help="Provider of environments' sandboxes."),
            click.option("--env-state-type", help="local_postgres: environments get a database, also where no server asks for one."),
            click.option("--env-state-instance-id", help="A database that is there already, where an environment's provider takes one."),
            click.option("--fail-under", type=FiniteRange(0, 1), help="Exit code 1 when the mean score is below this."),
            click.option("--keep", is_flag=True, help="Leave the sandboxes up."),
            click.option("--strict", is_flag=True, help="Warnings are problems."),
            click.option("-q", "--quiet", is_flag=True, help="No progress: only the last line, and why a run failed."),
            json_option,
        )
    ):
        function = option(function)
    return function


@task.command()
@shared_options
@click.option("--k", "--attempts", "k", type=click.IntRange(1, MOST_RUNS), default=1, show_default=True, help="How many times.")
@click.option("--concurrency", type=click.IntRange(1, MOST_RUNS), help="How many at once; by cores and memory when absent.")
@click.option("--start-step", type=click.IntRange(min=0), default=0, show_default=True, help="Position of the first step to run.")
@click.option("--context-json", type=FilePath(path_type=Path), help="Start with this context; its sandboxes are used again.")
@click.option("--a2a-agent-id", "--agent", shell_complete=AGENTS, help="The agent, over what the task says.")
@click.option("--gateway-env-id", help="The stored gateway that environments are put behind.")
@click.option("--service-db-env-id", help="The stored database service of environments.")
def run(id: str, version: int | None, **given: Any) -> int:
    """Run a stored task.

    Each run's context is recorded (`runs show RUN --context`); with --output-dir it is also written there, as JSON.
    """
    from agent_env.bundles.named_agents import without_effect
    from agent_env.bundles.verdict import attempt_label
    from agent_env.cli.batch import Job, run_jobs
    from agent_env.cli.tasks import planned, start_context, unfilled, with_chosen_agents
    from agent_env.engine import RunOptions
    from agent_env.ids import new_group_id

    group = new_group_id()
    wrong = Diagnostics()
    how, asked_of_models = wrong.of(lambda: _presentation(given)), wrong.of(lambda: of_models(given)) or {}

    def prepare(stores: Stores, found: Diagnostics) -> list[Job]:
        models = {"agent_model": given["agent_model"], "agent_artifact_id": given["agent_artifact_id"]}
        context, known = found.judged(lambda: start_context(given["context_json"], **models))
        said = (context or {}).get("metadata") or {}
        overrides = {**(said.get("user_overrides") or {}), **_overrides(given)}
        options = {"overrides": overrides, "preset": (context or {}) if known else None, "strict": given["strict"]}
        written, sound = found.judged(lambda: planned(stores.documents, stores.known_artifacts, id, version, **options))
        plan = found.of(lambda: written.seeded(said.get("seed") or {})) if written is not None and sound else written
        if plan is None:
            return []
        chosen = with_chosen_agents(plan, overrides, stores, found)
        if found:
            return [Job(id, plan, RunOptions(overrides=chosen, **asked_of_models))]
        warn([*plan.warnings, *(() if said.get("seed") else unfilled(plan)), *without_effect([plan], overrides)])
        return [
            Job(
                id,
                plan,
                RunOptions(
                    metadata={"run_group_id": group, "task_id": id},
                    context=context,
                    start_step=given["start_step"],
                    keep=given["keep"],
                    group_id=group,
                    attempt_index=number,
                    attempt_count=given["k"],
                    overrides=chosen,
                    **asked_of_models,
                ),
                label=attempt_label(id, number, given["k"]),
            )
            for number in range(given["k"])
        ]

    return run_jobs(prepare, given["concurrency"], how, group, wrong)


@task.command("run-batch")
@shared_options
@click.option("--seeds", required=True, type=FilePath(path_type=Path), help="CSV file: each row is a run, its columns are placeholders.")
@click.option("--concurrency", type=click.IntRange(1, MOST_RUNS), default=5, show_default=True, help="How many at once.")
def run_batch(id: str, version: int | None, seeds: Path, **given: Any) -> int:
    """Run a stored task once for each row of a CSV file: `<column>` in its texts becomes the row's value."""
    from agent_env.cli.batch import Job, run_jobs
    from agent_env.cli.tasks import planned, start_context, with_chosen_agents, with_seeds
    from agent_env.documents.seeds import NAMING, row_name
    from agent_env.engine import RunOptions
    from agent_env.ids import derive_id, new_group_id

    overrides = _overrides(given)
    context = start_context(None, agent_model=given["agent_model"], agent_artifact_id=given["agent_artifact_id"])
    group = new_group_id()
    wrong = Diagnostics()
    how, asked_of_models = wrong.of(lambda: _presentation(given)), wrong.of(lambda: of_models(given)) or {}

    def prepare(stores: Stores, found: Diagnostics) -> list[Job]:
        documents, artifacts, strict = stores.documents, stores.known_artifacts, given["strict"]
        plan, rows = with_seeds(
            lambda: planned(documents, artifacts, id, version, overrides=overrides, strict=strict), seeds, found, strict=strict
        )
        if plan is None:
            return []
        chosen = with_chosen_agents(plan, overrides, stores, found)
        if found:
            return [Job(id, plan, RunOptions(overrides=chosen, **asked_of_models))]
        warn(plan.warnings)
        jobs = []
        for number, seed in enumerate(rows):
            name = next((seed[key] for key in NAMING if key in seed), str(number))
            metadata = {"run_group_id": group, "task_id": id, "universe_id": derive_id(id, f"v{plan.version}-{name}")}
            options = RunOptions(
                seed=seed,
                metadata=metadata,
                context=context,
                keep=given["keep"],
                group_id=group,
                attempt_index=number,
                attempt_count=len(rows),
                overrides=chosen,
                **asked_of_models,
            )
            jobs.append(Job(f"{id} [{row_name(number + 1, seed)}]", plan.seeded(seed), options, stem=f"{id}-seed{number}"))
        return jobs

    return run_jobs(prepare, given["concurrency"], how, group, wrong)


def _overrides(given: dict[str, Any]) -> dict[str, Any]:
    return {name: given[name] for name in OVERRIDES if given.get(name) is not None}


def _presentation(given: dict[str, Any]) -> Presentation:
    from agent_env.cli.batch import Presentation

    return Presentation(given["as_json"], given["quiet"], given["output_dir"], given["fail_under"])
