"""Literal secrets in tasks: on load they move to the secret store, and the document keeps a reference.

A field is secret-typed when its class says so (`steps.fields.SECRET`, `SECRET_URLS`), or when its key is one of those that are never
stored. In a table of variables only those count whose name or value says that they are secret, and of URLs those that carry a user or a
key: a value that is moved is blotted out wherever it is shown, which nobody wants of `LOG_LEVEL=debug`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from agent_env.documents.context import SECRET_KEYS
from agent_env.documents.reading import at
from agent_env.documents.task import parse_task
from agent_env.documents.updates import Json
from agent_env.errors import AgentEnvError
from agent_env.redaction import is_secret_key, looks_secret
from agent_env.steps.fields import Secret
from agent_env.steps.registry import step_class
from agent_env.stores.secrets import is_reference, split_default

if TYPE_CHECKING:
    from agent_env.engine.plan import TaskPlan

Keep = Callable[[str], str]
"""Moves a value into the secret store, and gives the reference."""


def without_literals(steps: Sequence[Mapping[str, Json]], keep: Keep) -> Sequence[Mapping[str, Json]]:
    """The steps with references in place of literal secrets; the same object when there are none."""
    made = [_step(step, keep) for step in steps]
    return steps if all(new is old for new, old in zip(made, steps, strict=True)) else tuple(made)


def plan_without_literals(plan: TaskPlan, keep: Keep) -> TaskPlan:
    """The plan of the same task as it is stored: with references, which its steps resolve when they need the value."""
    documents = without_literals(plan.documents, keep)
    if documents is plan.documents:
        return plan
    from agent_env.engine.plan import read_steps

    task = parse_task([dict(document) for document in documents], source=plan.source, task_id=plan.task_id)
    steps, graph, _ = read_steps(task, source=plan.source)
    origin = tuple(without_literals(plan.origin, keep))
    return replace(plan, documents=tuple(task.steps), steps=steps, graph=graph, origin=origin)


def _step(step: Mapping[str, Json], keep: Keep) -> Mapping[str, Json]:
    fields = secret_fields(str(step.get("type")))
    made = {key: _field(value, fields[key], keep) if key in fields else _never_stored(key, value, keep) for key, value in step.items()}
    return step if all(made[key] is step[key] for key in made) else made


def references_in(steps: Sequence[Mapping[str, Json]]) -> Iterator[str]:
    """Every reference to a value that the secret-typed fields of steps hold, as they are written."""
    for step in steps:
        for name in sorted(secret_fields(str(step.get("type")))):
            yield from (text for _, text in texts_of(name, step.get(name)) if is_reference(text))


def texts_of(path: str, value: object) -> Iterator[tuple[str, str]]:
    """Every text of a secret-typed field, with where it stands."""
    match value:
        case str():
            yield path, value
        case Mapping():
            for key, below in value.items():
                yield from texts_of(at(path, key), below)
        case list() | tuple():
            for index, below in enumerate(value):
                yield from texts_of(at(path, index), below)


@cache
def secret_fields(type: str) -> Mapping[str, Secret]:
    """The fields of a step type whose texts may be secrets, and of what kind; none of a type that nobody knows."""
    try:
        cls = step_class(type)
    except AgentEnvError:
        return {}
    return {name: mark for name, info in cls.model_fields.items() for mark in info.metadata if isinstance(mark, Secret)}


def _field(value: Json, mark: Secret, keep: Keep) -> Json:
    """A secret-typed field: a text, a table of variables, or URLs."""
    if mark.urls:
        return _urls(value, keep)
    if not isinstance(value, Mapping):
        return _kept(value, keep)
    made = {name: _kept(text, keep) if is_secret_key(name) or looks_secret(text) else text for name, text in value.items()}
    return value if all(made[name] is value[name] for name in made) else made


def _urls(value: Json, keep: Keep) -> Json:
    match value:
        case str():
            return _kept(value, keep) if looks_secret(value) else value
        case dict():
            return value if (url := _urls(value.get("url"), keep)) is value.get("url") else {**value, "url": url}
        case list() | tuple():
            items = [_urls(below, keep) for below in value]
            return value if all(new is old for new, old in zip(items, value, strict=True)) else items
    return value


def _never_stored(key: str, value: Json, keep: Keep, *, hidden: bool = False) -> Json:
    hidden = hidden or key in SECRET_KEYS
    match value:
        case str():
            return _kept(value, keep) if hidden else value
        case dict():
            made = {name: _never_stored(name, below, keep, hidden=hidden) for name, below in value.items()}
            return value if all(made[name] is value[name] for name in made) else made
        case list():
            items = [_never_stored(key, below, keep, hidden=hidden) for below in value]
            return value if all(new is old for new, old in zip(items, value, strict=True)) else items
    return value


def _kept(text: Json, keep: Keep) -> Json:
    if not isinstance(text, str) or not text.strip():
        return text
    if not is_reference(text):
        return keep(text)
    reference, default = split_default(text)
    return text if not default or is_reference(default) else f"{reference}?{keep(default)}"
