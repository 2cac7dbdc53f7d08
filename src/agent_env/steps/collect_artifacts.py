"""`collect_artifacts`: keeps files of a place as an artifact, before the place is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, Self

from pydantic import field_validator, model_validator

from agent_env.documents.updates import Json, SetMetadata, Update
from agent_env.errors import AgentEnvError, Problem, TaskError, TransferError
from agent_env.places import Deed, Entry, FileKind, Missing, Place
from agent_env.steps.collecting import Wanted, choose, listed, storable
from agent_env.steps.contract import EntityRef, OnResume, Plan, Run, Step, StepResult
from agent_env.steps.fields import OptionalName, Texts, settle_target
from agent_env.steps.targets import EnvironmentTarget, Target, choose_target

SHOWN_FILES = 100
_NOT_THERE = frozenset({"ENOENT", "ENOTDIR"})
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
    error: AgentEnvError | None = None

    def updates(self) -> Iterator[Update]:
        """The collected files under the step, and as the latest ones."""
        collected: dict[str, Json] = {"artifacts": dict(self.urls), "file_artifact_universe": self.universe}
        yield SetMetadata(("collected_artifacts", self.step_id), collected)
        if self.universe is None:
            produced = {"step_id": self.step_id, "base_path": self.base_path, "files": list(self.produced)}
            yield SetMetadata(("collect_produced_files",), produced)
            return
        yield SetMetadata(("artifacts",), dict(self.urls))
        yield SetMetadata(("file_artifact_universe",), self.universe)

    def summary(self) -> str:
        """How many files, the artifact that they went into, and what was not there."""
        text = f"{len(self.urls)} file{'s' if len(self.urls) != 1 else ''}"
        if self.universe is not None:
            text += f" in {self.universe['id']} v{self.universe['version']}"
        return f"{text}; not there: {', '.join(self.missing[:5])}" if self.missing else text

    def failure(self) -> AgentEnvError | None:
        """Files that exist and could not be kept, or an explicit list of which nothing was there."""
        return self.error


@dataclass(slots=True)
class _Haul:
    """Files that arrived, and those that did not."""

    files: dict[str, Path] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


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
        """Environments can't be collected from yet."""
        del plan
        if isinstance(self.target, EnvironmentTarget):
            message = "collecting from an environment needs deployed environments, which this version of agent-env can't deploy"
            yield Problem(message, path=".env_id", hint="use sandbox_name or agent_name")

    async def execute(self, run: Run) -> Collected:
        """Finds the files, brings them over in one stream, and stores them as one artifact.

        Raises:
            TaskError: The manifest names nothing.
        """
        place = await run.place(self.target, Deed.COLLECT)
        chosen = choose(self, run)
        wanted = await listed(place, chosen, self)
        haul = await self._fetch(place, run, wanted)
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
            error=self._error(haul, chosen.named),
        )

    async def _fetch(self, place: Place, run: Run, wanted: list[Wanted]) -> _Haul:
        haul = _Haul()
        if not wanted:
            return haul
        paths = list(dict.fromkeys(each.path for each in wanted))
        run.progress("collecting", total=len(paths))
        into = run.scratch() / "collected"
        into.mkdir(exist_ok=True)
        facts = await place.stat(paths)
        got = await place.get(paths, into)
        for each in wanted:
            file, fact = got[each.path], facts[each.path]
            if not isinstance(file, Missing):
                file.chmod(0o755 if isinstance(fact, Entry) and fact.mode & 0o111 else 0o644)
                haul.files[storable(each.key)] = file
            elif file.reason in _NOT_THERE:
                haul.missing.append(str(each.path))
            else:
                haul.failed.append(f"{each.path} {_WHY.get(file.reason, f'could not be read: {file.reason}')}")
        for path in haul.missing:
            run.progress(f"not there: {path}")
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
        names = [entry.path.name async for entry in place.walk(base) if entry.path.parent == base]
        return tuple(storable(name) for name in names[:SHOWN_FILES])

    def _error(self, haul: _Haul, named: int) -> AgentEnvError | None:
        if haul.failed:
            message = f"collect: {len(haul.failed)} artifact(s) exist but could not be collected: {'; '.join(haul.failed[:5])}"
            return TransferError(message, concerns=self.id)
        if named and not haul.files:
            message = f"resolved {named} artifact path(s) but produced no file_artifact_universe: {', '.join(haul.missing[:5])}"
            return TaskError(message, concerns=self.id, hint="none of the named files is there")
        return None
