"""Which files `collect_artifacts` means: named in this order by an override, a manifest, the seed, the step, else all below base_path."""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from agent_env.documents.artifact import path_problem
from agent_env.documents.updates import Json
from agent_env.errors import TaskError, UserError
from agent_env.places import FileKind, Missing, Place
from agent_env.steps.contract import Run

if TYPE_CHECKING:
    from agent_env.steps.collect_artifacts import CollectArtifacts

NOT_THERE = frozenset({"ENOENT", "ENOTDIR"})
"""Reasons that mean that there is nothing; with any other there is something that we may not see."""
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_GLOB = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class Wanted:
    """One file to bring over, and the name that it is kept under."""

    key: str
    path: PurePosixPath


@dataclass(frozen=True, slots=True)
class Chosen:
    """What names the files. `entries` None: nothing does, so everything below base_path is meant."""

    entries: Sequence[Wanted] | None

    @property
    def named(self) -> int:
        """How many files or patterns were named; of those, at least one file must be there."""
        return len(self.entries or ())


def choose(step: CollectArtifacts, run: Run) -> Chosen:
    """The names that apply.

    Raises:
        TaskError: A manifest is asked for, and names nothing.
    """
    override = run.overrides().get("artifact_paths")
    if override:
        if not isinstance(override, list | tuple) or not all(isinstance(path, str) for path in override):
            raise UserError("step_params.artifact_paths is a list of paths", concerns=step.id)
        return Chosen(list(_entries(override, step.base_path)))
    if step.manifest_step_id:
        return Chosen(list(_manifest(step, run)))
    seeded = (run.metadata.get("seed") or {}).get(step.artifacts_key)
    if isinstance(seeded, str) and seeded.strip():
        return Chosen(list(_entries([part.strip() for part in seeded.split(",") if part.strip()], step.base_path)))
    if step.artifact_paths:
        return Chosen(list(_entries(step.artifact_paths, step.base_path)))
    return Chosen(None)


@dataclass(slots=True)
class Listing:
    """What is to be brought over, what lies there and is no file, and what could not be looked at."""

    wanted: list[Wanted] = field(default_factory=list)
    skipped: dict[PurePosixPath, str] = field(default_factory=dict)
    """Path → what stands there."""
    unreadable: dict[PurePosixPath, str] = field(default_factory=dict)
    """Path → an errno name."""


async def listed(place: Place, chosen: Chosen, step: CollectArtifacts) -> Listing:
    """The files themselves: patterns matched, or everything below base_path found."""
    base = PurePosixPath(step.base_path)
    listing = Listing()
    if chosen.entries is None:
        found = await _below(place, base)
        listing.wanted = [Wanted(str(path.relative_to(base)), path) for path in found.files if path.name not in step.exclude_basenames]
        listing.skipped, listing.unreadable = found.others, found.unreadable
        return listing
    patterns = [each for each in chosen.entries if _GLOB.search(str(each.path))]
    literal = await place.stat([each.path for each in patterns]) if patterns else {}
    for each in chosen.entries:
        if each.path in literal and isinstance(literal[each.path], Missing):
            _match(each, base, await _below(place, _fixed_part(each.path)), listing)
        else:
            listing.wanted.append(each)
    listing.wanted = list(dict.fromkeys(listing.wanted))
    return listing


def named(found: Iterable[Wanted]) -> list[tuple[str, PurePosixPath]]:
    """The name that each file is kept under: as asked for, unless no artifact can have that name or another file has it already.

    Then the file's whole path is its name, and where that can't be one either, a digest of it: no file is dropped for its name.
    """
    files: set[str] = set()
    folders: set[str] = set()
    pairs: list[tuple[str, PurePosixPath]] = []
    for each in found:
        digest = hashlib.sha256(str(each.path).encode("utf-8", "surrogateescape")).hexdigest()
        for key in (storable(each.key), storable(_absolute_key(each.path)), digest):
            parents = {str(parent) for parent in PurePosixPath(key).parents}
            if path_problem(key) is None and key not in files and key not in folders and not parents & files:
                files.add(key)
                folders |= parents
                pairs.append((key, each.path))
                break
    return pairs


def storable(key: str) -> str:
    """A name as an artifact may keep it: bytes that are not UTF-8 are spelled out, so that no file is dropped for its name."""
    return key.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


@dataclass(slots=True)
class _Below:
    """What lies below a folder."""

    files: list[PurePosixPath] = field(default_factory=list)
    others: dict[PurePosixPath, str] = field(default_factory=dict)
    unreadable: dict[PurePosixPath, str] = field(default_factory=dict)

    def note(self, missing: Missing) -> None:
        """Takes down what can't be looked at; what is not there any more is no loss."""
        if missing.reason not in NOT_THERE:
            self.unreadable[missing.path] = missing.reason


