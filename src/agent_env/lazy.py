"""Optional and costly imports, in one place: what is missing is named together with the extra that brings it."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

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
