"""A task's envelope: its id, its steps as data, and the graph between them. Floor 4 types the steps' own fields.

Two shapes are read: the list of steps that people write, and the stored `{id, type, version, steps}`. Everything wrong is found at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from agent_env.documents.reading import at, json_problems
from agent_env.documents.spelling import near, unknown_key_problems
from agent_env.errors import Problem, ProblemsError
from agent_env.ids import NAME_HINT, id_problem, name_problem
from agent_env.wording import json_kind, shown

Json = Any
_SHOWN_KEYS = 8
"""Of a step that lacks its id or type, so that a misspelt one is seen."""
_NO_ID = "\0"
"""Begins what stands for the id of a step that has none; no step can have such an id."""
TASK_KEYS = frozenset({"id", "type", "version", "steps", "created_at_utc"})
ENVELOPE_KEYS = frozenset({"id", "type", "version", "depends_on", "fail_task_on_error", "retry_config", "timeout_seconds", "always_run"})
"""Keys that every step has. `timeout_seconds` is typed by the step's class, because some types give it their own meaning."""


@dataclass(frozen=True, slots=True)
class StepEnvelope:
    """What every step has, whatever its type."""

    id: str
    type: str
    depends_on: tuple[str, ...] | None
    """None: after all earlier steps; empty: no dependency."""
    fail_task_on_error: bool | None
    """None: not given, the type's default."""
    retry_from_step_id: str | None
    version: int | None
    fields: Mapping[str, Json]
    """The whole step as written."""


@dataclass(frozen=True, slots=True)
class TaskDocument:
    """A task whose graph holds together."""

    id: str
    version: int | None
    steps: tuple[dict[str, Json], ...]
    """As written."""
    envelopes: tuple[StepEnvelope, ...]
    extra: Mapping[str, Json] = field(default_factory=dict)
    """Unknown keys of the stored form, kept."""
    warnings: tuple[Problem, ...] = ()
    steps_path: str = "$"
    """Where the list of steps stands in the file: `$.steps` in the stored form."""

    def to_json(self) -> dict[str, Json]:
        """The stored form."""
        return {"id": self.id, "type": "task", "version": self.version, "steps": list(self.steps), **self.extra}

    def ancestors(self, step_id: str) -> frozenset[str]:
        """Every step that is certain to have ended when this one starts."""
        index = {envelope.id: i for i, envelope in enumerate(self.envelopes)}
        own = index[step_id]
        bits = ancestries(_positions(self.envelopes[: own + 1], index))[own]
        return frozenset(envelope.id for i, envelope in enumerate(self.envelopes[:own]) if bits >> i & 1)


def parse_task(
    data: Json,
    *,
    source: str,
    task_id: str | None = None,
    strict: bool = False,
    checked: bool = False,
    problems: list[Problem] | None = None,
) -> TaskDocument:
    """A task from its JSON.

    Args:
        data: A list of steps, or the stored form.
        source: Its file, for the problems.
        task_id: The task's id; the stored form has its own, which this one overrides.
        strict: Unknown keys of the stored form are problems, not warnings.
        checked: `data` came from `parse_json`, so it is not searched again for what JSON can't have.
        problems: Takes what is wrong with the steps' envelopes, so that their fields can still be checked; None raises it.

    Raises:
        ProblemsError: Everything wrong, with JSON paths. Always when there are no steps to look at.
    """
    found = [] if checked else list(json_problems(data, source=source))
    if found:
        raise ProblemsError(found)
    warnings: list[Problem] = []
    extra: dict[str, Json] = {}
    version: int | None = None
    steps, path = data, "$"
    if isinstance(data, dict):
        found, warnings = unknown_key_problems(data, TASK_KEYS, source=source, strict=strict)
        found += _head_problems(data, source, task_id)
        extra = {key: value for key, value in data.items() if key not in TASK_KEYS}
        task_id = task_id if task_id is not None else data.get("id")
        version, steps, path = data.get("version"), data.get("steps"), "$.steps"
    found += _step_list_problems(steps, source, path)
    if isinstance(steps, list):
        found += _graph_problems(steps, source, path)
    if task_id is None or (isinstance(task_id, str) and id_problem(task_id)):
        wrong = f"the task id {task_id!r} {id_problem(task_id)}" if task_id is not None else "the task has no id"
        found.append(Problem(wrong, source))
    if not isinstance(task_id, str) or not isinstance(steps, list) or (found and problems is None):
        raise ProblemsError(found)
    if problems is not None:
        problems += found
        steps = [step if isinstance(step, dict) else {} for step in steps]
    envelopes = tuple(_envelope(step, i) for i, step in enumerate(steps))
    return TaskDocument(task_id, version, tuple(steps), envelopes, extra, tuple(warnings), path)


