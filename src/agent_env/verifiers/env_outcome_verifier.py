"""`env_outcome_verifier`: a task's own Python looks at an environment through its MCP endpoint and scores what it finds.

The code never runs in our process: it is staged in the environment's machine, within limits, with packages of its own.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, ClassVar

from pydantic import Field, model_validator

from agent_env.documents.updates import Json, SetMetadata, Update
from agent_env.errors import Problem, RunCodeValidationError
from agent_env.steps.contract import EntityRef, OnResume, Plan, Run, StepResult
from agent_env.steps.environment_step import EnvironmentStep
from agent_env.steps.fields import Number, OptionalName, Whole, default_to_id
from agent_env.steps.python_code import PythonCode, printed
from agent_env.verifiers.packages import packages_for
from agent_env.verifiers.run_records import run_record
from agent_env.verifiers.scoring import Aggregator, aggregate

ENTRY, SCRIPT, RECORDS = "outcome.py", "verify.py", "agent_env_run.py"
_SOURCES = {ENTRY: "outcome_entry.py", RECORDS: "outcome_run.py"}
"""What is staged beside the author's script → the file that it is made of."""


@dataclass(frozen=True, slots=True)
class Outcome(StepResult):
    """The rows that the code gave, the score that they make, and what it printed."""

    step_id: str
    verifier_id: str
    score: float | None
    rows: tuple[dict[str, Json], ...]
    log: Mapping[str, Json] = field(default_factory=dict)

    def updates(self) -> Iterator[Update]:
        """Puts the verification under its id, and what was printed under the step."""
        yield SetMetadata(("verifications", self.verifier_id), {"results": list(self.rows), "score": self.score})
        if self.log:
            yield SetMetadata(("script_logs", self.step_id), dict(self.log))

    def scores(self) -> dict[str, float | None]:
        """Its own score."""
        return {self.verifier_id: self.score}

    def summary(self) -> str:
        """The score, and how many rows passed."""
        passed = sum(row.get("result") is True for row in self.rows)
        return f"{'unscored' if self.score is None else f'{self.score:g}'} ({passed} of {len(self.rows)} passed)"


class EnvOutcomeVerifier(EnvironmentStep, type="env_outcome_verifier"):
    """Score what an environment holds: a file of Python with `async def verify(mcp_url)` or `verify(mcp_url, run)` returns rows."""

    on_resume: ClassVar[OnResume] = OnResume.REPEAT
    entity_refs: ClassVar[tuple[EntityRef, ...] | None] = (
        EntityRef("env", "env_id"),
        EntityRef("artifact", "file_artifact_id", version_field="file_artifact_version", artifact_type="file"),
    )
    own_fields: ClassVar[frozenset[str]] = frozenset({"env_step_id", "timeout_seconds"})

    file_artifact_id: str = Field(min_length=1)
    """The file."""
    file_artifact_version: Annotated[Whole, Field(ge=1)] | None = None
    """Its version; the newest when absent."""
    score_aggregator: Aggregator = Aggregator.ALL_PASS
    """How rows become the score: `all_pass`, `any_pass`, `weighted_average`."""
    verifier_id: str = ""
    """The score's name; the step's id by default."""
    prompt_id: OptionalName = None
    """Whose conversation `run` is about; the last one by default."""
    timeout_seconds: Annotated[Number, Field(ge=0)] | None = None
    """Limit of the code: at the limit its processes are told to end, and killed after a grace time. 0 or absent is 600."""

    @model_validator(mode="before")
    @classmethod
    def _settle(cls, data: Any) -> Any:
        return default_to_id(data, "verifier_id")

    @property
    def deadline_seconds(self) -> float | None:
        """None: the limit is the code's, held by the place."""
        return None

    def problems(self, plan: Plan) -> Iterator[Problem]:
        """The file must exist, and be one."""
        if plan.artifacts is None:
            return
        document = plan.artifact(self.file_artifact_id, self.file_artifact_version)
        if document is None:
            yield Problem(f"artifact {self.file_artifact_id!r} does not exist", path=".file_artifact_id")
        elif document.get("type") != "file":
            message = f"artifact {self.file_artifact_id!r} is of type {document.get('type')!r}; one file of Python is needed"
            yield Problem(message, path=".file_artifact_id")

    async def execute(self, run: Run) -> Outcome:
        """Stages the code where the environment's scripts run, calls it, and adds up its rows.

        Raises:
            RunCodeValidationError: It has no `verify`, or what it returns are no rows.
            RunCodeExecutionError: It raised, or outlived its limit.
            TaskError: There is no conversation of that prompt.
        """
        document = run.artifacts.get(self.file_artifact_id, self.file_artifact_version)
        run.used("artifacts", document.id, document.version, document.digest)
        name, stored = next(iter(run.artifacts.files(document.id, document.version).items()))
        script = await asyncio.to_thread(run.artifacts.read, stored)
        live = await self.live(run)
        url, mcp_url = live.script_urls()
        place = await live.machine()
        packages = await packages_for(place, run, script)
        given = {"url": url, "mcp_url": mcp_url, "packages": packages, "run": run_record(run, self.prompt_id, concerns=self.id)}
        code = PythonCode(
            step_id=self.id,
            label=f"env_outcome_verifier {self.id!r}",
            files={SCRIPT: script, "input.json": json.dumps(given).encode(), **_staged()},
            entry=ENTRY,
            entrypoint="run",
            seconds=float(self.timeout_seconds or run.limits.run_code_seconds),
            named={SCRIPT: PurePosixPath(name).name},
        )
        value, completed = await code.run(place, run)
        log = printed(completed, run.limits.inline_result_bytes)
        try:
            rows = self._rows(value)
        except RunCodeValidationError as error:
            error.evidence = [SetMetadata(("script_logs", self.id), log)] if log else ()
            raise
        return Outcome(self.id, self.verifier_id, aggregate(rows, self.score_aggregator), rows, log)

    def _rows(self, value: Json) -> tuple[dict[str, Json], ...]:
        if isinstance(value, Mapping) and isinstance(value.get("problem"), str):
            raise RunCodeValidationError(f"env_outcome_verifier {self.id!r}: {value['problem']}", concerns=self.id)
        rows = value.get("rows") if isinstance(value, Mapping) else None
        if not isinstance(rows, Sequence) or isinstance(rows, str) or not all(isinstance(row, Mapping) for row in rows):
            raise RunCodeValidationError(
                f"env_outcome_verifier {self.id!r}: verify returned {json.dumps(rows)[:200]}, which is no list of rows",
                concerns=self.id,
                hint='a row is an object such as {"id": "found", "result": true}',
            )
        return tuple(dict(row) for row in rows)


def _staged() -> dict[str, bytes]:
    return {name: Path(__file__).with_name(source).read_bytes() for name, source in _SOURCES.items()}
