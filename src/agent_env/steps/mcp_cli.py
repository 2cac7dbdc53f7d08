#!/usr/bin/env python3
"""Calls the tools of an environment from the command line. It needs nothing but Python 3.9, and lists tools as its role sees them.

Settings, in the environment or in a `.env` beside this file: AGENT_ENV_GATEWAY_URL (where the gateway is), AGENT_ENV_TOKEN (says who
calls), AGENT_ENV_ROLE (for a gateway that takes callers at their word).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

# settings
COMMAND = "tools"
GROUPS: dict[str, dict[str, str]] = {}
# end of settings

KINDS = {"integer": int, "number": float}
SECONDS = 600


def settings() -> dict[str, str]:
    """What the environment says, else the file beside this one."""
    found: dict[str, str] = {}
    lines: list[str] = []
    with suppress(OSError):
        lines = Path(__file__).resolve().with_name(".env").read_text(encoding="utf-8").splitlines()
    for line in lines:
        name, equals, value = line.partition("=")
        if equals and not name.lstrip().startswith("#"):
            found[name.strip()] = value.strip().strip("\"'")
    return {**found, **os.environ}


def ask(action: dict[str, Any]) -> Any:
    """One request to the gateway's /step; its answer, or the end with what it said."""
    given = settings()
    base = given.get("AGENT_ENV_GATEWAY_URL", "").rstrip("/")
    if not base:
        sys.exit(f"{COMMAND}: AGENT_ENV_GATEWAY_URL is not set")
    headers = {"Content-Type": "application/json", "AgentEnv-Role": given.get("AGENT_ENV_ROLE", "cli")}
    if given.get("AGENT_ENV_TOKEN"):
        headers["Authorization"] = f"Bearer {given['AGENT_ENV_TOKEN']}"
    request = urllib.request.Request(f"{base}/step", json.dumps(action).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        body = error.read().decode("utf-8", "replace")
        with suppress(ValueError):
            body = json.loads(body).get("error", body)
        sys.exit(f"{COMMAND}: {body}")
    except OSError as error:
        sys.exit(f"{COMMAND}: the gateway can't be reached: {error}")


def value_of(text: str, schema: dict[str, Any]) -> Any:
    """An argument as its tool wants it: numbers, flags and JSON where the schema says so, else the text."""
    kinds = {schema.get("type"), *(variant.get("type") for variant in schema.get("anyOf", ()))} - {None}
    if "string" in kinds:
        return text
    for kind in kinds & KINDS.keys():
        try:
            return KINDS[kind](text)
        except ValueError:
            continue
    try:
        return json.loads(text)
    except ValueError:
        return text


def add_tool(commands: Any, name: str, tool: dict[str, Any]) -> None:
    """A command for a tool, with an option for each parameter."""
    description = tool.get("description") or ""
    parser = commands.add_parser(name, help=description.partition("\n")[0].replace("%", "%%"), description=description.replace("%", "%%"))
    schema = tool.get("parameters") or {}
    for parameter, about in (schema.get("properties") or {}).items():
        needed = parameter in (schema.get("required") or ())
        told = (about.get("description") or "").replace("%", "%%")
        parser.add_argument(f"--{parameter.replace('_', '-')}", dest=parameter, required=needed, help=told, metavar="VALUE")
    parser.add_argument("--json", dest="__json", metavar="OBJECT", help="all arguments at once")
    parser.set_defaults(__tool=tool)


def main(arguments: list[str]) -> int:
    """Lists or calls."""
    tools = {tool["name"]: tool for tool in ask({"action": "list_tools"})["tools"]}
    parser = argparse.ArgumentParser(prog=COMMAND, description="Calls tools of an environment.")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    grouped: set[str] = set()
    for entity, members in sorted(GROUPS.items()):
        there = {name: tools[tool] for name, tool in members.items() if tool in tools}
        grouped |= {tool["name"] for tool in there.values()}
        within: Any = commands
        if entity and there:
            within = commands.add_parser(entity, help=f"{', '.join(sorted(there))}").add_subparsers(metavar="COMMAND", required=True)
        for name, tool in sorted(there.items()):
            add_tool(within, name, tool)
    for name, tool in sorted(tools.items()):
        if name not in grouped:
            add_tool(commands, name, tool)
    given = vars(parser.parse_args(arguments))
    tool = given.pop("__tool")
    properties = (tool.get("parameters") or {}).get("properties") or {}
    whole = given.pop("__json")
    values = json.loads(whole) if whole else {}
    values.update({name: value_of(text, properties[name]) for name, text in given.items() if text is not None and name in properties})
    result = ask({"action": "call_tool", "tool_name": tool["name"], "arguments": values})
    for part in result.get("content") or ():
        sys.stdout.write((part["text"] if part.get("type") == "text" else json.dumps(part)) + "\n")
    return 1 if result.get("isError") else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
