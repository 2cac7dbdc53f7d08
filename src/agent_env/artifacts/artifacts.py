"""Artifacts: versioned documents over content-addressed objects. One place that knows how each type holds its files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from agent_env.artifacts.media_types import media_type
from agent_env.documents.artifact import (
    FileArtifact,
    FileArtifactUniverse,
    InlineFile,
    file_id,
    path_problem,
    read_artifact,
)
from agent_env.documents.spelling import near
from agent_env.documents.stored import Ref, StoredDocument
from agent_env.errors import NotFoundError, Problem, ProblemsError
from agent_env.ids import check_id, derive_id

if TYPE_CHECKING:
    from agent_env.documents.artifact_kinds import (
        CliArtifact,
        DockerImageArtifact,
        EnvironmentArtifact,
        EnvironmentUniverseArtifact,
        SkillArtifact,
    )
    from agent_env.stores import Document, Documents, ObjectRef, Objects

COLLECTION = "artifacts"
_FILE_ID = re.compile(r"(?P<universe>.+)__[0-9a-f]{16}", re.DOTALL)


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


class Artifacts:
    """Reads and writes artifacts. Every write is a new version; nothing is overwritten. Thread-safe as its stores are."""

    def __init__(self, documents: Documents, objects: Objects) -> None:
        self.documents = documents
        self.objects = objects

    def find(self, id: str, version: int | None = None) -> ArtifactDocument | None:
        """An artifact, the newest version by default, or None. Also answers for the single files of a universe."""
        stored = self.documents.get(COLLECTION, id, version)
        if stored is not None:
            return _document(stored)
        return self._file_of_universe(id, version)

    def get(self, id: str, version: int | None = None) -> ArtifactDocument:
        """An artifact, the newest version by default.

        Raises:
            NotFoundError: There is none; the hint names the newest version, or an id of near spelling.
            ProblemsError: Its stored document can't be read.
        """
        found = self.find(id, version)
        if found is not None:
            return found
        newest = self.documents.get(COLLECTION, id) if version is not None else None
        if newest is not None:
            raise NotFoundError(f"artifact {id!r} has no version {version}", concerns=id, hint=f"its newest version is {newest.version}")
        meant = near(id, self.documents.ids(COLLECTION))
        hint = f"did you mean {meant!r}?" if meant else "see `agent-env artifact list`"
        raise NotFoundError(f"artifact {id!r} does not exist", concerns=id, hint=hint)

    def files(self, id: str, version: int | None = None) -> Mapping[str, FileRef]:
        """Relative path → file, sorted by path.

        A file artifact, environment or image has its own file names; a universe, command line or skill its tree; an environment universe
        `<environment>/<file>` and `metadata/<key>/<file>`.

        Raises:
            NotFoundError: The artifact, or one that it refers to, does not exist.
        """
        return dict(sorted(self._files(self.get(id, version).model)))

    def payload(self, id: str, version: int | None = None) -> list[tuple[PurePosixPath, bytes]]:
        """The unpacked files of an `environment` artifact; see `payload.expand_payload`."""
        from agent_env.artifacts.payload import expand_payload

        files = self.files(id, version)
        expanded: list[tuple[PurePosixPath, bytes]] = []
        for name, ref in files.items():
            expanded += expand_payload(self.read(ref), source=f"{id}/{name}")
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

    def put_file(
        self, id: str, source: Source, *, filename: str | None = None, description: str = "", content_type: str | None = None
    ) -> ArtifactDocument:
        """Stores one file.

        Args:
            id: The artifact's id.
            source: Its bytes.
            filename: A plain name; a path's own name by default.
            description: One line for people.
            content_type: Its media type; by its extension when absent.
        """
        from agent_env.artifacts.urls import plain_name_problem

        name = filename if filename is not None else source.name if isinstance(source, Path) else ""
        wrong = plain_name_problem(name)
        if wrong:
            raise ProblemsError([Problem(f"the file name {name!r} {wrong}", id, hint="give a filename")])
        ref = self._store(name, source)
        return self._put(
            FileArtifact(
                id=id,
                description=description,
                filename=name,
                content_type=content_type or ref.media_type,
                object_url=ref.url,
                size=ref.size,
                mode=ref.mode,
            )
        )

    def put_universe(self, id: str, files: Mapping[str, Source]) -> ArtifactDocument:
        """Stores a folder: relative path → source. One document, however many files.

        Raises:
            ProblemsError: It is empty, or paths are absolute, lead outside, or lie below a file; all at once.
        """
        check_id(id, what="artifact id")
        problems = list(_tree_problems(files, id))
        if problems:
            raise ProblemsError(problems)
        inline = {path: _inline(self._store(path, files[path])) for path in sorted(files)}
        return self._put(FileArtifactUniverse(id=id, files=inline))

    def put_collected(self, id: str, files: Mapping[str, Source], version: int | None = None) -> ArtifactDocument:
        """Stores what was collected from a place: logical name → source.

        Args:
            id: The artifact's id.
            files: Names are kept as given, as long as they are paths that a universe may have.
            version: Exactly this version, or an error: for a caller that must not write the same thing twice.

        Raises:
            ConcurrentModificationError: Another version is due.
        """
        check_id(id, what="artifact id")
        problems = list(_tree_problems(files, id))
        if problems:
            raise ProblemsError(problems)
        inline = {path: _inline(self._store(path, files[path])) for path in sorted(files)}
        return self._put(FileArtifactUniverse(id=id, files=inline), version=version)

    def put_environment(
        self, id: str, environment_name: str, source: Source, *, filename: str | None = None, description: str = ""
    ) -> ArtifactDocument:
        """Stores seed data of one environment server; its file becomes `<id>__file`."""
        from agent_env.documents.artifact_kinds import EnvironmentArtifact

        file = self.put_file(derive_id(id, "file"), source, filename=filename, description=description)
        return self._put(
            EnvironmentArtifact(id=id, environment_name=environment_name, description=description, file_artifact_ref=_ref(file))
        )

    def put_environment_universe(self, id: str, environments: list[Ref], metadata: Mapping[str, Ref] | None = None) -> ArtifactDocument:
        """Stores a group of environment artifacts and metadata files, which exist already."""
        from agent_env.documents.artifact_kinds import EnvironmentUniverseArtifact

        return self._put(EnvironmentUniverseArtifact(id=id, environment_artifact_refs=environments, metadata_refs=dict(metadata or {})))

    def put_cli(
        self, id: str, files: Mapping[str, Source], *, entrypoint: str, command_name: str, environment: Ref | None = None
    ) -> ArtifactDocument:
        """Stores a command-line program; its files become `<id>__files`.

        Raises:
            ProblemsError: The entry point is not among the files, or a `.env` lies beside it (that name is ours).
        """
        from agent_env.documents.artifact_kinds import CliArtifact

        beside = str(PurePosixPath(entrypoint).with_name(".env")) if entrypoint not in {"", "."} else ".env"
        problems = [Problem(f"the entrypoint {entrypoint!r} is not among the files", id)] if entrypoint not in files else []
        problems += [Problem(f"{beside!r} is written when the program is installed", id, hint="remove it")] if beside in files else []
        if problems:
            raise ProblemsError(problems)
        tree = self.put_universe(derive_id(id, "files"), files)
        return self._put(
            CliArtifact(
                id=id,
                cli_files_id=tree.id,
                cli_files_version=tree.version,
                entrypoint=entrypoint,
                command_name=command_name,
                env_id=environment.id if environment else None,
                env_version=environment.version if environment else None,
            )
        )

    def put_skill(self, id: str, files: Mapping[str, Source]) -> ArtifactDocument:
        """Stores a skill; its files become `<id>__files`. Its SKILL.md must keep the rules of `documents.skill`."""
        from agent_env.documents.artifact_kinds import SkillArtifact
        from agent_env.documents.skill import SKILL_FILE, parse_skill

        if SKILL_FILE not in files:
            raise ProblemsError([Problem(f"a skill needs a file {SKILL_FILE}", id)])
        text = self.read(self._store(SKILL_FILE, files[SKILL_FILE]))
        skill = parse_skill(text, source=f"{id}/{SKILL_FILE}", folder=id.rpartition("/")[2])
        tree = self.put_universe(derive_id(id, "files"), files)
        return self._put(
            SkillArtifact(
                id=id,
                skill_files_id=tree.id,
                skill_files_version=tree.version,
                skill_name=skill.name,
                description=skill.description,
                license=skill.license,
                compatibility=skill.compatibility,
                allowed_tools=skill.allowed_tools,
                skill_metadata=dict(skill.metadata) or None,
            )
        )

    def put_image(self, image: DockerImageArtifact) -> ArtifactDocument:
        """Stores an image's document; what it refers to is stored already."""
        return self._put(image)

    def _put(self, model: StoredDocument, *, version: int | None = None) -> ArtifactDocument:
        check_id(model.id, what="artifact id")
        body = model.to_json()
        for name in ("id", "type", "version"):
            body.pop(name, None)
        if isinstance(model, FileArtifactUniverse) and model.files:
            # Made again on reading: they carry the version, which only the store knows.
            body.pop("file_artifact_refs", None)
            body.pop("file_artifact_ids", None)
        return _document(self.documents.put(COLLECTION, model.id, model.type, body, version=version))

    def _store(self, name: str, source: Source) -> FileRef:
        kind = media_type(name)
        match source:
            case FileRef(sha256=str(), size=int()):
                return source
            case FileRef(url, mode=mode):  # of a store that was written elsewhere: its digest is not known until its bytes are here
                return _file_ref(self.objects.put(self.objects.read(url), media_type=kind), mode, kind)
            case bytes():
                return _file_ref(self.objects.put(source, media_type=kind), 0o644, kind)
            case Path():
                mode = 0o755 if source.stat().st_mode & 0o111 else 0o644
                return _file_ref(self.objects.put_file(source, media_type=kind), mode, kind)

    def _file_of_universe(self, id: str, version: int | None) -> ArtifactDocument | None:
        match = _FILE_ID.fullmatch(id)
        stored = self.documents.get(COLLECTION, match["universe"], version) if match else None
        if stored is None:
            return None
        universe = _document(stored)
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


