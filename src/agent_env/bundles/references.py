"""What names mean: an output of the task, an entry of the bundle, or a document of the stores, in this order, and never a guess.

Step classes declare which of their fields refer to documents (`entity_refs`), types of toml which of their keys do. No store is looked at:
what stays unresolved here is a store reference, verified while planning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import PurePosixPath

from agent_env.bundles.environments import IMAGE_TYPE, image_entries
from agent_env.bundles.json_paths import declared_keys
from agent_env.bundles.model import REFERENCED_AS, Bundle, BundleKind, Entry
from agent_env.bundles.reading import fold, nfc
from agent_env.bundles.toml_types import TYPES, Key, RefKind
from agent_env.documents.reading import at
from agent_env.documents.spelling import near
from agent_env.documents.task import TaskDocument
from agent_env.documents.updates import Json
from agent_env.errors import Problem
from agent_env.ids import LOCAL
from agent_env.steps.contract import EntityRef


class Unknown(Enum):
    """A step type that is not there; whoever types the steps says so."""

    TYPE = "unknown"


RefsOf = Callable[[str], tuple[EntityRef, ...] | Unknown | None]
"""Step type → its declared references; None where it declares none and none can be assumed."""
Declared = list[tuple[EntityRef, tuple[str, ...]]] | Unknown | None
AliasOf = Callable[[RefKind, str], str | None]
"""Kind and name → the id of the installed bundle's entry that has it as an alias."""


def no_alias(_kind: RefKind, _name: str) -> str | None:
    """Where no bundle is installed."""
    return None


@dataclass(frozen=True, slots=True)
class Reference:
    """A document that an entry needs."""

    kind: RefKind
    id: str
    version: int | None
    file: str
    path: str
    """JSON path in the file."""
    entry: Entry | None = None
    """The bundle's own entry that is meant; None is a document of the stores."""
    artifact_type: str | None = None
    written: str = ""
    """What the author wrote."""
    told: bool = False
    """Something is known to be wrong with it, so nobody looks further."""


@dataclass(frozen=True, slots=True)
class Output:
    """A document that a step will write."""

    kind: RefKind
    id: str
    position: int
    step_id: str
    artifact_type: str | None = None


@dataclass(frozen=True, slots=True)
class ResolvedEntry:
    """An entry whose references are ids."""

    entry: Entry
    references: tuple[Reference, ...] = ()
    by_key: Mapping[str, tuple[Reference, ...]] = field(default_factory=dict)
    """A toml's references, by its key."""
    outputs: tuple[Output, ...] = ()
    task: TaskDocument | None = None
    """The task with its references rewritten."""


@dataclass(frozen=True, slots=True)
class ResolvedBundle:
    """A bundle whose references are ids."""

    bundle: Bundle
    entries: tuple[ResolvedEntry, ...]


_FOLDERS: Mapping[RefKind, str] = {"env": "envs", "agent": "agents", "artifact": "artifacts", "task": "tasks"}


class _Names:
    """The bundle's own names of one kind of reference."""

    def __init__(self, entries: Sequence[Entry], ignored: Sequence[str], kind: RefKind) -> None:
        # Of two entries with one name, which is a problem by itself, the first counts.
        own = [entry for entry in reversed(entries) if REFERENCED_AS.get(entry.kind) == kind]
        self.exact = {entry.id: entry for entry in own} | {entry.name: entry for entry in own}
        self.folded = {fold(name): entry for name, entry in self.exact.items()}
        folder = _FOLDERS[kind]
        self.ignored = {PurePosixPath(path).name: path for path in ignored if path.startswith(f"{folder}/")}

    def names(self) -> list[str]:
        return sorted({entry.name for entry in self.exact.values()})


@dataclass(frozen=True, slots=True)
class Site:
    """Where a reference stands, and what it may be."""

    kind: RefKind
    written: str
    version: int | None
    file: str
    path: str
    artifact_type: str | None = None


