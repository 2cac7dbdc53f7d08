"""Commands that other packages bring (entry point group `agent_env.cli_plugins`), imported only when their name is used."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import cache

import click

from agent_env.errors import UnsupportedError
from agent_env.lazy import brought, loaded

GROUP = "agent_env.cli_plugins"


@cache
def plugin_names() -> tuple[str, ...]:
    """The names of the installed plug-ins, sorted."""
    return tuple(sorted(_entry_points()))


def load_plugin(name: str) -> click.Command:
    """A plug-in's command.

    Raises:
        UnsupportedError: Two packages bring it, it can't be imported, or is no click command.
    """
    claims = _entry_points()[name]
    if len(claims) > 1:
        raise UnsupportedError(f"{' and '.join(sorted(claims))} both bring the command {name!r}, so none of them is used")
    value, load = next(iter(claims.items()))
    found = loaded(load, f"the command {name!r} of a plug-in ({value})")
    if not isinstance(found, click.Command):
        raise UnsupportedError(f"the plug-in {name!r} ({value}) is not a click command")
    return found


@cache
def _entry_points() -> dict[str, dict[str, Callable[[], object]]]:
    """Command → what brings it → how to load that."""
    found: dict[str, dict[str, Callable[[], object]]] = {}
    for point in brought(GROUP) if _any_declared() else ():
        found.setdefault(point.name, {})[point.value] = point.load
    return found


def _any_declared() -> bool:
    # Looking for the group's heading costs 2 ms; `importlib.metadata` costs 50, and nearly nobody has such a plug-in.
    heading = f"[{GROUP}]".encode()
    for folder in filter(os.path.isdir, sys.path):
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith((".dist-info", ".egg-info")) and heading in _read(f"{entry.path}/entry_points.txt"):
                    return True
    return False


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""
