"""`load_artifact`: puts artifacts and downloads where a later step needs them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, field_serializer, field_validator, model_validator

from agent_env.documents.network import NetworkPolicy
from agent_env.documents.updates import ExtendMetadata, Json, Update
from agent_env.errors import Problem, ProblemsError, TaskError, UserError
from agent_env.places import Deed, Upload
from agent_env.steps.contract import EntityRef, OnResume, Plan, Run, Step, StepResult, apart
from agent_env.steps.fields import SECRET_URLS, OptionalName, Whole
from agent_env.steps.landing import landed
from agent_env.steps.seeding import LOADED, SEED_TYPES, load_artifact_into, names_in, server_names
from agent_env.steps.targets import AgentTarget, EnvironmentTarget, SandboxTarget, Target, choose_target, settle_target
from agent_env.wording import counted

if TYPE_CHECKING:
    from agent_env.artifacts import ArtifactDocument

SANDBOX_FILES = PurePosixPath("/loaded")
AGENT_FILES = PurePosixPath("/tmp/file_artifacts")
URL_FILES = PurePosixPath("/tmp/file_artifacts")
PAYLOAD_FILES = PurePosixPath("/app/files")
"""Where files go when the step does not say (reference)."""
LISTED_FILES = 200
"""How many files of a payload its record names (reference)."""

_TREES = frozenset({"file", "file_artifact_universe", "environment_universe"})
_LOADABLE = _TREES | {"environment"}


class ArtifactEntry(BaseModel):
    """One artifact to load."""

    model_config = ConfigDict(frozen=True, extra="allow", defer_build=True)

    id: str = Field(min_length=1)
    """The artifact's id."""
    version: Annotated[Whole, Field(ge=1)] | None = None
    """Its version; the newest when absent."""


@dataclass(frozen=True, slots=True)
class Loaded(StepResult):
    """Records of what was loaded, by the list of the context's metadata that they belong to."""

    records: Mapping[str, Sequence[Mapping[str, Json]]]
    count: int = 0
    remark: str = ""

    def updates(self) -> list[Update]:
        """Extends the `loaded_…` lists."""
        return [ExtendMetadata((name,), list(records)) for name, records in self.records.items() if records]

    def summary(self) -> str:
        """How many files."""
        return self.remark or counted(self.count, "file")


@dataclass(slots=True)
class _Load:
    """What goes into the place, gathered before anything is sent: a later file of the same path wins."""

    uploads: dict[PurePosixPath, Upload] = field(default_factory=dict)
    folders: dict[PurePosixPath, PurePosixPath] = field(default_factory=dict)
    """File → the folder that it is loaded into."""
    records: dict[str, list[dict[str, Json]]] = field(default_factory=dict)
    seeds: list[ArtifactDocument] = field(default_factory=list)
    """What servers of an environment are to hold."""

    def add(self, folder: PurePosixPath, name: str | PurePosixPath, source: bytes | Path, mode: int | None = None) -> None:
        path = folder / name
        self.uploads.pop(path, None)
        self.uploads[path] = Upload(path, source, mode)
        self.folders[path] = folder

    def record(self, name: str, entry: dict[str, Json]) -> None:
        self.records.setdefault(name, []).append(entry)


