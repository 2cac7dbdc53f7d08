"""A server's tools against the OpenAPI document that it serves (9.4)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Json = Any
_VERBS = frozenset({"get", "put", "post", "delete", "patch", "options", "head"})


def api_differences(document: bytes, tools: Sequence[Mapping[str, Json]], environment_name: str) -> tuple[list[str] | None, list[str]]:
    """Differences that matter, and remarks. None where the document has no paths, or can't be read."""
    api = _read(document)
    paths = api.get("paths") if isinstance(api, Mapping) else None
    if not isinstance(paths, Mapping) or not paths:
        return None, []
    prefix = f"{environment_name}_"
    operations = {name.removeprefix(prefix): operation for name, operation in _operations(paths)}
    found: dict[str, list[Mapping[str, Json]]] = {}
    for tool in tools:
        found.setdefault(str(tool["name"]).removeprefix(prefix), []).append(tool)
    blocking = [f"missing_tool: {name}" for name in sorted(operations.keys() - found.keys())]
    blocking += [f"ambiguous_tool: {name}" for name, same in sorted(found.items()) if len(same) > 1]
    remarks = [f"extra_tool: {name}" for name in sorted(found.keys() - operations.keys())]
    for name in sorted(operations.keys() & found.keys()):
        wrong, extra = _parameters(name, _wanted(operations[name], api), found[name][0].get("inputSchema") or {})
        blocking += wrong
        remarks += extra
    return blocking, remarks


def _read(document: bytes) -> Json:
    try:
        return json.loads(document)
    except ValueError:
        pass
    try:
        import yaml
    except ImportError:
        return None
    try:
        return yaml.safe_load(document)
    except yaml.YAMLError:
        return None


def _operations(paths: Mapping[str, Json]) -> Iterator[tuple[str, Mapping[str, Json]]]:
    for item in paths.values():
        for verb, operation in item.items() if isinstance(item, Mapping) else ():
            if verb in _VERBS and isinstance(operation, Mapping) and operation.get("operationId"):
                yield str(operation["operationId"]), {**operation, "shared": item.get("parameters") or ()}


def _wanted(operation: Mapping[str, Json], api: Mapping[str, Json]) -> dict[str, tuple[Mapping[str, Json], bool]]:
    """Parameter → its schema, and whether it is required."""
    wanted: dict[str, tuple[Mapping[str, Json], bool]] = {}
    for parameter in (*operation["shared"], *(operation.get("parameters") or ())):
        known = _followed(parameter, api)
        wanted[str(known.get("name"))] = (_followed(known.get("schema") or {}, api), bool(known.get("required")))
    body = _followed(operation.get("requestBody") or {}, api)
    for content in (body.get("content") or {}).values():
        schema = _followed(content.get("schema") or {}, api)
        for name, about in (schema.get("properties") or {}).items():
            wanted[str(name)] = (_followed(about, api), name in (schema.get("required") or ()))
    return wanted


def _followed(value: Mapping[str, Json], api: Mapping[str, Json]) -> Mapping[str, Json]:
    reference = value.get("$ref")
    found: Json = api
    for part in reference.removeprefix("#/").split("/") if isinstance(reference, str) else ():
        found = found.get(part) if isinstance(found, Mapping) else None
    return found if isinstance(reference, str) and isinstance(found, Mapping) else value


def _parameters(
    tool: str, wanted: Mapping[str, tuple[Mapping[str, Json], bool]], schema: Mapping[str, Json]
) -> tuple[list[str], list[str]]:
    offered: Mapping[str, Json] = schema.get("properties") or {}
    needed = set(schema.get("required") or ())
    wrong = [f"missing_param: {tool}.{name}" for name in sorted(wanted.keys() - offered.keys())]
    extra = sorted(offered.keys() - wanted.keys())
    wrong += [f"extra_required_param: {tool}.{name}" for name in extra if name in needed]
    for name in sorted(wanted.keys() & offered.keys()):
        about, required = wanted[name]
        kinds = _kinds(offered[name])
        if about.get("type") and kinds and about["type"] not in kinds:
            wrong.append(f"type_mismatch: {tool}.{name} ({about['type']} became {'/'.join(sorted(kinds))})")
        if about.get("enum") and offered[name].get("enum") and set(about["enum"]) != set(offered[name]["enum"]):
            wrong.append(f"enum_mismatch: {tool}.{name}")
        if required != (name in needed):
            wrong.append(f"required_mismatch: {tool}.{name}")
    return wrong, [f"extra_param: {tool}.{name}" for name in extra if name not in needed]


def _kinds(schema: Mapping[str, Json]) -> set[str]:
    found = {str(variant.get("type")) for variant in (schema, *(schema.get("anyOf") or ())) if variant.get("type")}
    return found - {"null"}
