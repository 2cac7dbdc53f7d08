"""The seven types of artifact, as stored. Spellings of the reference are read and written (`s3_url` beside `object_url`, …).

Ours beside the reference's: `files` of a universe holds each file's digest, size and mode, so that a folder of N files costs one
document. Its `file_artifact_refs` are still there for other readers; see `artifacts`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from agent_env.documents.stored import Ref, StoredDocument, read_by_type
from agent_env.ids import derive_id

Json = Any
DEFAULT_CONTENT_TYPE = "application/octet-stream"
COMMAND_NAME = r"^[A-Za-z0-9_][A-Za-z0-9._-]*$"


class InlineFile(BaseModel):
    """One file of a universe."""

    model_config = ConfigDict(frozen=True, extra="allow", defer_build=True)

    url: str = Field(pattern=r"^sha256:[0-9a-f]{64}$")
    """As a URL, because that is what a collection of unused objects looks for in documents."""
    size: int = Field(ge=0)
    mode: int = Field(default=0o644, ge=0, le=0o777)
    media_type: str = DEFAULT_CONTENT_TYPE

    @property
    def sha256(self) -> str:
        """The digest alone."""
        return self.url.removeprefix("sha256:")


class FileArtifact(StoredDocument):
    """One file."""

    twins: ClassVar[Mapping[str, str]] = {"s3_url": "object_url"}

    type: Literal["file"] = "file"
    description: str = ""
    filename: str = Field(min_length=1)
    content_type: str = DEFAULT_CONTENT_TYPE
    object_url: str
    size: int | None = Field(default=None, ge=0)
    mode: int | None = Field(default=None, ge=0, le=0o777)


class FileArtifactUniverse(StoredDocument):
    """A folder of files."""

    twins: ClassVar[Mapping[str, str]] = {"bundle_s3_url": "bundle_object_url"}
    sparse: ClassVar[frozenset[str]] = frozenset({"files"})

    type: Literal["file_artifact_universe"] = "file_artifact_universe"
    file_artifact_refs: dict[str, Ref] = Field(default_factory=dict)
    """Relative path → the `file` artifact; pinned, preferred."""
    file_artifact_ids: dict[str, str] = Field(default_factory=dict)
    """The same, unpinned (legacy)."""
    bundle_object_url: str | None = None
    files: dict[str, InlineFile] = Field(default_factory=dict)

    def to_json(self) -> dict[str, Json]:
        """The stored form; inline files also as the references that the reference system expects."""
        data = super().to_json()
        if self.files:
            ids = {path: file_id(self.id, path) for path in self.files}
            data["file_artifact_ids"] = ids
            data["file_artifact_refs"] = {path: {"id": id, "version": self.version or 1} for path, id in ids.items()}
        return data


class DockerImageArtifact(StoredDocument):
    """A container image: a registry reference, a saved tarball, a build context, or several of them."""

    twins: ClassVar[Mapping[str, str]] = {
        "tar_gz_s3_url": "tar_gz_object_url",
        "build_context_s3_url": "build_context_object_url",
    }

    type: Literal["docker_image"] = "docker_image"
    description: str = ""
    image_name: str = Field(min_length=1)
    tar_gz_object_url: str | None = None
    build_context_object_url: str | None = None
    dockerfile_path: str | None = None
    platform: str | None = None
    source_digest: str | None = None
    image_digest: str | None = None


class EnvironmentArtifact(StoredDocument):
    """Seed data of one environment server: exactly one file."""

    twins: ClassVar[Mapping[str, str]] = {"service_name": "environment_name"}

    type: Literal["environment"] = "environment"
    environment_name: str = Field(min_length=1)
    description: str = ""
    file_artifact_ref: Ref | None = None
    file_artifact_id: str | None = None
    """Unpinned (legacy)."""

    @model_validator(mode="after")
    def _has_a_file(self) -> Self:
        if self.file_artifact_ref is None and not self.file_artifact_id:
            raise ValueError("names no file: file_artifact_ref is missing")
        return self

    @property
    def file(self) -> Ref:
        """The file, however it is spelled."""
        return self.file_artifact_ref or Ref(id=self.file_artifact_id or "")


class EnvironmentUniverseArtifact(StoredDocument):
    """Seed data of many environment servers."""

    twins: ClassVar[Mapping[str, str]] = {"service_artifact_refs": "environment_artifact_refs"}
    sparse: ClassVar[frozenset[str]] = frozenset({"service_artifact_ids", "metadata"})

    type: Literal["environment_universe"] = "environment_universe"
    environment_artifact_refs: list[Ref] = Field(default_factory=list)
    metadata_refs: dict[str, Ref] = Field(default_factory=dict)
    service_artifact_ids: list[str] = Field(default_factory=list)
    """Unpinned (legacy)."""
    metadata: dict[str, str] = Field(default_factory=dict)
    """Unpinned ids of metadata files (legacy)."""

    @model_validator(mode="after")
    def _has_environments(self) -> Self:
        if not self.environments:
            raise ValueError("environment_artifact_refs is empty")
        return self

    @property
    def environments(self) -> list[Ref]:
        """The environment artifacts, however they are spelled."""
        return self.environment_artifact_refs or [Ref(id=id) for id in self.service_artifact_ids]

    @property
    def metadata_files(self) -> dict[str, Ref]:
        """Key → file artifact, however it is spelled."""
        return self.metadata_refs or {key: Ref(id=id) for key, id in self.metadata.items()}


class CliArtifact(StoredDocument):
    """A command-line program that can be installed beside an agent."""

    twins: ClassVar[Mapping[str, str]] = {"cli_s3_url": "cli_object_url"}

    type: Literal["cli"] = "cli"
    cli_files_id: str = Field(min_length=1)
    cli_files_version: int | None = Field(default=None, ge=1)
    """Ours: the pinned version; None floats, as in the reference."""
    cli_object_url: str | None = None
    entrypoint: str = Field(min_length=1)
    command_name: str = Field(pattern=COMMAND_NAME)
    env_id: str | None = None
    env_version: int | None = None

    @property
    def files_ref(self) -> Ref:
        """The universe that holds its files."""
        return Ref(id=self.cli_files_id, version=self.cli_files_version)


class SkillArtifact(StoredDocument):
    """A skill as agentskills.io describes it."""

    twins: ClassVar[Mapping[str, str]] = {"skill_s3_url": "skill_object_url"}

    type: Literal["skill"] = "skill"
    skill_files_id: str = Field(min_length=1)
    skill_files_version: int | None = Field(default=None, ge=1)
    """Ours: the pinned version; None floats, as in the reference."""
    skill_object_url: str | None = None
    agent_skills_spec_version: str = "0.1"
    skill_name: str = Field(min_length=1)
    description: str = Field(min_length=1)
    license: str | None = None
    compatibility: str | None = None
    allowed_tools: Json = None
    skill_metadata: dict[str, Json] | None = None

    @property
    def files_ref(self) -> Ref:
        """The universe that holds its files."""
        return Ref(id=self.skill_files_id, version=self.skill_files_version)


ARTIFACT_TYPES: Mapping[str, type[StoredDocument]] = {
    "file": FileArtifact,
    "file_artifact_universe": FileArtifactUniverse,
    "docker_image": DockerImageArtifact,
    "environment": EnvironmentArtifact,
    "environment_universe": EnvironmentUniverseArtifact,
    "cli": CliArtifact,
    "skill": SkillArtifact,
}


def read_artifact(data: Json, *, source: str | None = None, path: str = "$") -> StoredDocument:
    """An artifact's document of the class that its type names.

    Raises:
        ProblemsError: Everything wrong with it.
    """
    return read_by_type(ARTIFACT_TYPES, data, what="an artifact", source=source, path=path)


def file_id(universe_id: str, path: str) -> str:
    """The id of one file of a universe: `<universe>__<first 16 of the path's sha256>` (reference)."""
    return derive_id(universe_id, hashlib.sha256(path.encode()).hexdigest()[:16])


def path_problem(path: str) -> str | None:
    """Why a text can't be a file's path inside a universe, or None."""
    if not path or "\0" in path:
        return "is empty" if not path else "holds a NUL character"
    if path.startswith("/"):
        return "is absolute"
    parts = path.split("/")
    if ".." in parts:
        return "leads outside with '..'"
    if path.endswith("/") or str(PurePosixPath(path)) != path or path == ".":
        return "is not written in its plain form"
    try:
        long = any(len(part.encode()) > 255 for part in parts)
    except UnicodeEncodeError:
        return "holds half of a surrogate pair, which is no character"
    return "has a name longer than 255 bytes" if long else None
