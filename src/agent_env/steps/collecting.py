"""Which files `collect_artifacts` means: named in this order by an override, a manifest, the seed, the step, else all below base_path."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from agent_env.documents.updates import Json
from agent_env.errors import TaskError, UserError
from agent_env.places import FileKind, Missing, Place
from agent_env.steps.contract import Run

if TYPE_CHECKING:
    from agent_env.steps.collect_artifacts import CollectArtifacts

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


async def listed(place: Place, chosen: Chosen, step: CollectArtifacts) -> list[Wanted]:
    """The files themselves: patterns matched, or everything below base_path found."""
    base = PurePosixPath(step.base_path)
    if chosen.entries is None:
        found = await _files_below(place, base)
        return [Wanted(str(path.relative_to(base)), path) for path in found if path.name not in step.exclude_basenames]
    patterns = [each for each in chosen.entries if _GLOB.search(str(each.path))]
    literal = await place.stat([each.path for each in patterns]) if patterns else {}
    wanted: list[Wanted] = []
    for each in chosen.entries:
        if each.path in literal and isinstance(literal[each.path], Missing):
            wanted += _matches(each, base, await _files_below(place, _fixed_part(each.path)))
        else:
            wanted.append(each)
    return list(dict.fromkeys(wanted))


def storable(key: str) -> str:
    """A name as an artifact may keep it: bytes that are not UTF-8 are spelled out, so that no file is dropped for its name."""
    return key.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


async def _files_below(place: Place, root: PurePosixPath) -> list[PurePosixPath]:
    """Regular files below a folder; links are not followed, a folder that is absent has none."""
    found = (await place.stat([root]))[root]
    if isinstance(found, Missing) or found.kind is not FileKind.DIRECTORY:
        return []
    return [entry.path async for entry in place.walk(root) if entry.kind is FileKind.FILE]


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


def _matches(pattern: Wanted, base: PurePosixPath, found: Sequence[PurePosixPath]) -> Iterator[Wanted]:
    """Files that a pattern matches; they are named the way the pattern is, relative or absolute."""
    try:
        rule = re.compile(_as_regex(str(pattern.path)), re.DOTALL)
    except re.error as error:
        raise UserError(f"{pattern.path} is no pattern: {error}", hint="write [[] for a bracket itself") from error
    absolute = pattern.key == _absolute_key(pattern.path)
    for path in found:
        if rule.fullmatch(str(path)):
            inside = not absolute and path.is_relative_to(base)
            yield Wanted(str(path.relative_to(base)) if inside else _absolute_key(path), path)


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