async def _below(place: Place, root: PurePosixPath) -> _Below:
    """Everything below a folder; links are not followed, a folder that is absent holds nothing."""
    below = _Below()
    top = (await place.stat([root]))[root]
    if isinstance(top, Missing):
        below.note(top)
        return below
    if top.kind is not FileKind.DIRECTORY:
        return below
    async for entry in place.walk(root, unreadable=below.note):
        match entry.kind:
            case FileKind.FILE:
                below.files.append(entry.path)
            case FileKind.LINK:
                below.others[entry.path] = f"a link to {entry.target}"
            case FileKind.OTHER:
                below.others[entry.path] = "no regular file"
    return below


def _manifest(step: CollectArtifacts, run: Run) -> Iterator[Wanted]:
    output: Json = None
    for response in run.context.get("prompt_responses") or ():
        if response.get("step_id") == step.manifest_step_id and response.get("structured_output") is not None:
            output = response["structured_output"]
    if output is None:
        output = (run.metadata.get("structured_outputs") or {}).get(step.manifest_step_id)
    named = output.get("artifacts") if isinstance(output, Mapping) else None
    items = named.items() if isinstance(named, Mapping) else enumerate(named) if isinstance(named, list) else ()
    taken: set[str] = set()
    for name, path in items:
        if isinstance(path, str) and path.startswith("/") and "*" not in path and posixpath.basename(path) not in step.exclude_basenames:
            where = PurePosixPath(path)
            key = name if isinstance(name, str) else _object_name(where, PurePosixPath(step.base_path))
            key = _absolute_key(where) if key in taken else key
            taken.add(key)
            yield Wanted(key, where)
    if not taken:
        raise TaskError(f"the manifest of step {step.manifest_step_id!r} names no files to collect", concerns=step.id)


def _object_name(path: PurePosixPath, base: PurePosixPath) -> str:
    return str(path.relative_to(base)) if path.is_relative_to(base) else path.name


def _entries(texts: Sequence[str], base_path: str) -> Iterator[Wanted]:
    for text in texts:
        if text.strip() and not _URL.match(text):
            yield _entry(text, PurePosixPath(base_path))


def _entry(text: str, base: PurePosixPath) -> Wanted:
    """A relative name joins base_path and is its own key; an absolute one is kept as the path without its leading slash."""
    path = PurePosixPath(posixpath.normpath(base / text))
    if not text.startswith("/") and path.is_relative_to(base):
        return Wanted(str(path.relative_to(base)), path)
    return Wanted(_absolute_key(path), path)


def _absolute_key(path: PurePosixPath) -> str:
    return str(path).lstrip("/")


def _match(pattern: Wanted, base: PurePosixPath, below: _Below, listing: Listing) -> None:
    """Adds what a pattern matches; files are named the way the pattern is, relative or absolute."""
    rule = _rule(str(pattern.path), pattern)
    absolute = pattern.key == _absolute_key(pattern.path)
    for path in below.files:
        if rule.fullmatch(str(path)):
            inside = not absolute and path.is_relative_to(base)
            listing.wanted.append(Wanted(str(path.relative_to(base)) if inside else _absolute_key(path), path))
    listing.skipped |= {path: what for path, what in below.others.items() if rule.fullmatch(str(path))}
    listing.unreadable |= {path: why for path, why in below.unreadable.items() if _may_match_within(pattern, path)}


def _may_match_within(pattern: Wanted, path: PurePosixPath) -> bool:
    """A pattern could match this path or something below it."""
    parts = str(pattern.path).split("/")
    return any(_rule("/".join(parts[:end]), pattern).fullmatch(str(path)) for end in range(2, len(parts) + 1))


def _rule(text: str, pattern: Wanted) -> re.Pattern[str]:
    try:
        return re.compile(_as_regex(text), re.DOTALL)
    except re.error as error:
        raise UserError(f"{pattern.path} is no pattern: {error}", hint="write [[] for a bracket itself") from error


def _fixed_part(pattern: PurePosixPath) -> PurePosixPath:
    """The folder above the first part that has a wildcard."""
    fixed = PurePosixPath("/")
    for part in pattern.parts[1:]:
        if _GLOB.search(part):
            break
        fixed /= part
    return fixed


def _as_regex(pattern: str) -> str:
    """A path pattern as a regular expression: `*` and `?` stay within a folder, `**/` crosses folders."""
    made, position = "", 0
    while position < len(pattern):
        rest = pattern[position:]
        if rest.startswith("**/"):
            made, position = made + "(?:[^/]+/)*", position + 3
        elif rest.startswith("**"):
            made, position = made + ".*", position + 2
        elif rest[0] == "*":
            made, position = made + "[^/]*", position + 1
        elif rest[0] == "?":
            made, position = made + "[^/]", position + 1
        elif rest[0] == "[" and (end := pattern.find("]", position + 2)) > 0:
            inner = pattern[position + 1 : end].replace("\\", "\\\\")
            made, position = made + f"[{'^' + inner[1:] if inner.startswith('!') else inner}]", end + 1
        else:
            made, position = made + re.escape(rest[0]), position + 1
    return made