_READERS: Mapping[str, Callable[[Artifacts, Any], Iterator[tuple[str, FileRef]]]] = {
    "file": Artifacts._of_file,
    "file_artifact_universe": Artifacts._of_universe,
    "docker_image": Artifacts._of_image,
    "environment": Artifacts._of_environment,
    "environment_universe": Artifacts._of_environment_universe,
    "cli": Artifacts._of_tree,
    "skill": Artifacts._of_tree,
}
"""Type → how its files are found."""


def _document(stored: Document) -> ArtifactDocument:
    body = {**stored.body, "id": stored.id, "version": stored.version, "type": stored.type}
    return ArtifactDocument(read_artifact(body, source=f"artifact {stored.id} version {stored.version}"), stored.digest)


def _file_ref(stored: ObjectRef, mode: int, kind: str) -> FileRef:
    return FileRef(stored.url, stored.sha256, stored.size, mode, kind)


def _inline(ref: FileRef) -> InlineFile:
    return InlineFile(url=ref.url, size=ref.size or 0, mode=ref.mode, media_type=ref.media_type)


def _ref(document: ArtifactDocument) -> Ref:
    return Ref(id=document.id, version=document.version, type=document.type)


def _tree_problems(files: Mapping[str, Source], id: str) -> Iterator[Problem]:
    if not files:
        yield Problem("there are no files to store", id)
    for path in sorted(files):
        wrong = path_problem(path)
        if wrong:
            yield Problem(f"the path {path!r} {wrong}", id, hint="use a relative path such as 'data/input.csv'")
            continue
        below = next((str(parent) for parent in PurePosixPath(path).parents if str(parent) in files), None)
        if below is not None:
            yield Problem(f"the path {path!r} lies below {below!r}, which is a file", id)
