"""What tools say of themselves, and how they answer what they don't know."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import httpx

from agent_env.environments.conformance.check import Area, Gate, SkippedError, Subject, holds
from agent_env.environments.conformance.openapi import api_differences
from agent_env.environments.faults import EnvironmentFailedError

TOOL_SCHEMA = Area(Gate.TOOL_SCHEMA)
EXTENSIONS = Area(Gate.EXTENSIONS)
SPEC = Area(Gate.SPEC)
Json = Any
_UNKNOWN = "agentenv_no_such_tool"
_SHOWN = 8


async def _tools(subject: Subject) -> list[dict[str, Json]]:
    if "tools" not in subject.seen:
        subject.seen["tools"] = await subject.client.tools()
    found: list[dict[str, Json]] = subject.seen["tools"]
    return found


@TOOL_SCHEMA.check("9.3")
async def every_tool_is_described(subject: Subject) -> None:
    """Every tool has a description"""
    silent = [tool["name"] for tool in await _tools(subject) if not str(tool.get("description") or "").strip()]
    holds(not silent, f"without a description: {', '.join(silent[:_SHOWN])}")


@TOOL_SCHEMA.check("9.3")
async def every_parameter_is_described(subject: Subject) -> None:
    """Every parameter has a type and a description; arrays say of what, objects with which properties, choices which"""
    issues = [issue for tool in await _tools(subject) for issue in schema_issues(tool)]
    more = f", and {len(issues) - _SHOWN} more" if len(issues) > _SHOWN else ""
    holds(not issues, "; ".join(issues[:_SHOWN]) + more)


def schema_issues(tool: Mapping[str, Json]) -> Iterator[str]:
    """What the parameters of a tool leave unsaid."""
    schema = tool.get("inputSchema") or {}
    properties = schema.get("properties") or {}
    if properties and "required" in schema and not schema["required"]:
        yield f"{tool['name']}: its list of required parameters is empty; leave it out"
    definitions = schema.get("$defs") or {}
    for name, about in properties.items():
        for issue in _parameter_issues(about, definitions):
            yield f"{tool['name']}.{name}: {issue}"


def _parameter_issues(about: Json, definitions: Mapping[str, Json]) -> Iterator[str]:
    if not isinstance(about, Mapping) or not about:
        yield "it has no schema"
        return
    if not str(about.get("description") or "").strip():
        yield "it has no description"
    variants = [_resolved(variant, definitions) for variant in (about, *(about.get("anyOf") or ()))]
    typed = [variant for variant in variants if variant.get("type")]
    if not typed:
        yield "it has no type"
    for variant in typed:
        if variant["type"] == "array" and not variant.get("items"):
            yield "it is an array of nobody knows what"
        if variant["type"] == "object" and not variant.get("properties"):
            yield "it is an object without properties"
        if "enum" in variant and not variant["enum"]:
            yield "its choices are none"


def _resolved(schema: Mapping[str, Json], definitions: Mapping[str, Json]) -> Mapping[str, Json]:
    reference = schema.get("$ref")
    if not isinstance(reference, str):
        return schema
    found = definitions.get(reference.rpartition("/")[2])
    return {**found, **schema} if isinstance(found, Mapping) else schema


@TOOL_SCHEMA.check(advisory=True)
async def a_tool_that_is_not_there_is_refused(subject: Subject) -> None:
    """A call of an unknown tool is an error, and the session goes on"""
    async with subject.client.mcp() as session:
        try:
            result = await session.call(_UNKNOWN, {})
        except EnvironmentFailedError:
            result = {"isError": True}
        holds(result.get("isError") is True, "it says that it did what nobody can")
        await session.tools()


@EXTENSIONS.check("I4", advisory=True)
async def an_extension_says_which_argument_is_missing(subject: Subject) -> str:
    """A call without a required argument is refused as the caller's mistake, with a code"""
    await subject.needs_card()
    tried = 0
    for extension in (await subject.client.card()).capabilities.extensions or ():
        for name, method in ((extension.params or {}).get("methods") or {}).items():
            endpoint = method.get("endpoint") or (extension.params or {}).get("endpoint")
            if not endpoint or str(method.get("method") or "POST").upper() == "GET" or not (method.get("request") or {}).get("required"):
                continue
            tried += 1
            async with subject.client.request(str(method.get("method") or "POST").upper(), str(endpoint), body={}) as answer:
                said = await answer.aread()
            holds(400 <= answer.status_code < 500, f"{name} of {extension.uri} answers {answer.status_code}")
            holds(b'"code"' in said or subject.is_gateway, f"{name} of {extension.uri} gives no code with its {answer.status_code}")
    if not tried:
        raise SkippedError("an extension with required arguments")
    return f"{tried} tried"


@SPEC.check("9.4", advisory=True)
async def its_tools_are_those_of_its_api(subject: Subject) -> str:
    """The tools agree with the OpenAPI document that it serves"""
    async with subject.client.request("GET", "/openapi.yaml") as answer:
        data = await answer.aread()
    if answer.status_code in {httpx.codes.NOT_FOUND, httpx.codes.METHOD_NOT_ALLOWED, httpx.codes.NOT_IMPLEMENTED}:
        raise SkippedError("an OpenAPI document")
    blocking, remarks = api_differences(data, await _tools(subject), subject.name or subject.client.name)
    if blocking is None:
        raise SkippedError("paths in its OpenAPI document")
    holds(not blocking, "; ".join(blocking[:_SHOWN]))
    return "; ".join(remarks[:_SHOWN])
