"""From a step's JSON to its class. Every mistake is a `Problem` that names the JSON path, says what is meant and offers a spelling."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any, TypeVar, get_args

from pydantic import AliasChoices, BaseModel, ValidationError

from agent_env.documents.reading import at
from agent_env.documents.spelling import meant_keys, near, unknown_key_problems
from agent_env.errors import Problem, ProblemsError
from agent_env.steps.contract import Step, UnreadableError
from agent_env.wording import json_kind, shown

S = TypeVar("S", bound=Step)


def read_fields(
    cls: type[S], data: Mapping[str, Any], *, source: str | None, path: str = "$", strict: bool = False
) -> tuple[S, list[Problem]]:
    """A step of a known class from its JSON.

    Returns:
        The step, and warnings about unknown keys, which it keeps.

    Raises:
        ProblemsError: Everything wrong with it: types, values, near spellings of known keys (with `strict`, and where a key is missing,
            every unknown key). Its `readable` is the step as far as it can be read, for whoever looks for more.
    """
    mistakes = {
        key: meant for key, meant in meant_keys(data, accepted_keys(cls), getattr(cls, "other_words", None)).items() if meant not in data
    }
    if mistakes:
        raise _with_meant_keys(cls, data, mistakes, source, path, strict=strict)
    step: S | None = None
    problems: list[Problem] = []
    lacking: frozenset[str] = frozenset()
    try:
        step = cls.model_validate(dict(data))
    except ValidationError as error:
        from agent_env.steps.partial import as_far_as_readable

        problems, lacking = _in_words(cls, error, data, source, path)
        step = as_far_as_readable(cls, data)
        if step is not None:
            problems += _rule_problems(step, data, source, path)
    # Where something is missing, a key that nobody knows is probably it, under another name.
    spelling, warnings = _key_problems(step if step is not None else cls, data, source, path, strict=strict, lacking=lacking)
    problems += spelling
    if problems or step is None:
        raise ProblemsError(dict.fromkeys(problems), readable=step)
    return step, warnings


def _with_meant_keys(
    cls: type[S], data: Mapping[str, Any], mistakes: Mapping[str, str], source: str | None, path: str, *, strict: bool
) -> ProblemsError:
    """What is wrong with a step whose keys are misspelt: that, and what is wrong with it when they are read as they are meant."""
    problems: list[Problem] = []
    written = {at(path, meant): at(path, key) for key, meant in mistakes.items()}
    step: S | None = None
    try:
        step, _ = read_fields(cls, {mistakes.get(key, key): value for key, value in data.items()}, source=source, path=path, strict=strict)
    except ProblemsError as error:
        step = error.readable if isinstance(error.readable, cls) else None
        for problem in error.problems:
            where = problem.path or ""
            key = next((key for key in written if where == key or where.startswith((f"{key}.", f"{key}["))), None)
            problems.append(problem if key is None else replace(problem, path=written[key] + where[len(key) :]))
    problems += [Problem(f"unknown key {key!r}", source, at(path, key), f"did you mean {meant!r}?") for key, meant in mistakes.items()]
    return ProblemsError(dict.fromkeys(problems), readable=step)


@cache
def accepted_keys(cls: type[BaseModel]) -> frozenset[str]:
    """Every key that a class reads, legacy spellings included."""
    spellings = (field.validation_alias for field in cls.model_fields.values())
    legacy = {name for spelling in spellings if isinstance(spelling, AliasChoices) for name in spelling.choices if isinstance(name, str)}
    return frozenset(cls.model_fields) | legacy


def _key_problems(
    step: BaseModel | type[BaseModel],
    data: Mapping[str, Any],
    source: str | None,
    path: str,
    *,
    strict: bool,
    lacking: frozenset[str],
    around: frozenset[str] = frozenset(),
) -> tuple[list[Problem], list[Problem]]:
    """Unknown keys of an object and of the objects inside it, as `(problems, warnings)`.

    Args:
        step: The object, or its class where nothing could be made of it.
        data: As it is written.
        source: Its file.
        path: Its JSON path.
        strict: All of them are problems.
        lacking: Paths of objects of which all are, because something is missing there.
        around: The keys of the object that it is in, where it is in one.
    """
    cls = step if isinstance(step, type) else type(step)
    # A class may say that free keys belong to it; near spellings of its own are mistakes all the same.
    free = getattr(cls, "free_keys", False)
    words = getattr(cls, "other_words", None)
    outer = path.rpartition(".")[0]
    elsewhere = dict.fromkeys(around, f"it belongs to {outer}, one level up") | dict(getattr(cls, "elsewhere", {}))
    problems, warnings = unknown_key_problems(
        data,
        accepted_keys(cls),
        source=source,
        path=path,
        strict=(strict or path in lacking) and not free,
        other_words=words,
        elsewhere=elsewhere,
    )
    if free:
        warnings = []
    if not isinstance(step, type):
        (problems if strict else warnings).extend(_told("passed_over", step, source, path))
        warnings.extend(_told("doubts", step, source, path))
        for inner, below, where in _members(step, data, path):
            more_problems, more_warnings = _key_problems(
                inner, below, source, where, strict=strict, lacking=lacking, around=accepted_keys(cls)
            )
            problems += more_problems
            warnings += more_warnings
    return problems, warnings


def _told(what: str, step: BaseModel, source: str | None, path: str) -> Iterator[Problem]:
    """What an object says of what it holds, in its method of that name, where its class has one."""
    said: Callable[[BaseModel], Iterator[Problem]] | None = getattr(type(step), what, None)
    with suppress(UnreadableError):  # what it would say that by is wrong itself, and told
        for problem in said(step) if said is not None else ():
            yield replace(problem, file=source, path=f"{path}{problem.path or ''}")


def _members(step: BaseModel, data: Mapping[str, Any], path: str) -> Iterator[tuple[BaseModel, Mapping[str, Any], str]]:
    fields = type(step).model_fields
    for name, written in data.items():
        if not isinstance(written, Mapping | list | tuple) or name not in fields:
            continue
        value = getattr(step, name, None)
        if isinstance(value, BaseModel) and isinstance(written, Mapping):
            yield value, written, at(path, name)
        elif isinstance(value, list | tuple) and isinstance(written, list | tuple):
            for index, (inner, below) in enumerate(zip(value, written, strict=False)):
                if isinstance(inner, BaseModel) and isinstance(below, Mapping):
                    yield inner, below, at(at(path, name), index)


def _rule_problems(step: BaseModel, data: Mapping[str, Any], source: str | None, path: str, name: str = "") -> Iterator[Problem]:
    """What rules across fields say of an object that could be read in part, and of the objects inside it."""
    from agent_env.steps.partial import broken_rules

    for said in broken_rules(step):
        yield Problem(_words({"type": "value_error", "msg": said}, name)[0], source, path)
    for inner, below, where in _members(step, data, path):
        field = where.removeprefix(f"{path}.")
        yield from _rule_problems(inner, below, source, where, field if field.isidentifier() else "")


def _in_words(
    cls: type[BaseModel], error: ValidationError, data: Mapping[str, Any], source: str | None, path: str
) -> tuple[list[Problem], frozenset[str]]:
    """What Pydantic found, and the paths of objects that lack something."""
    problems, lacking = [], set()
    for entry in error.errors(include_url=False):
        if entry["type"] == "too_short" and len(entry["input"]) >= entry["ctx"]["min_length"]:
            continue  # its entries are wrong, each of which is told, and Pydantic counts the others
        where, name = _where(entry["loc"], data, path, missing=entry["type"] == "missing")
        message, hint = unread_key(cls, entry["loc"]) if entry["type"] == "extra_forbidden" else _words(entry, name)
        problems.append(Problem(message, source, where, hint))
        if entry["type"] == "missing":
            lacking.add(where)
    return problems, frozenset(lacking)


def unread_key(cls: type[BaseModel], loc: Sequence[str | int]) -> tuple[str, str | None]:
    """What is said of a key that nothing may stand under, and which are meant, where Pydantic's location tells that.

    Args:
        cls: The class of the whole.
        loc: The key's place in it.
    """
    key, inside = str(loc[-1]), cls
    for name in loc[:-1]:
        field = inside.model_fields.get(name) if isinstance(name, str) else None
        found = _class_in(field.annotation) if field is not None else inside if isinstance(name, int) else None
        if found is None:
            return f"unknown key {key!r}", None
        inside = found
    known = accepted_keys(inside)
    meant = near(key, known)
    return f"unknown key {key!r}", f"did you mean {meant!r}?" if meant else f"accepted: {', '.join(sorted(known))}"


def _class_in(annotation: Any) -> type[BaseModel] | None:
    """The class of objects that a field holds, also below `| None` or in a list."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_class_in, get_args(annotation))), None)


