"""Finds a provider by the name that documents and configuration use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import cast

from agent_env.defaults import DEFAULT_LIMITS, Limits
from agent_env.errors import UserError
from agent_env.sandboxes.contract import Provider

GROUP = "agent_env.sandbox_providers"
"""Entry-point group of other packages' providers: a callable with the arguments of `provider` after the name."""

_BUILT_IN: Mapping[str, str] = {
    "local": "agent_env.sandboxes.local.provider:LocalProvider",
    "unsafe_host": "agent_env.sandboxes.local.unsafe_host:UnsafeHostProvider",
}


def names() -> list[str]:
    """Every provider that can be asked for, sorted."""
    from importlib.metadata import entry_points

    return sorted({*_BUILT_IN, *(entry.name for entry in entry_points(group=GROUP))})


def provider(name: str, *, state_root: Path, limits: Limits = DEFAULT_LIMITS, options: Mapping[str, object] | None = None) -> Provider:
    """The provider of that name.

    Args:
        name: `local`, `unsafe_host`, or one that an installed package brings.
        state_root: Where providers of this machine keep their records.
        limits: Waits and limits.
        options: The table `[sandbox.providers.<name>.config]`.

    Raises:
        UserError: There is no such provider, or an option that it does not know.
    """
    factory = _factory(name)
    return factory(state_root, limits=limits, options=options or {})


def _factory(name: str) -> Callable[..., Provider]:
    if name in _BUILT_IN:
        module, _, attribute = _BUILT_IN[name].partition(":")
        return cast("Callable[..., Provider]", getattr(import_module(module), attribute))
    if "," in name:
        raise UserError(
            f"a chain of providers ({name!r}) can't be used yet", hint=f"name one of them, such as {name.partition(',')[0].strip()!r}"
        )
    # Costs more than the rest of a start, and built-in providers don't need it.
    from difflib import get_close_matches
    from importlib.metadata import entry_points

    found = [entry for entry in entry_points(group=GROUP) if entry.name == name]
    if not found:
        known = names()
        near = get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
        raise UserError(f"no sandbox provider is called {name!r}", concerns=name, hint=hint)
    try:
        return cast("Callable[..., Provider]", found[0].load())
    except ImportError as error:
        raise UserError(f"the provider {name!r} can't be loaded: {error}", concerns=name, hint=f"it comes with {found[0].value}") from error
