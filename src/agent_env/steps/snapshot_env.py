"""`snapshot_env`: what an environment's servers hold, as an artifact that can be loaded again: into the same environment, or a new one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from agent_env_sdk.wire.names import GET

from agent_env.clock import timestamp
from agent_env.documents.records import DeployedEnvironment
from agent_env.documents.stored import Ref
from agent_env.documents.updates import Json, SetMetadata, Update
from agent_env.environments.transfers import Saved, legacy_state, save_part
from agent_env.errors import AgentEnvError, Problem, TaskError, TransferError, UserError
from agent_env.ids import derive_id, fs_safe
from agent_env.steps.contract import EntityRef, OnResume, Plan, Run, Step, StepResult
from agent_env.steps.fields import OptionalName, Seconds
from agent_env.steps.targets import EnvironmentTarget

if TYPE_CHECKING:
    from agent_env.environments import LiveEnvironment

AT_ONCE = 3
"""Servers that are exported at a time (reference)."""
_PAGE = 1000
_CAPTURE_SECONDS = 300.0
"""Limit of each capture beside the data (reference)."""


@dataclass(frozen=True, slots=True)
class Snapshot(StepResult):
    """The universe that was made, and what was captured beside it."""

    step_id: str
    env_id: str
    id: str
    version: int
    servers: Sequence[str]
    captures: Mapping[str, Mapping[str, Json]]

    def updates(self) -> Iterator[Update]:
        """Where `artifact_from_step_id` looks, and the captures by environment."""
        yield SetMetadata(("env_snapshotted_universes", self.step_id), {"id": self.id, "version": self.version})
        for name, capture in self.captures.items():
            yield SetMetadata((name, self.env_id), dict(capture))

    def summary(self) -> str:
        """What it holds."""
        return f"{self.id} v{self.version}: {', '.join(self.servers)}"


class SnapshotEnv(Step, type="snapshot_env"):
    """Export what all servers of an environment hold into a new universe. Loading that (`artifact_from_step_id`) restores it."""

    on_resume: ClassVar[OnResume] = OnResume.REPEAT
    entity_refs: ClassVar[tuple[EntityRef, ...] | None] = (
        EntityRef("env", "env_id"),
        EntityRef("artifact", "original_universe_artifact_id", artifact_type="environment_universe"),
    )
    user_fields: ClassVar[frozenset[str]] = frozenset({"env_instance_id"})

    env_id: OptionalName = None
    """The deployed environment; absent: the only one."""
    env_instance_id: OptionalName = None
    """The deployment by its own id."""
    env_step_id: OptionalName = None
    """The step that deployed it, where several did."""
    gateway_url: OptionalName = None
    """Without effect: the deployment's own address is used."""
    snapshot_id: OptionalName = None
    """The universe's id; by default one of this run and step."""
    original_universe_artifact_id: OptionalName = None
    """A universe whose metadata files the new one gets too."""
    export_timeout_seconds: Seconds = 600.0
    """Limit of each server's export."""
    include_env_trajectory: bool = False
    """The gateway's record of calls is kept too."""
    include_env_changes: bool = False
    """So are the changes of its database."""

    @property
    def target(self) -> EnvironmentTarget | None:
        """The environment, where the step names it."""
        return EnvironmentTarget(self.env_id, self.env_step_id) if self.env_id else None

    def problems(self, plan: Plan) -> Iterator[Problem]:
        """The original universe must exist."""
        original = self.original_universe_artifact_id
        if original and plan.artifacts is not None and plan.artifact(original, None) is None:
            yield Problem(f"artifact {original!r} does not exist", path=".original_universe_artifact_id")

    async def execute(self, run: Run) -> Snapshot:
        """Exports every server, and makes the universe when all have given theirs.

        Raises:
            UserError: It is not clear which environment is meant.
            TransferError: A server did not give its data; nothing was made.
        """
        record = self._record(run)
        live = await run.environment(record.env_id, record.deploy_step_id)
        saved = await self.exported(run, live, run.scratch() / "export")
        id = self.snapshot_id or derive_id(run.instance_id, f"snapshot-{fs_safe(self.id)}")
        version = await asyncio.to_thread(self._stored, run, id, saved)
        captures = {name: await self._captured(run, live, name, path) for name, path in self._wanted()}
        return Snapshot(self.id, record.env_id, id, version, sorted(saved), captures)

    async def taken(self, run: Run, folder: Path) -> int:
        """What the servers hold, as the universe `snapshot_id`. Returns its version. Raises as `execute`."""
        record = self._record(run)
        saved = await self.exported(run, await run.environment(record.env_id, record.deploy_step_id), folder)
        return await asyncio.to_thread(self._stored, run, str(self.snapshot_id), saved)

    def _record(self, run: Run) -> DeployedEnvironment:
        if self.env_id:
            return run.environment_record(self.env_id, self.env_step_id)
        records = [DeployedEnvironment.read(each) for each in run.context.get("deployed_envs") or ()]
        if self.env_instance_id:
            records = [each for each in records if each.instance_id == self.env_instance_id]
        if self.env_step_id:
            records = [each for each in records if each.deploy_step_id == self.env_step_id]
        if len(records) != 1:
            known = ", ".join(repr(each.get("env_id")) for each in run.context.get("deployed_envs") or ()) or "none"
            raise UserError(f"{len(records)} environments may be meant (deployed: {known})", concerns=self.id, hint="set env_id")
        return records[0]

    async def exported(self, run: Run, live: LiveEnvironment, folder: Path) -> dict[str, Saved]:
        """By the server's name; a website of the same name shares its data and is not asked."""
        wanted = {part.name: key for key, part in live.parts.items()}
        wanted |= {part.name: key for key, part in live.parts.items() if part.kind == "mcp_server"}
        turns, saved, failed = asyncio.Semaphore(AT_ONCE), dict[str, Saved](), dict[str, str]()

        async def export(name: str, key: str) -> None:
            own = folder / fs_safe(name)
            async with turns:
                run.progress(f"exporting {name}", done=len(saved), total=len(wanted))
                own.mkdir(parents=True)
                try:
                    saved[name] = await self._one(live, key, name, own)
                except AgentEnvError as error:  # the others are seen to their end, so that all that is missing is told
                    failed[name] = str(error)

        async with asyncio.TaskGroup() as group:
            for name, key in sorted(wanted.items()):
                group.create_task(export(name, key))
        if failed:
            told = "; ".join(f"{name}: {why}" for name, why in sorted(failed.items()))
            raise TransferError(
                f"the snapshot of environment {live.record.env_id!r} lacks {', '.join(sorted(failed))} ({told})", concerns=self.id
            )
        return saved

    async def _one(self, live: LiveEnvironment, key: str, name: str, into: Path) -> Saved:
        client = live.client(key)
        if GET not in await client.operations():
            return await legacy_state(client, into, name=fs_safe(name))
        parts = await client.get(timeout_seconds=self.export_timeout_seconds)
        if not parts:
            raise TaskError("it exported nothing", concerns=name)
        return await save_part(client, parts[0], into, name=fs_safe(name))

    def _stored(self, run: Run, id: str, saved: Mapping[str, Saved]) -> int:
        refs = []
        for name, file in sorted(saved.items()):
            made = run.artifacts.put_environment(derive_id(id, name), name, file.path, filename=file.name)
            refs.append(Ref(id=made.id, version=made.version))
        metadata: dict[str, Ref] = {}
        if self.original_universe_artifact_id:
            original = run.artifacts.get(self.original_universe_artifact_id)
            run.used("artifacts", original.id, original.version, original.digest)
            metadata = dict(getattr(original.model, "metadata_files", {}))
        return run.artifacts.put_environment_universe(id, refs, metadata).version

    def _wanted(self) -> Iterator[tuple[str, str]]:
        if self.include_env_trajectory:
            yield "env_trajectory", "/trajectory"
        if self.include_env_changes:
            yield "env_changes", "/changes"

    async def _captured(self, run: Run, live: LiveEnvironment, name: str, path: str) -> dict[str, Json]:
        """A capture, as far as it could be had: the data is what counts."""
        made: dict[str, Json] = {"captured_at_utc": timestamp(run.clock.now()), "capture_step_id": self.id}
        target = run.scratch() / f"{name}.jsonl"
        try:
            counts = await (_trajectory(live, target) if path == "/trajectory" else _changes(live, target))
        except AgentEnvError as error:
            return {**made, "error": str(error)}
        stored = await asyncio.to_thread(run.objects.put_file, target, media_type="application/x-ndjson")
        return {**made, "object_url": stored.url, **counts}


