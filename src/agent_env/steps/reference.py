"""The reference of every step type as data, for the documentation: fields with their types, defaults and descriptions."""

from __future__ import annotations

import ast
import inspect
import itertools
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from agent_env.documents.updates import Json
from agent_env.steps.contract import OnResume, Step
from agent_env.steps.registry import BUILT, step_class


@dataclass(frozen=True, slots=True)
class FieldReference:
    """One field of a step type."""

    name: str
    type: str
    """JSON type in words, such as `list of text`."""
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
    """The type's own fields."""
    common: tuple[FieldReference, ...]
    """Fields that every step has, with the default that they have here."""
    schema: Mapping[str, Json]
    """JSON schema of the whole step."""


def step_reference() -> tuple[StepReference, ...]:
    """Every built-in type that runs, by name."""
    return tuple(reference_of(step_class(name)) for name in sorted(BUILT))


def reference_of(cls: type[Step]) -> StepReference:
    """The reference of one class."""
    schema = cls.model_json_schema(mode="validation")
    everything = tuple(_fields(cls, schema))
    own = frozenset(_own_annotations(cls))
    return StepReference(
        type=cls.type_name,
        doc=inspect.cleandoc(cls.__doc__ or ""),
        on_resume=cls.on_resume,
        fields=tuple(field for field in everything if field.name in own),
        common=tuple(field for field in everything if field.name not in own and field.name != "type"),
        schema=schema,
    )


def descriptions(cls: type[BaseModel]) -> dict[str, str]:
    """The docstring under each field, also of inherited ones; read from the source, so that no start-up pays for it."""
    found: dict[str, str] = {}
    for ancestor in reversed(cls.__mro__):
        if issubclass(ancestor, BaseModel) and ancestor is not BaseModel:
            tree = ast.parse(textwrap.dedent(inspect.getsource(ancestor))).body[0]
            found.update(_docstrings(tree.body if isinstance(tree, ast.ClassDef) else []))
    return found


def _docstrings(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    for statement, following in itertools.pairwise(body):
        match statement, following:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, " ".join(inspect.cleandoc(text).split())


def _own_annotations(cls: type[Step]) -> Iterator[str]:
    for ancestor in cls.__mro__:
        if ancestor is Step:
            return
        yield from inspect.get_annotations(ancestor)


def _fields(cls: type[Step], schema: Mapping[str, Json]) -> Iterator[FieldReference]:
    said = descriptions(cls)
    for name, field in cls.model_fields.items():
        described = schema.get("properties", {}).get(name, {})
        yield FieldReference(
            name=name,
            type=_type_in_words(described, schema.get("$defs", {})),
            required=field.is_required(),
            default=None if field.is_required() else _as_json(field.get_default(call_default_factory=True)),
            description=said.get(name, ""),
        )


_WORDS: Mapping[str, str] = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
    "object": "object",
    "null": "null",
}


def _type_in_words(schema: Mapping[str, Json], definitions: Mapping[str, Json]) -> str:
    if "$ref" in schema:
        return _type_in_words(definitions.get(str(schema["$ref"]).rpartition("/")[2], {}), definitions)
    for key in ("anyOf", "oneOf"):
        if key in schema:
            words = dict.fromkeys(_type_in_words(member, definitions) for member in schema[key])
            return " or ".join(words)
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return " or ".join(f"`{member}`" for member in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_type_in_words(schema.get('items', {}), definitions)}"
    return _WORDS.get(str(schema.get("type")), "any value")


def _as_json(value: Any) -> Json:
    if isinstance(value, tuple):
        return [_as_json(member) for member in value]
    if isinstance(value, bool | int | float | str | dict | list | None):
        return int(value) if isinstance(value, float) and value.is_integer() else value
    return str(value)
