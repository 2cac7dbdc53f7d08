"""`run_code`: runs a task's own Python script in a place and keeps what it returns."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, model_validator

from agent_env.documents.reading import parse_json
from agent_env.documents.updates import Json, SetMetadata, Update
from agent_env.errors import (
    InfrastructureError,
    LaunchError,
    Problem,
    ProblemsError,
    RunCodeExecutionError,
    RunCodeValidationError,
    TransportLostError,
)
from agent_env.ids import fs_safe
from agent_env.places import ROOT_USER, Command, Completed, Deed, Ending, Entry, FileKind, Missing, Place, Upload
from agent_env.steps.contract import EntityRef, OnResume, Plan, Run, Step, StepResult
from agent_env.steps.fields import Number, OptionalName, Whole, default_to_id, settle_target
from agent_env.steps.script import NoScript, Script, select_script
from agent_env.steps.targets import EnvironmentTarget, Target, choose_target
from agent_env.waiting import shielded

STAGING = PurePosixPath("/tmp/agent_env_run_code")
"""Holds one private folder for each attempt."""
RUNNER = PurePosixPath(".agent_env/runner.py")
"""In a folder of its own, so that no file of the script can stand in for a module that it imports."""
_ROOT = "0:0"
_SINGLE_TYPE = "file"
_UNIVERSE_TYPE = "file_artifact_universe"


@dataclass(frozen=True, slots=True)
class CodeResult(StepResult):
    """What the script returned, and what it printed."""

    step_id: str
    result_id: str
    value: Json
    log: Mapping[str, Json] = field(default_factory=dict)

    def updates(self) -> list[Update]:
        """The value under its result id; the log under the step, when there is one."""
        updates: list[Update] = [SetMetadata(("script_results", self.result_id), self.value)]
        if self.log:
            updates.append(SetMetadata(("script_logs", self.step_id), dict(self.log)))
        return updates


class RunCode(Step, type="run_code"):
    """Run a Python script in a sandbox, agent or environment, as root, and keep its result for later steps."""

    on_resume: ClassVar[OnResume] = OnResume.REPEAT
    entity_refs: ClassVar[tuple[EntityRef, ...] | None] = (
        EntityRef("env", "env_id"),
        EntityRef("artifact", "script_artifact_id", version_field="script_artifact_version"),
    )

    script_artifact_id: str = Field(min_length=1)
    """A file, or a universe of which the `.py` members are staged side by side."""
    script_artifact_version: Annotated[Whole, Field(ge=1)] | None = None
    """Its version; the newest when absent."""
    script_file: OptionalName = None
    """Universe: the member with the entry point. Default: the only `.py` member, else the only `run.py`."""
    entrypoint: str = Field(default="run", min_length=1)
    """The function that is called with `{"args", "results"}`; an `async def` is awaited. What it returns must be JSON."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Handed to the entry point."""
    result_id: str = ""
    """Where the result is kept (`metadata.script_results`); the step's id by default."""
    timeout_seconds: Annotated[Number, Field(ge=0)] | None = None
    """Limit of the script: at the limit its processes are told to end, and killed after a grace time. 0 or absent is 600."""
    env_id: OptionalName = None
    """A deployed environment."""
    sandbox_name: OptionalName = None
    """A deployed sandbox."""
    agent_name: OptionalName = None
    """A deployed agent; with no target at all the default agent is meant."""

    @model_validator(mode="before")
    @classmethod
    def _settle(cls, data: Any) -> Any:
        return default_to_id(settle_target(data, "sandbox_name", "env_id"), "result_id")

    @model_validator(mode="after")
    def _one_target(self) -> Self:
        try:
            choose_target(sandbox_name=self.sandbox_name, agent_name=self.agent_name, env_id=self.env_id)
        except ValueError as error:
            raise ValueError(f"run_code: {error}") from error
        return self

    @property
    def target(self) -> Target:
        """Where the script runs."""
        return choose_target(sandbox_name=self.sandbox_name, agent_name=self.agent_name, env_id=self.env_id)

    @property
    def deadline_seconds(self) -> float | None:
        """None: the limit is the script's, held by the place."""
        return None

    def problems(self, plan: Plan) -> Iterator[Problem]:
        """The artifact must exist and have one entry; names must be safe."""
        if isinstance(self.target, EnvironmentTarget):
            message = "running code beside an environment needs deployed environments, which this version of agent-env can't deploy"
            yield Problem(message, path=".env_id", hint="use sandbox_name or agent_name")
        if plan.artifacts is None:
            return
        document = plan.artifact(self.script_artifact_id, self.script_artifact_version)
        if document is None:
            yield Problem(f"artifact {self.script_artifact_id!r} does not exist", path=".script_artifact_id")
            return
        chosen = self._select(str(document.get("type")), plan.artifact_files(self.script_artifact_id, self.script_artifact_version) or ())
        if isinstance(chosen, NoScript):
            yield Problem(f"run_code {self.id!r}: {chosen.reason}", path=f".{chosen.field}", hint=chosen.hint)

    async def execute(self, run: Run) -> CodeResult:
        """Stages, runs, reads the result, and removes what was staged, however it ends.

        Raises:
            RunCodeValidationError: The artifact's files or the result break a rule.
            RunCodeExecutionError: The script exited with another code than 0, or outlived its limit.
            LaunchError: The place has no python3.
        """
        script, sources = self._sources(run)
        place = await run.place(self.target, Deed.RUN_CODE)
        seconds = float(self.timeout_seconds or run.limits.run_code_seconds)
        async with staged(place, run, self.id, {**sources, "input.json": self._input(run), str(RUNNER): _runner()}) as folder:
            completed = await self._run(place, run, folder, script.entry, seconds)
            if not completed.ok:
                raise await self._failure(place, folder, completed, seconds)
            value = await self._result(place, run, folder)
        return CodeResult(self.id, self.result_id, value, _log(completed, script, run.limits.inline_result_bytes))

    def _select(self, type: str, names: Any) -> Script | NoScript:
        if type not in {_SINGLE_TYPE, _UNIVERSE_TYPE}:
            return NoScript(f"artifact {self.script_artifact_id!r} is of type {type!r}; a file or universe is needed")
        return select_script(list(names), universe=type == _UNIVERSE_TYPE, script_file=self.script_file)

    def _sources(self, run: Run) -> tuple[Script, dict[str, bytes | Path]]:
        document = run.artifacts.get(self.script_artifact_id, self.script_artifact_version)
        run.used("artifacts", document.id, document.version, document.digest)
        files = run.artifacts.files(document.id, document.version)
        script = self._select(document.type, files)
        if isinstance(script, NoScript):
            raise RunCodeValidationError(f"run_code {self.id!r}: {script.reason}", concerns=self.id, hint=script.hint)
        sources = {staged_as: run.artifacts.path(files[name]) for staged_as, name in script.files.items()}
        size = sum(path.stat().st_size for path in sources.values())
        if size > run.limits.run_code_sources_bytes:
            reason = f"its .py files have {size} bytes, more than {run.limits.run_code_sources_bytes}"
            raise RunCodeValidationError(f"run_code {self.id!r}: {reason}", concerns=self.id)
        return script, dict(sources)

    def _input(self, run: Run) -> bytes:
        return json.dumps({"args": self.args, "results": run.metadata.get("script_results") or {}}).encode()

    async def _run(self, place: Place, run: Run, folder: PurePosixPath, entry: str, seconds: float) -> Completed:
        command = Command(
            ["python3", str(folder / RUNNER), str(folder), self.entrypoint, entry],
            user=ROOT_USER,
            timeout_seconds=seconds,
            output_limit_bytes=run.limits.run_code_stderr_bytes,
            keep="tail",
            attempt=run.attempt_id,
        )
        try:
            return await place.run(command)
        except LaunchError as error:
            hint = "run_code needs python3 (3.9 or newer) in the place"
            message = f"run_code {self.id!r} could not start python3: {error.message}"
            raise LaunchError(message, concerns=place.id, hint=hint) from error

    async def _failure(self, place: Place, folder: PurePosixPath, completed: Completed, seconds: float) -> Exception:
        said = _marked(completed.stderr, completed.stderr_dropped_bytes)
        match completed.ending:
            case Ending.LOST:
                message = f"run_code {self.id!r}: its outcome was lost: {completed.detail or 'the connection broke'}"
                return TransportLostError(message, concerns=place.id)
            case Ending.TIMED_OUT:
                printed = _marked(completed.stdout, completed.stdout_dropped_bytes)
                seen = "".join(f"\n{name}: {text}" for name, text in (("stderr", said), ("stdout", printed)) if text)
                return RunCodeExecutionError(f"run_code {self.id!r}: timed out after {seconds:g}s{seen}", concerns=self.id)
            case Ending.SIGNALLED:
                message = f"run_code {self.id!r}: exited {128 + (completed.signal or 0)} (signal {completed.signal}): {said}"
                return RunCodeExecutionError(message, concerns=self.id)
        if completed.exit_code == _REFUSED:
            reason = await place.read(folder / "output.refused")
            if isinstance(reason, bytes):
                return RunCodeValidationError(f"run_code {self.id!r}: {reason.decode('utf-8', 'replace')}", concerns=self.id)
        return RunCodeExecutionError(f"run_code {self.id!r}: exited {completed.exit_code}: {said}", concerns=self.id)

    async def _result(self, place: Place, run: Run, folder: PurePosixPath) -> Json:
        limit = run.limits.run_code_result_bytes
        data = await place.read(folder / "output.json", limit_bytes=limit)
        if isinstance(data, Missing):
            if data.reason == "EFBIG":
                raise RunCodeValidationError(f"run_code {self.id!r}: result exceeds {limit}-byte cap", concerns=self.id)
            why = "the script ended itself (sys.exit) before its entry point returned"
            raise RunCodeValidationError(f"run_code {self.id!r}: wrote no result file: {why}", concerns=self.id)
        try:
            return parse_json(data, source=f"result of run_code {self.id!r}")
        except ProblemsError as error:
            raise RunCodeValidationError(f"run_code {self.id!r}: the result is not JSON: {error}", concerns=self.id) from error


