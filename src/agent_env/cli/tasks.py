"""Stored tasks: finding, planning, and the values that `task run` puts into a run."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_env.errors import NotFoundError, Problem, ProblemsError

if TYPE_CHECKING:
    from agent_env.artifacts import Artifacts
    from agent_env.engine import TaskPlan
    from agent_env.stores import Document, Documents

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
    raise NotFoundError(f"task {id!r} does not exist", concerns=id, hint=f"did you mean {meant!r}?" if meant else "agent-env task list")


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
    from dataclasses import replace

    from agent_env.documents.task import parse_task
    from agent_env.engine import plan_task

    document = stored_task(documents, id, version)
    source = f"{id} v{document.version}"
    task = replace(parse_task(document.body, source=source, task_id=id), version=document.version)
    return plan_task(task, source=source, artifacts=artifacts, overrides=overrides, preset=preset, strict=strict)


def planned_file(
    artifacts: Artifacts, path: Path, id: str, *, overrides: Mapping[str, Any] | None = None, strict: bool = False
) -> TaskPlan:
    """A task in a file, checked and ready to run."""
    from agent_env.cli.files import read_document
    from agent_env.documents.task import parse_task
    from agent_env.engine import plan_task

    task = parse_task(read_document(path), source=str(path), task_id=id)
    return plan_task(task, source=str(path), artifacts=artifacts, overrides=overrides, strict=strict)


def start_context(given: Path | None, *, agent_model: str | None, agent_artifact_id: str | None) -> dict[str, Any] | None:
    """What a run starts with; None when nothing was given."""
    if given is None and agent_model is None and agent_artifact_id is None:
        return None
    from agent_env.cli.files import read_context_file
    from agent_env.documents.context import new_context

    context = read_context_file(given) if given is not None else new_context()
    return {**context, **{k: v for k, v in {"agent_model": agent_model, "agent_artifact_id": agent_artifact_id}.items() if v is not None}}


def seeds_of(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file, each a seed; empty cells are absent, empty rows are left out.

    Raises:
        ProblemsError: It can't be read, has no heading, or a row has more cells than the heading.
    """
    from agent_env.documents.reading import read_file

    try:
        text = read_file(path).decode("utf-8-sig")
        rows = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise ProblemsError([Problem(f"is no CSV in UTF-8: {error}", str(path))]) from error
    heading = rows[0] if rows else []
    problems = []
    if not any(heading):
        problems.append(Problem("has no heading: the first row names the placeholders", str(path), "line 1"))
    if len(set(heading)) < len(heading):
        problems.append(Problem("names a placeholder twice", str(path), "line 1"))
    for number, row in enumerate(rows[1:], 2):
        if len(row) > len(heading):
            problems.append(Problem(f"has {len(row)} cells, the heading has {len(heading)}", str(path), f"row {number}"))
    if problems:
        raise ProblemsError(problems)
    seeds = [{name: cell for name, cell in zip(heading, row, strict=False) if name and cell} for row in rows[1:]]
    seeds = [seed for seed in seeds if seed]
    if not seeds:
        raise ProblemsError([Problem("has no rows with values", str(path))])
    return seeds
