"""A task with a broken graph, mended just so far that everything else that is wrong with it can be found too. It is never run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from agent_env.documents.task import StepEnvelope, TaskDocument
from agent_env.errors import Problem

_PLACE = re.compile(r"\$(?:\.steps)?\[(\d+)\](?:\.(\w+))?")
"""The position of a step, and its key, in a problem's path."""


def step_position(problem: Problem) -> int:
    """The position of the step that a problem is about; what is about the whole task comes first."""
    place = _PLACE.match(problem.path or "")
    return -1 if place is None else int(place[1])


def mended(task: TaskDocument, problems: Iterable[Problem]) -> tuple[TaskDocument, frozenset[str]]:
    """The task without what the problems are about: broken keys are left out, ids are made unique, edges to nowhere are cut.

    Returns:
        The task, and the ids of steps whose place in the graph is not known.
    """
    broken: dict[int, set[str]] = {}
    for problem in problems:
        if (place := _PLACE.match(problem.path or "")) is not None:
            broken.setdefault(step_position(problem), set()).add(place[2] or "")
    earlier: set[str] = set()
    unsure: set[str] = set()
    documents: list[dict[str, Any]] = []
    envelopes: list[StepEnvelope] = []
    for position, envelope in enumerate(task.envelopes):
        keys = broken.get(position, set())
        step_id = f"(step {position})" if keys & {"", "id"} else envelope.id
        depends_on = envelope.depends_on
        if "depends_on" in keys or any(name not in earlier for name in depends_on or ()):
            depends_on = tuple(name for name in depends_on or () if name in earlier)
            unsure.add(step_id)
        documents.append(_document(envelope.fields, keys, step_id))
        envelopes.append(replace(envelope, id=step_id, depends_on=depends_on))
        earlier.add(step_id)
    return replace(task, steps=tuple(documents), envelopes=tuple(envelopes)), frozenset(unsure)


def _document(written: Mapping[str, Any], broken: set[str], step_id: str) -> dict[str, Any]:
    return {**{key: value for key, value in written.items() if key not in broken}, "id": step_id}
