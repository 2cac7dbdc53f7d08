"""Stored artifacts as folders of a bundle: which files, and what their toml says."""

from __future__ import annotations

import tarfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from agent_env.bundles.reading import LEAVINGS
from agent_env.documents.artifact import path_problem
from agent_env.documents.updates import Json
from agent_env.errors import Problem, ProblemsError

if TYPE_CHECKING:
    from agent_env.artifacts import ArtifactDocument, Artifacts, FileRef

TOML = "artifact.toml"
DOCKERFILE = "Dockerfile"
_SAMPLE_BYTES = 1 << 20
_CONTEXT_SAMPLE_BYTES = 1 << 16
"""Of each file of a context: all are read at once, and contexts are larger than other artifacts."""


@dataclass(frozen=True)
class ExportedFile:
    """One file that will be written."""

    artifacts: Artifacts
    ref: FileRef

    def write(self, target: Path) -> None:
        """Writes it, verified."""
        target.write_bytes(self.artifacts.read(self.ref))
        target.chmod(0o755 if self.ref.mode & 0o111 else 0o644)

    def sample(self) -> str:
        """Its beginning as text, empty where it is none."""
        with self.artifacts.open(self.ref) as file:
            data = file.read(_SAMPLE_BYTES)
        return "" if b"\0" in data else data.decode("utf-8", "replace")


class _Context:
    """A stored build context, unpacked whole when its first file is written."""

    def __init__(self, archive: Path) -> None:
        self._archive = archive
        self._unpacked: set[Path] = set()
        self.samples = dict(_samples(archive))

    def unpack(self, into: Path) -> None:
        if into not in self._unpacked:
            from agent_env.images.packing import extract

            extract(self._archive, into)
            self._unpacked.add(into)


@dataclass(frozen=True)
class ContextFile:
    """One file of a stored build context."""

    context: _Context
    name: str

    def write(self, target: Path) -> None:
        """Writes it, and with the first one all of them."""
        self.context.unpack(target.parents[self.name.count("/")])

    def sample(self) -> str:
        """Its beginning as text, empty where it is none."""
        return self.context.samples[self.name]


@dataclass(frozen=True)
class ArtifactExport:
    """An artifact as a folder."""

    files: Mapping[str, ExportedFile | ContextFile]
    toml: str | None = None
    skill_name: str | None = None
    """Set for a skill, whose folder has its own name."""
    left_out: tuple[str, ...] = ()
    """Files."""
    dropped: tuple[str, ...] = ()
    """What a folder can't say."""


def export_artifact(artifacts: Artifacts, id: str, version: int | None) -> ArtifactExport | None:
    """An artifact as a folder, or None for a type that a bundle can't write.

    Raises:
        NotFoundError: There is no such artifact.
        ProblemsError: It holds files that a bundle's folder gives another meaning, or that would lie outside of it.
    """
    document = artifacts.get(id, version)
    if document.type == "docker_image":
        return _image(artifacts, document)
    settings = _settings(document)
    if settings is None:
        return None
    stored = dict(artifacts.files(id, document.version))
    outside = [Problem(f"its file {path!r} {wrong}, so it can't be written", id) for path in stored if (wrong := path_problem(path))]
    name = document.body["skill_name"] if document.type == "skill" else None
    if name is not None and (wrong := "holds a slash" if "/" in name else path_problem(name)):
        outside.append(Problem(f"the skill's name {name!r} {wrong}, so it can't be a folder", id))
    if outside:
        raise ProblemsError(outside)
    left_out = tuple(path for path in stored if LEAVINGS & set(PurePosixPath(path).parts))
    files = {path: ExportedFile(artifacts, ref) for path, ref in stored.items() if path not in left_out}
    if name is not None:
        return ArtifactExport(files, skill_name=name, left_out=left_out)
    _refuse_toml(files, id)
    import tomli_w

    return ArtifactExport(files, tomli_w.dumps(settings), left_out=left_out)


def _refuse_toml(files: Iterable[str], id: str) -> None:
    clash = next((path for path in files if path.lower() == TOML), None)
    if clash is not None:
        raise ProblemsError([Problem(f"holds a file {clash!r}, which a bundle would read as the artifact's own configuration", id)])


def _image(artifacts: Artifacts, document: ArtifactDocument) -> ArtifactExport | None:
    """An image as its context, else as its name in a registry; None for one that is only an archive, or has its Dockerfile elsewhere."""
    import tomli_w

    from agent_env.artifacts.image_artifacts import CONTEXT
    from agent_env.images import ImageReference

    body, files = document.body, artifacts.files(document.id, document.version)
    settings: dict[str, Json] = {"type": document.type, **dict(_given(body, ("description",)))}
    if CONTEXT in files and not body.get("image_digest"):
        if (body.get("dockerfile_path") or DOCKERFILE) != DOCKERFILE:
            return None
        context = _Context(artifacts.path(files[CONTEXT]))
        _refuse_toml(context.samples, document.id)
        dropped = (f"it was for {body['platform']} only",) if body.get("platform") else ()
        return ArtifactExport({name: ContextFile(context, name) for name in context.samples}, tomli_w.dumps(settings), dropped=dropped)
    name = ImageReference.parse(body["image_name"])
    if name.registry is None or (body.get("tar_gz_object_url") and not body.get("image_digest")):
        return None
    settings["ref"] = str(name.with_digest(body["image_digest"]) if body.get("image_digest") else name)
    return ArtifactExport({}, tomli_w.dumps(settings))


def _samples(archive: Path) -> Iterator[tuple[str, str]]:
    with tarfile.open(archive, "r:*") as members:
        for member in members:
            file = members.extractfile(member) if member.isfile() else None
            if file is not None:
                data = file.read(_CONTEXT_SAMPLE_BYTES)
                yield member.name, "" if b"\0" in data else data.decode("utf-8", "replace")
            elif member.issym():
                yield member.name, ""


def _settings(document: ArtifactDocument) -> dict[str, Json] | None:
    """What the folder's toml says; None for a type that a folder can't be."""
    keys = {
        "file": ("description",),
        "file_artifact_universe": (),
        "environment": ("environment_name", "description"),
        "cli": ("command_name", "entrypoint"),
        "skill": (),
    }.get(document.type)
    return None if keys is None else {"type": document.type, **dict(_given(document.body, keys))}


def _given(body: Mapping[str, Json], keys: tuple[str, ...]) -> Iterator[tuple[str, Json]]:
    for key in keys:
        if body.get(key):
            yield key, body[key]
