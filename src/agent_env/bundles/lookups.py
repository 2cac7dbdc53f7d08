"""What a reference leads to: an entry of the bundle, of an installed bundle, or a document of the stores, which must be there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from agent_env.bundles.model import COLLECTION_OF, REFERENCED_AS, Bundle, BundleKind, Entry
from agent_env.bundles.neighbours import ALIASED, Neighbour, Neighbours
from agent_env.bundles.references import Reference, ResolvedEntry, suggestion
from agent_env.bundles.toml_types import RefKind
from agent_env.documents.spelling import near
from agent_env.errors import Problem

if TYPE_CHECKING:
    from agent_env.artifacts import Artifacts
    from agent_env.stores import Documents


class PlanStores(Protocol):
    """What planning reads."""

    @property
    def documents(self) -> Documents:
        """Versioned documents."""
        ...

    @property
    def artifacts(self) -> Artifacts:
        """Artifacts and their files."""
        ...

    @property
    def certain(self) -> bool:
        """They are those that are configured; else what is not here may be there."""
        ...


def alias_of(stores: PlanStores, neighbours: Neighbours, kind: RefKind, name: str) -> str | None:
    """What an alias of an installed bundle stands for; a document of the stores that has exactly that id comes first."""
    if kind not in ALIASED or stores.documents.get(COLLECTION_OF[kind], name) is not None:
        return None
    return neighbours.alias(kind, name)


class Lookups:
    """Follows the references of one plan.

    Args:
        bundle: The bundle that is planned.
        stores: Where documents of other origin are.
        neighbours: The installed bundles.
        problems: Receives what is wrong.
    """

    def __init__(self, bundle: Bundle, stores: PlanStores, neighbours: Neighbours, problems: list[Problem]) -> None:
        self._bundle = bundle
        self._stores = stores
        self._neighbours = neighbours
        self._problems = problems
        self._stored: dict[tuple[str, str, int | None], tuple[str, int] | None] = {}
        self._roots: dict[str, str] = {}
        self.pinned: dict[tuple[str, str], int] = {}
        """Documents of the stores that are used unpinned → their newest version."""

    def root_of(self, entry: Entry) -> str:
        """What the ids of the entry's own bundle start with."""
        return self._roots.get(entry.path, self._bundle.id_root)

    def needed(self, reference: Reference, entries: dict[str, ResolvedEntry]) -> ResolvedEntry | None:
        """The entry that a reference means; None is a document of the stores.

        Args:
            reference: Of this bundle or of an installed one.
            entries: Path → entry; those of an installed bundle are added when the first reference leads there.
        """
        if reference.entry is not None:
            return entries[reference.entry.path]
        neighbour = self._neighbours.of(reference.id)
        found = neighbour.entries.get((reference.kind, reference.id)) if neighbour is not None else None
        if neighbour is None or found is None:
            return None
        self._enter(neighbour, entries)
        if reference.version is not None:
            where = f"the installed bundle {neighbour.installed.qualified!r}"
            message = f"{reference.written!r} is defined in {where}, so it has no fixed version"
            self._problems.append(Problem(message, reference.file, reference.path, "leave the version out"))
        if reference.artifact_type is not None and found.entry.type != reference.artifact_type:
            message = f"{found.entry.path} is of type {found.entry.type!r}; {reference.artifact_type!r} is needed here"
            self._problems.append(Problem(message, reference.file, reference.path))
        return found

    def _enter(self, neighbour: Neighbour, entries: dict[str, ResolvedEntry]) -> None:
        root = neighbour.installed.id_root
        if root not in self._roots.values():
            self._problems += neighbour.problems
            entries |= {each.entry.path: each for each in neighbour.entries.values()}
            self._roots |= {each.entry.path: root for each in neighbour.entries.values()}

    def check(self, reference: Reference) -> None:
        """A document of the stores must be there, and be of the right type."""
        broken = {name for kind, name in self._bundle.broken if REFERENCED_AS.get(kind) == reference.kind}
        if reference.told or reference.written in broken or reference.written.removeprefix(f"{self._bundle.id_root}/") in broken:
            return
        collection = COLLECTION_OF[reference.kind]
        key = (collection, reference.id, reference.version)
        if key not in self._stored:
            self._stored[key] = self._look_up(reference)
        found = self._stored[key]
        if found is None:
            if not self._stores.certain:
                return
            self._problems.append(Problem(self._absent(reference), reference.file, reference.path, self._hint(reference)))
            return
        type, version = found
        if reference.artifact_type is not None and type != reference.artifact_type:
            message = f"{reference.id!r} is of type {type!r}; {reference.artifact_type!r} is needed here"
            self._problems.append(Problem(message, reference.file, reference.path))
        if reference.version is None:
            self.pinned[collection, reference.id] = version

    def _look_up(self, reference: Reference) -> tuple[str, int] | None:
        if reference.kind == "artifact":
            artifact = self._stores.artifacts.find(reference.id, reference.version)
            return (artifact.type, artifact.version) if artifact else None
        document = self._stores.documents.get(COLLECTION_OF[reference.kind], reference.id, reference.version)
        return (document.type, document.version) if document else None

    def _absent(self, reference: Reference) -> str:
        pin = f" version {reference.version}" if reference.version is not None else ""
        neighbour = self._neighbours.of(reference.id)
        if neighbour is not None:
            return f"the installed bundle {neighbour.installed.qualified!r} has no {reference.kind} {reference.id!r}{pin}"
        if reference.id.startswith(f"{self._bundle.id_root}/"):
            return f"{reference.id!r} is under this bundle's own id, but the bundle has no such {reference.kind}"
        return f"there is no {reference.kind} {reference.written!r}{pin}, neither in this bundle nor in the stores"

    def _hint(self, reference: Reference) -> str | None:
        neighbour = self._neighbours.of(reference.id)
        if neighbour is not None:
            there = [id for kind, id in neighbour.entries if kind == reference.kind]
            meant = near(reference.id, there)
            return f"did you mean {meant!r}?" if meant else f"it has {', '.join(there[:10]) or 'none'}"
        kinds = {"artifact": (BundleKind.ARTIFACT, BundleKind.SKILL), "task": (BundleKind.TASK,), "env": (BundleKind.ENV,)}
        entries = [entry for kind in kinds.get(reference.kind, (BundleKind.AGENT,)) for entry in self._bundle.of(kind)]
        holder = next((entry for entry in entries if reference.written in entry.files), None)
        if holder is not None:
            return f"it is a file of {holder.name!r}; name that"
        return suggestion([entry.name for entry in entries], reference.written)
