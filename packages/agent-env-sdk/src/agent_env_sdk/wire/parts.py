"""Parts: how data crosses the data plane, as text, as an object, or as a file (inline or by address)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from .grants import RelativePath
from .names import DATA_OBJECTS


class _Wire(BaseModel):
    """Fields are named as Python names them and spelled on the wire as the protocol does."""

    model_config = ConfigDict(frozen=True, validate_by_name=True, validate_by_alias=True, serialize_by_alias=True, defer_build=True)


class FileBytes(_Wire):
    """A file that travels inside the message."""

    bytes: str
    """The content, base64."""
    mime_type: str | None = Field(default=None, alias="mimeType")
    name: str | None = None


class FileUri(_Wire):
    """A file that the receiver reads from an address: `file://`, `https://`, or a path under a granted namespace."""

    uri: str
    mime_type: str | None = Field(default=None, alias="mimeType")
    name: str | None = None


class TextPart(_Wire):
    """Plain text."""

    kind: Literal["text"] = "text"
    text: str
    metadata: dict[str, Any] | None = None


class DataPart(_Wire):
    """A JSON object."""

    kind: Literal["data"] = "data"
    data: dict[str, Any]
    metadata: dict[str, Any] | None = None


class FilePart(_Wire):
    """A file, inline or by address."""

    kind: Literal["file"] = "file"
    file: FileBytes | FileUri
    metadata: dict[str, Any] | None = None


Part = Annotated[TextPart | DataPart | FilePart, Field(discriminator="kind")]

parts_adapter: TypeAdapter[list[TextPart | DataPart | FilePart]] = TypeAdapter(list[Part], config=ConfigDict(defer_build=True))
"""Reads and writes a list of parts; `dump_parts` is what the wire wants."""

_relative = TypeAdapter(RelativePath, config=ConfigDict(defer_build=True))


def dump_parts(parts: list[TextPart | DataPart | FilePart]) -> list[dict[str, Any]]:
    """The parts as JSON objects, without the fields that are not set."""
    return [part.model_dump(mode="json", exclude_none=True) for part in parts]


def uploaded_part(path: str, *, name: str | None = None, mime_type: str | None = None) -> FilePart:
    """What `data/get` answers for an export that was uploaded under a granted namespace.

    Args:
        path: Where, relative to the grant's root: a normal POSIX path.
        name: The file's name.
        mime_type: Its media type.

    Raises:
        ValueError: `path` leaves the root or isn't normal.
    """
    path = _relative.validate_python(path)
    return FilePart(file=FileUri(uri=path, name=name, mime_type=mime_type), metadata={DATA_OBJECTS: {"path": path}})


def uploaded_path(part: TextPart | DataPart | FilePart) -> str | None:
    """Where under the granted root the part says its export was uploaded; None when it names no upload.

    Raises:
        ValueError: The path leaves the root or isn't normal.
    """
    marker = (part.metadata or {}).get(DATA_OBJECTS) if isinstance(part, FilePart) else None
    if marker is None:
        return None
    path = marker.get("path") if isinstance(marker, dict) else None
    try:
        return _relative.validate_python(path)
    except ValidationError:
        raise ValueError(f"the uploaded export's path {path!r} is not a normal relative path") from None
