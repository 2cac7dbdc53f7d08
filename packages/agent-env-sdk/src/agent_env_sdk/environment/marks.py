"""The decorators: they mark a class and its methods with what they are meant to be, and do nothing else.

Everything is checked when the environment is assembled, where names are known; see `surface`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from agent_env_sdk.wire.card import EnvironmentCard, Extension
from agent_env_sdk.wire.names import ADD, EXTENSIONS_PATH, GET, RESET

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)

MARK: Final = "__agent_env_mark__"
CARD: Final = "__agent_env_card__"


@dataclass(frozen=True, slots=True)
class ToolMark:
    """A method that is served as a tool."""

    name: str | None = None
    description: str | None = None
    title: str | None = None
    hidden_by_default: bool = False
    annotations: Mapping[str, Any] = field(default_factory=dict)
    structured_output: bool | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OperationMark:
    """A method that serves an operation of the data plane."""

    operation: str


@dataclass(frozen=True, slots=True)
class ExtensionMark:
    """A method that serves an extension, or one method of an extension that has several."""

    uri: str
    op: str | None
    verb: str
    path: str
    description: str | None = None
    params: Mapping[str, Any] | None = None
    required: bool | None = None


def environment(**card: Any) -> Callable[[C], C]:
    """Says what the class's card holds: `name` first of all, or any other field of a card.

    The name of a deployment (the variable `ENVIRONMENT_NAME`) takes precedence; without either, the class's own name is used.

    Raises:
        TypeError: A field that cards don't have.
    """
    unknown = sorted(set(card) - set(EnvironmentCard.model_fields))
    if unknown:
        raise TypeError(f"a card has no {', '.join(unknown)}; it has {', '.join(EnvironmentCard.model_fields)}")

    def mark(cls: C) -> C:
        setattr(cls, CARD, {**getattr(cls, CARD, {}), **card})
        return cls

    return mark


def tool(
    name: str | None = None,
    *,
    description: str | None = None,
    title: str | None = None,
    hidden_by_default: bool = False,
    annotations: Mapping[str, Any] | None = None,
    structured_output: bool | None = None,
    meta: Mapping[str, Any] | None = None,
) -> Callable[[F], F]:
    """Serves the method as a tool. A parameter annotated `ToolContext` receives who calls, and is not advertised.

    Args:
        name: The tool's name; `{environment_name}` in it is replaced. None for the method's.
        description: What agents read; None for the docstring.
        title: A name for people.
        hidden_by_default: Listed with a mark by which a gateway hides it until a step names it.
        annotations: MCP's tool annotations, such as `{"readOnlyHint": True}`.
        structured_output: Whether results carry structured content: None where the return annotation allows it, True to
            insist, False for never.
        meta: Listed as the tool's `_meta`.

    Raises:
        TypeError: Used bare, without parentheses.
    """
    if callable(name):
        raise TypeError("write @tool() with parentheses")
    return _marking(ToolMark(name, description, title, hidden_by_default, annotations or {}, structured_output, meta or {}))


def reset_data(method: F) -> F:
    """Serves the method as `data/reset`: forget everything."""
    return _marking(OperationMark(RESET))(method)


def add_data(method: F) -> F:
    """Serves the method as `data/add`: take the parts that it is given, all or none (see `atomic`)."""
    return _marking(OperationMark(ADD))(method)


def get_data(method: F) -> F:
    """Serves the method as `data/get`: give everything as parts.

    With a parameter named `write_namespace` it also receives a grant (or None) under which it may upload instead.
    """
    return _marking(OperationMark(GET))(method)


def extension(
    uri: str,
    *,
    op: str | None = None,
    description: str | None = None,
    params: Mapping[str, Any] | None = None,
    required: bool | None = None,
    method: str = "POST",
    path: str | None = None,
) -> Callable[[F], F]:
    """Serves the method as an extension on the card, at a route of its own.

    Args:
        uri: The extension's URN.
        op: This method's name, when several methods serve one URN; what they share comes from `extension_params`.
        description: What it is for.
        params: What the card says of it, instead of what is derived from the signature; not together with `op`.
        required: Whether clients must know it.
        method: The HTTP verb; with `GET`, arguments come from the query.
        path: The route; `/agentenv/ext/<method>` or `/agentenv/ext/<extension>/<op>` otherwise.

    Raises:
        TypeError: `params` together with `op`.
    """
    if op is not None and params is not None:
        raise TypeError("with op=, what the card says comes from extension_params(uri), not from params=")

    def mark(function: F) -> F:
        name = getattr(function, "__name__", "invoke")
        route = path or f"{EXTENSIONS_PATH}/{name if op is None else f'{slug(uri)}/{op}'}"
        return _marking(ExtensionMark(uri, op, method.upper(), route, description, params, required))(function)

    return mark


def slug(uri: str) -> str:
    """An extension's name as a path: without `urn:`, `agentenv:` and the version."""
    name = re.sub(r"/v[0-9]+$", "", uri.removeprefix("urn:").removeprefix("agentenv:"))
    return name.replace(":", "/")


def declared(mark: ExtensionMark, name: str, request: Mapping[str, Any]) -> Extension:
    """An extension as the card shows it.

    Args:
        mark: What the decorator was told.
        name: The method's name.
        request: The JSON Schema of its arguments.
    """
    entry: dict[str, Any] = {"method": mark.verb, "request": dict(request)}
    if mark.op is not None:
        params: dict[str, Any] = {"methods": {mark.op: {**entry, "endpoint": mark.path}}}
    elif mark.params is not None:
        params = dict(mark.params)
    else:
        params = {"endpoint": mark.path, "methods": {name: entry}}
    return Extension(uri=mark.uri, description=mark.description, params=params, required=mark.required)


def _marking(mark: ToolMark | OperationMark | ExtensionMark) -> Callable[[F], F]:
    def set_mark(function: F) -> F:
        setattr(function, MARK, mark)
        return function

    return set_mark