def _head_problems(data: Mapping[str, Json], source: str, task_id: str | None) -> Iterator[Problem]:
    if data.get("type", "task") != "task":
        yield Problem(f"unknown task type {data['type']!r}", source, "$.type", "it is 'task'")
    version = data.get("version")
    if version is not None and (type(version) is not int or version < 1):
        yield Problem(f"version is a whole number from 1, not {version!r}", source, "$.version")
    if task_id is None and "id" in data and not isinstance(data["id"], str):
        yield Problem(f"id is text, not {data['id']!r}", source, "$.id")


def _step_list_problems(steps: Json, source: str, path: str) -> Iterator[Problem]:
    if not isinstance(steps, list):
        hint = 'write [ {"id": …, "type": …}, … ]'
        yield Problem("a task is a list of steps", source, path, hint)
        return
    if not steps:
        yield Problem("the task has no steps", source, path, "add at least one")
    for i, step in enumerate(steps):
        if isinstance(step, dict):
            yield from _step_problems(step, source, at(path, i))
        else:
            yield Problem(f"a step is an object, not {json_kind(step)}", source, at(path, i))


def _step_problems(step: Mapping[str, Json], source: str, path: str) -> Iterator[Problem]:
    for name in ("id", "type"):
        value = step.get(name)
        if not isinstance(value, str) or not value.strip():
            said = "is missing" if name not in step else f"is text, not {shown(value)}"
            hint = f"it has {', '.join(map(shown, islice(step, _SHOWN_KEYS)))}" if step and name not in step else None
            yield Problem(f"the step's {name} {said}", source, at(path, name) if name in step else path, hint)
        elif (wrong := name_problem(value)) is not None:
            yield Problem(f"the step's {name} {shown(value)} {wrong}", source, at(path, name), NAME_HINT)
    if not isinstance(step.get("fail_task_on_error", True), bool):
        yield Problem(
            f"fail_task_on_error is true or false, not {shown(step['fail_task_on_error'])}", source, at(path, "fail_task_on_error")
        )
    version = step.get("version")
    if version is not None and type(version) is not int:
        yield Problem(f"version is a whole number or null, not {shown(version)}", source, at(path, "version"))
    yield from _depends_problems(step.get("depends_on"), source, at(path, "depends_on"))
    yield from _retry_problems(step.get("retry_config"), source, at(path, "retry_config"))


def _depends_problems(value: Json, source: str, path: str) -> Iterator[Problem]:
    if value is None:
        return
    if not isinstance(value, list):
        yield Problem(f"depends_on is a list of step ids, not {shown(value)}", source, path)
        return
    for i, entry in enumerate(value):
        if _step_id(entry) is None:
            yield Problem(f'a depends_on entry is a step id or {{"task_step_id": "…"}}, not {shown(entry)}', source, at(path, i))


def _retry_problems(value: Json, source: str, path: str) -> Iterator[Problem]:
    if value is None:
        return
    if not isinstance(value, dict):
        yield Problem(f"retry_config is an object, not {json_kind(value)}", source, path)
        return
    if _retry_target(value) is None:
        yield Problem("retry_config needs the text retry_from_step_id", source, path)
    retries = value.get("max_retries", 1)
    if type(retries) is not int or retries < 0:
        yield Problem(f"max_retries is a whole number from 0, not {shown(retries)}", source, at(path, "max_retries"))


