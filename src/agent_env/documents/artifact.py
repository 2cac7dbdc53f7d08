"""Artifacts as stored: files and folders here, the other five types in `artifact_kinds`. Spellings of the reference are read and
written (`s3_url` beside `object_url`, …).

Ours beside the reference's: `files` of a universe holds each file's digest, size and mode, so that a folder of N files costs one
document. Its `file_artifact_refs` are still there for other readers; see `artifacts`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from agent_env.documents.stored import Ref, StoredDocument, read_by_type
from agent_env.ids import derive_id

Json = Any
DEFAULT_CONTENT_TYPE = "application/octet-stream"


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


_COMMON: Mapping[str, type[StoredDocument]] = {"file": FileArtifact, "file_artifact_universe": FileArtifactUniverse}


def read_artifact(data: Json, *, source: str | None = None, path: str = "$") -> StoredDocument:
    """An artifact's document of the class that its type names.

    Raises:
        ProblemsError: Everything wrong with it.
    """
    types = _COMMON
    if not isinstance(data, dict) or data.get("type") not in tuple(_COMMON):
        from agent_env.documents.artifact_kinds import ARTIFACT_TYPES

        types = ARTIFACT_TYPES
    return read_by_type(types, data, what="an artifact", source=source, path=path)


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
