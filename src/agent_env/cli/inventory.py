"""What installed packages add to agent-env, and whether it can be used: read from their metadata, loaded only when that is asked for.

Whatever a package's code does when it is imported is one line about that package, never an end of the listing.
"""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agent_env.documents.spelling import near
from agent_env.errors import AgentEnvError, NotFoundError, UnsupportedError
from agent_env.lazy import entries_of, loaded

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from agent_env.config import Config

PREFIX = "agent_env."
OWN = "agent-env"
FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class Contribution:
    """One entry point of one package."""

    package: str
    version: str
    group: str
    name: str
    value: str
    status: str
    """`active`, `unloaded`, `replaced`, `failed`, `skipped` or `conflict`."""
    code: str = ""
    """Why it is not active: `load-failed`, `invalid-plugin`, `builtin-name`, `name-conflict`, `replaced-by-config`, `unknown-group`,
    `not-loaded`."""
    message: str = ""

    @property
    def sound(self) -> bool:
        """Nothing is wrong with it."""
        return self.status in {"active", "unloaded", "replaced"}

    def to_json(self) -> dict[str, str]:
        """The contribution as data, within its package."""
        return {name: getattr(self, name) for name in ("group", "name", "value", "status", "code", "message")}


@dataclass(frozen=True, slots=True)
class Kind:
    """What one group of entry points brings."""

    built_in: Callable[[], Sequence[str]]
    """Names that no package can take."""
    check: Callable[[EntryPoint], None]
    """Loads one. Raises `AgentEnvError` with what is wrong with it."""
    shared: bool = False
    """Several packages may bring the same name."""


def inventory(config: Config, *, load: bool = True) -> list[Contribution]:
    """Everything that installed packages add, sorted by package, group and name.

    Args:
        config: Where an `impl` may take a package's place.
        load: Import each one to see whether it can be used.
    """
    found = list(_entries())
    claims = Counter((entry.group, entry.name) for entry in found)
    told = [_contribution(entry, claims[entry.group, entry.name], config, load) for entry in found]
    return sorted(told, key=lambda one: (one.package.lower(), one.group, one.name))


def packages(contributions: Sequence[Contribution]) -> list[dict[str, Any]]:
    """The contributions as data, by package."""
    found: dict[str, dict[str, Any]] = {}
    for one in contributions:
        package = found.setdefault(one.package, {"package": one.package, "version": one.version, "contributions": []})
        package["contributions"].append(one.to_json())
    return list(found.values())


def _entries() -> Iterator[EntryPoint]:
    from importlib.metadata import distributions

    seen = {OWN}
    for distribution in distributions():
        name = distribution.metadata["Name"]
        if name not in seen:  # of two on the path the first one is imported
            seen.add(name)
            yield from (entry for entry in entries_of(distribution) if entry.group.startswith(PREFIX))


def _contribution(entry: EntryPoint, claims: int, config: Config, load: bool) -> Contribution:
    status, code, message = _state(entry, claims, config, load)
    package, version = (entry.dist.metadata["Name"], entry.dist.version) if entry.dist is not None else ("?", "?")
    return Contribution(package, version, entry.group, entry.name, entry.value, status, code, message)


def _state(entry: EntryPoint, claims: int, config: Config, load: bool) -> tuple[str, str, str]:
    kind = KINDS.get(entry.group)
    if kind is None:
        meant = near(entry.group, sorted(KINDS))
        return "skipped", "unknown-group", f"nothing reads the group {entry.group!r}" + (f"; did you mean {meant!r}?" if meant else "")
    if entry.name in kind.built_in():
        return "skipped", "builtin-name", f"{entry.name!r} clashes with a built-in"
    if entry.group == PROVIDERS and "impl" in config.sandbox.providers.get(entry.name, {}):
        return "replaced", "replaced-by-config", f"[sandbox.providers.{entry.name}] gives an impl of its own"
    if claims > 1 and not kind.shared:
        return "conflict", "name-conflict", f"{claims} packages bring {entry.name!r}, so none of them is used"
    if not load:
        return "unloaded", "not-loaded", ""
    try:
        with contextlib.redirect_stdout(sys.stderr):  # what it prints while it is imported is no part of our answer
            kind.check(entry)
    except AgentEnvError as error:
        return "failed", "load-failed" if error.__cause__ is not None else "invalid-plugin", str(error)
    return "active", "", ""


def _provider(entry: EntryPoint) -> None:
    from agent_env.sandboxes.registry import factory_of

    factory_of(entry)


def _step(entry: EntryPoint) -> None:
    from agent_env.steps.registry import Registry

    Registry().step_class(entry.name)


def _command(entry: EntryPoint) -> None:
    from agent_env.cli.plugins import load_plugin

    load_plugin(entry.name)


def _bundle(entry: EntryPoint) -> None:
    from agent_env.bundles.installed import installed_bundles

    if not any(bundle.name == entry.name for bundle in installed_bundles()):
        raise NotFoundError(f"there is no folder {entry.name!r} in the package {entry.value!r}", hint="is it part of what was installed?")


def _secret_store(entry: EntryPoint) -> None:
    found = loaded(entry.load, f"the secret store {entry.name!r} ({entry.value})")
    if not callable(getattr(found, "get", None)):
        raise UnsupportedError(f"the secret store {entry.name!r} ({entry.value}) has no get")


def _built_in_providers() -> Sequence[str]:
    from agent_env.sandboxes.registry import BUILT_IN

    return list(BUILT_IN)


def _built_in_steps() -> Sequence[str]:
    from agent_env.steps.registry import BUILT

    return list(BUILT)


def _built_in_commands() -> Sequence[str]:
    from agent_env.cli.command_table import COMMANDS

    return list(COMMANDS)


PROVIDERS = "agent_env.sandbox_providers"
KINDS: Mapping[str, Kind] = {
    PROVIDERS: Kind(_built_in_providers, _provider),
    "agent_env.task_steps": Kind(_built_in_steps, _step),
    "agent_env.cli_plugins": Kind(_built_in_commands, _command),
    "agent_env.bundles": Kind(lambda: (), _bundle, shared=True),
    "agent_env.secret_stores": Kind(lambda: (), _secret_store),
}
"""The groups that are read."""
