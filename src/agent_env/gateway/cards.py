"""The environment's card: the gateway's own extensions, and each server's card with its paths led through the gateway."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from agent_env_sdk.wire import names
from agent_env_sdk.wire.access import ToolAccess

from agent_env.gateway.backend import Backend
from agent_env.gateway.catalogue import Catalogue

log = logging.getLogger("agent_env.gateway")

TRIGGER_FEATURES = (
    "named_executors",
    "provoking_roles",
    "action_delay",
    "executor_hours",
    "unless",
    "website",
    "executor_hours_time_zone",
    "executor_headers",
)
Json = dict[str, Any]


def _request(required: Sequence[str] = (), **properties: Any) -> Json:
    schema: Json = {"type": "object", "properties": properties}
    return {**schema, "required": list(required)} if required else schema


_TEXT: Json = {"type": "string"}
_ACCESS = _request(["role", "tools"], role=_TEXT, tools={"anyOf": [{"type": "array", "items": _TEXT}, {"const": names.ANY}]})
_STEP = {
    "uri": names.STEP,
    "description": "Lists tools and calls them, one request each.",
    "params": {
        "endpoint": "/step",
        "methods": {
            "step": {
                "method": "POST",
                "request": _request(
                    ["action"], action={"enum": ["list_tools", "call_tool"]}, tool_name=_TEXT, arguments={"type": "object"}
                ),
            }
        },
    },
}
EXTENSIONS: tuple[Json, ...] = (
    {
        "uri": names.DISABLE_TOOL,
        "description": "Takes tools away from a role.",
        "params": {"methods": {"disable": {"method": "POST", "endpoint": names.DISABLE_PATH, "request": _ACCESS}}},
    },
    {
        "uri": names.ENABLE_TOOL,
        "description": "Gives tools to a role.",
        "params": {"methods": {"enable": {"method": "POST", "endpoint": names.ENABLE_PATH, "request": _ACCESS}}},
    },
    {
        "uri": names.TRIGGERS,
        "description": "Lets the environment act when something happens in it.",
        "params": {
            "features": list(TRIGGER_FEATURES),
            "methods": {
                "register": {
                    "method": "POST",
                    "endpoint": "/triggers/register",
                    "request": _request(
                        ["triggers"],
                        watch_roles={"type": "array", "items": _TEXT},
                        executor={"type": "object"},
                        executors={"type": "object"},
                        triggers={"type": "array"},
                    ),
                },
                "remove": {
                    "method": "POST",
                    "endpoint": "/triggers/remove",
                    "request": _request(["ids"], ids={"type": "array", "items": _TEXT}),
                },
                "clear": {"method": "POST", "endpoint": "/triggers/clear", "request": _request()},
                "state": {"method": "GET", "endpoint": "/triggers/state", "request": _request()},
            },
        },
    },
    {
        "uri": names.CLOCK,
        "description": "The environment's virtual time.",
        "params": {
            "methods": {
                "get_time": {"method": "GET", "endpoint": "/clock/time", "request": _request()},
                "set_time": {
                    "method": "PUT",
                    "endpoint": "/clock/set-time",
                    "request": _request(["virtual_time"], virtual_time=_TEXT, virtual_seconds_per_real_second={"type": "number"}),
                },
                "clear": {"method": "POST", "endpoint": "/clock/clear", "request": _request()},
                "state": {"method": "GET", "endpoint": "/clock/state", "request": _request()},
            }
        },
    },
    {
        "uri": names.TRAJECTORY,
        "description": "What was done in the environment, one JSON object a line.",
        "params": {"methods": {"get": {"method": "GET", "endpoint": "/trajectory", "request": _request()}}},
    },
    _STEP,
    {
        "uri": names.STATE,
        "description": "Servers, tools and rules.",
        "params": {"methods": {"get": {"method": "GET", "endpoint": "/state", "request": _request()}}},
    },
    {
        "uri": names.CHANGES,
        "description": "Changes of the database, with who may have made them.",
        "params": {
            "methods": {
                "get": {
                    "method": "GET",
                    "endpoint": "/changes",
                    "request": _request(
                        after_id={"type": "integer", "minimum": 0}, limit={"type": "integer", "minimum": 1, "maximum": 10_000}
                    ),
                }
            }
        },
    },
)


def _operations(extension: Mapping[str, Any]) -> set[tuple[str, str, str, str]]:
    params = extension.get("params") or {}
    return {
        (
            str(extension.get("uri")),
            name,
            str(method.get("method") or "POST").upper(),
            str(method.get("endpoint") or params.get("endpoint")),
        )
        for name, method in (params.get("methods") or {}).items()
        if isinstance(method, Mapping)
    }


_OWN = frozenset(operation for extension in EXTENSIONS for operation in _operations(extension))


def card(name: str, extensions: Sequence[Json], children: Sequence[Json]) -> Json:
    """A gateway's card."""
    return {
        "name": name,
        "protocolVersion": names.PROTOCOL_VERSION,
        "url": names.RPC_PATH,
        "preferredTransport": names.RPC_TRANSPORT,
        "additionalInterfaces": [{"url": names.MCP_PATH, "transport": names.MCP_TRANSPORT}],
        "capabilities": {"extensions": list(extensions)},
        "children_environments": list(children),
    }


