"""From a marked class to what is served: tools, operations and extensions with their handlers, and the card that says so.

Whatever can't be served is refused here, before a socket is opened.
"""

from __future__ import annotations

import inspect
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from agent_env_sdk.wire.card import Capabilities, EnvironmentCard, Extension, Interface, Tool
from agent_env_sdk.wire.names import (
    ADD,
    CARD_PATH,
    CLOCK,
    DATA_OBJECTS,
    DISABLE_PATH,
    DISABLE_TOOL,
    ENABLE_PATH,
    ENABLE_TOOL,
    EXTENSIONS_PATH,
    GET,
    GET_INTERFACES,
    HIDDEN_META,
    MANIFEST_PATH,
    MCP_TRANSPORT,
    NAME_VARIABLE,
    OPERATIONS,
    READY_PATH,
    RPC_PATH,
)

from .answers import Output, output_of
from .arguments import Parameters, parameters, resolved
from .coercion import Coercion
from .jobs import LOAD_JOBS_EXTENSION
from .marks import CARD, MARK, ExtensionMark, OperationMark, ToolMark, declared

if TYPE_CHECKING:
    from .author import Environment


class AssemblyError(TypeError):
    """A class that can't be served as it stands."""


@dataclass(frozen=True, slots=True)
class ServedTool:
    """A tool and what runs it."""

    name: str
    description: str
    mark: ToolMark
    handler: Callable[..., Any]
    parameters: Parameters
    output: Output | None

    def listed(self) -> dict[str, Any]:
        """The tool as `tools/list` shows it."""
        meta = {**self.mark.meta, **({HIDDEN_META: True} if self.mark.hidden_by_default else {})}
        entry: dict[str, Any] = {"name": self.name, "description": self.description, "inputSchema": dict(self.parameters.schema)}
        optional = {
            "title": self.mark.title,
            "outputSchema": self.output.schema if self.output else None,
            "annotations": dict(self.mark.annotations) or None,
            "_meta": meta or None,
        }
        return {**entry, **{key: value for key, value in optional.items() if value is not None}}

    def advertised(self) -> Tool:
        """The tool as the card shows it."""
        return Tool(name=self.name, description=self.description, input_schema=dict(self.parameters.schema))


@dataclass(frozen=True, slots=True)
class ServedExtension:
    """One route of an extension and what runs it."""

    extension: Extension
    mark: ExtensionMark
    name: str
    handler: Callable[..., Any]
    coercion: Coercion


@dataclass(frozen=True, slots=True)
class Surface:
    """Everything that an environment serves."""

    card: EnvironmentCard
    tools: dict[str, ServedTool]
    operations: dict[str, Callable[..., Any]]
    extensions: tuple[ServedExtension, ...]

    def described(self, name: str, description: str) -> Surface:
        """The same with another description of a tool.

        Raises:
            LookupError: No such tool is served.
        """
        if name not in self.tools:
            raise LookupError(f"{self.card.name} serves no tool {name!r}")
        tools = {**self.tools, name: replace(self.tools[name], description=description)}
        listed = [
            each.model_copy(update={"description": description}) if each.name == name else each
            for each in self.card.capabilities.tools or []
        ]
        capabilities = self.card.capabilities.model_copy(update={"tools": listed})
        return replace(self, card=self.card.model_copy(update={"capabilities": capabilities}), tools=tools)


def assemble(environment: Environment) -> Surface:
    """What an environment serves.

    Raises:
        AssemblyError: Something is marked twice, in vain, or can't be served.
    """
    given = dict(getattr(type(environment), CARD, {}))
    card = EnvironmentCard.model_validate(
        {**given, "name": os.environ.get(NAME_VARIABLE) or given.get("name") or type(environment).__name__}
    )
    try:
        tools = _tools(environment, card.name)
        operations = _operations(environment)
        extensions = _extensions(environment)
    except TypeError as error:
        raise AssemblyError(f"{type(environment).__name__} can't be served: {error}") from error
    surface = Surface(_card(environment, card, tools, operations, extensions), {each.name: each for each in tools}, operations, extensions)
    _check_routes(environment, surface)
    return surface


