"""What is stored of a run before it starts: the task as it will run, the context that it starts with, and no secret."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from agent_env.documents.context import SECRET_KEYS, new_context, safe_context
from agent_env.documents.updates import Json
from agent_env.engine.execution import by_value
from agent_env.engine.literals import Keep, plan_without_literals, references_in
from agent_env.engine.options import RunOptions
from agent_env.engine.plan import TaskPlan
from agent_env.errors import NotFoundError, UsageError
from agent_env.ids import NAME_HINT, name_problem, new_instance_id, new_run_id, run_id_problem
from agent_env.stores.documents import digest_of
from agent_env.stores.records import NewRun
from agent_env.stores.secrets import is_reference

if TYPE_CHECKING:
    from agent_env.redaction import Redactor
    from agent_env.stores import Secrets


def prepared(plan: TaskPlan, options: RunOptions, redactor: Redactor, keep: Keep) -> tuple[TaskPlan, NewRun]:
    """The plan with its seed put in and without literal secrets, and the run as it is stored.

    Args:
        plan: The task.
        options: How this run differs.
        redactor: Learns the secrets.
        keep: Moves a literal secret to the secret store, and gives the reference.

    Raises:
        ProblemsError: The seed's values don't fit the steps.
        UsageError: `start_step` or `end_step` is outside of the task, or a name can't be one.
    """
    _check_names(options)
    options = _with_its_seed(options)
    seeded = plan_without_literals(plan.seeded(options.seed), keep)
    _check_part(options, len(seeded.graph.order))
    instance_id = new_instance_id(plan.task_id)
    steps = list(seeded.documents)
    new = NewRun(
        run_id=options.run_id or new_run_id(),
        instance_id=instance_id,
        task_id=seeded.task_id,
        task_version=seeded.version,
        task_digest=digest_of({"steps": steps}),
        task={"id": seeded.task_id, "version": seeded.version, "source": seeded.source, "steps": steps},
        context=_start_context(seeded, options, instance_id, redactor),
        bundle_id=options.bundle_id,
        bundle_path=options.bundle_path,
        group_id=options.group_id,
        attempt_index=options.attempt_index,
        attempt_count=options.attempt_count,
        seed=dict(options.seed),
        options={
            "start_step": options.start_step,
            "end_step": options.end_step,
            "keep": options.keep,
            "pause_on_failure": options.pause_on_failure,
            "work_key": options.work_key,
            **{name: value for name in ("call", "record", "replay", "model_budget") if (value := getattr(options, name))},
        },
    )
    return seeded, new


def _with_its_seed(options: RunOptions) -> RunOptions:
    """A run that goes on with a context goes on with its seed: the steps still to run have the same placeholders (reference)."""
    given = ((options.context or {}).get("metadata") or {}).get("seed")
    return replace(options, seed=given) if given and not options.seed else options


def learn_references(task: Mapping[str, Json], secrets: Secrets) -> None:
    """Resolves what a stored task's fields refer to, so that it is redacted from now on. What has no value any more can't be told."""
    for reference in references_in(task.get("steps") or ()):
        with suppress(NotFoundError):
            secrets.resolve(reference)


def learn_secrets(overrides: Json, redactor: Redactor) -> None:
    """What overrides carry under secret keys is used, never shown and never stored. A reference is no secret."""
    if isinstance(overrides, Mapping):
        for key, below in overrides.items():
            if key in SECRET_KEYS and isinstance(below, str) and not is_reference(below):
                redactor.add(below)
            learn_secrets(below, redactor)
    elif isinstance(overrides, list | tuple):
        for below in overrides:
            learn_secrets(below, redactor)


def _start_context(plan: TaskPlan, options: RunOptions, instance_id: str, redactor: Redactor) -> dict[str, Json]:
    context = {**new_context(), **(options.context or {}), "instance_id": instance_id}
    metadata: dict[str, Json] = {**(context.get("metadata") or {}), "task_id": plan.task_id, **options.metadata}
    said = {
        "run_group_id": options.group_id or metadata.get("run_group_id") or new_run_id(),
        "seed": dict(options.seed) or None,
        "start_step": options.start_step or None,
        "keep": options.keep or None,
        "user_overrides": dict(options.overrides) or None,
    }
    metadata.update({key: value for key, value in said.items() if value is not None})
    again = set(plan.graph.order[options.start_step : options.end_step])
    if metadata.get("failed_steps"):
        metadata["failed_steps"] = [entry for entry in metadata["failed_steps"] if entry.get("step_id") not in again]
    safe: dict[str, Json] = by_value(safe_context({**context, "metadata": metadata}), redactor)
    return safe


def _check_names(options: RunOptions) -> None:
    """A run's id names its folder; the others are columns."""
    if options.run_id is not None and (wrong := run_id_problem(options.run_id)) is not None:
        raise UsageError(f"the run id {options.run_id!r} {wrong}", hint="letters, digits and _ . - are allowed")
    for field in ("group_id", "bundle_id", "bundle_path", "work_key"):
        if (wrong := name_problem(getattr(options, field) or "")) is not None:
            raise UsageError(f"{field} {getattr(options, field)!r} {wrong}", hint=NAME_HINT)


def _check_part(options: RunOptions, count: int) -> None:
    if not 0 <= options.start_step < count:
        raise UsageError(f"start_step={options.start_step} out of range [0, {count})")
    if options.end_step is not None and not options.start_step < options.end_step <= count:
        raise UsageError(f"end_step={options.end_step} out of range ({options.start_step}, {count}]")
