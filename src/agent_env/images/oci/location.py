"""How an image's place is spelled: a plain name, or a transport before it, as other tools for images write it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from agent_env.errors import UserError
from agent_env.images.reference import ImageReference


class Transport(StrEnum):
    """Where an image comes from."""

    ANYWHERE = ""
    """A plain name: the engine's image where there is an engine that has it, else the registry's."""
    REGISTRY = "docker://"
    LAYOUT = "oci:"
    ARCHIVE = "docker-archive:"
    ENGINE = "docker-daemon:"


@dataclass(frozen=True, slots=True)
class Location:
    """An image's place."""

    transport: Transport
    reference: ImageReference | None = None
    """Of a registry or an engine."""
    path: Path | None = None
    """Of a layout or an archive."""
    name: str | None = None
    """Inside of it; None when there is only one."""

    @classmethod
    def parse(cls, text: str) -> Location:
        """Reads `NAME`, `docker://NAME`, `docker-daemon:NAME`, `oci:FOLDER[:NAME]` or `docker-archive:FILE[:NAME]`.

        Raises:
            UserError: It is none.
        """
        transport = next((kind for kind in Transport if kind and text.startswith(kind)), Transport.ANYWHERE)
        rest = text.removeprefix(transport)
        if transport not in {Transport.LAYOUT, Transport.ARCHIVE}:
            return cls(transport, ImageReference.parse(rest))
        path, _, name = rest.partition(":")
        if not path:
            raise UserError(f"{text!r} names no file or folder", hint=f"write {transport}PATH[:NAME]")
        return cls(transport, None, Path(path).absolute(), name or None)

    def __str__(self) -> str:
        if self.path is not None:
            return f"{self.transport}{self.path}" + (f":{self.name}" if self.name else "")
        return f"{self.transport}{self.reference}"


def location_problem(text: str) -> str | None:
    """Why a text names no image's place, or None."""
    try:
        Location.parse(text)
    except UserError as error:
        return error.message
    return None