class LoadArtifact(Step, type="load_artifact"):
    """Load artifacts, environment payloads and URLs into a sandbox or agent. Files belong to the place's own user unless `owner` says."""

    on_resume: ClassVar[OnResume] = OnResume.REPEAT
    entity_refs: ClassVar[tuple[EntityRef, ...] | None] = (
        EntityRef("env", "env_id"),
        EntityRef("artifact", "artifacts[].id", version_field="version"),
        EntityRef("artifact", "artifact_id", version_field="artifact_version"),
    )
    user_fields: ClassVar[frozenset[str]] = frozenset({"urls"})
    own_fields: ClassVar[frozenset[str]] = frozenset({"owner", "environment_name"})

    env_id: OptionalName = None
    """A deployed environment. Seed data (`environment`, `environment_universe`) replaces what its servers hold, all of it or none; files
    go into a server's container."""
    environment_name: OptionalName = None
    """Which server of the environment gets files, where it has several."""
    env_step_id: OptionalName = None
    """The step that deployed the environment, where several did."""
    artifacts: tuple[ArtifactEntry, ...] | None = None
    """What to load, in order; a later file replaces an earlier one of the same path."""
    artifact_id: OptionalName = None
    """One artifact; short for `artifacts` with one entry."""
    artifact_version: Annotated[Whole, Field(ge=1)] | None = None
    """The version of `artifact_id`."""
    urls: Annotated[list[Any] | None, SECRET_URLS] = None
    """URLs, or `{"url", "filename"}`; a bare one is saved under the last segment of its path. One with a password is an `env:NAME` or
    `secret:KEY`."""
    artifact_from_step_id: OptionalName = None
    """Load what that `collect_artifacts` or `snapshot_env` step recorded."""
    collected_artifacts_step_id: OptionalName = None
    """Another name of `artifact_from_step_id`."""
    destination_path: OptionalName = None
    """The folder. Default: `/loaded` in a sandbox, `/tmp/file_artifacts` for agents and URLs, `/app/files` for payloads. No link in it may
    lead out of it; the folder itself may be one where it is named."""
    agent_name: OptionalName = None
    """A deployed agent."""
    sandbox_name: OptionalName = None
    """A deployed sandbox."""
    container_name: OptionalName = None
    """A container that this run started on the sandbox."""
    snapshot_after_load: bool | None = None
    """Whether an environment is captured with its data, so that the next load is fast."""
    owner: OptionalName = None
    """`user`, `uid` or `uid:gid` that the files belong to; the place's own user when absent."""

    @model_validator(mode="before")
    @classmethod
    def _settle(cls, data: Any) -> Any:
        return settle_target(data, "sandbox_name", "env_id", default_agent=False)

    @field_validator("destination_path")
    @classmethod
    def _whole(cls, value: str | None) -> str | None:
        if value and not value.startswith("/"):
            raise ValueError("must be an absolute path")
        return value

    @model_validator(mode="after")
    def _one_spelling(self) -> Self:
        if self.artifacts is not None and self.artifact_id is not None:
            raise ValueError("set artifacts or artifact_id, not both")
        return self

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.source_step and (self.artifacts or self.artifact_id or self.urls):
            raise ValueError("artifact_from_step_id can't stand beside artifacts or urls")
        return self

    @model_validator(mode="after")
    def _one_target(self) -> Self:
        if self.agent_name and self.container_name:
            raise ValueError("set at most one of agent_name and container_name")
        if isinstance(self.target, EnvironmentTarget) and self.urls:
            raise ValueError("urls need an agent or sandbox target")
        return self

    @field_serializer("artifacts")
    def _as_written(self, artifacts: tuple[ArtifactEntry, ...] | None) -> list[dict[str, Json]] | None:
        return None if artifacts is None else [entry.model_dump(exclude_unset=True) for entry in artifacts]

    @property
    def target(self) -> Target:
        """Where the files go."""
        if self.env_id and not (self.sandbox_name or self.agent_name):
            return EnvironmentTarget(self.env_id, self.env_step_id, self.environment_name)
        return choose_target(
            sandbox_name=self.sandbox_name,
            container_name=self.container_name,
            agent_name=self.agent_name,
            env_id=self.env_id,
            default_agent=False,
        )

    @property
    def source_step(self) -> str | None:
        """The step whose artifact is loaded."""
        return self.artifact_from_step_id or self.collected_artifacts_step_id

    def problems(self, plan: Plan) -> Iterator[Problem]:
        """Something must be named; artifacts must exist and be loadable; URLs must be fetchable."""
        return apart(self._something_named(), self._urls_fetchable(), self._each_loadable(plan))

    def _something_named(self) -> Iterator[Problem]:
        if not (self.artifacts or self.artifact_id or self.urls or self.source_step):
            yield Problem("names nothing to load; set artifacts, urls, artifact_id or artifact_from_step_id")

    def _urls_fetchable(self) -> Iterator[Problem]:
        if self.urls:
            yield from _url_problems(self.urls)

    def _each_loadable(self, plan: Plan) -> Iterator[Problem]:
        for entry, path in self._named() if plan.artifacts is not None else ():
            yield from apart(_artifact_problems(plan, entry, path), self._seed_problems(plan, entry, path))

    def _seed_problems(self, plan: Plan, entry: ArtifactEntry, path: str) -> Iterator[Problem]:
        if self.env_id:
            yield from _seed_problems(plan, self.env_id, entry, path)

    def _named(self) -> Iterator[tuple[ArtifactEntry, str]]:
        for index, entry in enumerate(self.artifacts or ()):
            yield entry, f".artifacts[{index}].id"
        if self.artifact_id:
            yield ArtifactEntry(id=self.artifact_id, version=self.artifact_version), ".artifact_id"

    async def execute(self, run: Run) -> Loaded:
        """Gathers everything, then writes it in one stream.

        Raises:
            NotFoundError: An artifact does not exist.
            TransferError: A file could not be fetched or written.
            TaskError: A link in the place leads out of the folder that files are loaded into.
        """
        effective = self._overridden(run)
        entries = effective._entries(run)
        if entries is None:
            return Loaded({}, remark=f"step {self.source_step!r} recorded nothing to load")
        # Every object is hashed before it is used; that must not hold up the run's other steps.
        load = await asyncio.to_thread(effective._gather, run, entries)
        if effective.urls:
            await effective._add_urls(run, load, effective.urls)
        for document in load.seeds:
            load.record(LOADED, await load_artifact_into(run, await run.environment(self.env_id or "", self.env_step_id), document))
        if load.seeds and not load.uploads:
            return Loaded(load.records, remark=f"loaded {', '.join(document.id.rpartition('/')[2] for document in load.seeds)}")
        place = await run.place(self.target, Deed.LOAD)
        uploads = await landed(place, load.uploads.values(), load.folders, named=effective.destination_path is not None)
        run.progress("loading", total=len(load.uploads))
        await place.put(uploads, owner=self.owner)
        return Loaded(load.records, len(load.uploads))

    def _overridden(self, run: Run) -> LoadArtifact:
        """The step with this run's `step_params`, checked as its own fields are."""
        overrides = run.overrides()
        names = ("artifacts", "artifact_id", "artifact_version", "urls", "destination_path")
        given = {name: overrides[name] for name in names if name in overrides}
        if not given:
            return self
        if given.keys() & {"artifacts", "artifact_id"}:
            given = {"artifacts": None, "artifact_id": None, "artifact_version": None, **given}
            given |= {"artifact_from_step_id": None, "collected_artifacts_step_id": None}
        from agent_env.steps.reading import read_fields

        return read_fields(type(self), self.to_dict() | given, source="user_overrides.step_params", path=f"$.{self.id}")[0]

    def _entries(self, run: Run) -> list[ArtifactEntry] | None:
        """The artifacts to load; None when a source step recorded an empty result."""
        if self.source_step is None:
            entries = [entry for entry, _ in self._named()]
            if not entries and not self.urls:
                raise UserError(f"load_artifact {self.id!r} names nothing to load; set artifacts, urls or artifact_from_step_id")
            return entries
        recorded = _recorded(run.metadata, self.source_step)
        if recorded is None:
            raise TaskError(f"No artifact recorded by step {self.source_step!r}", concerns=self.id)
        return [ArtifactEntry.model_validate(recorded)] if recorded else None

    def _gather(self, run: Run, entries: Sequence[ArtifactEntry]) -> _Load:
        load = _Load()
        for entry in entries:
            self._add_artifact(run, load, entry)
        return load

    def _add_artifact(self, run: Run, load: _Load, entry: ArtifactEntry) -> None:
        document = run.artifacts.get(entry.id, entry.version)
        run.used("artifacts", document.id, document.version, document.digest)
        if document.type not in _LOADABLE:
            raise UserError(f"Unsupported artifact type for loading: {document.type!r} ({entry.id!r})", concerns=self.id)
        if isinstance(self.target, EnvironmentTarget) and document.type in SEED_TYPES:
            load.seeds.append(document)
            return
        if document.type == "environment":
            self._add_payload(run, load, document.id, document.version, document.body.get("environment_name"))
            return
        files = run.artifacts.files(document.id, document.version)
        folder = self._folder(AGENT_FILES if isinstance(self.target, AgentTarget) else SANDBOX_FILES)
        paths = {name: folder / name for name in files}
        for name, ref in files.items():
            load.add(folder, name, run.artifacts.path(ref), ref.mode)
        record: dict[str, Json] = {"id": document.id, "version": document.version, "artifact_type": document.type, "env_id": self.env_id}
        record |= self._where(folder)
        record["files"] = {name: str(path) for name, path in paths.items()} if isinstance(self.target, AgentTarget) else sorted(files)
        load.record("loaded_file_artifact_universes", record)

    def _add_payload(self, run: Run, load: _Load, id: str, version: int, environment_name: str | None) -> None:
        folder = self._folder(PAYLOAD_FILES)
        files = run.artifacts.payload(id, version, limits=run.limits)
        for path, content in files:
            load.add(folder, path, content)
        record: dict[str, Json] = {"id": id, "version": version, "service_name": environment_name, "environment_name": environment_name}
        record |= self._where(folder)
        record |= {"file_count": len(files), "files": [str(path) for path, _ in files[:LISTED_FILES]]}
        load.record("loaded_environment_artifacts", record)

    async def _add_urls(self, run: Run, load: _Load, urls: list[Any]) -> None:
        from agent_env.artifacts import download, name_urls

        folder = self._folder(URL_FILES)
        into = run.scratch() / "downloads"
        into.mkdir(exist_ok=True)
        named = name_urls([_told(run, entry) for entry in urls], source=self.id)
        fetched = await download(named, into, network=self._network(run), limits=run.limits)
        for file in fetched:
            load.add(folder, file.filename, file.path, 0o644)
        where = self._where(folder)
        del where["container_name"]
        load.record("loaded_urls", {"step_id": self.id, **where, "files": [file.filename for file in fetched]})

    def _folder(self, otherwise: PurePosixPath) -> PurePosixPath:
        return PurePosixPath(self.destination_path) if self.destination_path else otherwise

    def _where(self, folder: PurePosixPath) -> dict[str, Json]:
        target = self.target
        sandbox = target.sandbox_name if isinstance(target, SandboxTarget) else None
        return {
            "agent_name": target.agent_name if isinstance(target, AgentTarget) else None,
            "sandbox_name": sandbox,
            "container_name": target.container_name if isinstance(target, SandboxTarget) else None,
            "destination_path": str(folder),
        }

    def _network(self, run: Run) -> NetworkPolicy | None:
        """The policy of the place that the files are fetched for: this process reaches no more than the place may."""
        target = self.target
        record: Any = None
        if isinstance(target, SandboxTarget):
            record = run.sandbox(target.sandbox_name)
        elif isinstance(target, AgentTarget):
            record = run.agent_record(target.agent_name)
        policy = getattr(record, "network_policy", None)
        return NetworkPolicy.model_validate(policy) if policy else None