def _marked(environment: Environment) -> Iterator[tuple[Any, Callable[..., Any]]]:
    """Marks and bound methods, in the order in which classes and methods were written."""
    names = {name: None for cls in reversed(type(environment).__mro__) for name in vars(cls)}
    for name in names:
        if hasattr(inspect.getattr_static(environment, name, None), MARK):
            handler = getattr(environment, name)
            yield getattr(handler, MARK), handler


def _tools(environment: Environment, environment_name: str) -> list[ServedTool]:
    tools = [_tool(mark, handler, environment_name) for mark, handler in _marked(environment) if isinstance(mark, ToolMark)]
    _refuse_twice("tool", (each.name for each in tools))
    by_name = {each.name: each for each in tools}
    chosen = environment.served_tools([each.advertised() for each in tools])
    _refuse_unknown("served_tools", (each.name for each in chosen), by_name)
    _refuse_twice("tool of served_tools", (each.name for each in chosen))
    return [replace(by_name[each.name], description=each.description or "") for each in chosen]


def _tool(mark: ToolMark, handler: Callable[..., Any], environment_name: str) -> ServedTool:
    name = (mark.name or handler.__name__).replace("{environment_name}", environment_name)
    if re.search(r"[{}]", name):
        raise TypeError(f"the tool name {name!r} has a placeholder that isn't {{environment_name}}")
    returns = resolved(handler).get("return", inspect.Signature.empty)
    output = output_of(returns, mark.structured_output, inspect.Signature.empty)
    description = mark.description if mark.description is not None else inspect.getdoc(handler) or ""
    return ServedTool(name, description, mark, handler, parameters(handler), output)


def _operations(environment: Environment) -> dict[str, Callable[..., Any]]:
    marked = [(mark.operation, handler) for mark, handler in _marked(environment) if isinstance(mark, OperationMark)]
    _refuse_twice("operation", (operation for operation, _ in marked))
    handlers = dict(marked)
    chosen = set(environment.served_operations([operation for operation in OPERATIONS if operation in handlers]))
    _refuse_unknown("served_operations", chosen, handlers)
    return {operation: handlers[operation] for operation in OPERATIONS if operation in chosen}


def _extensions(environment: Environment) -> tuple[ServedExtension, ...]:
    found = [_extension(mark, handler) for mark, handler in _marked(environment) if isinstance(mark, ExtensionMark)]
    if environment.follows_clock:
        mark = ExtensionMark(CLOCK, None, "POST", f"{EXTENSIONS_PATH}/sync_time", "Follow a virtual clock.")
        found.append(_extension(mark, environment.sync_time))
    merged = {uri: _merged(environment, [each for each in found if each.extension.uri == uri]) for uri in _in_order(found)}
    chosen = {each.uri: each for each in environment.served_extensions(list(merged.values()))}
    _refuse_unknown("served_extensions", chosen, merged)
    kept: list[ServedExtension] = []
    for each in found:
        served = chosen.get(each.extension.uri)
        listed = ((served.params or {}).get("methods") or {}) if served else {}
        if served is not None and (each.mark.op is None or each.mark.op in listed):
            kept.append(replace(each, extension=served))
    return tuple(kept)


def _in_order(found: Sequence[ServedExtension]) -> list[str]:
    return list(dict.fromkeys(each.extension.uri for each in found))


def _extension(mark: ExtensionMark, handler: Callable[..., Any]) -> ServedExtension:
    descriptor = declared(mark, handler.__name__, parameters(handler).schema)
    return ServedExtension(descriptor, mark, handler.__name__, handler, Coercion(handler))


