"""Writing artifacts: versioned documents over content-addressed objects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Protocol

from agent_env.artifacts.document import ArtifactDocument, FileRef, Source, document_of
from agent_env.artifacts.media_types import media_type
from agent_env.artifacts.stored import COLLECTION, StoredArtifacts
from agent_env.documents.artifact import FileArtifact, FileArtifactUniverse, InlineFile, path_problem
from agent_env.documents.stored import Ref, StoredDocument
from agent_env.errors import Problem, ProblemsError
from agent_env.ids import check_id, derive_id

if TYPE_CHECKING:
    from agent_env.documents.artifact_kinds import DockerImageArtifact
    from agent_env.stores import ObjectRef


class Artifacts(StoredArtifacts):
    """Reads and writes artifacts. Every write is a new version; nothing is overwritten. Thread-safe as its stores are."""

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
        return self._put_tree(id, files)

    def put_collected(self, id: str, files: Mapping[str, Source], version: int | None = None) -> ArtifactDocument:
        """Stores what was collected from a place: logical name → source.

        Args:
            id: The artifact's id.
            files: Names are kept as given, as long as they are paths that a universe may have.
            version: Exactly this version, or an error: for a caller that must not write the same thing twice.

        Raises:
            ConcurrentModificationError: Another version is due.
        """
        return self._put_tree(id, files, version)

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
        return document_of(self.documents.put(COLLECTION, model.id, model.type, body, version=version))

    def _put_tree(self, id: str, files: Mapping[str, Source], version: int | None = None) -> ArtifactDocument:
        check_id(id, what="artifact id")
        problems = list(_tree_problems(files, id))
        if problems:
            raise ProblemsError(problems)
        with self.objects.batch() as batch:
            inline = {path: _inline(self._store(path, files[path], batch)) for path in sorted(files)}
        return self._put(FileArtifactUniverse(id=id, files=inline), version=version)

    def _store(self, name: str, source: Source, into: _Keeper | None = None) -> FileRef:
        kind = media_type(name)
        keeper = into or self.objects
        match source:
            case FileRef(sha256=str(), size=int()):
                return source
            case FileRef(url, mode=mode):  # of a store that was written elsewhere: its digest is not known until its bytes are here
                return _file_ref(keeper.put(self.objects.read(url), media_type=kind), mode, kind)
            case bytes():
                return _file_ref(keeper.put(source, media_type=kind), 0o644, kind)
            case Path():
                mode = 0o755 if source.stat().st_mode & 0o111 else 0o644
                return _file_ref(keeper.put_file(source, media_type=kind), mode, kind)


class _Keeper(Protocol):
    """What stores bytes: the objects one by one, or a batch of them."""

    def put(self, data: bytes, *, media_type: str) -> ObjectRef: ...

    def put_file(self, path: Path, *, media_type: str) -> ObjectRef: ...


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
