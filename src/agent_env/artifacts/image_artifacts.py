"""Images as artifacts: stored as the context that they are built from, or as a name in a registry; and what a stored one is made from.

Four forms are read (reference): an archive of `docker save`, a name in a registry, a build context, and a name pinned by a digest. Two are
written here: a context, and a name.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, cast

from agent_env.artifacts.artifacts import Artifacts
from agent_env.artifacts.document import ArtifactDocument, FileRef
from agent_env.defaults import DEFAULT_LIMITS, Limits
from agent_env.documents.artifact_kinds import DockerImageArtifact
from agent_env.errors import Problem, ProblemsError, StorageError
from agent_env.images.building import BuildRequest
from agent_env.images.context import DEFAULT_DOCKERFILE, BuildContext
from agent_env.images.packing import extract, write
from agent_env.images.reference import ImageReference, context_name
from agent_env.images.saved import SavedImage

if TYPE_CHECKING:
    from agent_env.stores import ObjectRef

CONTEXT, ARCHIVE = "context.tar.gz", "image.tar.gz"
"""What the files of an image artifact are called."""
_GZIP = "application/gzip"


def put_context(
    artifacts: Artifacts, id: str, context: BuildContext, *, description: str = "", platform: str | None = None
) -> ArtifactDocument:
    """Stores an image as what it is built from, wherever it is needed. The same files make the same document on every machine.

    Args:
        artifacts: Where it goes.
        id: The artifact's id.
        context: What to build.
        description: One line for people.
        platform: Such as `linux/amd64`; None is whatever the engine's machine is.

    Raises:
        TransferError: A file has changed since the context was read.
        StorageError: It can't be written.
    """
    sources = context.source_digest(platform)
    stored = _packed(artifacts, context)
    return artifacts.put_image(
        DockerImageArtifact(
            id=id,
            description=description,
            image_name=str(context_name(id, sources)),
            build_context_object_url=stored.url,
            dockerfile_path=context.dockerfile,
            platform=platform,
            source_digest=sources,
        )
    )


def restore_context(artifacts: Artifacts, document: ArtifactDocument, context: BuildContext) -> None:
    """Stores the context of a stored image again if it is not there any more. Raises as `put_context`."""
    url = cast("DockerImageArtifact", document.model).build_context_object_url
    if url and not artifacts.objects.exists(url):
        _packed(artifacts, context)


def put_reference(artifacts: Artifacts, id: str, reference: ImageReference, *, description: str = "") -> ArtifactDocument:
    """Stores an image as its name in a registry.

    Args:
        artifacts: Where it goes.
        id: The artifact's id.
        reference: Names its registry; pinned, it means the same for good.
        description: One line for people.

    Raises:
        ProblemsError: The name says no registry, so it would mean another image elsewhere.
    """
    if reference.registry is None:
        raise ProblemsError([Problem(f"the image {reference} names no registry", id, hint=f"such as docker.io/library/{reference}")])
    return artifacts.put_image(DockerImageArtifact(id=id, description=description, image_name=str(reference)))


def image_source(artifacts: Artifacts, document: ArtifactDocument, folder: Path, *, limits: Limits = DEFAULT_LIMITS) -> ImageSource:
    """What a stored image is had from: a name to fetch, an archive to load, or what to build.

    Args:
        artifacts: Where its files are.
        document: A `docker_image`.
        folder: Empty, private, and there until the image is had.
        limits: How much may be unpacked.

    Raises:
        ProblemsError: It is no image, or names one that can't be.
        UserError: Its context leads outside of its folder, or holds more than it may.
        StorageError: Its context or archive is not there any more.
    """
    if document.type != "docker_image":
        raise ProblemsError([Problem(f"is of type {document.type!r}, not 'docker_image'", document.id)])
    model = cast("DockerImageArtifact", document.model)
    name = ImageReference.parse(model.image_name)
    if model.image_digest:
        return str(name.with_digest(model.image_digest))
    files = artifacts.files(document.id, document.version)
    if ARCHIVE in files:
        return SavedImage(artifacts.path(files[ARCHIVE]), name)
    if CONTEXT in files:
        return BuildRequest(_laid_out(artifacts, model, files[CONTEXT], folder, limits), name, platform=model.platform)
    return str(name)


ImageSource = str | BuildRequest | SavedImage
"""A name that is here or in its registry, what to build, or what to load."""


def _laid_out(artifacts: Artifacts, model: DockerImageArtifact, file: FileRef, folder: Path, limits: Limits) -> BuildContext:
    extract(artifacts.path(file), folder, limits=limits)
    return BuildContext.of(folder, model.dockerfile_path or DEFAULT_DOCKERFILE)


def _packed(artifacts: Artifacts, context: BuildContext) -> ObjectRef:
    try:
        handle, name = tempfile.mkstemp(prefix="agent-env-context-", suffix=".tar.gz")
        path = Path(name)
        try:
            with os.fdopen(handle, "wb") as out:
                write(context, out)
            return artifacts.objects.put_file(path, media_type=_GZIP)
        finally:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(f"the build context can't be stored: {error.strerror or error}", concerns=str(context.root)) from error
