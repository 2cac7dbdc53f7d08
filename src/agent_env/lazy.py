"""Optional and costly imports, in one place: what is missing is named together with the extra that brings it.

So are those of other packages' code, which may do anything while it is imported, and whose metadata may be broken.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from agent_env.errors import UnsupportedError

if TYPE_CHECKING:
    from importlib.metadata import Distribution, EntryPoint

_UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, OSError)
"""What `importlib.metadata` raises for a file of entry points that is none."""


def optional(module: str, *, extra: str, purpose: str) -> ModuleType:
    """Imports a module that an extra brings.

    Raises:
        UnsupportedError: It is not installed; the hint names the extra.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not module.startswith(error.name.partition(".")[0]):
            raise
        raise UnsupportedError(
            f"{purpose} needs the package {error.name!r}, which is not installed",
            hint=f"pip install 'agent-env[{extra}]'",
        ) from error


def brought(group: str) -> list[EntryPoint]:
    """What installed packages bring in a group of entry points. One whose metadata can't be read brings nothing, and harms no other."""
    from importlib import metadata

    try:
        return [*metadata.entry_points(group=group)]
    except _UNREADABLE:
        return [entry for distribution in metadata.distributions() for entry in entries_of(distribution) if entry.group == group]


def entries_of(distribution: Distribution) -> Sequence[EntryPoint]:
    """All that one installed package brings; nothing where its metadata can't be read."""
    try:
        return [*distribution.entry_points]
    except _UNREADABLE:
        return []


def loaded(load: Callable[[], Any], what: str) -> Any:
    """What another package's code gives.

    Args:
        load: Runs that code.
        what: What it is, for the message.

    Raises:
        UnsupportedError: It fails, in whatever way, or would end this process.
    """
    try:
        with redirect_stdout(sys.stderr):  # what it prints meanwhile is no part of our answer
            return load()
    except (Exception, SystemExit) as error:
        said = str(error) if isinstance(error, ImportError | AttributeError) else f"{type(error).__name__}: {error}"
        raise UnsupportedError(f"{what} can't be used: {said}") from error


def names_of(package: str, modules: Mapping[str, Sequence[str]]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """A package's `__getattr__` and `__dir__`: its public names, each imported when it is first asked for, without the others.

    Args:
        package: Its `__name__`.
        modules: Module below it → the names that come from there.
    """
    homes = {name: module for module, names in modules.items() for name in names}

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{homes[name]}"), name)
        setattr(sys.modules[package], name, value)  # the next look-up does not come here
        return value

    return get, lambda: sorted(homes)
