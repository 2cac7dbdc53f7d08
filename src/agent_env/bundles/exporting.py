"""Stored artifacts as folders of a bundle: which files, and what their toml says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from agent_env.bundles.reading import LEAVINGS
from agent_env.documents.updates import Json
from agent_env.errors import Problem, ProblemsError

if TYPE_CHECKING:
    from agent_env.artifacts import ArtifactDocument, Artifacts, FileRef

TOML = "artifact.toml"
_SAMPLE_BYTES = 1 << 20


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


@dataclass(frozen=True)
class ArtifactExport:
    """An artifact as a folder."""

    files: Mapping[str, ExportedFile]
    toml: str | None = None
    skill_name: str | None = None
    """Set for a skill, whose folder has its own name."""
    left_out: tuple[str, ...] = ()


def export_artifact(artifacts: Artifacts, id: str, version: int | None) -> ArtifactExport | None:
    """An artifact as a folder, or None for a type that a bundle can't write.

    Raises:
        NotFoundError: There is no such artifact.
        ProblemsError: It holds a file that a bundle's folder gives another meaning.
    """
    document = artifacts.get(id, version)
    settings = _settings(document)
    if settings is None:
        return None
    stored = dict(artifacts.files(id, document.version))
    left_out = tuple(path for path in stored if LEAVINGS & set(PurePosixPath(path).parts))
    files = {path: ExportedFile(artifacts, ref) for path, ref in stored.items() if path not in left_out}
    if document.type == "skill":
        return ArtifactExport(files, skill_name=document.body["skill_name"], left_out=left_out)
    clash = next((path for path in files if path.lower() == TOML), None)
    if clash is not None:
        raise ProblemsError([Problem(f"holds a file {clash!r}, which a bundle would read as the artifact's own configuration", id)])
    import tomli_w

    return ArtifactExport(files, tomli_w.dumps(settings), left_out=left_out)


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
