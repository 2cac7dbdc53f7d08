"""Reading what may be anything: other programs' JSON."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any


def table(value: object, *names: str) -> Mapping[str, Any]:
    """The object under these names, one below the other; an empty one where there is none."""
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def items(value: object) -> list[Mapping[str, Any]]:
    """The objects of a list."""
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []


def text(value: object) -> str:
    """A text, or the texts of a list of content blocks, line by line."""
    if isinstance(value, str):
        return value
    return "\n".join(str(each["text"]) for each in items(value) if isinstance(each.get("text"), str))


def count(value: object) -> int | None:
    """A number of tokens."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def split(tool: str, servers: Collection[str], before: str = "", between: str = "_") -> tuple[str, str | None]:
    """A tool's own name and its server, where its name starts with that of one.

    Args:
        tool: The name as the program tells it.
        servers: The servers that there are.
        before: What stands before the server's name.
        between: What stands between both.
    """
    for server in sorted(servers, key=len, reverse=True):
        start = f"{before}{server}{between}"
        if tool.startswith(start) and len(tool) > len(start):
            return tool[len(start) :], server
    return tool, None
