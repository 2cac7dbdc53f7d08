"""Optional and costly imports, in one place: what is missing is named together with the extra that brings it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any

from agent_env.errors import UnsupportedError


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
