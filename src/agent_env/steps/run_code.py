"""`run_code`: runs a task's own Python script in a place and keeps what it returns."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, model_validator

from agent_env.documents.updates import Json, SetMetadata, Update
from agent_env.errors import Problem, RunCodeValidationError
from agent_env.places import Completed, Deed
from agent_env.steps.contract import EntityRef, OnResume, Plan, Run, Step, StepResult
from agent_env.steps.fields import Number, OptionalName, Whole, default_to_id
from agent_env.steps.python_code import PythonCode, printed
from agent_env.steps.script import NoScript, Script, select_script
from agent_env.steps.targets import EnvironmentTarget, Target, choose_target, settle_target

SUMMARY_LENGTH = 60
"""Characters of a result in the progress view: what fits beside a task's and a step's name."""
_SINGLE_TYPE = "file"
_UNIVERSE_TYPE = "file_artifact_universe"


@dataclass(frozen=True, slots=True)
class CodeResult(StepResult):
    """What the script returned, and what it printed."""

    step_id: str
    result_id: str
    value: Json
    log: Mapping[str, Json] = field(default_factory=dict)
    script: str = ""

    def summary(self) -> str:
        """Which script ran and what it returned: whole or not at all, because half a secret would not be recognised as one."""
        text = json.dumps(self.value, ensure_ascii=False)
        return f"{self.script} returned {text if len(text) <= SUMMARY_LENGTH else f'{len(text)} characters of JSON'}"

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
    """The function that is called with `{"args", "results"}`, and with `env_id` also `env`: `{"id", "url", "mcp_url"}` of the environment,
    as the script reaches it. An `async def` is awaited. What it returns must be JSON."""
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
        code = PythonCode(
            step_id=self.id,
            label=f"run_code {self.id!r}",
            files={**sources, "input.json": await self._input(run)},
            entry=script.entry,
            entrypoint=self.entrypoint,
            seconds=float(self.timeout_seconds or run.limits.run_code_seconds),
            named={staged_as: PurePosixPath(name).name for staged_as, name in script.files.items() if staged_as != name},
        )
        value, completed = await code.run(place, run)
        log = _log(completed, script, run.limits.inline_result_bytes)
        return CodeResult(self.id, self.result_id, value, log, script=self.script_artifact_id.rpartition("/")[2])

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

    async def _input(self, run: Run) -> bytes:
        given = {"args": self.args, "results": run.metadata.get("script_results") or {}}
        if isinstance(self.target, EnvironmentTarget):
            url, mcp_url = (await run.environment(self.target.env_id, self.target.step_id)).script_urls()
            given["env"] = {"id": self.target.env_id, "url": url, "mcp_url": mcp_url}
        return json.dumps(given).encode()


def _log(completed: Completed, script: Script, limit: int) -> dict[str, Json]:
    """The ends of what the script printed, and which members were not staged. Nothing when there is nothing to say."""
    log = printed(completed, limit)
    if script.skipped:
        log["not_staged"] = list(script.skipped[:10])
    return log
