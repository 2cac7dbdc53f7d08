"""The documents that entries become, and how planning sees them before they are written."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from agent_env.bundles.environments import planned_environment
from agent_env.bundles.model import KINDS, BundleKind, Entry
from agent_env.documents.updates import Json
from agent_env.errors import ProblemsError
from agent_env.ids import LOCAL, derive_id, id_problem
from agent_env.steps.contract import UnreadableError

if TYPE_CHECKING:
    from agent_env.artifacts import ArtifactDocument, Artifacts
    from agent_env.bundles.lookups import PlanStores
    from agent_env.bundles.references import ResolvedEntry
    from agent_env.images import BuildContext

_CHUNK_BYTES = 1 << 20
IMAGE = "docker_image"
_METADATA = "metadata"


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
    """The stores' artifacts, with those that a bundle is about to write in front. Implements `engine.plan.ArtifactSource`.

    What is not there raises `UnreadableError` where nobody can tell: an entry of that name could not be read, or the stores may be others
    than those that are meant.
    """

    def __init__(self, stores: PlanStores, entries: Sequence[ResolvedEntry], broken: Collection[str] = ()) -> None:
        self._stored, self._certain, self._broken = stores.artifacts, stores.certain, broken
        self._own = {each.entry.id: each.entry for each in entries if each.entry.kind in {BundleKind.ARTIFACT, BundleKind.SKILL}}
        self._environments = {each.entry.id: each for each in entries if each.entry.kind is BundleKind.ENV}

    def environment(self, id: str, version: int | None = None) -> Mapping[str, Json] | None:
        """An environment's document, predicted or stored."""
        own = self._environments.get(id) if version is None else None
        if own is not None:
            return planned_environment(own)
        found = self._stored.environment(id, version)
        if found is None and (id in self._broken or not self._certain):
            raise UnreadableError(id)
        return found

    def get(self, id: str, version: int | None = None) -> Any:
        """An artifact's document, predicted or stored."""
        entry = self._own.get(id) if version is None else None
        if entry is None:
            if (id in self._broken or not self._certain) and self._stored.find(id, version) is None:
                raise UnreadableError(id)
            return self._stored.get(id, version)
        names = {"image_name": entry.config["ref"]} if entry.type == IMAGE and "ref" in entry.config else {}
        return {"id": entry.id, "type": entry.type, "version": None, **entry.config, **names}

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


def _environment_universe(artifacts: Artifacts, resolved: ResolvedEntry) -> ArtifactDocument:
    """Of a folder: `<environment_name>/<one file>` and `metadata/<key>/<one file>`, each stored by itself under an id of its own."""
    from agent_env.documents.stored import Ref

    entry = resolved.entry
    environments = [Ref(id=each.id, version=each.version) for each in resolved.by_key.get("environment_artifacts", ())]
    metadata: dict[str, Ref] = {}
    for name, path in entry.files.items():
        of, _, filename = name.rpartition("/")
        if of.startswith(f"{_METADATA}/"):
            key = of.removeprefix(f"{_METADATA}/")
            made = artifacts.put_file(derive_id(entry.id, f"{_METADATA}__{_part(key)}"), path, filename=filename)
            metadata[key] = Ref(id=made.id, version=made.version)
        else:
            made = artifacts.put_environment(derive_id(entry.id, _part(of)), of, path, filename=filename)
            environments.append(Ref(id=made.id, version=made.version))
    return artifacts.put_environment_universe(entry.id, environments, metadata)


def _part(name: str) -> str:
    """A name as the end of a derived id; one that can't be that is replaced by its digest (reference)."""
    plain = "__" not in name and id_problem(f"{LOCAL}{name}") is None
    return name if plain else f"sha256__{hashlib.sha256(name.encode()).hexdigest()[:16]}"


def _image(artifacts: Artifacts, resolved: ResolvedEntry) -> ArtifactDocument:
    """Of a name in a registry; one with a Dockerfile is written from its context."""
    from agent_env.artifacts.image_artifacts import put_reference
    from agent_env.images import ImageReference

    config = resolved.entry.config
    return put_reference(artifacts, resolved.entry.id, ImageReference.parse(config["ref"]), description=config.get("description", ""))


def image_context(entry: Entry, folder: Path) -> BuildContext | None:
    """What an image entry is built from; None for other entries, and for a name in a registry.

    Args:
        entry: Of a bundle.
        folder: Where it lies.

    Raises:
        ProblemsError: Everything that can't be part of a context, with the files' paths in the bundle.
    """
    if entry.type != IMAGE or "ref" in entry.config:
        return None
    from agent_env.images import BuildContext

    own = entry.config.get("dockerfile")
    try:
        if own is not None:  # an environment's, of which the whole folder is the context
            return BuildContext.of(folder, own)
        return BuildContext.of(folder, leave_out=frozenset({KINDS[entry.kind].config or ""}))
    except ProblemsError as error:
        raise ProblemsError([replace(problem, file=f"{entry.path}/{problem.file}") for problem in error.problems]) from error


WRITERS: Mapping[str, Writer] = {
    "file": _file,
    "file_artifact_universe": _universe,
    "cli": _cli,
    "skill": _skill,
    "environment": _environment,
    "environment_universe": _environment_universe,
    IMAGE: _image,
}
"""Artifact type → how its document is written."""
WRITABLE: Mapping[BundleKind, frozenset[str]] = {
    BundleKind.ENV: frozenset({"mcp_server", "website", "multi"}),
    BundleKind.AGENT: frozenset({"a2a_agent"}),
    BundleKind.ARTIFACT: frozenset(WRITERS) - {"skill"},
    BundleKind.SKILL: frozenset({"skill"}),
    BundleKind.TASK: frozenset({"task"}),
    BundleKind.EVAL: frozenset({"eval"}),
}
"""What a bundle can write so far; other types are refused by name."""
UNWRITABLE: Mapping[str, str] = {
    "computer_driver": 'build its server into an image, and describe that as an env of type mcp_server, with env_provider_type = "server"',
}
"""Type that can't be written → what to do instead."""


def task_body(resolved: ResolvedEntry) -> dict[str, Json]:
    """A task's stored document, without what the store itself keeps."""
    return {"steps": list(resolved.task.steps) if resolved.task else []}


def eval_body(resolved: ResolvedEntry) -> dict[str, Json]:
    """An eval's stored document, in the reference's shape."""
    tasks = resolved.by_key.get("tasks", ())
    return {"tasks": [{"task_id": reference.id, "task_version": reference.version} for reference in tasks]}