def _where(loc: Sequence[str | int], data: Any, path: str, *, missing: bool) -> tuple[str, str]:
    """The JSON path of a finding, and its last key. Pydantic's own marks in the location (a union's member) are no keys of the data."""
    here: Any = data
    name = ""
    for position, key in enumerate(loc):
        if (isinstance(here, dict) and key in here) or (isinstance(here, list) and key in range(len(here))):
            here, path = _member(here, key), at(path, key)
        elif not (missing and position == len(loc) - 1):
            continue
        name = f"[{key}]" if isinstance(key, int) else str(key)
    return path, name


def _member(container: Any, key: str | int) -> Any:
    return container[key]


_PLAIN: Mapping[str, str] = {
    "string_type": "is text",
    "path_type": "is text",
    "int_type": "is a whole number",
    "int_parsing": "is a whole number",
    "int_from_float": "is a whole number",
    "float_type": "is a number",
    "float_parsing": "is a number",
    "finite_number": "is a finite number",
    "bool_type": "is true or false",
    "bool_parsing": "is true or false",
    "list_type": "is a list",
    "tuple_type": "is a list",
    "dict_type": "is an object",
    "model_type": "is an object",
    "mapping_type": "is an object",
}
"""Pydantic's kind of finding → what the value should be."""


_PREDICATES = frozenset({"are", "has", "have", "holds", "is", "lists", "may", "must", "names", "need", "needs", "puts", "says"})
"""Words with which a sentence goes on behind the name of a field."""