async def _trajectory(live: LiveEnvironment, target: Path) -> dict[str, Json]:
    count = 0
    async with AsyncExitStack() as stack:
        answer = await stack.enter_async_context(
            live.control.request("GET", "/trajectory", what="reading the trajectory", seconds=_CAPTURE_SECONDS)
        )
        file = stack.enter_context(target.open("wb"))
        if answer.is_error:
            raise TransferError(f"the trajectory can't be had: status {answer.status_code}", concerns=live.record.env_id)
        async for piece in answer.aiter_bytes():
            await asyncio.to_thread(file.write, piece)
            count += piece.count(b"\n")
    return {"event_count": count}


async def _changes(live: LiveEnvironment, target: Path) -> dict[str, Json]:
    counts = {"change_count": 0, "attributed_count": 0, "ambiguous_count": 0}
    after: int | None = 0
    with target.open("w", encoding="utf-8") as file:
        while after is not None:
            page = await _page(live, after)
            for change in page.get("changes") or ():
                file.write(json.dumps(change, ensure_ascii=False) + "\n")
                actors = len(change.get("actors") or ())
                counts["change_count"] += 1
                counts["attributed_count"] += actors == 1
                counts["ambiguous_count"] += actors > 1
                after = int(change["id"])
            if not page.get("has_more"):
                after = None
    return dict(counts)


async def _page(live: LiveEnvironment, after: int) -> Mapping[str, Json]:
    query = {"after_id": str(after), "limit": str(_PAGE)}
    async with live.control.request("GET", "/changes", what="reading changes", seconds=_CAPTURE_SECONDS, params=query) as answer:
        body = await answer.aread()
        if answer.is_error:
            raise TransferError(f"changes can't be had: status {answer.status_code}", concerns=live.record.env_id)
    page: Mapping[str, Json] = json.loads(body)
    return page