async def control_card(name: str, backends: Sequence[Backend]) -> Json:
    """The whole card: every extension, every server that has shown a card."""
    seen = await asyncio.gather(*(backend.card() for backend in backends))
    children = [rewritten(child, backend.server.proxy_key) for backend, child in zip(backends, seen, strict=True) if child is not None]
    return card(name, EXTENSIONS, children)


def agent_card(name: str, role: str, catalogue: Catalogue, access: ToolAccess) -> Json:
    """What a role is told: the servers by name, with the tools that it may use and nothing else."""
    children: list[Json] = []
    for child in catalogue.children:
        tools = [
            {"name": entry.name, "description": entry.tool.value.get("description"), "inputSchema": entry.tool.value.get("inputSchema")}
            for entry in catalogue.visible(role, access)
            if entry.child is child
        ]
        children.append(
            {
                "name": child.name,
                "protocolVersion": names.PROTOCOL_VERSION,
                "url": names.RPC_PATH,
                "preferredTransport": names.RPC_TRANSPORT,
                "additionalInterfaces": [],
                "capabilities": {"extensions": None, "tools": tools, "operations": []},
                "children_environments": None,
            }
        )
    return card(name, [_STEP], children)


def rewritten(child: Json, key: str) -> Json:
    """A server's card with its paths under `/svc/<key>`. What the gateway itself offers in the same way keeps its path, so that its own
    route answers.
    """
    prefix = f"/svc/{key}"
    if child.get("children_environments"):
        log.warning("the card behind '%s' has children of its own; they are left out", key)
    capabilities = child.get("capabilities")
    capabilities = dict(capabilities) if isinstance(capabilities, Mapping) else {}
    extensions = capabilities.get("extensions")
    if isinstance(extensions, list):
        capabilities["extensions"] = [_extension(each, prefix) if isinstance(each, Mapping) else each for each in extensions]
    return {
        **child,
        "url": _led(child.get("url", names.RPC_PATH), prefix),
        "additionalInterfaces": [],
        "capabilities": capabilities,
        "children_environments": None,
    }


def _led(path: Any, prefix: str) -> Any:
    return prefix + path if isinstance(path, str) and path.startswith("/") else path


def _extension(extension: Mapping[str, Any], prefix: str) -> Json:
    params = extension.get("params")
    if not isinstance(params, Mapping):
        return dict(extension)
    shared, methods = params.get("endpoint"), params.get("methods")
    if not isinstance(methods, Mapping):
        return {**extension, "params": {**params, **({"endpoint": _led(shared, prefix)} if "endpoint" in params else {})}}
    kept = {name for name, method in methods.items() if _is_ours(extension, name, method, shared)}
    shared_stays = any(not _field(methods[name], "endpoint") for name in kept)
    made: Json = {}
    for name, method in methods.items():
        own = _field(method, "endpoint")
        if name in kept or not isinstance(method, Mapping):
            made[name] = method
        elif own:
            made[name] = {**method, "endpoint": _led(own, prefix)}
        else:
            made[name] = {**method, "endpoint": _led(shared, prefix)} if shared_stays else method
    endpoint = {"endpoint": shared if shared_stays else _led(shared, prefix)} if "endpoint" in params else {}
    return {**extension, "params": {**params, **endpoint, "methods": made}}


def _is_ours(extension: Mapping[str, Any], name: str, method: Any, shared: Any) -> bool:
    verb = str(_field(method, "method") or "POST").upper()
    return (str(extension.get("uri")), name, verb, str(_field(method, "endpoint") or shared)) in _OWN


def _field(method: Any, name: str) -> Any:
    return method.get(name) if isinstance(method, Mapping) else None
