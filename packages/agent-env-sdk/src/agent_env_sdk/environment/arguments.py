"""A handler's parameters: what is advertised of them, and how what arrives is bound to them.

Arguments are validated as they were sent. A string stays a string, whatever it looks like; only where it can't be what is
asked for (a list, an object) is it read as the JSON that some models write instead.
"""

from __future__ import annotations

import inspect
import json
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, PydanticSchemaGenerationError, PydanticUserError, ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema

from .context import LoadContext, ToolContext

INJECTED: Final = (ToolContext, LoadContext)
_PLAIN: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Untitled(GenerateJsonSchema):
    """Without the titles that repeat a parameter's name."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        del schema
        return False


class _Arguments(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True, extra="ignore", protected_namespaces=())


@dataclass(frozen=True, slots=True)
class Parameters:
    """A handler's parameters, ready to be advertised and bound."""

    model: type[BaseModel]
    names: Mapping[str, str]
    """By the model's field: the parameter's name."""
    open: bool
    """Whether arguments that no parameter names are taken too (`**kwargs`)."""
    context: str | None
    """The parameter that receives a context of this kind, and never an argument."""
    schema: Mapping[str, Any]

    def bind(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments by parameter, as the annotations want them.

        Raises:
            ValueError: They don't fit; the text names each by its path.
        """
        try:
            values = self._validated(arguments)
        except ValidationError as error:
            raise ValueError(complaint(error)) from error
        bound = {name: getattr(values, field) for field, name in self.names.items()}
        return {**self._others(arguments), **bound} if self.open else bound

    def _validated(self, arguments: Mapping[str, Any]) -> BaseModel:
        try:
            return self.model.model_validate(dict(arguments))
        except ValidationError as error:
            read = {name: _read(arguments[name]) for name in {str(each["loc"][0]) for each in error.errors()} if name in arguments}
            changed = {name: value for name, value in read.items() if value is not None}
            if not changed:
                raise
            try:
                return self.model.model_validate({**arguments, **changed})
            except ValidationError:
                raise error from None

    def _others(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        known = {*self.names.values(), self.context}
        return {name: value for name, value in arguments.items() if name not in known}


def parameters(handler: Callable[..., Any]) -> Parameters:
    """The parameters of a handler.

    Raises:
        TypeError: Annotations that can't be resolved or have no JSON Schema, two contexts, or positional-only parameters.
    """
    hints = resolved(handler)
    fields: dict[str, Any] = {}
    names: dict[str, str] = {}
    contexts: list[str] = []
    takes_others = False
    for index, (name, parameter) in enumerate(inspect.signature(handler).parameters.items()):
        annotation = hints.get(name, Any)
        if injected(annotation):
            contexts.append(name)
        elif parameter.kind is inspect.Parameter.VAR_KEYWORD:
            takes_others = True
        elif parameter.kind in _PLAIN:
            # Numbered, since a model refuses names such as _x and model_config that a tool may well have.
            fields[f"argument_{index}"] = _field(name, annotation, parameter.default)
            names[f"argument_{index}"] = name
        else:
            raise TypeError(f"{called(handler)}: the parameter {name} can't be sent by name")
    if len(contexts) > 1:
        raise TypeError(f"{called(handler)} has more than one parameter for the context: {', '.join(contexts)}")
    model, schema = _model(handler, fields, takes_others)
    return Parameters(model, names, takes_others, contexts[0] if contexts else None, schema)


def resolved(handler: Callable[..., Any]) -> dict[str, Any]:
    """A handler's annotations as types.

    Raises:
        TypeError: One names what its module doesn't have.
    """
    try:
        return typing.get_type_hints(handler, include_extras=True)
    except NameError as error:
        raise TypeError(f"{called(handler)}: {error}; what annotations name must stand at the module's top level") from error


def injected(annotation: Any) -> bool:
    """Whether a parameter of this annotation receives a context (also when it may be None)."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return any(injected(argument) for argument in typing.get_args(annotation))
    return annotation in INJECTED if isinstance(annotation, type) else False


def called(handler: Callable[..., Any]) -> str:
    """A handler's name, for messages."""
    return str(getattr(handler, "__qualname__", handler))


def complaint(error: ValidationError) -> str:
    """What doesn't fit, argument by argument."""
    return "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors(include_url=False))


def _field(name: str, annotation: Any, default: Any) -> tuple[Any, Any]:
    if isinstance(default, FieldInfo):
        return Annotated[annotation, default], Field(alias=name)
    return annotation, Field(alias=name) if default is inspect.Parameter.empty else Field(default=default, alias=name)


def _model(handler: Callable[..., Any], fields: dict[str, Any], takes_others: bool) -> tuple[type[BaseModel], dict[str, Any]]:
    try:
        model = create_model("Arguments", __base__=_Arguments, **fields)
        schema = model.model_json_schema(by_alias=True, schema_generator=Untitled)
    except (PydanticSchemaGenerationError, PydanticUserError) as error:
        raise TypeError(f"{called(handler)}: a parameter has no JSON Schema: {error}") from error
    schema.pop("title", None)
    schema.setdefault("properties", {})
    return model, {**schema, "additionalProperties": True} if takes_others else schema


def _read(value: Any) -> Any:
    """What a text says as JSON, when that is a list or an object; else None."""
    try:
        read = json.loads(value) if isinstance(value, str) else None
    except (ValueError, RecursionError):
        return None
    return read if isinstance(read, list | dict) else None
