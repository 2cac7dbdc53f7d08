"""Finds a provider by the name that documents and configuration use: built in, brought by a package, or named by the configuration.

A package's provider is imported when it is asked for, never before: a broken one costs nobody else anything.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from agent_env.defaults import DEFAULT_LIMITS, Limits
from agent_env.errors import ConfigError, UnsupportedError, UserError
from agent_env.lazy import brought
from agent_env.sandboxes.contract import Provider, ProviderFactory

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "agent_env.sandbox_providers"
"""Entry-point group of other packages' providers; see `contract.ProviderFactory`."""

BUILT_IN: Mapping[str, str] = {
    "local": "agent_env.sandboxes.local.provider:LocalProvider",
    "rootfs": "agent_env.sandboxes.rootfs.provider:RootfsProvider",
    "unsafe_host": "agent_env.sandboxes.local.unsafe_host:UnsafeHostProvider",
}
_METHODS = ("capabilities", "problems", "create", "attach", "destroy", "list", "aclose")


def names() -> list[str]:
    """Every provider that is built in or that exactly one installed package brings, sorted. Nothing is imported for it."""
    entries = _entries()
    return sorted({*BUILT_IN, *(name for name, found in entries.items() if len(found) == 1)})


def known() -> set[str]:
    """Every provider that is built in or that any installed package brings, also one that several bring, which is used by none."""
    return {*BUILT_IN, *_entries()}


def provider(
    name: str,
    *,
    state_root: Path,
    limits: Limits = DEFAULT_LIMITS,
    options: Mapping[str, object] | None = None,
    impl: str | None = None,
) -> Provider:
    """The provider of that name.

    Args:
        name: `local`, `unsafe_host`, one that an installed package brings, or one that the configuration names with `impl`.
        state_root: Where providers of this machine keep their records.
        limits: Waits and limits.
        options: The table `[sandbox.providers.<name>.config]`, with its references resolved.
        impl: `module:Class` from `[sandbox.providers.<name>]`; it takes the place of a package's provider, never of a built-in one.

    Raises:
        UserError: There is no such provider, or an option that it does not know.
        ConfigError: It can't be used: a clash of names, something that is no provider.
        UnsupportedError: It can't be imported here; names the missing extra where that is the reason.
    """
    factory = _factory(name, impl)
    made = factory(state_root, limits=limits, options=options or {})
    return _guarded(name, made)


def _factory(name: str, impl: str | None) -> ProviderFactory:
    if name in BUILT_IN:
        if impl is not None:
            raise ConfigError(
                f"the provider {name!r} is built in, so the configuration can't give it an impl",
                concerns=name,
                hint=f"give yours another name; [sandbox.providers.{name}] takes config alone",
            )
        return cast("ProviderFactory", _attribute(BUILT_IN[name]))
    if "," in name:
        first = name.partition(",")[0].strip()
        raise UserError(f"{name!r} is a chain of providers, where one is needed", hint=f"name one of them, such as {first!r}")
    if impl is not None:
        return _imported(name, lambda: _attribute(impl), f"the impl {impl!r} of [sandbox.providers.{name}]", None)
    # Looking at what is installed costs more than the rest of a start, and built-in providers don't need it.
    found = _entries().get(name, [])
    if not found:
        raise _unknown(name)
    if len(found) > 1:
        owners = " and ".join(sorted(_owner(entry) for entry in found))
        raise ConfigError(
            f"{owners} both bring a provider {name!r}, so neither is used",
            concerns=name,
            hint=f"remove one of them, or choose with impl in [sandbox.providers.{name}]",
        )
    return factory_of(found[0])


def factory_of(entry: EntryPoint) -> ProviderFactory:
    """What an installed package's entry point names, imported now.

    Raises:
        UnsupportedError: It can't be imported here.
        ConfigError: It is no provider.
    """
    return _imported(entry.name, entry.load, f"{entry.value} of {_owner(entry)}", entry)


