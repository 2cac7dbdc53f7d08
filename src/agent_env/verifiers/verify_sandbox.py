"""`verify_sandbox`: scores files and commands where a sandbox or agent lives.

A verdict is about the work, never about the world: a command's own exit code and its own time limit score 0; what could not be started,
reached or read is an error of the step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import PurePosixPath
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import field_serializer, field_validator, model_validator

from agent_env.defaults import DEFAULT_LIMITS
from agent_env.documents.updates import Json, SetMetadata, Update
from agent_env.errors import InfrastructureError, Problem
from agent_env.places import Completed, Deed, Ending, Entry, FileKind, Missing, Place
from agent_env.steps.contract import EntityRef, OnResume, Plan, Run, Step, StepResult
from agent_env.steps.fields import OptionalName, Seconds, default_to_id
from agent_env.steps.limited import LimitDefault
from agent_env.steps.targets import Target, choose_target, settle_target
from agent_env.verifiers.criterion import (
    BashCommandSucceeds,
    Criterion,
    CriterionFields,
    ProbeDirExists,
    ProbeFileContains,
    ProbeFileExists,
    Verdict,
    located,
    problems_of,
    row,
)
from agent_env.verifiers.matching import Search, search
from agent_env.verifiers.quiet import Quiesce, quieted
from agent_env.verifiers.scoring import Aggregator, aggregate
from agent_env.verifiers.shell import run_shell

SHOWN_CHARACTERS = 200
"""How much of a command's output or of an expression a justification quotes (reference)."""
_NOT_THERE = frozenset({"ENOENT", "ENOTDIR", "ELOOP", "ENAMETOOLONG"})
"""Nothing stands at the path; any other reason means that we could not look."""
_NOT_A_TEXT = {"EISDIR": "is a folder", "EINVAL": "is no regular file", "EFBIG": "is larger than the limit"}


@dataclass(frozen=True, slots=True)
class Verification(StepResult):
    """Rows and the score that they make."""

    verifier_id: str
    score: float | None
    rows: tuple[dict[str, Json], ...]
    quiesced: str | None = None
    """What was done about what still ran while it was looked at, where that was asked for."""

    def updates(self) -> tuple[Update, ...]:
        """Puts the verification under its id."""
        entry: dict[str, Json] = {"results": list(self.rows), "score": self.score}
        if self.quiesced is not None:
            entry["quiesce"] = self.quiesced
        return (SetMetadata(("verifications", self.verifier_id), entry),)

    def scores(self) -> dict[str, float | None]:
        """Its own score."""
        return {self.verifier_id: self.score}

    def summary(self) -> str:
        """The score, how many criteria passed, and how many were not scored."""
        passed = sum(each.get("result") is True for each in self.rows)
        skipped = sum(bool(each.get("skipped")) for each in self.rows)
        counted = f"{passed} of {len(self.rows) - skipped} passed{f', {skipped} not scored' if skipped else ''}"
        return f"{'unscored' if self.score is None else f'{self.score:g}'} ({counted})"