_REFUSED = 65
"""The runner's exit code when there can be no result."""


@asynccontextmanager
async def staged(place: Place, run: Run, step_id: str, files: Mapping[str, bytes | Path]) -> AsyncIterator[PurePosixPath]:
    """Stages files in a private folder of this attempt alone, and removes it when the block ends, however it ends.

    What earlier attempts of the step left behind (a killed process of ours could not clean up) is stopped and removed first, so that it
    can neither be read nor write.
    """
    folder = STAGING / f"{fs_safe(step_id)}-{run.attempt_id}"
    await _clear(place, fs_safe(step_id))
    uploads = [Upload(STAGING, None, 0o700), Upload(folder, None, 0o700)]
    uploads += [Upload(folder / name, source, 0o600) for name, source in files.items()]
    try:
        await place.put(uploads, owner=_ROOT)
        yield folder
    finally:
        with suppress(InfrastructureError):  # the script's own ending is what counts; what is left goes with the sandbox
            await shielded(place.remove([folder]), seconds=run.limits.cleanup_seconds, what="removing a staged script")


async def _clear(place: Place, step: str) -> None:
    """Removes leftovers of a step's earlier attempts; also a staging folder that somebody else could write to."""
    found = (await place.stat([STAGING], follow=False))[STAGING]
    if isinstance(found, Missing):
        return
    if not _is_private(found):
        await place.remove([STAGING])
        return
    left = [entry.path async for entry in place.walk(STAGING) if entry.path.parent == STAGING]
    for path in left:
        head, separator, tail = path.name.rpartition("-att-")
        if separator and head == step:
            await place.stop_attempt(f"att-{tail}")
            await place.remove([path])


def _is_private(entry: Entry) -> bool:
    return entry.kind is FileKind.DIRECTORY and entry.uid == 0 and entry.mode & 0o077 == 0


def _runner() -> bytes:
    return Path(__file__).with_name("run_code_runner.py").read_bytes()


def _marked(output: bytes, dropped: int) -> str:
    text = output.decode("utf-8", "replace").strip()
    return f"[{dropped} bytes before this were cut] {text}" if dropped else text


def _log(completed: Completed, script: Script, limit: int) -> dict[str, Json]:
    """The ends of what the script printed, and which members were not staged. Nothing when there is nothing to say."""
    log: dict[str, Json] = {}
    for name, output, dropped in (
        ("stdout", completed.stdout, completed.stdout_dropped_bytes),
        ("stderr", completed.stderr, completed.stderr_dropped_bytes),
    ):
        if output:
            log[name] = _marked(output[-limit:], dropped + max(len(output) - limit, 0))
    if script.skipped:
        log["not_staged"] = list(script.skipped[:10])
    return log
