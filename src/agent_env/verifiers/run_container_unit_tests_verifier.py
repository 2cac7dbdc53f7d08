"""`run_container_unit_tests_verifier`: runs a test command in a container that the run started, and scores its exit code or its reward.

Unlike other verifiers, tests that fail fail the step: the score is recorded first (reference).
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Annotated, Any, ClassVar

from pydantic import Field, field_validator, model_validator

from agent_env.defaults import MIB
from agent_env.documents.updates import Json, SetMetadata, Update
from agent_env.errors import (
    AgentEnvError,
    InfrastructureError,
    LaunchError,
    Problem,
    TaskError,
    TransportLostError,
    UserError,
)
from agent_env.ids import derive_id
from agent_env.places import Command, Completed, Deed, Ending, Missing, Place
from agent_env.steps.contract import EntityRef, OnResume, Plan, Run, Step, StepResult, apart
from agent_env.steps.deploy_sandbox import variables
from agent_env.steps.fields import SECRET, OptionalName, Seconds, Texts, default_to_id
from agent_env.steps.python_code import printed
from agent_env.steps.targets import SandboxTarget

OUTPUT_BYTES = 16 * MIB
"""How much of each stream is kept."""
HEAD_CHARACTERS, TAIL_CHARACTERS = 500, 1500
"""What the record quotes of the output, and what an error quotes of its end (reference)."""
_POSIX_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RESERVED = frozenset({"PATH", "HOME", "USER", "SHELL", "PWD", "LD_PRELOAD", "LD_LIBRARY_PATH"})
_SEED = re.compile(r"<([^<>\s]+)>")


@dataclass(frozen=True, slots=True)
class TestsRan(StepResult):
    """What the tests did, and the score that it makes."""

    step_id: str
    verifier_id: str
    score: float | None
    entry: Mapping[str, Json]
    log: Mapping[str, Json]
    error: AgentEnvError | None = None

    def updates(self) -> Iterator[Update]:
        """Puts the verification under its id, and the end of what the tests printed under the step."""
        yield SetMetadata(("verifications", self.verifier_id), dict(self.entry))
        if self.log:
            yield SetMetadata(("script_logs", self.step_id), dict(self.log))

    def scores(self) -> Mapping[str, float | None]:
        """Its own score."""
        return {self.verifier_id: self.score}

    def summary(self) -> str:
        """The score and the exit code."""
        return f"{'unscored' if self.score is None else f'{self.score:g}'} (exit code {self.entry.get('exit_code')})"

    def failure(self) -> AgentEnvError | None:
        """Tests that failed or took too long; their record is kept."""
        return self.error


@dataclass(frozen=True, slots=True)
class _Outcome:
    completed: Completed
    extracted: Mapping[str, Json] = field(default_factory=dict)


class RunContainerUnitTestsVerifier(Step, type="run_container_unit_tests_verifier"):
    """Run a test command in a container of this run. Score: its exit code, or the reward that it writes. Failing tests fail the step."""

    on_resume: ClassVar[OnResume] = OnResume.REPEAT
    entity_refs: ClassVar[tuple[EntityRef, ...] | None] = ()

    sandbox_name: str = Field(min_length=1)
    """The deployed sandbox beside whose machine the container runs."""
    container_name: str = Field(min_length=1)
    """A container that this run started there."""
    command: str = Field(min_length=1)
    """Shell text for bash. `<key>` becomes the seed's value, quoted."""
    verifier_id: str = ""
    """The score's name; the step's id by default."""
    setup_commands: Texts = ()
    """Shell texts that run first; one that fails is an error, and nothing is scored."""
    user: str = "root"
    """Who runs all of them."""
    timeout_sec: Seconds = 300
    """Limit of the command."""
    env_vars: Annotated[dict[str, str], SECRET] = Field(default_factory=dict)
    """Environment variables; `env:NAME` and `secret:KEY` are resolved."""
    result_paths: Texts = ()
    """JSON files of the container that are kept in the record."""
    reward_path: OptionalName = None
    """A file with a number from 0 to 1: the score, in place of the exit code."""

    @field_validator("env_vars")
    @classmethod
    def _posix_names(cls, value: dict[str, str]) -> dict[str, str]:
        odd = next((name for name in value if not _POSIX_NAME.fullmatch(name)), None)
        if odd is not None:
            raise ValueError(f"{odd!r} is no name of a variable")
        return value

    @model_validator(mode="before")
    @classmethod
    def _settle(cls, data: Any) -> Any:
        return default_to_id(data, "verifier_id")

    @property
    def target(self) -> SandboxTarget:
        """The container."""
        return SandboxTarget(self.sandbox_name, self.container_name)

    def problems(self, plan: Plan) -> Iterator[Problem]:
        """Files are named by whole paths."""
        del plan
        return apart(self._whole("reward_path"), self._whole("result_paths"))

    def _whole(self, name: str) -> Iterator[Problem]:
        value = getattr(self, name)
        for index, path in enumerate([value] if isinstance(value, str) else value or ()):
            if not path.startswith("/"):
                at = f".{name}" if isinstance(value, str) else f".{name}[{index}]"
                yield Problem(f"{path!r} is no absolute path", path=at)

    async def execute(self, run: Run) -> TestsRan:
        """Runs the tests.

        Raises:
            PlacementError: This run started no such container.
            TaskError: A setup command failed.
            InfrastructureError: The container could not be reached, or could not start the command: nothing is scored.
        """
        place = await run.place(self.target, Deed.VERIFY)
        env, secrets = self._variables(run)
        for index, text in enumerate(self.setup_commands):
            await self._set_up(run, place, index, text, {**env, **secrets})
        if self.reward_path:
            await place.remove([PurePosixPath(self.reward_path)])  # what was there before is not what the tests say
        run.progress("tests")
        command = Command(
            ["bash", "-c", self._command(run)],
            user=self.user,
            env=env,
            secrets=secrets,
            timeout_seconds=self.timeout_sec,
            output_limit_bytes=OUTPUT_BYTES,
            attempt=run.attempt_id,
        )
        completed = await self._run(place, command, "its command")
        extracted = {path: await _json_of(place, path) for path in dict.fromkeys([*self.result_paths, *filter(None, [self.reward_path])])}
        return self._judged(run, _Outcome(completed, extracted))

    def _variables(self, run: Run) -> tuple[dict[str, str], dict[str, str]]:
        """Seed values by their names in capitals, then the step's own, then this run's."""
        seed = run.metadata.get("seed") or {}
        named = {str(key).upper(): _text(value) for key, value in seed.items() if isinstance(value, str | int | float | bool)}
        env = {name: text for name, text in named.items() if _POSIX_NAME.fullmatch(name) and name not in _RESERVED}
        given = run.overrides().get("env_vars") or {}
        odd = next((name for name in given if not _POSIX_NAME.fullmatch(str(name))), None)
        if odd is not None:
            raise UserError(f"step_params.env_vars: {odd!r} is no name of a variable", concerns=self.id)
        own, secrets = variables({**self.env_vars, **{str(name): str(text) for name, text in given.items()}}, run)
        return {**{name: text for name, text in env.items() if name not in secrets}, **own}, secrets

    def _command(self, run: Run) -> str:
        seed = run.metadata.get("seed") or {}
        return _SEED.sub(lambda found: shlex.quote(_text(seed[found[1]])) if found[1] in seed else found[0], self.command)

    async def _set_up(self, run: Run, place: Place, index: int, text: str, env: Mapping[str, str]) -> None:
        command = Command(["bash", "-c", text], user=self.user, secrets=env, output_limit_bytes=OUTPUT_BYTES, attempt=run.attempt_id)
        completed = await self._run(place, command, f"setup_commands[{index}]")
        if not completed.ok:
            said = (completed.stderr or completed.stdout).decode("utf-8", "replace").strip()[-TAIL_CHARACTERS:]
            raise TaskError(f"setup_commands[{index}] failed ({_ending(completed)}): {said}", concerns=self.id)

    async def _run(self, place: Place, command: Command, what: str) -> Completed:
        try:
            completed = await place.run(command)
        except LaunchError as error:
            hint = error.hint or "the container needs bash"
            raise LaunchError(f"{what} could not be started: {error.message}", concerns=place.id, hint=hint) from error
        if completed.ending is Ending.LOST:
            raise TransportLostError(f"the outcome of {what} was lost: {completed.detail or 'the connection broke'}", concerns=place.id)
        if completed.ending is Ending.LIMITED:
            raise InfrastructureError(f"{what} could not be judged: {completed.detail}", concerns=place.id)
        return completed

    def _judged(self, run: Run, outcome: _Outcome) -> TestsRan:
        completed = outcome.completed
        timed_out = completed.ending is Ending.TIMED_OUT
        code = 124 if timed_out else completed.exit_code if completed.exit_code is not None else 128 + (completed.signal or 0)
        if self.reward_path:
            score, said = _reward(outcome.extracted.get(self.reward_path))
            row = {"id": "reward", "score": score, "result": score >= 1, "message": said}
        else:
            score = 1.0 if completed.ok else 0.0
            row = {"id": "exit_code", "score": score, "result": completed.ok, "message": _ending(completed)}
        if timed_out:
            score, row = 0.0, {**row, "score": 0.0, "result": False, "message": f"timed out after {self.timeout_sec:g}s"}
        entry: dict[str, Json] = {
            "results": [row],
            "score": score,
            "command": self.command,
            "exit_code": code,
            "timed_out": timed_out,
            "extracted_files": dict(outcome.extracted),
        }
        for name, output in (("stdout", completed.stdout), ("stderr", completed.stderr)):
            entry[f"{name}_artifact"] = self._kept(run, name, output)
            entry[f"{name}_head"] = output.decode("utf-8", "replace")[:HEAD_CHARACTERS]
        log = printed(completed, run.limits.inline_result_bytes)
        return TestsRan(self.id, self.verifier_id, score, entry, log, self._error(completed, timed_out=timed_out))

    def _kept(self, run: Run, name: str, output: bytes) -> dict[str, Json]:
        """A stream, without secrets, as a file artifact of this attempt."""
        id = derive_id(f"{run.instance_id}-{self.id}", f"{name}-{run.attempt_id}")
        document = run.artifacts.put_collected(id, {f"{name}.txt": run.redacted(output)})
        (ref,) = run.artifacts.files(document.id, document.version).values()
        return {"id": document.id, "version": document.version, "s3_url": ref.url, "object_url": ref.url}

    def _error(self, completed: Completed, *, timed_out: bool) -> AgentEnvError | None:
        if timed_out:
            return TaskError(f"the tests timed out after {self.timeout_sec:g}s", concerns=self.id, hint="raise timeout_sec")
        if completed.ok or self.reward_path:
            return None
        said = completed.stderr.decode("utf-8", "replace")[-TAIL_CHARACTERS:].strip()
        return TaskError(f"the tests failed ({_ending(completed)}): {said}", concerns=self.id)


def _ending(completed: Completed) -> str:
    match completed.ending:
        case Ending.SIGNALLED:
            return f"killed by signal {completed.signal}"
        case Ending.TIMED_OUT:
            return "timed out"
    return f"exited {completed.exit_code}"


async def _json_of(place: Place, path: str) -> Json:
    """A file of the container as JSON; None where it is absent, unreadable, or no JSON."""
    data = await place.read(PurePosixPath(path), limit_bytes=OUTPUT_BYTES)
    if isinstance(data, Missing):
        return None
    try:
        return json.loads(data, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return None


def _reward(value: Json) -> tuple[float, str]:
    """A reward from 0 to 1; what is none counts as 0 (reference)."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return 0.0, "no number was written as the reward"
    return min(max(float(value), 0.0), 1.0), f"reward {value:g}"


def _text(value: Json) -> str:
    return value if isinstance(value, str) else json.dumps(value)