def _words(entry: Mapping[str, Any], name: str) -> tuple[str, str | None]:
    kind, context = entry["type"], entry.get("ctx") or {}
    label = f"{name} " if name and not name.startswith("[") else ""
    if kind == "missing":
        return f"{name} is missing", None
    if kind in _PLAIN:
        return f"{label}{_PLAIN[kind]}, not {json_kind(entry.get('input'))}", None
    if kind in {"literal_error", "enum"}:
        choices = sorted(re.findall(r"'([^']*)'", str(context.get("expected", ""))))
        given = entry.get("input")
        meant = near(given, choices) if isinstance(given, str) else None
        return f"{label}must be one of {choices}, got {shown(given)}", f"did you mean {meant!r}?" if meant else None
    if kind in {"too_short", "string_too_short"}:
        return f"{label}must not be empty", None
    message = str(entry["msg"]).removeprefix("Value error, ")
    message = message[:1].lower() + message[1:] if kind != "value_error" else message
    if kind.startswith(("greater_than", "less_than")):
        message = message.replace("input should be ", "must be ")
    if message.startswith(name):
        return message, None
    # What a rule says of a field goes on behind its name, or stands by itself.
    goes_on = kind != "value_error" or message.split(" ", 1)[0] in _PREDICATES
    return f"{label}{message}" if goes_on or not label else f"{name}: {message}", None