def _merged(environment: Environment, parts: Sequence[ServedExtension]) -> Extension:
    """One entry of the card for everything that is served under one URN."""
    first = parts[0].extension
    if parts[0].mark.op is None:
        if len(parts) > 1:
            raise TypeError(f"the extension {first.uri} is served by {len(parts)} methods; give each an op=")
        return first
    ops = [each.mark.op for each in parts]
    if None in ops:
        raise TypeError(f"the extension {first.uri} is served with and without op=")
    _refuse_twice(f"op of {first.uri}", (str(op) for op in ops))
    methods = {name: entry for each in parts for name, entry in (each.extension.params or {})["methods"].items()}
    says = {key: {value for each in parts if (value := getattr(each.extension, key)) is not None} for key in ("description", "required")}
    for key, values in says.items():
        if len(values) > 1:
            raise TypeError(f"the methods of {first.uri} disagree about its {key}")
    return Extension(
        uri=first.uri,
        description=next(iter(says["description"]), None),
        required=next(iter(says["required"]), None),
        params={**environment.extension_params(first.uri), "methods": methods},
    )


def _card(
    environment: Environment,
    card: EnvironmentCard,
    tools: Sequence[ServedTool],
    operations: dict[str, Callable[..., Any]],
    served: Sequence[ServedExtension],
) -> EnvironmentCard:
    extensions = [*(card.capabilities.extensions or []), *environment.declared_extensions()]
    extensions += {each.extension.uri: each.extension for each in served}.values()
    extensions += _own(environment, operations)
    _refuse_twice("extension", (each.uri for each in extensions))
    advertised = {each.name: each for each in [*(each.advertised() for each in tools), *(card.capabilities.tools or [])]}
    interfaces = list(card.additional_interfaces)
    if not any(each.transport == MCP_TRANSPORT for each in interfaces):
        interfaces.append(Interface(url=environment.mcp_path, transport=MCP_TRANSPORT))
    capabilities = Capabilities(extensions=extensions or None, tools=list(advertised.values()) or None, operations=list(operations))
    return card.model_copy(update={"additional_interfaces": interfaces, "capabilities": capabilities})


def _own(environment: Environment, operations: dict[str, Callable[..., Any]]) -> Iterator[Extension]:
    """What the SDK itself serves."""
    if GET in operations and "write_namespace" in inspect.signature(operations[GET]).parameters:
        yield Extension(uri=DATA_OBJECTS, description="data/get takes a write_namespace grant and may upload its export under it.")
    if ADD in operations:
        yield LOAD_JOBS_EXTENSION
    if environment.manifests():
        yield Extension(uri=GET_INTERFACES, description="Interface manifests.", params={"endpoint": MANIFEST_PATH})
    if environment.tool_access:
        for uri, op, path in ((DISABLE_TOOL, "disable", DISABLE_PATH), (ENABLE_TOOL, "enable", ENABLE_PATH)):
            params = {"endpoint": path, "methods": {op: {"method": "POST", "request": _ACCESS_REQUEST}}}
            yield Extension(uri=uri, description=f"{op.capitalize()} tools for a role.", params=params, required=False)


_ACCESS_REQUEST = {
    "type": "object",
    "properties": {
        "role": {"type": "string"},
        "tools": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"const": "*"}]},
    },
    "required": ["role", "tools"],
}


def _check_routes(environment: Environment, surface: Surface) -> None:
    own = [CARD_PATH, RPC_PATH, environment.mcp_path, READY_PATH]
    own += [ENABLE_PATH, DISABLE_PATH] if environment.tool_access else []
    routes = [(verb, path) for path in own for verb in ("GET", "POST", "PUT", "DELETE", "PATCH")]
    routes += [(each.mark.verb, each.mark.path) for each in surface.extensions]
    _refuse_twice("route", (f"{verb} {path}" for verb, path in routes))


def _refuse_twice(what: str, names: Iterable[str]) -> None:
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise AssemblyError(f"the {what} {', '.join(twice)} is there twice")


def _refuse_unknown(hook: str, names: Iterable[str], known: Any) -> None:
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise AssemblyError(f"{hook} returned {', '.join(unknown)}, which nothing serves")
