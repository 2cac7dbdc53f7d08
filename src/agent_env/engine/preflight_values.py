"""References to secrets that lead to nothing, found before anything starts: `env:NAME` and `secret:KEY` without a value and a default."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

from agent_env.engine.literals import secret_fields, texts_of
from agent_env.engine.plan import TaskPlan
from agent_env.errors import NotFoundError, Problem
from agent_env.steps.contract import Step, UnreadableError
from agent_env.steps.image_names import is_open
from agent_env.stores.secrets import Secrets, is_reference
from agent_env.wording import counted


async def values_missing(plans: Mapping[str, TaskPlan], secrets: Secrets) -> list[Problem]:
    """Every reference of the tasks that has no value here. Equal ones are told once, with their first place.

    Args:
        plans: File or id, as messages will name it → task.
        secrets: Where values are; a store may be slow, so it is asked in a thread.
    """
    found: dict[str, list[tuple[str, str]]] = {}
    own: dict[int, list[tuple[str, str]]] = {}
    for source, plan in plans.items():
        for index, step_id in enumerate(plan.graph.order):
            step = plan.steps.get(step_id)
            if step is None:
                continue
            references = own.get(id(step))  # a suite has one step for all that are equal
            if references is None:
                references = own[id(step)] = list(_references(step))
            for path, text in references:
                found.setdefault(text, []).append((source, f"{plan.path_of(index)}{path}"))
    missing = await asyncio.to_thread(_without_value, list(found), secrets) if found else {}
    return [
        Problem(f"{error.message}{and_more(found[text], 'place')}", *found[text][0], hint=error.hint) for text, error in missing.items()
    ]


def _without_value(references: list[str], secrets: Secrets) -> dict[str, NotFoundError]:
    missing: dict[str, NotFoundError] = {}
    for text in references:
        try:
            secrets.resolve(text)
        except NotFoundError as error:
            missing[text] = error
    return missing


def _references(step: Step) -> Iterator[tuple[str, str]]:
    """Where a step's own secret-typed fields refer to a value that it will ask for, and how."""
    try:
        idle = step.idle_fields()
    except UnreadableError:
        return
    for name in sorted(secret_fields(step.type_name).keys() - idle):
        try:
            value = value_of(step, name)
        except UnreadableError:
            continue
        for path, text in texts_of(name, value):
            if is_reference(text) and not is_open(text):
                yield f".{path}", text


def value_of(step: Step, field: str) -> Any:
    """A field's value; None where the type of step has no such field. Raises `UnreadableError` where it could not be read."""
    return getattr(step, field) if field in type(step).model_fields else None


def and_more(places: list[tuple[str, str]], what: str) -> str:
    """What a message says of the places beyond the first."""
    more = len(places) - 1
    return f", and {counted(more, f'more {what}')} like it" if more else ""
