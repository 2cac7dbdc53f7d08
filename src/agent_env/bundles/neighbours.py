"""Installed bundles that a bundle refers to, by ids or aliases. Each is read when the first reference leads into it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from agent_env.bundles.installed import OWN_DISTRIBUTION, Installed, aliases_of, installed_bundles, own_bundle
from agent_env.bundles.model import REFERENCED_AS
from agent_env.bundles.parse import read_bundle
from agent_env.bundles.references import RefsOf, ResolvedEntry
from agent_env.bundles.resolve import resolve_bundle
from agent_env.bundles.toml_types import RefKind
from agent_env.errors import Problem
from agent_env.ids import LOCAL

ALIASED: Mapping[RefKind, str] = {"agent": "agents", "env": "envs"}
"""What can have an alias → its table in `aliases.toml`."""
_REFERENCE = "agentenv-framework"
"""Tasks name what ships with that package by its ids. Where it is not installed, ours of the same names are taken."""


@dataclass(frozen=True, slots=True)
class Neighbour:
    """An installed bundle, read and resolved."""

    installed: Installed
    entries: Mapping[tuple[str, str], ResolvedEntry]
    """By the word of a reference, and id."""
    problems: tuple[Problem, ...]


class Neighbours:
    """The installed bundles, as seen from one bundle.

    Args:
        own_root: What the ids of that bundle start with: it is not its own neighbour.
        refs_of: The declared references of a step type.
    """

    def __init__(self, own_root: str, refs_of: RefsOf) -> None:
        self._own_root = own_root
        self._refs_of = refs_of
        self._read: dict[str, Neighbour | None] = {}
        self._aliases: Mapping[str, Mapping[str, str]] | None = None

    def of(self, id: str) -> Neighbour | None:
        """The installed bundle that an id belongs to, also when it has no such entry."""
        parts = id.removeprefix(LOCAL).split("/")
        if not id.startswith(LOCAL) or len(parts) < 3 or parts[0] == "~":
            return None
        root = f"{LOCAL}{parts[0]}/{parts[1]}"
        if root == self._own_root:
            return None
        if root not in self._read:
            found = _installed(parts[0], parts[1])
            self._read[root] = self._neighbour(found) if found is not None else None
        return self._read[root]

    def alias(self, kind: RefKind, name: str) -> str | None:
        """The id that an alias stands for; None for a name that is none, or that two bundles claim."""
        table = ALIASED.get(kind)
        if table is None:
            return None
        if self._aliases is None:
            self._aliases = aliases_of(installed_bundles())
        return self._aliases.get(table, {}).get(name)

    def _neighbour(self, installed: Installed) -> Neighbour:
        """Its entries' paths say whose they are, so that they are told from those of the bundle that is planned."""
        reading = read_bundle(installed.folder, id_root=installed.id_root, name=installed.name)
        entries = tuple(replace(entry, path=f"{installed.qualified}:{entry.path}") for entry in reading.bundle.entries)
        resolved, problems = resolve_bundle(replace(reading.bundle, entries=entries), self._refs_of)
        found = {(REFERENCED_AS.get(each.entry.kind, ""), each.entry.id): each for each in reversed(resolved.entries)}
        told = [replace(problem, file=f"{installed.qualified}:{problem.file}") for problem in reading.problems]
        return Neighbour(installed, found, (*told, *problems))


def _installed(distribution: str, name: str) -> Installed | None:
    if distribution == OWN_DISTRIBUTION:
        return own_bundle(name)
    qualified = f"{distribution}/{name}"
    found: Sequence[Installed] = [bundle for bundle in installed_bundles() if bundle.qualified == qualified]
    own = own_bundle(name) if distribution == _REFERENCE else None
    return next(iter(found), replace(own, distribution=distribution) if own is not None else None)