class Resolver:
    """The bundle's own names, asked by every entry; collects what is wrong."""

    def __init__(self, bundle: Bundle, refs_of: RefsOf, alias_of: AliasOf = no_alias) -> None:
        self._alias_of = alias_of
        self.problems: list[Problem] = []
        self._names = {kind: _Names(bundle.entries, bundle.ignored, kind) for kind in _FOLDERS}
        self.settings = bundle.settings
        self.has_defaults = bundle.settings.agent is not None or bundle.settings.sandbox is not None
        self._refs_of = refs_of
        self._declared: dict[str, Declared] = {}
        self.derived: list[Entry] = []
        """Entries that stand in no folder of their own: the images of environments."""
        self.written_by: dict[str, str] = {entry.id: entry.path for entry in bundle.entries}
        """Id → who makes the document: an entry, or a step."""

    def declared(self, type: str) -> Declared:
        """The references that a step type declares, their paths taken apart once."""
        if type not in self._declared:
            refs = self._refs_of(type)
            self._declared[type] = [(ref, declared_keys(ref.path)) for ref in refs] if isinstance(refs, tuple) else refs
        return self._declared[type]

    def problem(self, site: Site, message: str, hint: str | None = None) -> None:
        """Notes what is wrong with a reference."""
        self.problems.append(Problem(message, site.file, site.path, hint))

    def is_own(self, text: str) -> bool:
        """Whether any entry has that name or id."""
        return any(text in names.exact for names in self._names.values())

    def reference(self, site: Site) -> Reference:
        """What a name or id means: an entry of the bundle, else a document of the stores."""
        names = self._names[site.kind]
        written = nfc(site.written)
        entry = names.exact.get(written)
        if entry is None:
            meant, told = self._near_miss(names, written, site)
            id = meant.id if meant else (None if told else self._alias_of(site.kind, written)) or written
            return Reference(site.kind, id, site.version, site.file, site.path, meant, site.artifact_type, site.written, told)
        if site.version is not None:
            self.problem(site, f"{written!r} is defined in this bundle, so it has no fixed version", "leave the version out")
        if site.artifact_type is not None and entry.type != site.artifact_type:
            self.problem(site, f"{entry.path} is of type {entry.type!r}; {site.artifact_type!r} is needed here")
        return Reference(site.kind, entry.id, None, site.file, site.path, entry, site.artifact_type, site.written)

    def _near_miss(self, names: _Names, written: str, site: Site) -> tuple[Entry | None, bool]:
        """The entry that was probably meant, and whether something was said."""
        other = names.folded.get(fold(written))
        if other is not None:
            spelled = other.id if written.startswith(LOCAL) else other.name
            self.problem(site, f"{written!r} is spelled {spelled!r} in this bundle", f"write {spelled!r}")
        elif written in names.ignored:
            stray = names.ignored[written]
            self.problem(site, f"{stray} is a stray file, not an entry of the bundle", "put it into a folder, and name the folder")
        return other, other is not None or written in names.ignored

    def toml(self, entry: Entry) -> ResolvedEntry:
        """Resolves the keys of a toml that refer to documents."""
        by_key: dict[str, tuple[Reference, ...]] = {}
        rules = TYPES.get((entry.kind, entry.type))
        for name, key in rules.keys.items() if rules else ():
            value = entry.config.get(name)
            if value is not None and key.refers is not None and not key.check(value) and _is_reference(value, key):
                by_key[name] = tuple(self.reference(site) for site in _sites(entry, name, key, value))
        for name, image in image_entries(entry):
            self.derived.append(image)
            by_key[name] = (Reference("artifact", image.id, None, entry.config_file, at("$", name), image, IMAGE_TYPE, written=image.path),)
        if entry.kind is BundleKind.EVAL:
            self._repeated(entry, by_key.get("tasks", ()))
        return ResolvedEntry(entry, tuple(reference for found in by_key.values() for reference in found), by_key)

    def _repeated(self, entry: Entry, tasks: Sequence[Reference]) -> None:
        first: dict[tuple[str, int | None], str] = {}
        for reference in tasks:
            if first.setdefault((reference.id, reference.version), reference.path) != reference.path:
                hint = "to run a task several times, say --attempts"
                self.problems.append(Problem(f"lists the task {reference.written!r} twice", entry.path, reference.path, hint))


def _is_reference(value: Json, key: Key) -> bool:
    """An image key may also say how the image is built, or where it is pulled from."""
    return not key.image or isinstance(value, str) or "artifact" in value


def _sites(entry: Entry, name: str, key: Key, value: Json) -> Iterator[Site]:
    where, kind = at("$", name), key.refers
    if kind is None:
        return
    for path, item in [(at(where, i), item) for i, item in enumerate(value)] if isinstance(value, list) else [(where, value)]:
        if key.each is not None and key.each(item):
            continue  # told already
        written, version = (item, None) if isinstance(item, str) else (item[kind], item.get("version"))
        yield Site(kind, written, version, entry.config_file, path, key.artifact_type)


def suggestion(names: Sequence[str], written: str) -> str | None:
    """A hint for a name that nothing answers to: a near spelling, else the bundle's own names."""
    parts = [written, *reversed(written.split("/"))]
    meant = next((part for part in parts if part in names), None) or next((found for part in parts if (found := near(part, names))), None)
    if meant:
        return f"did you mean {meant!r}, which is in this bundle?"
    return f"this bundle has {', '.join(names[:10])}{', …' if len(names) > 10 else ''}" if names else None