class VerifySandbox(Step, type="verify_sandbox"):
    """Score files and commands in a deployed sandbox or agent. File probes look as root; commands run as the place's own user."""

    on_resume: ClassVar[OnResume] = OnResume.REPEAT
    entity_refs: ClassVar[tuple[EntityRef, ...] | None] = ()
    own_fields: ClassVar[frozenset[str]] = frozenset({"container_name", "quiesce"})

    criteria: tuple[Criterion, ...] = ()
    """Checked in order. Kinds: `probe_file_exists`, `probe_dir_exists`, `probe_file_contains`, `bash_cmd_succeeds`; rows of other
    kinds are kept and not scored."""
    agent_name: OptionalName = None
    """The deployed agent; with no target at all the default agent is meant."""
    sandbox_name: OptionalName = None
    """The deployed sandbox."""
    container_name: OptionalName = None
    """A container that this run started on the sandbox."""
    base_dir: PurePosixPath = PurePosixPath("/app")
    """Where relative paths begin and commands run."""
    shell_timeout_seconds: Annotated[Seconds, LimitDefault("verify_shell_seconds")] = DEFAULT_LIMITS.verify_shell_seconds
    """Limit of each command and each search; a criterion that outlives it fails."""
    score_aggregator: Aggregator = Aggregator.ALL_PASS
    """How rows become the score: `all_pass`, `any_pass`, `weighted_average`."""
    verifier_id: str = ""
    """The score's name; the step's id by default."""
    quiesce: Literal["leave", "freeze", "kill"] | None = None
    """What happens to what earlier steps left running there, while it is looked at: `leave` it (services that are graded), `freeze` it
    (it goes on afterwards), `kill` it. Absent: what `run.quiesce` of the configuration says, else `leave`. Commands of steps that run at
    the same time are spared."""

    @model_validator(mode="before")
    @classmethod
    def _settle(cls, data: Any) -> Any:
        return default_to_id(settle_target(data, "sandbox_name"), "verifier_id")

    @model_validator(mode="after")
    def _one_target(self) -> Self:
        choose_target(sandbox_name=self.sandbox_name, container_name=self.container_name, agent_name=self.agent_name)
        return self

    @field_validator("base_dir")
    @classmethod
    def _whole(cls, value: PurePosixPath) -> PurePosixPath:
        if not value.is_absolute():
            raise ValueError("must be an absolute path")
        return value

    @field_serializer("criteria")
    def _as_written(self, criteria: tuple[CriterionFields, ...]) -> list[dict[str, Json]]:
        return [each.as_written() for each in criteria]

    @property
    def target(self) -> Target:
        """Where it looks."""
        return choose_target(sandbox_name=self.sandbox_name, container_name=self.container_name, agent_name=self.agent_name)

    def problems(self, plan: Plan) -> Iterator[Problem]:
        """Expressions must be expressions, kinds must be spelled right."""
        del plan
        return problems_of(self.criteria)

    async def execute(self, run: Run) -> Verification:
        """Looks.

        Raises:
            InfrastructureError: The place could not be reached, read, or could not start a command: nothing is scored.
        """
        place = await run.place(self.target, Deed.VERIFY)
        async with quieted(self.quiesce or _quiesce(run.quiesce), run, self.target, place) as quiesced:
            verdicts = await _Look(self, run, place).verdicts()
        rows = tuple(row(each, index, verdict) for index, (each, verdict) in enumerate(zip(self.criteria, verdicts, strict=True)))
        return Verification(self.verifier_id, aggregate(rows, self.score_aggregator), rows, quiesced)


def _quiesce(word: str | None) -> Quiesce:
    return "freeze" if word == "freeze" else "kill" if word == "kill" else "leave"


