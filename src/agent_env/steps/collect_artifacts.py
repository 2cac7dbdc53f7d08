"""`collect_artifacts`: keeps files of a place as an artifact, before the place is gone."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, Self

from pydantic import field_validator, model_validator

from agent_env.defaults import Limits
from agent_env.documents.updates import Json, SetMetadata, Update
from agent_env.errors import AgentEnvError, Problem, TaskError, TransferError
from agent_env.places import Deed, Entry, FileKind, Missing, Place
from agent_env.steps.collecting import NOT_THERE, Listing, choose, listed, named, storable
from agent_env.steps.contract import EntityRef, OnResume, Plan, Run, Step, StepResult
from agent_env.steps.fields import OptionalName, Texts
from agent_env.steps.targets import EnvironmentTarget, Target, choose_target, settle_target
from agent_env.wording import counted

SHOWN_FILES = 100
SHOWN_FAILURES = 5
LISTED = 200
"""How many paths that could not be kept the record names."""
_WHY = {"EISDIR": "is a folder; name its files, or write 'folder/**'", "ELOOP": "is a link that loops", "EINVAL": "is no regular file"}


@dataclass(frozen=True, slots=True)
class Collected(StepResult):
    """What was kept, and what could not be."""

    step_id: str
    base_path: str
    urls: Mapping[str, str]
    universe: Mapping[str, Json] | None
    produced: tuple[str, ...] = ()
    """What lay at the top of base_path when nothing was collected."""
    missing: tuple[str, ...] = ()
    uncollected: Mapping[str, str] = field(default_factory=dict)
    """Paths that are there and could not be kept, with the reason."""
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Paths that are no files, with what they are."""
    error: AgentEnvError | None = None

    def updates(self) -> Iterator[Update]:
        """The collected files under the step, and as the latest ones; what was not kept beside them."""
        collected: dict[str, Json] = {"artifacts": dict(self.urls), "file_artifact_universe": self.universe}
        for name, paths in (("uncollected", self.uncollected), ("skipped", self.skipped)):
            if paths:
                collected[name] = [{"path": path, "reason": reason} for path, reason in islice(paths.items(), LISTED)]
        yield SetMetadata(("collected_artifacts", self.step_id), collected)
        if self.universe is None:
            produced = {"step_id": self.step_id, "base_path": self.base_path, "files": list(self.produced)}
            yield SetMetadata(("collect_produced_files",), produced)
            return
        yield SetMetadata(("artifacts",), dict(self.urls))
        yield SetMetadata(("file_artifact_universe",), self.universe)

    def summary(self) -> str:
        """How many files, the artifact that they went into, and what was not there."""
        text = counted(len(self.urls), "file")
        if self.universe is not None:
            text += f" in {self.universe['id']} v{self.universe['version']}"
        if self.skipped:
            text += f"; {len(self.skipped)} left out, being no files"
        return f"{text}; not there: {', '.join(self.missing[:5])}" if self.missing else text

    def failure(self) -> AgentEnvError | None:
        """Files that exist and could not be kept, or an explicit list of which nothing was there."""
        return self.error


@dataclass(slots=True)
class _Haul:
    """Files that arrived, and those that did not."""

    files: dict[str, Path] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    failed: dict[str, _Failed] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Failed:
    """Why a path that is there was not kept."""

    reason: str
    said: str


