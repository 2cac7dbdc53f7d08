"""Paths inside JSON documents: finding what stands at a declared path, and documents with some values replaced."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from agent_env.documents.reading import at
from agent_env.documents.task import StepEnvelope, TaskDocument
from agent_env.documents.updates import Json

Path = tuple[str | int, ...]
"""Keys and positions, from a document's top."""


def declared_keys(path: str) -> tuple[str, ...]:
    """`artifacts[].id` → `artifacts`, `[]`, `id`."""
    return tuple(part for key in path.split(".") for part in ((key[:-2], "[]") if key.endswith("[]") else (key,)))


def values_at(value: Json, keys: tuple[str, ...], path: Path = ()) -> Iterator[tuple[Path, Json]]:
    """What stands at a declared path, with the concrete path of each."""
    if not keys:
        yield path, value
    elif keys[0] == "[]":
        for index, item in enumerate(value if isinstance(value, list) else ()):
            yield from values_at(item, keys[1:], (*path, index))
    elif isinstance(value, dict) and value.get(keys[0]) is not None:
        yield from values_at(value[keys[0]], keys[1:], (*path, keys[0]))


def value_at(value: Json, path: Path) -> Json:
    for key in path:
        if isinstance(key, str):
            value = value.get(key) if isinstance(value, dict) else None
        else:
            value = value[key] if isinstance(value, list) and key < len(value) else None
    return value


def texts_in(value: Json, path: Path) -> Iterator[tuple[Path, str]]:
    match value:
        case str():
            yield path, value
        case dict():
            for key, item in value.items():
                if key not in {"id", "type", "depends_on"} and not key.endswith(("_step_id", "_step_ids")):
                    yield from texts_in(item, (*path, key))
        case list():
            for index, item in enumerate(value):
                yield from texts_in(item, (*path, index))


def spelled_below(path: Path) -> str:
    """A path inside a step as messages show it."""
    where = ""
    for key in path:
        where = at(where, key)
    return where.lstrip(".")


def spelled(index: int, path: Path) -> str:
    where = f"$[{index}]"
    for key in path:
        where = at(where, key)
    return where


def rewritten(task: TaskDocument, changed: Mapping[int, list[tuple[Path, str]]]) -> TaskDocument:
    """The task with some values replaced; what is not on a replaced path is shared."""
    if not changed:
        return task
    steps, envelopes = list(task.steps), list(task.envelopes)
    for index, changes in changed.items():
        step: Json = steps[index]
        for path, id in changes:
            step = _with(step, path, id)
        steps[index] = step
        old = envelopes[index]
        envelopes[index] = StepEnvelope(old.id, old.type, old.depends_on, old.fail_task_on_error, old.retry_from_step_id, old.version, step)
    return replace(task, steps=tuple(steps), envelopes=tuple(envelopes))


def _with(value: Json, path: Path, new: str) -> Json:
    if not path:
        return new
    key, below = path[0], path[1:]
    if isinstance(key, int):
        return [_with(item, below, new) if index == key else item for index, item in enumerate(value)]
    return {**value, key: _with(value.get(key), below, new)}