class _Look:
    """One look at a place. Neighbouring probes share their round trips; the order of probes and commands is kept."""

    def __init__(self, step: VerifySandbox, run: Run, place: Place) -> None:
        self.step = step
        self.run = run
        self.place = place

    async def verdicts(self) -> list[Verdict]:
        """A verdict for each criterion, in order."""
        verdicts: list[Verdict] = []
        for is_command, group in groupby(self.step.criteria, key=lambda each: isinstance(each, BashCommandSucceeds)):
            members = list(group)
            if is_command:
                for member in members:
                    if isinstance(member, BashCommandSucceeds):
                        verdicts.append(await self._command(member, len(verdicts)))
            else:
                verdicts += await self._probes(members)
            self.run.progress("criteria", done=len(verdicts), total=len(self.step.criteria))
        return verdicts

    async def _probes(self, criteria: Sequence[CriterionFields]) -> list[Verdict]:
        existing = [path for each in criteria if isinstance(each, ProbeFileExists | ProbeDirExists) for path in self._paths(each)]
        found = await self.place.stat(list(dict.fromkeys(existing))) if existing else {}
        contains = [each for each in criteria if isinstance(each, ProbeFileContains) and each.paths]
        read = await self._contents(contains) if contains else {}
        verdicts = []
        for each in criteria:
            match each:
                case ProbeFileExists() | ProbeDirExists():
                    verdicts.append(self._exists(each, [found[path] for path in self._paths(each)]))
                case ProbeFileContains():
                    verdicts.append(read.get(id(each)) or Verdict(passed=False, justification="no paths specified"))
                case _:
                    verdicts.append(Verdict(None, f"criteria of type {each.type!r} are not scored here"))
        return verdicts

    def _paths(self, criterion: ProbeFileExists | ProbeDirExists | ProbeFileContains) -> list[PurePosixPath]:
        return [located(self.step.base_dir, path) for path in criterion.paths]

    def _exists(self, criterion: ProbeFileExists | ProbeDirExists, found: Sequence[Entry | Missing]) -> Verdict:
        if not found:
            return Verdict(passed=False, justification="no paths specified")
        folders = isinstance(criterion, ProbeDirExists)
        missing = [path for path, entry in zip(criterion.paths, found, strict=True) if not self._is_there(entry, folders=folders)]
        if missing:
            return Verdict(passed=False, justification=f"Missing: {missing}")
        return Verdict(passed=True, justification="all folders exist" if folders else "all paths exist")

    def _is_there(self, entry: Entry | Missing, *, folders: bool) -> bool:
        if isinstance(entry, Missing):
            if entry.reason not in _NOT_THERE:
                raise InfrastructureError(f"{entry.path} could not be looked at: {entry.reason}", concerns=self.place.id)
            return False
        return entry.kind is FileKind.DIRECTORY if folders else True

    async def _contents(self, criteria: Sequence[ProbeFileContains]) -> dict[int, Verdict]:
        """Verdicts of searches, by the identity of the criterion: all files in one round trip, all searches together."""
        paths = {id(each): located(self.step.base_dir, each.paths[0]) for each in criteria}
        limit = self.run.limits.probe_file_bytes
        files = await self.place.get(list(dict.fromkeys(paths.values())), self.run.scratch(), limit_bytes=limit)
        verdicts: dict[int, Verdict] = {}
        pending: list[ProbeFileContains] = []
        for each in criteria:
            got = files[paths[id(each)]]
            if isinstance(got, Missing):
                verdicts[id(each)] = self._unread(each, got)
            else:
                pending.append(each)
        searches = [Search(each.pattern, file) for each in pending if not isinstance(file := files[paths[id(each)]], Missing)]
        for each, answer in zip(pending, await search(searches, timeout_seconds=self._seconds), strict=True):
            if answer.timed_out:
                verdicts[id(each)] = Verdict(passed=False, justification=f"timed out checking {each.paths[0]} after {self._seconds:g}s")
            else:
                said = f"{'contains' if answer.matched else 'does not contain'} {each.pattern[:SHOWN_CHARACTERS]!r}"
                verdicts[id(each)] = Verdict(answer.matched, said, answer.lossy)
        return verdicts

    def _unread(self, criterion: ProbeFileContains, missing: Missing) -> Verdict:
        path = criterion.paths[0]
        if missing.reason in _NOT_THERE:
            return Verdict(passed=False, justification=f"Missing: {[path]}")
        if missing.reason in _NOT_A_TEXT:
            return Verdict(passed=False, justification=f"{path} {_NOT_A_TEXT[missing.reason]}")
        raise InfrastructureError(f"{missing.path} could not be read: {missing.reason}", concerns=self.place.id)

    async def _command(self, criterion: BashCommandSucceeds, index: int) -> Verdict:
        completed = await run_shell(
            self.run,
            self.place,
            criterion.bash_cmd,
            cwd=self.step.base_dir,
            timeout_seconds=self._seconds,
            what=f"the command of criteria[{index}]",
        )
        output = completed.stderr or completed.stdout
        text = output.decode("utf-8", "replace")
        shown = text.strip()[:SHOWN_CHARACTERS].rstrip()
        said = f"{self._ending(completed)}: {shown}" if shown and not completed.ok else self._ending(completed)
        return Verdict(completed.ok, said, lossy=text.encode() != output)

    def _ending(self, completed: Completed) -> str:
        match completed.ending:
            case Ending.SIGNALLED:
                return f"killed by signal {completed.signal}{f' ({completed.detail})' if completed.detail else ''}"
            case Ending.TIMED_OUT:
                return f"timed out after {self._seconds:g}s"
            case _:
                return f"exited {completed.exit_code}"

    @property
    def _seconds(self) -> float:
        return self.step.shell_timeout_seconds
