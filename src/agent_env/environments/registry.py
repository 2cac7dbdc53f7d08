"""Finds a provider of environments by its type: built in, or brought by a package, which is imported only when it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, cast

from agent_env.errors import ConfigError, UserError
from agent_env.lazy import brought, loaded

if TYPE_CHECKING:
    from agent_env.environments.contract import EnvironmentProvider

GROUP = "agent_env.env_providers"
"""Entry-point group: a class that is made without arguments, whose `type` is the entry's name."""
BUILT_IN: Mapping[str, str] = {
    "gateway": "agent_env.environments.providers.gateway:GatewayProvider",
    "server": "agent_env.environments.providers.server:ServerProvider",
}
_MEMBERS = ("type", "options", "problems", "deploy", "attach", "destroy")


def provider_types() -> list[str]:
    """Every type that is built in or that exactly one installed package brings, sorted. Nothing is imported for it."""
    return sorted({*BUILT_IN, *(name for name, found in _entries().items() if len(found) == 1)})


@cache
def environment_provider(type: str) -> EnvironmentProvider:
    """The provider of that type.

    Raises:
        UserError: There is none.
        ConfigError: Two packages bring it, or what one brings is no provider.
        UnsupportedError: It can't be imported here.
    """
    if type in BUILT_IN:
        module, _, name = BUILT_IN[type].partition(":")
        return cast("EnvironmentProvider", getattr(import_module(module), name)())
    found = _entries().get(type, [])
    if not found:
        raise UserError(
            f"there is no provider of environments {type!r}",
            concerns=type,
            hint=f"there are {', '.join(provider_types())}; a package brings one with an entry point in {GROUP}",
        )
    owners = " and ".join(sorted(entry.dist.name if entry.dist else entry.value for entry in found))
    if len(found) > 1:
        raise ConfigError(f"{owners} both bring the provider of environments {type!r}", concerns=type, hint="remove one of them")
    return _made(type, found[0], owners)


def _made(type: str, entry: EntryPoint, owner: str) -> EnvironmentProvider:
    what = f"the provider of environments {type!r} ({entry.value} of {owner})"
    made = loaded(loaded(entry.load, what), what)
    missing = [name for name in _MEMBERS if not hasattr(made, name)]
    if missing or made.type != type:
        why = f"it lacks {', '.join(missing)}" if missing else f"its type is {made.type!r}"
        raise ConfigError(f"{entry.value} of {owner} is no provider of environments {type!r}: {why}", concerns=type)
    return cast("EnvironmentProvider", made)


def _entries() -> Mapping[str, list[EntryPoint]]:
    found: dict[str, list[EntryPoint]] = {}
    for entry in brought(GROUP):
        if entry.name not in BUILT_IN:
            found.setdefault(entry.name, []).append(entry)
    return found
