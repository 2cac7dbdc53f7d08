"""The documents that entries become, and how planning sees them before they are written."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from agent_env.bundles.model import BundleKind, Entry
from agent_env.documents.updates import Json

if TYPE_CHECKING:
    from agent_env.artifacts import ArtifactDocument, Artifacts
    from agent_env.bundles.references import ResolvedEntry

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What the ledger compares of a file."""

    sha256: str
    executable: bool

    def text(self) -> str:
        """One word of a ledger row."""
        return f"sha256:{self.sha256}{'+x' if self.executable else ''}"


class Hashes:
    """Digests of files, each read once however many entries and checks ask."""

    def __init__(self) -> None:
        self._known: dict[Path, FileFacts] = {}

    def facts(self, path: Path) -> FileFacts:
        """A file's facts. Raises `OSError` when it can't be read."""
        found = self._known.get(path)
        if found is None:
            found = self._known[path] = _facts(path)
        return found


def _facts(path: Path) -> FileFacts:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        executable = bool(os.fstat(file.fileno()).st_mode & 0o111)
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return FileFacts(digest.hexdigest(), executable)


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A file of an artifact that is not stored yet."""

    path: Path


class PlannedArtifacts:
    """The stores' artifacts, with those that a bundle is about to write in front. Implements `engine.plan.ArtifactSource`."""

    def __init__(self, stored: Artifacts, entries: Sequence[Entry]) -> None:
        self._stored = stored
        self._own = {entry.id: entry for entry in entries if entry.kind in {BundleKind.ARTIFACT, BundleKind.SKILL}}

    def get(self, id: str, version: int | None = None) -> Any:
        """An artifact's document, predicted or stored."""
        entry = self._own.get(id) if version is None else None
        return self._stored.get(id, version) if entry is None else {"id": entry.id, "type": entry.type, "version": None, **entry.config}

    def files(self, id: str, version: int | None = None) -> Mapping[str, Any]:
        """Its files by relative name."""
        entry = self._own.get(id) if version is None else None
        return self._stored.files(id, version) if entry is None else {name: PlannedFile(path) for name, path in entry.files.items()}


Writer = Callable[["Artifacts", "ResolvedEntry"], "ArtifactDocument"]


def _file(artifacts: Artifacts, resolved: ResolvedEntry) -> ArtifactDocument:
    entry = resolved.entry
    name, path = next(iter(entry.files.items()))
    return artifacts.put_file(entry.id, path, filename=PurePosixPath(name).name, description=entry.config.get("description", ""))


def _universe(artifacts: Artifacts, resolved: ResolvedEntry) -> ArtifactDocument:
    return artifacts.put_universe(resolved.entry.id, resolved.entry.files)


def _cli(artifacts: Artifacts, resolved: ResolvedEntry) -> ArtifactDocument:
    entry = resolved.entry
    config = entry.config
    return artifacts.put_cli(entry.id, entry.files, entrypoint=config["entrypoint"], command_name=config["command_name"])


def _skill(artifacts: Artifacts, resolved: ResolvedEntry) -> ArtifactDocument:
    return artifacts.put_skill(resolved.entry.id, resolved.entry.files)


def _environment(artifacts: Artifacts, resolved: ResolvedEntry) -> ArtifactDocument:
    entry = resolved.entry
    named = resolved.by_key.get("file")
    description = entry.config.get("description", "")
    if named:
        files = artifacts.files(named[0].id, named[0].version)
        name, file = next(iter(files.items()))
        return artifacts.put_environment(entry.id, entry.config["environment_name"], file, filename=name, description=description)
    name, path = next(iter(entry.files.items()))
    filename = PurePosixPath(name).name
    return artifacts.put_environment(entry.id, entry.config["environment_name"], path, filename=filename, description=description)


WRITERS: Mapping[str, Writer] = {
    "file": _file,
    "file_artifact_universe": _universe,
    "cli": _cli,
    "skill": _skill,
    "environment": _environment,
}
"""Artifact type → how its document is written."""
WRITABLE: Mapping[BundleKind, frozenset[str]] = {
    BundleKind.ARTIFACT: frozenset(WRITERS) - {"skill"},
    BundleKind.SKILL: frozenset({"skill"}),
    BundleKind.TASK: frozenset({"task"}),
    BundleKind.EVAL: frozenset({"eval"}),
}
"""What a bundle can write so far; other types are refused by name."""


def task_body(resolved: ResolvedEntry) -> dict[str, Json]:
    """A task's stored document, without what the store itself keeps."""
    return {"steps": list(resolved.task.steps) if resolved.task else []}


def eval_body(resolved: ResolvedEntry) -> dict[str, Json]:
    """An eval's stored document, in the reference's shape."""
    tasks = resolved.by_key.get("tasks", ())
    return {"tasks": [{"task_id": reference.id, "task_version": reference.version} for reference in tasks]}
