"""Stored tasks: finding, planning, and the values that `task run` puts into a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from agent_env.diagnostics import Diagnostics
from agent_env.errors import NotFoundError, Problem

if TYPE_CHECKING:
    from agent_env.artifacts import Artifacts
    from agent_env.engine import TaskPlan
    from agent_env.engine.options import Stores
    from agent_env.stores import Document, Documents

COLLECTION = "tasks"


def stored_task(documents: Documents, id: str, version: int | None = None) -> Document:
    """A stored task, the newest version by default.

    Raises:
        NotFoundError: There is none; the hint has the newest version or a near id.
    """
    try:
        return documents.named(COLLECTION, id, version)
    except NotFoundError as error:
        if Path(id).expanduser().is_file():
            error.hint = f"a file is no stored task: agent-env run {id} runs it, with --dry-run it is only checked"
        raise


def planned(
    documents: Documents,
    artifacts: Artifacts | None,
    id: str,
    version: int | None = None,
    *,
    overrides: Mapping[str, Any] | None = None,
    preset: Mapping[str, Any] | None = MappingProxyType({}),
    strict: bool = False,
) -> TaskPlan:
    """A stored task, checked and ready to run. See `plan_task` for the arguments."""
    from agent_env.engine import plan_document

    document = stored_task(documents, id, version)
    return plan_document(
        document.body.get("steps"),  # as it was written, and as `task get` prints it
        source=f"{id} v{document.version}",
        task_id=id,
        version=document.version,
        artifacts=artifacts,
        overrides=overrides,
        preset=preset,
        strict=strict,
    )


def planned_file(
    artifacts: Artifacts | None, path: Path, id: str, *, overrides: Mapping[str, Any] | None = None, strict: bool = False
) -> TaskPlan:
    """A task in a file, checked and ready to run."""
    from agent_env.cli.files import read_document
    from agent_env.engine import plan_document

    found = Diagnostics()
    data = found.of(lambda: read_document(path))
    if found and data is None:
        found.tell()
    options: dict[str, Any] = {"artifacts": artifacts, "overrides": overrides, "strict": strict}
    plan = found.of(lambda: plan_document(data, source=str(path), task_id=id, **options))
    found.tell(readable=plan)
    return cast("TaskPlan", plan)


def start_context(given: Path | None, *, agent_model: str | None, agent_artifact_id: str | None) -> dict[str, Any] | None:
    """What a run starts with; None when nothing was given."""
    if given is None and agent_model is None and agent_artifact_id is None:
        return None
    from agent_env.cli.files import read_context_file
    from agent_env.documents.context import new_context

    context = read_context_file(given) if given is not None else new_context()
    return {**context, **{k: v for k, v in {"agent_model": agent_model, "agent_artifact_id": agent_artifact_id}.items() if v is not None}}


def with_seeds(
    read: Callable[[], TaskPlan], seeds: Path | None, found: Diagnostics, *, numbered: bool = False, strict: bool = False
) -> tuple[TaskPlan | None, list[dict[str, str]]]:
    """A task and the rows of a CSV file that fill its placeholders; empty without a file.

    Args:
        read: Plans the task.
        seeds: The file, whatever its name ends in.
        found: Takes everything wrong with both, and with filling one from the other. The task is then as much of it as can be read.
        numbered: `<seed>` is filled with a number for each run.
        strict: Warnings are problems.
    """
    from dataclasses import replace

    from agent_env.bundles.seeding import seed_findings
    from agent_env.documents.seeds import read_csv

    task, sound = found.judged(read)
    table = found.of(lambda: read_csv(seeds)) if seeds is not None else None
    if task is None or (seeds is not None and table is None):
        return task, []
    filled, unsound = ({task.source: task}, {}) if sound else ({}, {task.source: task})
    misfits, warnings = seed_findings(table, filled, unsound, numbered=numbered, strict=strict)
    found.add(misfits)
    rows = list(table.rows) if table is not None else []
    return replace(task, warnings=(*task.warnings, *warnings)), rows


def unfilled(task: TaskPlan) -> list[Problem]:
    """What looks like a placeholder in a task that nothing fills."""
    from agent_env.bundles.seeding import seed_findings

    return seed_findings(None, {}, {task.source: task})[1]


def with_chosen_agents(plan: TaskPlan, overrides: Mapping[str, Any], stores: Stores, found: Diagnostics) -> Mapping[str, Any]:
    """`with_agents`, which writes, where nothing is wrong so far; else only whether the agent that the call names is there."""
    from agent_env.bundles.named_agents import refuse_unknown, with_agents
    from agent_env.cli.session import configuration

    if found:
        if stores.certain:
            found.of(lambda: refuse_unknown(overrides, stores), given="--agent")
        return overrides
    default_id = configuration().default_agent_id
    return found.of(lambda: with_agents([plan], overrides, stores, default_id=default_id)) or overrides
