"""Stored tasks: finding, planning, and the values that `task run` puts into a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from agent_env.errors import NotFoundError, Problem, ProblemsError

if TYPE_CHECKING:
    from agent_env.artifacts import Artifacts
    from agent_env.engine import TaskPlan
    from agent_env.stores import Document, Documents

T = TypeVar("T")

COLLECTION = "tasks"


def stored_task(documents: Documents, id: str, version: int | None = None) -> Document:
    """A stored task, the newest version by default.

    Raises:
        NotFoundError: There is none; the hint has the newest version or a near id.
    """
    found = documents.get(COLLECTION, id, version)
    if found is not None:
        return found
    newest = documents.get(COLLECTION, id) if version is not None else None
    if newest is not None:
        raise NotFoundError(f"task {id!r} has no version {version}", concerns=id, hint=f"its newest version is {newest.version}")
    from agent_env.documents.spelling import near

    meant = near(id, documents.ids(COLLECTION))
    hint = f"did you mean {meant!r}?" if meant else "agent-env task list"
    if Path(id).expanduser().is_file():
        hint = f"a file is no stored task: agent-env run {id} runs it, with --dry-run it is only checked"
    raise NotFoundError(f"task {id!r} does not exist", concerns=id, hint=hint)


def planned(
    documents: Documents,
    artifacts: Artifacts,
    id: str,
    version: int | None = None,
    *,
    overrides: Mapping[str, Any] | None = None,
    preset: Mapping[str, Any] | None = None,
    strict: bool = False,
) -> TaskPlan:
    """A stored task, checked and ready to run."""
    from agent_env.engine import plan_document

    document = stored_task(documents, id, version)
    return plan_document(
        document.body,
        source=f"{id} v{document.version}",
        task_id=id,
        version=document.version,
        artifacts=artifacts,
        overrides=overrides,
        preset=preset,
        strict=strict,
    )


def planned_file(
    artifacts: Artifacts, path: Path, id: str, *, overrides: Mapping[str, Any] | None = None, strict: bool = False
) -> TaskPlan:
    """A task in a file, checked and ready to run."""
    from agent_env.cli.files import read_document
    from agent_env.engine import plan_document

    return plan_document(read_document(path), source=str(path), task_id=id, artifacts=artifacts, overrides=overrides, strict=strict)


def start_context(given: Path | None, *, agent_model: str | None, agent_artifact_id: str | None) -> dict[str, Any] | None:
    """What a run starts with; None when nothing was given."""
    if given is None and agent_model is None and agent_artifact_id is None:
        return None
    from agent_env.cli.files import read_context_file
    from agent_env.documents.context import new_context

    context = read_context_file(given) if given is not None else new_context()
    return {**context, **{k: v for k, v in {"agent_model": agent_model, "agent_artifact_id": agent_artifact_id}.items() if v is not None}}


def with_seeds(
    read: Callable[[], TaskPlan], seeds: Path | None, *, numbered: bool = False, strict: bool = False
) -> tuple[TaskPlan, list[dict[str, str]]]:
    """A task and the rows of a CSV file that fill its placeholders; empty without a file.

    Args:
        read: Plans the task.
        seeds: The file, whatever its name ends in.
        numbered: `<seed>` is filled with a number for each run.
        strict: Warnings are problems.

    Raises:
        ProblemsError: Everything wrong with both, and with filling one from the other.
    """
    from dataclasses import replace

    from agent_env.bundles.seeding import seed_findings
    from agent_env.documents.seeds import read_csv

    (task, problems), (table, others) = _tried(read), _tried(lambda: read_csv(seeds) if seeds is not None else None)
    if task is None or others:
        raise ProblemsError([*problems, *others])
    misfits, warnings = seed_findings(table, {task.source: task}, numbered=numbered, strict=strict)
    if misfits:
        raise ProblemsError(misfits)
    rows = list(table.rows) if table is not None else []
    return replace(task, warnings=(*task.warnings, *warnings)), rows


def _tried(read: Callable[[], T]) -> tuple[T | None, tuple[Problem, ...]]:
    try:
        return read(), ()
    except ProblemsError as error:
        return None, error.problems
