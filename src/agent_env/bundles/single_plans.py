"""Planning one environment or agent by itself, with what it needs: from its folder in a bundle, an installed bundle, or a folder alone."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from agent_env.bundles.entries import EntryReader
from agent_env.bundles.installed import aliases_of, entries_of, find_bundle, installed_bundles
from agent_env.bundles.lookups import PlanStores, alias_of
from agent_env.bundles.model import KINDS, Bundle, BundleKind, Entry
from agent_env.bundles.neighbours import Neighbours
from agent_env.bundles.parse import find_root, is_bundle, read_bundle, sorted_problems
from agent_env.bundles.plan import Planner, declared_refs
from agent_env.bundles.planned import BundlePlan
from agent_env.bundles.reading import Folder, Notes
from agent_env.bundles.resolve import resolve_bundle
from agent_env.bundles.toml_types import RefKind
from agent_env.documents.spelling import near
from agent_env.errors import NotFoundError, Problem, ProblemsError
from agent_env.ids import LOCAL, check_id, home_folder, local_id_root

_CALLED: Mapping[BundleKind, str] = {BundleKind.ENV: "environment", BundleKind.AGENT: "agent", BundleKind.ARTIFACT: "artifact"}
"""Kinds that can be planned by themselves, as people call them."""
_WORD: Mapping[BundleKind, RefKind] = {BundleKind.ENV: "env", BundleKind.AGENT: "agent"}
"""The word by which documents refer to an entry of a kind."""


def plan_single(kind: BundleKind, folder: Path, stores: PlanStores, *, id: str | None = None) -> tuple[BundlePlan, str]:
    """What storing the environment or agent of a folder takes.

    Args:
        kind: Which of the two.
        folder: Holds an `env.toml` (`agent.toml`) or a Dockerfile. Below `envs/` (`agents/`) of a bundle it may refer to the bundle's other
            entries.
        stores: Where documents of other origin are looked up.
        id: Its id; by default the bundle's, or one of its path.

    Returns:
        The plan, without tasks, and the entry's id.

    Raises:
        NotFoundError: It is a whole bundle.
        ProblemsError: Everything wrong with it.
    """
    root = find_root(folder, os.environ)
    if is_bundle(root):
        raise _bundle_instead(kind, folder, root)
    above = root.parent.parent
    if root.parent.name == KINDS[kind].folder and is_bundle(above) and id is None:
        return _of_bundle(kind, above, root.name, stores)
    entry, notes = _alone(kind, root, id)
    bundle = Bundle(root.parent, root.name, entry.id.rpartition("/")[0], None, (entry,))
    return _planned(bundle, entry, stores, list(notes.problems))


def plan_named(kind: BundleKind, text: str, stores: PlanStores) -> tuple[BundlePlan, str] | None:
    """What a person means by `BUNDLE:NAME`, an alias, or the id of an installed bundle's entry of that kind; None for anything else.

    Raises:
        NotFoundError: There is no such bundle, or none of that name in it.
        ProblemsError: Everything wrong with it.
    """
    bundle, colon, name = text.rpartition(":")
    if colon and not text.startswith(LOCAL):
        found = find_bundle(bundle)
        return _of_bundle(kind, found.folder, name, stores, id_root=found.id_root, called=found.name)
    neighbours = Neighbours("", declared_refs)
    id = text if text.startswith(LOCAL) else neighbours.alias(_WORD[kind], text)
    neighbour = neighbours.of(id) if id is not None else None
    if id is None or neighbour is None:
        return None
    installed = next(each for each in (neighbour.installed, *installed_bundles()) if each.id_root == neighbour.installed.id_root)
    return _of_bundle(kind, installed.folder, id.rpartition("/")[2], stores, id_root=installed.id_root, called=installed.name)


def bundle_of(kind: BundleKind, text: str) -> str | None:
    """The bundle that an entry was named with: what stands before the colon, or the folder that it is in; None for any other name."""
    folder = Path(text).expanduser()
    if folder.is_dir():
        root = find_root(folder, os.environ)
        return str(root.parent.parent) if root.parent.name == KINDS[kind].folder and is_bundle(root.parent.parent) else None
    return text.rpartition(":")[0] if ":" in text and not text.startswith(LOCAL) else None


def unknown_name(kind: BundleKind, text: str, stores: PlanStores) -> NotFoundError:
    """What is said of a name that is no folder, no entry of a bundle, no alias and no stored id."""
    bundles = installed_bundles()
    aliases = [*aliases_of(bundles).get(KINDS[kind].folder, {})]
    entries = [name for name, _ in entries_of(bundles, KINDS[kind].folder)]
    whole = next((name for name in entries if text in name.split(":")), None)
    meant = whole or near(text, [*aliases, *entries, *stores.documents.ids(KINDS[kind].collection)])
    there = f"BUNDLE:NAME, a folder, or one of {', '.join(sorted(aliases))}" if aliases else "BUNDLE:NAME, or a folder"
    message = f"there is no folder, bundle's {_CALLED[kind]} or alias {text!r}"
    return NotFoundError(message, concerns=text, hint=f"did you mean {meant!r}?" if meant else there)


def _of_bundle(
    kind: BundleKind, folder: Path, name: str, stores: PlanStores, *, id_root: str | None = None, called: str | None = None
) -> tuple[BundlePlan, str]:
    reading = read_bundle(folder, id_root=id_root, name=called)
    entry = next((each for each in reading.bundle.of(kind) if each.name == name), None)
    problems = [problem for problem in reading.problems if (problem.file or "").startswith(f"{KINDS[kind].folder}/")]
    if entry is None:
        if problems:
            raise ProblemsError(sorted_problems(problems))
        there = ", ".join(each.name for each in reading.bundle.of(kind)) or "none"
        raise NotFoundError(f"the bundle {reading.bundle.name!r} has no {_CALLED[kind]} {name!r}", concerns=name, hint=f"it has {there}")
    return _planned(reading.bundle, entry, stores, problems)


def _bundle_instead(kind: BundleKind, folder: Path, root: Path) -> NotFoundError:
    """A bundle where one of its entries is wanted."""
    there = [f"{folder}:{entry.name}" for entry in read_bundle(root).bundle.of(kind)]
    hint = f"say {' or '.join(there[:5])}" if there else None
    return NotFoundError(f"{folder} is a bundle{'' if there else f' without {_CALLED[kind]}s'}", concerns=str(folder), hint=hint)


def _alone(kind: BundleKind, root: Path, id: str | None) -> tuple[Entry, Notes]:
    notes = Notes()
    id_root = local_id_root(root.parent, home_folder(os.environ)) if id is None else LOCAL.rstrip("/")
    entry = EntryReader(Folder(root.parent, notes), id_root, strict=False).alone(kind, root)
    if entry is None:
        raise ProblemsError(sorted_problems(notes.problems or [Problem(f"is no {_CALLED[kind]}", str(root))]))
    return (entry if id is None else replace(entry, id=check_id(id, what="environment id"))), notes


def _planned(bundle: Bundle, entry: Entry, stores: PlanStores, problems: list[Problem]) -> tuple[BundlePlan, str]:
    neighbours = Neighbours(bundle.id_root, declared_refs)
    resolved, found = resolve_bundle(bundle, declared_refs, partial(alias_of, stores, neighbours))
    overrides: Mapping[str, object] = {}
    planner = Planner(resolved, stores, neighbours, overrides=overrides, strict=False)
    planner.problems += [*problems, *(each for each in found if (each.file or "").startswith(entry.path))]
    plan = planner.plan_entry(entry)
    if planner.problems:
        raise ProblemsError(sorted_problems(planner.problems))
    return plan, entry.id
