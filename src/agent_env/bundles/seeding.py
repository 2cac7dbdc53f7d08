"""Filling tasks with the rows of a file, tried before anything runs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from agent_env.documents.placeholders import seed_remarks
from agent_env.documents.seeds import SEED_KEY, Seed, SeedTable
from agent_env.engine.plan import TaskPlan
from agent_env.errors import Problem, ProblemsError


def seed_findings(
    table: SeedTable | None,
    tasks: Mapping[str, TaskPlan],
    unsound: Mapping[str, TaskPlan] | None = None,
    *,
    numbered: bool = False,
    given: Collection[str] = (),
    strict: bool = False,
    all_read: bool = True,
) -> tuple[list[Problem], list[Problem]]:
    """Problems and warnings of filling tasks with the rows of a table.

    Args:
        table: The seeds, if any.
        tasks: Source → task.
        unsound: The same of tasks with something wrong, which are not filled.
        numbered: `<seed>` is filled with a number for each run.
        given: Names that are filled by other means.
        strict: Warnings are problems, except where nothing is filled at all: a text may be meant as it is written.
        all_read: There are no tasks beside these; else one may have the placeholder that these lack.
    """
    documents = {name: task.documents for name, task in {**tasks, **(unsound or {})}.items()}
    remarks = seed_remarks(table, documents, numbered=SEED_KEY if numbered else None, given=given, all_read=all_read)
    problems = [problem for row in _rows(table, numbered=numbered) for task in tasks.values() for problem in _misfits(task, *row)]
    return ([*problems, *remarks], []) if strict and (table is not None or numbered or given) else (problems, remarks)


def _rows(table: SeedTable | None, *, numbered: bool) -> Iterator[tuple[Seed, str]]:
    if table is None:
        return
    extra = {SEED_KEY: 0} if numbered else {}
    for place, row in zip(table.places, table.rows, strict=True):
        yield {**extra, **row}, f"with {place} of {table.source}"


def _misfits(task: TaskPlan, seed: Seed, where: str) -> Iterator[Problem]:
    """What a row's values break in a task."""
    try:
        task.seeded(seed)
    except ProblemsError as error:
        yield from (replace(problem, message=f"{where}: {problem.message}") for problem in error.problems)
