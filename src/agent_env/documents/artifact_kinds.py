"""The artifacts that few runs use: images, seed data of environments, programs and skills. `artifact` imports them when one is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from agent_env.documents.artifact import FileArtifact, FileArtifactUniverse
from agent_env.documents.stored import Ref, StoredDocument

Json = Any
COMMAND_NAME = r"^[A-Za-z0-9_][A-Za-z0-9._-]*$"


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
