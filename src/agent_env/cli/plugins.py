"""Commands that other packages bring (entry point group `agent_env.cli_plugins`), imported only when their name is used."""

from __future__ import annotations

import os
import sys
from functools import cache

import click

from agent_env.errors import UnsupportedError

GROUP = "agent_env.cli_plugins"


@cache
def plugin_names() -> tuple[str, ...]:
    """The names of the installed plug-ins, sorted."""
    return tuple(sorted(_entry_points()))


def load_plugin(name: str) -> click.Command:
    """A plug-in's command.

    Raises:
        UnsupportedError: It can't be imported, or is no click command.
    """
    try:
        found = _load(name)
    except Exception as error:  # a plug-in's import may fail in any way; the message names it, and nothing else depends on it
        raise UnsupportedError(
            f"the command {name!r} of a plug-in can't be loaded: {type(error).__name__}: {error}",
            hint=f"update or remove the package that provides {_entry_points()[name]}",
        ) from error
    if not isinstance(found, click.Command):
        raise UnsupportedError(f"the plug-in {name!r} ({_entry_points()[name]}) is not a click command")
    return found


def _load(name: str) -> object:
    from importlib import import_module

    module, _, attribute = _entry_points()[name].partition(":")
    found: object = import_module(module)
    for part in filter(None, attribute.split(".")):
        found = getattr(found, part)
    return found


@cache
def _entry_points() -> dict[str, str]:
    if not _any_declared():
        return {}
    from importlib.metadata import entry_points

    return {point.name: point.value for point in entry_points(group=GROUP)}


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
