"""Bundles that come with installed packages: found by entry point, located without importing anything."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agent_env.bundles.reading import nfc
from agent_env.documents.spelling import near
from agent_env.errors import NotFoundError
from agent_env.ids import LOCAL
from agent_env.lazy import brought

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "agent_env.bundles"
OWN_DISTRIBUTION = "agent-env"
OWN_PACKAGE = "agent_env_bundles"
_PREFIXES = (".", "/", "~")


@dataclass(frozen=True, slots=True)
class Installed:
    """A bundle that an installed distribution brings."""

    name: str
    distribution: str
    """In canonical spelling."""
    folder: Path

    @property
    def id_root(self) -> str:
        """What its ids start with, on every machine."""
        return f"{LOCAL}{self.distribution}/{self.name}"

    @property
    def qualified(self) -> str:
        """The name that is never ambiguous."""
        return f"{self.distribution}/{self.name}"

    def description(self) -> str | None:
        """What its README says first, or its `bundle.toml`."""
        from agent_env.bundles.parse import read_bundle

        return read_bundle(self.folder, id_root=self.id_root, name=self.name).bundle.description


@dataclass(frozen=True, slots=True)
class Found:
    """A bundle that a person named: a folder, or an installed one."""

    folder: Path
    id_root: str | None = None
    name: str | None = None
    note: str | None = None
    """Something worth saying about how the name was understood."""


def installed_bundles() -> list[Installed]:
    """Every installed bundle, by name, then by distribution. Entry points whose folder is not there are left out."""
    found = [bundle for point in brought(GROUP) for bundle in [_located(point)] if bundle is not None]
    return sorted(set(found), key=lambda bundle: (bundle.name, bundle.distribution))


def find_bundle(text: str, *, folder_first: bool = True) -> Found:
    """What a person means by a bundle's name.

    A text that starts with `.`, `/` or `~` is a folder, and so is the name of an existing one; anything else is an installed bundle's
    name, or `<distribution>/<name>` where two have it. Our own bundles keep their bare names.

    Raises:
        NotFoundError: Nothing has that name; the hint has up to three near ones.
    """
    if text.startswith(_PREFIXES) or (os.sep in text.rstrip(os.sep) and Path(text).is_dir()):
        return Found(Path(text))
    hides = folder_first and Path(text).is_dir()
    own = own_bundle(text)
    if hides:
        note = f"the folder {text!r} was taken, not the installed bundle of that name" if own or _named(text) else None
        return Found(Path(text), note=note)
    if own is not None:
        return Found(own.folder, own.id_root, own.name)
    matches = _named(text)
    if len(matches) == 1:
        return Found(matches[0].folder, matches[0].id_root, matches[0].name)
    if matches:
        names = " or ".join(repr(bundle.qualified) for bundle in matches)
        raise NotFoundError(f"{text!r} names {len(matches)} installed bundles", concerns=text, hint=f"say {names}")
    hint = f"a file is no bundle: agent-env run {text} --dry-run checks a task's file" if Path(text).is_file() else _near_names(text)
    raise NotFoundError(f"there is no folder and no installed bundle {text!r}", concerns=text, hint=hint)


def own_bundle(name: str) -> Installed | None:
    """One of the bundles that ship with agent-env, found without asking for other distributions."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]*", name):
        return None
    folder = _package_folder(OWN_PACKAGE)
    if folder is None or not (folder / name).is_dir() or name.startswith("_"):
        return None
    return Installed(name, OWN_DISTRIBUTION, folder / name)


def aliases_of(bundles: Sequence[Installed]) -> Mapping[str, Mapping[str, str]]:
    """`agents` and `envs` → alias → id. An alias that two bundles claim names neither; our own can't be taken."""
    from agent_env.bundles.parse import read_bundle

    claims: dict[str, dict[str, list[tuple[bool, str]]]] = {}
    for bundle in bundles:
        read = read_bundle(bundle.folder, id_root=bundle.id_root, name=bundle.name).bundle
        for table, names in read.aliases.items():
            for name, aliases in names.items():
                for alias in aliases:
                    claim = (bundle.distribution == OWN_DISTRIBUTION, f"{bundle.id_root}/{name}")
                    claims.setdefault(table, {}).setdefault(alias, []).append(claim)
    return {table: dict(_settled(of)) for table, of in claims.items()}


def entries_of(bundles: Sequence[Installed], folder: str) -> list[tuple[str, Installed]]:
    """`BUNDLE:NAME` of everything of one kind, with the bundle that has it.

    Args:
        bundles: Where it is looked for.
        folder: What bundles call the kind's folder: `agents`, `envs`.
    """
    below = [(bundle, bundle.folder / folder) for bundle in bundles]
    return [
        (f"{bundle.name}:{path.name}", bundle)
        for bundle, root in below
        if root.is_dir()
        for path in sorted(root.iterdir())
        if path.is_dir()
    ]


def _settled(claims: Mapping[str, Sequence[tuple[bool, str]]]) -> list[tuple[str, str]]:
    settled = []
    for alias, claimants in claims.items():
        own = [id for ours, id in claimants if ours]
        if own or len(claimants) == 1:
            settled.append((alias, own[0] if own else claimants[0][1]))
    return settled


def _located(point: EntryPoint) -> Installed | None:
    package = point.value.partition(":")[0].strip()
    folder = _package_folder(package)
    name = nfc(point.name)
    if folder is None or point.dist is None or not (folder / name).is_dir():
        return None
    return Installed(name, canonical(point.dist.name), folder / name)


def _package_folder(package: str) -> Path | None:
    """The folder of a package's top level and what is below, without importing it."""
    from importlib.util import find_spec

    top, *below = package.split(".")
    try:
        spec = find_spec(top)
    except (ImportError, ValueError):
        return None
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations))).joinpath(*below)


def canonical(distribution: str) -> str:
    """A distribution's name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def _named(text: str) -> list[Installed]:
    return [bundle for bundle in installed_bundles() if text in {bundle.name, bundle.qualified}]


def _near_names(text: str) -> str:
    names = [bundle.name for bundle in installed_bundles()]
    meant: list[str] = []
    while names and len(meant) < 3 and (other := near(text, names)):
        meant.append(other)
        names.remove(other)
    if meant:
        return f"did you mean {' or '.join(map(repr, meant))}?"
    listed = ", ".join(sorted(set(names)))
    return f"installed: {listed}; a folder is written './{text}'" if listed else f"a folder is written './{text}'"
