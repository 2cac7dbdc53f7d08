"""What an artifact is once it is read: its document, and where the bytes of its files are."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_env.documents.artifact import read_artifact
from agent_env.documents.stored import StoredDocument

if TYPE_CHECKING:
    from agent_env.stores import Document


@dataclass(frozen=True, slots=True)
class FileRef:
    """One file of an artifact: where its bytes are and what is known of them."""

    url: str
    """`sha256:<hex>`, or the URL of a store that was written elsewhere."""
    sha256: str | None = None
    size: int | None = None
    mode: int = 0o644
    media_type: str = "application/octet-stream"


Source = Path | bytes | FileRef
"""What a file is made from: a file of this machine, bytes, or an object that is already stored."""


@dataclass(frozen=True)
class ArtifactDocument:
    """One version of an artifact."""

    model: StoredDocument
    digest: str
    """Of the document's content: the same files make the same digest, on every machine."""

    @property
    def id(self) -> str:
        """Its id."""
        return self.model.id

    @property
    def version(self) -> int:
        """Its version."""
        return self.model.version or 0

    @property
    def type(self) -> str:
        """Its type."""
        return self.model.type

    @cached_property
    def body(self) -> dict[str, Any]:
        """The stored form, in the reference's shape."""
        return self.model.to_json()


def document_of(stored: Document) -> ArtifactDocument:
    """A stored version.

    Raises:
        ProblemsError: It can't be read.
    """
    body = {**stored.body, "id": stored.id, "version": stored.version, "type": stored.type}
    return ArtifactDocument(read_artifact(body, source=f"artifact {stored.id} version {stored.version}"), stored.digest)
