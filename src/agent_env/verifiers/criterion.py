"""The kinds of criterion of `verify_sandbox`: what each one has, and how its row is written."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag

from agent_env.documents.spelling import near
from agent_env.documents.updates import Json
from agent_env.errors import Problem
from agent_env.steps.contract import apart
from agent_env.steps.fields import Number, Texts


def _path_texts(value: Any) -> Any:
    for text in value if isinstance(value, list | tuple) else ():
        if isinstance(text, str) and "\0" in text:
            raise ValueError("a path can't hold a NUL character")
    return value


_LIMITED = "shell_timeout_seconds of the step limits each command and each search"
_OF_THE_STEP = {
    "timeout_seconds": _LIMITED,
    "timeout": _LIMITED,
    "cwd": "base_dir of the step is where relative paths begin and commands run",
}
"""Keys for what the step says of all its criteria → how it says it."""
Paths = Annotated[Texts, BeforeValidator(_path_texts)]


class CriterionFields(BaseModel):
    """What every criterion has. Other keys are warned about, kept, and come back in its row."""

    model_config = ConfigDict(frozen=True, extra="allow", defer_build=True)

    type: str
    criterion: str | None = None
    """What it checks, for people."""
    weight: Number | None = None
    """Its share in a weighted average, 1 when absent; negative: what takes score away when it fails."""

    def problems(self) -> Iterator[Problem]:
        """What is wrong with it, by paths relative to it."""
        return iter(())

    def passed_over(self) -> Iterator[Problem]:
        """Why nothing comes of it here, where that is so; the path is relative to it."""
        return iter(())

    def as_written(self) -> dict[str, Json]:
        """The criterion as its author wrote it."""
        return self.model_dump(mode="json", exclude_unset=True)


def problems_of(criteria: Sequence[CriterionFields]) -> Iterator[Problem]:
    """What is wrong with a step's criteria, by paths relative to the step."""
    for index, criterion in enumerate(criteria):
        yield from apart(_problems_of(criterion, f".criteria[{index}]"))


def _problems_of(criterion: CriterionFields, path: str) -> Iterator[Problem]:
    for problem in criterion.problems():
        yield replace(problem, path=f"{path}{problem.path or ''}")


class ProbeFileExists(CriterionFields):
    """Every path exists, links followed."""

    type: Literal["probe_file_exists"]
    paths: Paths = ()
    """Relative paths are below the step's base_dir."""


class ProbeDirExists(CriterionFields):
    """Every path is a folder, links followed."""

    type: Literal["probe_dir_exists"]
    paths: Paths = ()
    """Relative paths are below the step's base_dir."""


class ProbeFileContains(CriterionFields):
    """The file holds a match of a regular expression (Python's, searched, without flags)."""

    elsewhere: ClassVar[Mapping[str, str]] = _OF_THE_STEP

    type: Literal["probe_file_contains"]
    paths: Paths = ()
    """Only the first is read."""
    expected: str | None = None
    """The regular expression; an empty one matches every file."""
    value: str | None = None
    """Another name of `expected`."""

    @property
    def pattern(self) -> str:
        """The regular expression."""
        return self.expected if self.expected is not None else self.value or ""

    def problems(self) -> Iterator[Problem]:
        """The expression must be one."""
        try:
            re.compile(self.pattern)
        except (re.error, OverflowError, RecursionError) as error:
            field = "expected" if self.expected is not None else "value"
            yield Problem(f"is no regular expression: {error}", path=f".{field}", hint=f"for literal text: {re.escape(self.pattern)!r}")


class BashCommandSucceeds(CriterionFields):
    """A shell command exits with 0. It runs in base_dir as the place's own user."""

    elsewhere: ClassVar[Mapping[str, str]] = _OF_THE_STEP

    type: Literal["bash_cmd_succeeds"]
    bash_cmd: str = Field(min_length=1)
    """Text for `bash -c`."""

    def problems(self) -> Iterator[Problem]:
        """No argument can hold a NUL character."""
        if "\0" in self.bash_cmd:
            yield Problem("holds a NUL character", path=".bash_cmd")


class OtherCriterion(CriterionFields):
    """A kind that another tool scores: its row is kept with all of its keys, and skipped."""

    free_keys: ClassVar[bool] = True

    def problems(self) -> Iterator[Problem]:
        """A near spelling of a known kind is a mistake."""
        meant = near(self.type, KINDS)
        if meant is not None:
            yield Problem(f"unknown criterion type {self.type!r}", path=".type", hint=f"did you mean {meant!r}?")

    def passed_over(self) -> Iterator[Problem]:
        """Nothing scores it; one that is misspelt is told as such."""
        if near(self.type, KINDS) is None:
            yield Problem(f"criteria of type {self.type!r} are kept and not scored", path=".type", hint=f"scored: {', '.join(KINDS)}")


KINDS = ("probe_file_exists", "probe_dir_exists", "probe_file_contains", "bash_cmd_succeeds")


def _kind(value: Any) -> str:
    name = value.get("type") if isinstance(value, Mapping) else getattr(value, "type", None)
    return name if name in KINDS else "other"


Criterion = Annotated[
    Annotated[ProbeFileExists, Tag("probe_file_exists")]
    | Annotated[ProbeDirExists, Tag("probe_dir_exists")]
    | Annotated[ProbeFileContains, Tag("probe_file_contains")]
    | Annotated[BashCommandSucceeds, Tag("bash_cmd_succeeds")]
    | Annotated[OtherCriterion, Tag("other")],
    Discriminator(_kind),
]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one criterion came to."""

    passed: bool | None
    """None: skipped, not scored."""
    justification: str
    lossy: bool = False
    """Bytes that are not UTF-8 were replaced before they were looked at."""


def row(criterion: CriterionFields, index: int, verdict: Verdict) -> dict[str, Json]:
    """The criterion's row as the context keeps it."""
    made = {**criterion.as_written(), "criterion_index": index}
    if verdict.passed is not None:
        made |= {"score": float(verdict.passed), "result": verdict.passed}
    made |= {"justification": verdict.justification, "skipped": verdict.passed is None}
    return made | ({"lossy_decoding": True} if verdict.lossy else {})


def located(base_dir: PurePosixPath, path: str) -> PurePosixPath:
    """A criterion's path in the place."""
    return base_dir / path
