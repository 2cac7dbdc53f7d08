"""Finding artifacts and their files: one place that knows how each type holds them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from agent_env.artifacts.document import ArtifactDocument, FileRef, document_of
from agent_env.defaults import DEFAULT_LIMITS, Limits
from agent_env.documents.artifact import FileArtifact, FileArtifactUniverse, file_id, path_problem
from agent_env.documents.stored import Ref, StoredDocument
from agent_env.errors import Problem, ProblemsError

if TYPE_CHECKING:
    from agent_env.documents.artifact_kinds import (
        CliArtifact,
        DockerImageArtifact,
        EnvironmentArtifact,
        EnvironmentUniverseArtifact,
        SkillArtifact,
    )
    from agent_env.stores import Documents, Objects

COLLECTION = "artifacts"
ENVIRONMENTS = "envs"
_FILE_ID = re.compile(r"(?P<universe>.+)__[0-9a-f]{16}", re.DOTALL)


class StoredArtifacts:
    """Reads artifacts. Thread-safe as its stores are."""

    def __init__(self, documents: Documents, objects: Objects) -> None:
        self.documents = documents
        self.objects = objects

    def find(self, id: str, version: int | None = None) -> ArtifactDocument | None:
        """An artifact, the newest version by default, or None. Also answers for the single files of a universe."""
        stored = self.documents.get(COLLECTION, id, version)
        if stored is not None:
            return document_of(stored)
        return self._file_of_universe(id, version)

    def get(self, id: str, version: int | None = None) -> ArtifactDocument:
        """An artifact, the newest version by default.

        Raises:
            NotFoundError: There is none; the hint names the newest version, or an id of near spelling.
            ProblemsError: Its stored document can't be read.
        """
        found = self.find(id, version)
        if found is None:
            raise self.documents.absent(COLLECTION, id, version)
        return found

    def environment(self, id: str, version: int | None = None) -> dict[str, Any] | None:
        """An environment's document, for whoever plans what is loaded into it; None when there is none."""
        stored = self.documents.get(ENVIRONMENTS, id, version)
        return None if stored is None else {"id": stored.id, "type": stored.type, "version": stored.version, **stored.body}

    def files(self, id: str, version: int | None = None) -> Mapping[str, FileRef]:
        """Relative path → file, sorted by path.

        A file artifact, environment or image has its own file names; a universe, command line or skill its tree; an environment universe
        `<environment>/<file>` and `metadata/<key>/<file>`.

        Raises:
            NotFoundError: The artifact, or one that it refers to, does not exist.
            ProblemsError: Two of its parts have a file of the same path.
        """
        files: dict[str, FileRef] = {}
        for path, ref in self._files(self.get(id, version).model):
            if path in files:
                message = f"two of its parts have a file {path!r}"
                raise ProblemsError([Problem(message, id, hint="give the environments or their files different names")])
            files[path] = ref
        return dict(sorted(files.items()))

    def payload(self, id: str, version: int | None = None, *, limits: Limits = DEFAULT_LIMITS) -> list[tuple[PurePosixPath, bytes]]:
        """The unpacked files of an `environment` artifact; see `payload.expand_payload`."""
        from agent_env.artifacts.payload import expand_payload

        files = self.files(id, version)
        expanded: list[tuple[PurePosixPath, bytes]] = []
        for name, ref in files.items():
            expanded += expand_payload(self.read(ref), source=f"{id}/{name}", limits=limits)
        return expanded

    def open(self, ref: FileRef) -> BinaryIO:
        """A file's bytes as a stream."""
        return self.objects.open(ref.url)

    def read(self, ref: FileRef) -> bytes:
        """A file's bytes, verified."""
        return self.objects.read(ref.url)

    def path(self, ref: FileRef) -> Path:
        """A file of this machine with these bytes, to be read only."""
        return self.objects.path(ref.url)

    def _file_of_universe(self, id: str, version: int | None) -> ArtifactDocument | None:
        match = _FILE_ID.fullmatch(id)
        stored = self.documents.get(COLLECTION, match["universe"], version) if match else None
        if stored is None:
            return None
        universe = document_of(stored)
        if not isinstance(universe.model, FileArtifactUniverse):
            return None
        for path, file in universe.model.files.items():
            if file_id(universe.id, path) == id:
                model = FileArtifact(
                    id=id,
                    version=universe.version,
                    description=f"File of {universe.id}",
                    filename=PurePosixPath(path).name,
                    content_type=file.media_type,
                    object_url=file.url,
                    size=file.size,
                    mode=file.mode,
                )
                return ArtifactDocument(model, universe.digest)
        return None

    def _files(self, model: StoredDocument) -> Iterator[tuple[str, FileRef]]:
        reader = _READERS.get(model.type)
        return reader(self, model) if reader else iter(())

    def _of_file(self, model: FileArtifact) -> Iterator[tuple[str, FileRef]]:
        sha256 = model.object_url.removeprefix("sha256:") if model.object_url.startswith("sha256:") else None
        yield model.filename, FileRef(model.object_url, sha256, model.size, model.mode or 0o644, model.content_type)

    def _of_universe(self, model: FileArtifactUniverse) -> Iterator[tuple[str, FileRef]]:
        for path, file in model.files.items():
            yield path, FileRef(file.url, file.sha256, file.size, file.mode, file.media_type)
        if model.files:
            return
        refs = model.file_artifact_refs or {path: Ref(id=id) for path, id in model.file_artifact_ids.items()}
        for path, ref in refs.items():
            problem = path_problem(path)
            if problem:
                raise ProblemsError([Problem(f"the path {path!r} {problem}", model.id, "$.file_artifact_refs")])
            yield path, self._single(ref)

    def _of_image(self, model: DockerImageArtifact) -> Iterator[tuple[str, FileRef]]:
        for name, url in (("context.tar.gz", model.build_context_object_url), ("image.tar.gz", model.tar_gz_object_url)):
            if url:
                yield name, FileRef(url, url.removeprefix("sha256:") if url.startswith("sha256:") else None, media_type="application/gzip")

    def _of_environment(self, model: EnvironmentArtifact) -> Iterator[tuple[str, FileRef]]:
        yield from self._files(self._pinned(model.file).model)

    def _of_environment_universe(self, model: EnvironmentUniverseArtifact) -> Iterator[tuple[str, FileRef]]:
        for ref in model.environments:
            found = self._pinned(ref).model
            if found.type != "environment":
                raise ProblemsError([Problem(f"{ref.id!r} is of type {found.type!r}, not 'environment'", model.id)])
            environment = cast("EnvironmentArtifact", found)
            for name, file in self._of_environment(environment):
                yield f"{environment.environment_name}/{name}", file
        for key, ref in model.metadata_files.items():
            for name, file in self._files(self._pinned(ref).model):
                yield f"metadata/{key}/{name}", file

    def _of_tree(self, model: CliArtifact | SkillArtifact) -> Iterator[tuple[str, FileRef]]:
        yield from self._files(self._pinned(model.files_ref).model)

    def _single(self, ref: Ref) -> FileRef:
        model = self._pinned(ref).model
        if not isinstance(model, FileArtifact):
            raise ProblemsError([Problem(f"{ref.id!r} is of type {model.type!r}, not 'file'", ref.id)])
        return next(self._of_file(model))[1]

    def _pinned(self, ref: Ref) -> ArtifactDocument:
        return self.get(ref.id, ref.version)


_READERS: Mapping[str, Callable[[StoredArtifacts, Any], Iterator[tuple[str, FileRef]]]] = {
    "file": StoredArtifacts._of_file,
    "file_artifact_universe": StoredArtifacts._of_universe,
    "docker_image": StoredArtifacts._of_image,
    "environment": StoredArtifacts._of_environment,
    "environment_universe": StoredArtifacts._of_environment_universe,
    "cli": StoredArtifacts._of_tree,
    "skill": StoredArtifacts._of_tree,
}
"""Type → how its files are found."""