def _unknown(name: str) -> UserError:
    from agent_env.documents.spelling import near

    known = names()
    meant = near(name, known)
    hint = f"did you mean {meant!r}?" if meant else f"there are {', '.join(known)}"
    return UserError(f"no sandbox provider is called {name!r}", concerns=name, hint=hint)


def _imported(name: str, load: Callable[[], Any], what: str, entry: EntryPoint | None) -> ProviderFactory:
    """A plug-in's factory; its import may fail in any way."""
    try:
        with contextlib.redirect_stdout(sys.stderr):  # what it prints while it is imported is no part of our answer
            found = load()
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        raise UnsupportedError(
            f"the provider {name!r} ({what}) can't be loaded: {error or type(error).__name__}",
            concerns=name,
            hint=_extra_hint(entry, missing) or "update or remove the package that brings it; `agent-env plugin check` says more",
        ) from error
    if not callable(found):
        raise ConfigError(f"the provider {name!r} ({what}) is no class: it can't be called", concerns=name)
    if isinstance(found, type):
        _check_methods(name, found, found.__name__)
    return cast("ProviderFactory", found)


def _extra_hint(entry: EntryPoint | None, missing: str | None) -> str | None:
    """How to install what is missing: by the extra that the entry point names, or the one whose requirements hold the missing package."""
    if entry is None or missing is None or entry.dist is None:
        return f"install {missing!r}" if missing else None
    distribution = entry.dist.metadata["Name"]
    extra = next(iter(entry.extras), None) or next(
        (
            found[1]
            for requirement in entry.dist.requires or ()
            if _same_package(requirement, missing) and (found := re.search(r"""extra\s*==\s*["']([^"']+)""", requirement))
        ),
        None,
    )
    return f"pip install '{distribution}[{extra}]'" if extra else f"install {missing!r}"


def _same_package(requirement: str, module: str) -> bool:
    package = re.match(r"[A-Za-z0-9._-]+", requirement)
    top = module.partition(".")[0]
    return package is not None and re.sub(r"[-_.]+", "-", package[0]).lower() == re.sub(r"[-_.]+", "-", top).lower()


def _guarded(name: str, made: object) -> Provider:
    """What was made must be a provider, and answers to the name that it was asked for by: sandboxes are recorded with it.

    Raises:
        ConfigError: It is none.
    """
    _check_methods(name, made, type(made).__name__)
    if getattr(made, "name", None) != name:
        try:
            made.name = name  # type: ignore[attr-defined]
        except AttributeError as error:
            raise ConfigError(
                f"the provider {name!r} calls itself {getattr(made, 'name', None)!r} and can't be renamed", concerns=name
            ) from error
    return cast("Provider", made)


def _check_methods(name: str, made: object, called: str) -> None:
    missing = [method for method in _METHODS if not callable(getattr(made, method, None))]
    if missing:
        raise ConfigError(
            f"the provider {name!r} is made by {called}, which is no provider: it has no {', '.join(missing)}",
            concerns=name,
            hint="docs/how-to/write-a-provider.md shows a whole one",
        )


def _attribute(target: str) -> Any:
    module, _, attribute = target.partition(":")
    found: Any = import_module(module)
    for part in attribute.split("."):
        found = getattr(found, part)
    return found


def _entries() -> dict[str, list[EntryPoint]]:
    """What installed packages bring, by name, without what clashes with a built-in name."""
    found: dict[str, list[EntryPoint]] = {}
    for entry in brought(GROUP):
        claimants = found.setdefault(entry.name, []) if entry.name not in BUILT_IN else []
        if all(entry.value != other.value or _owner(entry) != _owner(other) for other in claimants):
            claimants.append(entry)
    return found


def _owner(entry: EntryPoint) -> str:
    return str(entry.dist.metadata["Name"]) if entry.dist is not None else entry.value
