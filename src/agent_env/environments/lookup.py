"""Documents and images of environments, from the stores. Implements `contract.Lookup`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from agent_env.artifacts.image_artifacts import image_source
from agent_env.defaults import DEFAULT_LIMITS, Limits
from agent_env.documents.environment import McpServerEnvironment, MultiEnvironment, WebsiteEnvironment, read_environment
from agent_env.documents.stored import Ref, StoredDocument

if TYPE_CHECKING:
    from agent_env.artifacts import Artifacts
    from agent_env.artifacts.image_artifacts import ImageSource

COLLECTION = "envs"


class StoredLookup:
    """Looks into the stores.

    Args:
        artifacts: Where documents and images are.
        folder: Private; contexts are unpacked in it, and must stay until their images are had.
        limits: How much a context may hold.
    """

    def __init__(self, artifacts: Artifacts, folder: Path, *, limits: Limits = DEFAULT_LIMITS) -> None:
        self._artifacts = artifacts
        self._folder = folder
        self._limits = limits
        self._numbers = itertools.count()
        self.used: dict[tuple[str, str, int, str], None] = {}
        """Collection, id, version and digest of everything that was looked up."""

    def environment(self, ref: Ref) -> StoredDocument:
        """An environment's document."""
        stored = self._artifacts.documents.named(COLLECTION, ref.id, ref.version)
        self.used[COLLECTION, stored.id, stored.version, stored.digest] = None
        return read_environment({**stored.body, "id": stored.id, "type": stored.type, "version": stored.version}, source=stored.id)

    def image(self, ref: Ref) -> ImageSource:
        """What an image artifact stands for."""
        document = self._artifacts.get(ref.id, ref.version)
        self.used["artifacts", document.id, document.version, document.digest] = None
        own = self._folder / f"context-{next(self._numbers)}"
        own.mkdir(parents=True, mode=0o700)
        return image_source(self._artifacts, document, own, limits=self._limits)


def images_of(lookup: StoredLookup, env_id: str, env_version: int | None = None) -> list[ImageSource]:
    """Everything that an environment's containers are made of, as far as its documents say.

    Raises:
        NotFoundError: Something that it names does not exist.
    """
    return [lookup.image(ref) for ref in _images(lookup, lookup.environment(Ref(id=env_id, version=env_version)))]


def _images(lookup: StoredLookup, document: StoredDocument) -> Iterator[Ref]:
    match document:
        case McpServerEnvironment():
            yield document.docker_image_artifact
        case WebsiteEnvironment():
            yield document.backend_docker_image_artifact
            yield document.frontend_docker_image_artifact
        case MultiEnvironment():
            for ref in (*document.mcp_server_envs, *document.website_envs):
                yield from _images(lookup, lookup.environment(ref))