def _graph_problems(steps: Sequence[Json], source: str, path: str) -> Iterator[Problem]:
    """Ids are unique, edges point backwards, a retry goes back to an ancestor. Steps that are broken themselves don't stop it."""
    envelopes = [_envelope(step if isinstance(step, dict) else {}, i) for i, step in enumerate(steps)]
    ids = [envelope.id for envelope in envelopes]
    first: dict[str, int] = {}
    for i, step_id in enumerate(ids):
        if step_id in first:
            message = f"duplicate step id {step_id!r}; it is also the id of step {first[step_id]}"
            yield Problem(message, source, at(at(path, i), "id"), "step ids must be unique within a task")
        first.setdefault(step_id, i)
    sound = len(first) == len(ids)  # else nobody can say what depends on what
    for i, envelope in enumerate(envelopes):
        for j, other in enumerate(envelope.depends_on or ()):
            where = at(at(at(path, i), "depends_on"), j)
            if other not in first:
                sound = False
                yield Problem(f"depends_on names {other!r}, which is no step of this task", source, where, _suggest(other, ids[:i]))
            elif first[other] >= i:
                sound = False
                what = "is the step itself" if other == envelope.id else "doesn't come before it"
                yield Problem(f"depends_on names {other!r}, which {what}", source, where, "only earlier steps can be named")
    yield from _retry_target_problems(envelopes, first, source, path, sound=sound)


def _retry_target_problems(
    envelopes: Sequence[StepEnvelope], index: Mapping[str, int], source: str, path: str, *, sound: bool
) -> Iterator[Problem]:
    asking = [(i, envelope) for i, envelope in enumerate(envelopes) if envelope.retry_from_step_id not in (None, envelope.id)]
    ancestry = ancestries(_positions(envelopes, index)) if asking and sound else ()
    for i, envelope in asking:
        target = str(envelope.retry_from_step_id)
        where = at(at(path, i), "retry_config")
        if target not in index:
            yield Problem(f"the retry goes back to {target!r}, which is no step of this task", source, where, _suggest(target, list(index)))
        elif sound and not ancestry[i] >> index[target] & 1:
            hint = "go back to the step itself or to one that it depends on"
            yield Problem(f"the retry goes back to {target!r}, which the step does not depend on", source, where, hint)


def ancestries(parents: Iterable[Iterable[int] | None]) -> list[int]:
    """What each step depends on, transitively, as a set of bits by position: one word operation for 64 steps.

    Args:
        parents: For each step the positions that it names, all before its own; None names every earlier one.
    """
    found: list[int] = []
    for position, named in enumerate(parents):
        bits = (1 << position) - 1 if named is None else 0
        for parent in named or ():
            bits |= found[parent] | 1 << parent
        found.append(bits)
    return found


def _positions(envelopes: Sequence[StepEnvelope], index: Mapping[str, int]) -> Iterator[list[int] | None]:
    for envelope in envelopes:
        yield None if envelope.depends_on is None else [index[name] for name in envelope.depends_on]


def _envelope(step: Mapping[str, Json], position: int) -> StepEnvelope:
    """Of a broken step, what can be used; an id that no step can have stands for a missing one."""
    id, depends, retry = step.get("id"), step.get("depends_on"), step.get("retry_config")
    parents = tuple(name for name in map(_step_id, depends) if name is not None) if isinstance(depends, list) else None
    return StepEnvelope(
        id=id if isinstance(id, str) and id.strip() else f"{_NO_ID}{position}",
        type=step.get("type", ""),
        depends_on=parents,
        fail_task_on_error=step.get("fail_task_on_error"),
        retry_from_step_id=_retry_target(retry) if isinstance(retry, dict) else None,
        version=step.get("version"),
        fields=step,
    )


def _step_id(entry: Json) -> str | None:
    name = entry.get("task_step_id") if isinstance(entry, dict) else entry
    return name if isinstance(name, str) else None


def _retry_target(retry: Mapping[str, Json]) -> str | None:
    target = retry.get("retry_from_step_id", retry.get("go_to_step_id"))
    return target if isinstance(target, str) and target else None


def _suggest(name: str, candidates: Sequence[str]) -> str:
    meant = near(name, candidates[-1000:])
    if meant is not None:
        return f"did you mean {meant!r}?"
    named = [candidate for candidate in candidates if not candidate.startswith(_NO_ID)]
    return f"steps before it: {', '.join(named[:20]) or 'none'}"
