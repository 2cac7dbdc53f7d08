"""From a folder to a `Bundle`: layout, names, ids, the bundle's own two tomls. No store is looked at.

Everything that is wrong is found in one pass. `read_bundle` hands problems back beside what could be read, so that resolving and planning
can add theirs; `parse_bundle` raises them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agent_env.bundles.entries import EntryReader
from agent_env.bundles.model import KINDS, Bundle, BundleKind, Entry, Settings
from agent_env.bundles.reading import Folder, Node, Notes, fold
from agent_env.defaults import DEFAULT_LIMITS, Limits
from agent_env.documents.reading import at
from agent_env.documents.spelling import near, unknown_key_problems
from agent_env.documents.updates import Json
from agent_env.errors import Problem, ProblemsError
from agent_env.ids import home_folder, local_id_root, named_id_root

BUNDLE_TOML = "bundle.toml"
ALIASES_TOML = "aliases.toml"
_SETTINGS = frozenset({"name", "description", "defaults"})
_DEFAULTS = frozenset({"agent", "model", "sandbox"})
_FOLDERS = frozenset(rules.folder for rules in KINDS.values())
_IS_NONE = f"is not a bundle: it holds none of the folders {', '.join(rules.folder for rules in KINDS.values())}"
_ALIAS = re.compile(r"[a-z0-9]([a-z0-9-]{0,62}[a-z0-9])?")
_ALIASED: Mapping[str, BundleKind] = {"agents": BundleKind.AGENT, "envs": BundleKind.ENV}
_NOT_PROSE = ("<", "[![", "![")


@dataclass(frozen=True, slots=True)
class Reading:
    """What one pass over a folder gave: as much of the bundle as could be read, and what is wrong with it."""

    bundle: Bundle
    problems: tuple[Problem, ...]


def parse_bundle(
    root: Path | str,
    *,
    id_root: str | None = None,
    name: str | None = None,
    strict: bool = False,
    environ: Mapping[str, str] | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> Bundle:
    """The bundle of a folder.

    Args:
        root: The folder; `~` is expanded.
        id_root: What its ids start with, for an installed bundle; None derives it from `bundle.toml` or from the path.
        name: Its name; None is `bundle.toml`'s, or the folder's.
        strict: Unknown keys are problems, not warnings.
        environ: Where `HOME` is looked up; None is this process's environment.
        limits: Bounds what is read.

    Raises:
        ProblemsError: Everything wrong, sorted, each with its file.
    """
    reading = read_bundle(root, id_root=id_root, name=name, strict=strict, environ=environ, limits=limits)
    if reading.problems:
        raise ProblemsError(reading.problems)
    return reading.bundle


def read_bundle(
    root: Path | str,
    *,
    id_root: str | None = None,
    name: str | None = None,
    strict: bool = False,
    environ: Mapping[str, str] | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> Reading:
    """Like `parse_bundle`, with problems beside the bundle. Raises `ProblemsError` only where there is no bundle at all."""
    environ = os.environ if environ is None else environ
    folder_path = find_root(root, environ)
    notes = Notes()
    folder = Folder(folder_path, notes, limits)
    nodes = {node.name: node for node in folder.list(folder_path)}
    kinds = _kind_folders(nodes, notes)
    if not kinds and not any(fold(name) in _FOLDERS for name in nodes):
        raise _no_bundle(root, _IS_NONE, _bundles_near(folder_path))
    settings = _settings(folder, nodes, notes, strict=strict)
    id_root = id_root or _id_root(folder_path, settings, environ, notes)
    reader = EntryReader(folder, id_root, strict=strict)
    entries = sorted(reader.read(kinds), key=lambda entry: entry.sort_key)
    _clashes(entries, notes)
    aliases = _aliases(folder, nodes, entries, id_root, notes, strict=strict)
    known = {*(rules.folder for rules in KINDS.values()), BUNDLE_TOML, ALIASES_TOML, "provenance.json"}
    ignored = [node for node in nodes if node not in known and fold(node) != "readme.md"]
    bundle = Bundle(
        root=folder_path,
        name=name or settings.name or folder_path.name,
        id_root=id_root,
        description=settings.description or _description(folder, nodes),
        entries=tuple(entries),
        settings=settings,
        ignored=tuple(sorted([*ignored, *reader.ignored])),
        aliases=aliases,
        broken=frozenset(reader.broken),
        warnings=tuple(notes.warnings),
    )
    return Reading(bundle, sorted_problems(notes.problems))


def sorted_problems(problems: Sequence[Problem]) -> tuple[Problem, ...]:
    """Each once, by file, then by place in the file."""
    return tuple(sorted(dict.fromkeys(problems), key=_order))


def _order(problem: Problem) -> tuple[str, tuple[tuple[int, str], ...], str]:
    """Numbers in a JSON path count as numbers: `$[2]` stands before `$[10]`."""
    parts = re.findall(r"\d+|\D+", problem.path or "")
    return problem.file or "", tuple((int(part), "") if part.isdecimal() else (-1, part) for part in parts), problem.message


def find_root(root: Path | str, environ: Mapping[str, str]) -> Path:
    """The folder itself, resolved.

    Raises:
        ProblemsError: It does not exist, is no folder, or is the root of the file system.
    """
    text = os.fspath(root)
    home = home_folder(environ)
    if (text == "~" or text.startswith("~/")) and home is not None:
        text = f"{home}{text[1:]}"
    try:
        path = Path(text).expanduser().resolve(strict=True)
    except FileNotFoundError:
        if Path(text).exists():  # /dev/stdin, or a shell's <(…): resolved, it has no name
            raise _no_bundle(root, "is neither a file nor a folder", "write what comes out of it to a file") from None
        raise _no_bundle(root, "does not exist", "check the spelling; 'agent-env run' alone lists the installed bundles") from None
    except (OSError, RuntimeError, ValueError) as error:
        raise _no_bundle(root, f"can't be opened: {getattr(error, 'strerror', None) or error}") from error
    if not path.is_dir():
        raise _no_bundle(root, "is not a folder", "a bundle is a folder that holds tasks/")
    if path == Path(path.anchor):
        raise _no_bundle(root, "is the root of the file system")
    return path


def _bundles_near(folder: Path) -> str:
    """What a folder that is no bundle was probably meant to be: the bundle that it is part of, or those that it holds."""
    above = next((parent for parent in (folder, *folder.parents) if parent.name in _FOLDERS), None)
    if above is not None:
        return f"it is part of the bundle {str(above.parent)!r}"
    try:
        with os.scandir(folder) as entries:
            below = sorted(entry.path for entry in entries if not entry.name.startswith(".") and is_bundle(Path(entry.path)))
    except OSError:
        below = []
    if below:
        return f"it holds bundles: {', '.join(map(repr, below[:3]))}{', …' if len(below) > 3 else ''}"
    return "a bundle is a folder with tasks/<name>.json and what they need; 'agent-env bundle new FOLDER' makes one that runs"


def is_bundle(folder: Path) -> bool:
    """Whether a folder directly holds one of the six kind folders."""
    try:
        with os.scandir(folder) as entries:
            return any(entry.name in _FOLDERS and entry.is_dir() for entry in entries)
    except OSError:
        return False


def _no_bundle(root: Path | str, message: str, hint: str | None = None) -> ProblemsError:
    return ProblemsError([Problem(message, ascii(os.fspath(root))[1:-1], hint=hint)])


def _kind_folders(nodes: Mapping[str, Node], notes: Notes) -> dict[BundleKind, Node]:
    """The kind folders; other spellings of a reserved name are problems."""
    expected: dict[str, BundleKind | None] = {rules.folder: kind for kind, rules in KINDS.items()}
    expected |= {BUNDLE_TOML: None, ALIASES_TOML: None}
    found: dict[BundleKind, Node] = {}
    for name, node in nodes.items():
        folded = fold(name)
        if folded not in expected:
            continue
        kind = expected[folded]
        if name != folded:
            beside = f", beside the {folded!r} that is there" if folded in nodes else ""
            notes.problem(name, f"is another spelling of {folded!r}{beside}", hint=f"rename it to {folded!r}")
        elif kind is None:
            if node.kind != "file":
                notes.problem(name, "is not a file")
        elif node.kind != "folder":
            notes.problem(name, f"is not a folder; {name!r} holds the bundle's entries of that kind")
        else:
            found[kind] = node
    return found


def _settings(folder: Folder, nodes: Mapping[str, Node], notes: Notes, *, strict: bool) -> Settings:
    node = nodes.get(BUNDLE_TOML)
    data = folder.toml(node.path) if node is not None and node.kind == "file" else None
    if data is None:
        return Settings()
    _note_unknown(data, _SETTINGS, "$", notes, strict=strict)
    defaults = data.get("defaults", {})
    if not isinstance(defaults, dict):
        notes.problem(BUNDLE_TOML, "defaults is a table", path="$.defaults")
        defaults = {}
    _note_unknown(defaults, _DEFAULTS, "$.defaults", notes, strict=strict)
    read = {key: _text(data, key, "$", notes) for key in ("name", "description")}
    read |= {key: _text(defaults, key, "$.defaults", notes) for key in sorted(_DEFAULTS)}
    return Settings(**read)


def _note_unknown(
    data: Mapping[str, Json], known: Collection[str], path: str, notes: Notes, *, source: str = BUNDLE_TOML, strict: bool
) -> None:
    problems, warnings = unknown_key_problems(data, known, source=source, path=path, strict=strict)
    notes.problems += problems
    notes.warnings += warnings


def _text(data: Mapping[str, Json], key: str, path: str, notes: Notes) -> str | None:
    value = data.get(key)
    if value is None or (isinstance(value, str) and value.strip()):
        return value
    notes.problem(BUNDLE_TOML, f"{key} is a text that is not empty, not {value!r}", path=at(path, key))
    return None


def _id_root(path: Path, settings: Settings, environ: Mapping[str, str], notes: Notes) -> str:
    try:
        if settings.name is not None:
            return named_id_root(settings.name, source=BUNDLE_TOML)
        return local_id_root(path, home_folder(environ))
    except ProblemsError as error:
        notes.problems += error.problems
        return "@local/unnamed"  # stands in until the problem is told, so that the rest can be checked too


def _clashes(entries: Sequence[Entry], notes: Notes) -> None:
    """Names that fold to one, artifacts and skills together; ids that two documents of one collection would share."""
    for what, key in (("name", lambda entry: fold(entry.name)), ("id", lambda entry: entry.id)):
        seen: dict[tuple[str, str], Entry] = {}
        for entry in entries:
            place = (KINDS[entry.kind].collection, key(entry))
            first = seen.setdefault(place, entry)
            if first is not entry and (what == "name" or fold(first.name) != fold(entry.name)):
                said = (
                    "a name that differs from it in case or accents only" if what == "name" and first.name != entry.name else f"its {what}"
                )
                notes.problem(entry.path, f"shares {said} with {first.path}", hint="each needs its own")


def _aliases(
    folder: Folder, nodes: Mapping[str, Node], entries: Sequence[Entry], id_root: str, notes: Notes, *, strict: bool
) -> dict[str, dict[str, tuple[str, ...]]]:
    node = nodes.get(ALIASES_TOML)
    data = folder.toml(node.path) if node is not None and node.kind == "file" else None
    found: dict[str, dict[str, tuple[str, ...]]] = {}
    _note_unknown(data or {}, _ALIASED, "$", notes, source=ALIASES_TOML, strict=strict)
    for table, value in (data or {}).items():
        if table not in _ALIASED:
            continue
        if not isinstance(value, dict):
            notes.problem(ALIASES_TOML, f"{table} is a table of folder name = [aliases]", path=at("$", table))
        else:
            of_kind = {entry.name: entry for entry in entries if entry.kind is _ALIASED[table]}
            found[table] = dict(_alias_table(table, value, of_kind, id_root, notes))
    return found


def _alias_table(
    table: str, value: Mapping[str, Json], entries: Mapping[str, Entry], id_root: str, notes: Notes
) -> Iterator[tuple[str, tuple[str, ...]]]:
    taken: dict[str, str] = {}
    for name, aliases in value.items():
        where = at(at("$", table), name)
        entry = entries.get(name)
        if entry is None:
            meant = near(name, entries)
            notes.problem(ALIASES_TOML, f"there is no {table}/{name}", path=where, hint=f"did you mean {meant!r}?" if meant else None)
        elif entry.id != f"{id_root}/{name}":
            notes.problem(ALIASES_TOML, f"{entry.path} declares an id of its own; only default ids can have aliases", path=where)
        if not isinstance(aliases, list):
            notes.problem(ALIASES_TOML, "aliases are a list of texts", path=where)
            continue
        for index, alias in enumerate(aliases):
            wrong = _alias_problem(alias, name, taken, entries)
            if wrong:
                notes.problem(ALIASES_TOML, wrong, path=f"{where}[{index}]")
            else:
                taken[alias] = name
        yield name, tuple(alias for alias in aliases if taken.get(alias if isinstance(alias, str) else "") == name)


def _alias_problem(alias: Json, name: str, taken: Mapping[str, str], entries: Mapping[str, Entry]) -> str | None:
    if not isinstance(alias, str) or not _ALIAS.fullmatch(alias):
        return f"{alias!r} is no alias: lower-case letters, digits and inner hyphens, at most 64"
    if alias in taken:
        return f"the alias {alias!r} is listed twice"
    if alias != name and (alias in entries or any(entry.id == alias for entry in entries.values())):
        return f"the alias {alias!r} is another entry's own name"
    return None


def _description(folder: Folder, nodes: Mapping[str, Node]) -> str | None:
    """The README's first paragraph of prose, or its heading; one that only repeats the folder's name counts if nothing else is there."""
    named = sorted((name != "README.md", name) for name, node in nodes.items() if fold(name) == "readme.md" and node.kind == "file")
    if not named:
        return None
    aside = Folder(folder.root, Notes())
    data = aside.read(nodes[named[0][1]].path)
    lines = iter((data or b"").decode("utf-8-sig", "replace").splitlines())
    first = next(lines, "")
    if first.strip() == "---":
        for line in lines:
            if line.strip() == "---":
                break
        first = next(lines, "")
    said = list(_paragraphs((first, *lines)))
    return next((text for text in said if text != folder.root.name), said[0] if said else None)


def _paragraphs(lines: Iterable[str]) -> Iterator[str]:
    """Headings and paragraphs of prose, each on one line."""
    gathered: list[str] = []
    for written in (*lines, ""):
        line = written.strip()
        heading = line.startswith("#")
        if gathered and (heading or not line or line.startswith(_NOT_PROSE)):
            yield " ".join(gathered)
            gathered = []
        if heading and (text := line.lstrip("#").strip()):
            yield text
        elif not heading and line and not line.startswith(_NOT_PROSE):
            gathered.append(line)
