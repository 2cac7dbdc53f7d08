"""The reference of every step type as data, for the documentation: fields with their types, defaults and descriptions."""

from __future__ import annotations

import ast
import inspect
import itertools
import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import PurePosixPath
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from agent_env.documents.updates import Json
from agent_env.steps.contract import OnResume, Step
from agent_env.steps.registry import BUILT, step_class


@dataclass(frozen=True, slots=True)
class FieldReference:
    """One field of a step type, or of a part of one."""

    name: str
    """As documents write it."""
    type: str
    """In words of JSON, such as `list of text`; parts by the name of their class."""
    required: bool
    default: Json
    description: str


@dataclass(frozen=True, slots=True)
class StepReference:
    """One step type."""

    type: str
    doc: str
    on_resume: OnResume
    fields: tuple[FieldReference, ...]
    """The type's own fields, and those of every step that are different here."""
    common: tuple[FieldReference, ...]
    """Fields that every step has, with the default that they have here."""


def step_reference() -> tuple[StepReference, ...]:
    """Every built-in type that runs, in the order of the registry."""
    return tuple(reference_of(step_class(name)) for name in BUILT)


def reference_of(cls: type[Step]) -> StepReference:
    """The reference of one class."""
    everything = fields_of(cls)
    shared = fields_of(Step)
    return StepReference(
        type=cls.type_name,
        doc=said(cls),
        on_resume=cls.on_resume,
        fields=tuple(field for field in everything if field not in shared),
        common=tuple(field for field in everything if field in shared and field.name != "type"),
    )


def fields_of(cls: type[BaseModel]) -> tuple[FieldReference, ...]:
    """The fields of a step type or of a part, in the order in which they are written."""
    described = descriptions(cls)
    return tuple(
        FieldReference(
            name=field.alias or name,
            type=in_words(field.annotation),
            required=field.is_required(),
            default=None if field.is_required() else _as_json(field.get_default(call_default_factory=True)),
            description=described.get(name, ""),
        )
        for name, field in cls.model_fields.items()
    )


def parts_of(classes: Iterable[type[BaseModel]]) -> Iterator[type[BaseModel]]:
    """The models that the fields of some classes are made of, each once, and theirs."""
    waiting: list[Any] = [field.annotation for cls in classes for field in cls.model_fields.values()]
    seen: set[object] = set()
    while waiting:
        kind = waiting.pop(0)
        waiting += get_args(kind)
        if isinstance(kind, type) and issubclass(kind, BaseModel) and kind not in seen:
            seen.add(kind)
            yield kind
            waiting += [field.annotation for field in kind.model_fields.values()]


def said(cls: type) -> str:
    """A class's docstring, a paragraph a line."""
    paragraphs = inspect.cleandoc(cls.__doc__ or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def descriptions(cls: type[BaseModel]) -> dict[str, str]:
    """The docstring under each field, also of inherited ones; read from the source, so that no start-up pays for it."""
    found: dict[str, str] = {}
    for ancestor in reversed(cls.__mro__):
        if ancestor is not BaseModel and issubclass(ancestor, BaseModel):
            tree = ast.parse(textwrap.dedent(inspect.getsource(ancestor))).body[0]
            found.update(_docstrings(tree.body if isinstance(tree, ast.ClassDef) else []))
    return found


def _docstrings(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    for statement, following in itertools.pairwise(body):
        match statement, following:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, " ".join(inspect.cleandoc(text).split())


PLAIN: Mapping[Any, str] = {
    str: "text",
    PurePosixPath: "text",
    int: "whole number",
    float: "number",
    bool: "true or false",
    NoneType: "null",
    Any: "anything",
}


def in_words(annotation: Any) -> str:
    """A type as the author of a task writes it: in words of JSON."""
    if annotation in PLAIN:
        return PLAIN[annotation]
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return in_words(arguments[0])
    if origin is Literal:
        return " or ".join(f"`{json.dumps(value)}`" for value in arguments)
    if origin in (Union, UnionType):
        return " or ".join(in_words(one) for one in arguments if one is not NoneType)
    if origin in (tuple, list, Sequence):
        return "list" if arguments[0] is Any else f"list of {in_words(arguments[0])}"
    if origin in (dict, Mapping):
        return "object" if arguments[1] is Any else f"object of {in_words(arguments[1])}"
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return " or ".join(f"`{json.dumps(member.value)}`" for member in annotation)
    if isinstance(annotation, type):
        return annotation.__name__
    raise TypeError(f"the reference has no words for {annotation!r}")


def _as_json(value: Any) -> Json:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): _as_json(member) for key, member in value.items()}
    if isinstance(value, tuple | list):
        return [_as_json(member) for member in value]
    return value if isinstance(value, bool | int | float | str | None) else str(value)