class CollectArtifacts(Step, type="collect_artifacts"):
    """Collect files of a sandbox or agent into an artifact: named ones, or everything below a folder. Only reads."""

    on_resume: ClassVar[OnResume] = OnResume.REPEAT
    entity_refs: ClassVar[tuple[EntityRef, ...] | None] = (EntityRef("env", "env_id"),)

    agent_name: OptionalName = None
    """The deployed agent; with no target at all the default agent is meant."""
    base_path: str = "/app/artifact"
    """Where relative names begin; everything below it is collected when nothing is named."""
    artifacts_key: str = "expected_artifacts"
    """Key of the seed that names files, separated by commas."""
    artifact_paths: Texts = ()
    """Files to collect: relative to base_path or absolute. `*`, `?`, `[…]` and `**` match, unless a file has that very name."""
    env_id: OptionalName = None
    """A deployed environment that controls a computer."""
    manifest_step_id: OptionalName = None
    """The prompt whose structured output lists the files under `artifacts`."""
    exclude_basenames: Texts = ()
    """File names that a manifest or the search below base_path leaves out."""
    sandbox_name: OptionalName = None
    """A deployed sandbox."""
    container_name: OptionalName = None
    """A container that this run started on the sandbox."""
    universe_id_suffix: str | None = None
    """Added to the artifact's id."""

    @model_validator(mode="before")
    @classmethod
    def _settle(cls, data: Any) -> Any:
        return settle_target(data, "sandbox_name", "env_id")

    @field_validator("base_path")
    @classmethod
    def _plain_base(cls, value: str) -> str:
        if not value.startswith("/"):
            raise ValueError("must be an absolute path")
        return value.rstrip("/") or "/"

    @model_validator(mode="after")
    def _one_target(self) -> Self:
        if self.env_id and self.container_name:
            raise ValueError("set at most one of env_id and container_name")
        choose_target(sandbox_name=self.sandbox_name, container_name=self.container_name, agent_name=self.agent_name, env_id=self.env_id)
        return self

    @property
    def target(self) -> Target:
        """Where the files are."""
        return choose_target(
            sandbox_name=self.sandbox_name, container_name=self.container_name, agent_name=self.agent_name, env_id=self.env_id
        )

    def problems(self, plan: Plan) -> Iterator[Problem]:
        """Environments are exported, not collected from."""
        del plan
        if isinstance(self.target, EnvironmentTarget):
            message = "files are collected from sandboxes, containers and agents; what an environment holds is exported by snapshot_env"
            yield Problem(message, path=".env_id", hint="use sandbox_name or agent_name, or a step of type snapshot_env")

    async def execute(self, run: Run) -> Collected:
        """Finds the files, brings them over in one stream, and stores them as one artifact.

        Raises:
            TaskError: The manifest names nothing.
        """
        place = await run.place(self.target, Deed.COLLECT)
        chosen = choose(self, run)
        listing = await listed(place, chosen, self)
        haul = await self._fetch(place, run, listing)
        # Hashing and copying what may be gigabytes must not hold up the run's other steps.
        stored = await asyncio.to_thread(self._store, run, haul) if haul.files else None
        produced = () if stored else await self._produced(place)
        return Collected(
            step_id=self.id,
            base_path=self.base_path,
            urls=stored[1] if stored else {},
            universe=stored[0] if stored else None,
            produced=produced,
            missing=tuple(haul.missing),
            uncollected={storable(path): failed.reason for path, failed in haul.failed.items()},
            skipped={storable(str(path)): what for path, what in listing.skipped.items()},
            error=self._error(haul, chosen.named),
        )

    async def _fetch(self, place: Place, run: Run, listing: Listing) -> _Haul:
        haul = _Haul()
        for path, reason in listing.unreadable.items():
            haul.failed[str(path)] = _Failed(reason, f"could not be looked at: {reason}")
        paths = list(dict.fromkeys(each.path for each in listing.wanted))
        if not paths:
            return haul
        run.progress("collecting", total=len(paths))
        into = run.scratch() / "collected"
        into.mkdir(exist_ok=True)
        facts = await place.stat(paths)
        room = await asyncio.to_thread(shutil.disk_usage, into)
        affordable = _affordable(facts, room.free, run.limits.collect_file_bytes)
        got = await place.get(affordable, into, limit_bytes=run.limits.collect_file_bytes)
        for key, path in named(listing.wanted):
            file, fact = got.get(path, Missing(path, "ENOSPC")), facts[path]
            if not isinstance(file, Missing):
                file.chmod(0o755 if isinstance(fact, Entry) and fact.mode & 0o111 else 0o644)
                haul.files[key] = file
            elif file.reason in NOT_THERE:
                haul.missing.append(storable(str(path)))
            else:
                haul.failed[str(path)] = _Failed(file.reason, _why(file.reason, run.limits))
        for path_text in haul.missing:
            run.progress(f"not there: {path_text}")
        return haul

    def _store(self, run: Run, haul: _Haul) -> tuple[dict[str, Json], dict[str, str]]:
        owner = run.metadata.get("universe_id") or run.instance_id or "unknown"
        document = run.artifacts.put_collected(f"{owner}{self.universe_id_suffix or ''}", haul.files)
        files = run.artifacts.files(document.id, document.version)
        return {"id": document.id, "version": document.version}, {name: ref.url for name, ref in files.items()}

    async def _produced(self, place: Place) -> tuple[str, ...]:
        base = PurePosixPath(self.base_path)
        found = (await place.stat([base]))[base]
        if isinstance(found, Missing) or found.kind is not FileKind.DIRECTORY:
            return ()
        seen: list[Missing] = []  # told already, by the search itself
        names = [entry.path.name async for entry in place.walk(base, unreadable=seen.append) if entry.path.parent == base]
        return tuple(storable(name) for name in names[:SHOWN_FILES])

    def _error(self, haul: _Haul, named: int) -> AgentEnvError | None:
        if haul.failed:
            said = [f"{storable(path)} {failed.said}" for path, failed in islice(haul.failed.items(), SHOWN_FAILURES)]
            more = f"; and {len(haul.failed) - len(said)} more" if len(haul.failed) > len(said) else ""
            message = f"collect: {len(haul.failed)} artifact(s) exist but could not be collected: {'; '.join(said)}{more}"
            return TransferError(message, concerns=self.id)
        if named and not haul.files:
            message = f"resolved {named} artifact path(s) but produced no file_artifact_universe: {', '.join(haul.missing[:5])}"
            return TaskError(message, concerns=self.id, hint="none of the named files is there")
        return None


def _affordable(facts: Mapping[PurePosixPath, Entry | Missing], free_bytes: int, limit_bytes: int) -> list[PurePosixPath]:
    """The paths to ask for: all, but files that this machine has no room for beside those before them. The place refuses too large ones."""
    paths = []
    for path, fact in facts.items():
        size = fact.size if isinstance(fact, Entry) and fact.kind is FileKind.FILE else 0
        size = size if size <= limit_bytes else 0
        if size <= free_bytes:
            free_bytes -= size
            paths.append(path)
    return paths


def _why(reason: str, limits: Limits) -> str:
    if reason == "EFBIG":
        return f"is larger than the limit of {limits.collect_file_bytes} bytes (collect_file_bytes)"
    if reason == "ENOSPC":
        return "does not fit into the free space of this machine"
    return _WHY.get(reason, f"could not be read: {reason}")