def _recorded(metadata: Mapping[str, Json], step_id: str) -> Mapping[str, Json] | None:
    """The artifact that a step recorded: None when it recorded none, empty when it recorded that there is nothing."""
    collected = (metadata.get("collected_artifacts") or {}).get(step_id)
    if collected is not None:
        return collected.get("file_artifact_universe") or {}
    snapshot = (metadata.get("env_snapshotted_universes") or {}).get(step_id)
    return None if snapshot is None else snapshot or {}


def _seed_problems(plan: Plan, env_id: str, entry: ArtifactEntry, path: str) -> Iterator[Problem]:
    """Seed data must be for servers that the environment has."""
    document = plan.artifact(entry.id, entry.version)
    type = str((document or {}).get("type"))
    if document is None or type not in SEED_TYPES:
        return
    there = server_names(plan, env_id)
    wanted = names_in(type, document, plan.artifact_files(entry.id, entry.version) or ())
    if there is not None and wanted and not wanted & there:
        message = f"{entry.id!r} is for {', '.join(sorted(wanted))}, and env {env_id!r} has {', '.join(sorted(there))}"
        yield Problem(message, path=path, hint="environment_name says which server seed data is for")


def _told(run: Run, entry: Any) -> Any:
    """An entry of `urls` with the URL that it refers to."""
    if isinstance(entry, str):
        return run.secret(entry)
    return {**entry, "url": run.secret(entry["url"])} if isinstance(entry, dict) and isinstance(entry.get("url"), str) else entry


def _url_problems(urls: list[Any]) -> Iterator[Problem]:
    from agent_env.artifacts.urls import name_urls

    try:
        name_urls(urls, path=".urls")
    except ProblemsError as error:
        yield from error.problems


def _artifact_problems(plan: Plan, entry: ArtifactEntry, path: str) -> Iterator[Problem]:
    document = plan.artifact(entry.id, entry.version)
    if document is None:
        version = f" version {entry.version}" if entry.version else ""
        yield Problem(f"artifact {entry.id!r}{version} does not exist", path=path, hint="agent-env artifact list")
    elif document.get("type") not in _LOADABLE:
        yield Problem(f"artifact {entry.id!r} is of type {document.get('type')!r}, which can't be loaded here", path=path)
