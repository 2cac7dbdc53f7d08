"""What a step is, and what it may ask of the engine that runs it.

A step is one file: its fields, its checks, its `execute`. It writes into no shared dictionary, looks up no provider, builds no
URL and never asks what kind of sandbox it has. What it may ask is `Plan` before anything starts and `Run` (`steps/run.py`) when its turn
has come; both are implemented by `engine`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Protocol, Self

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, field_validator

from agent_env.documents.updates import Json, Update
from agent_env.errors import AgentEnvError, Problem
from agent_env.steps.fields import Number, Seconds
from agent_env.steps.limited import LimitDefault
from agent_env.steps.requests import AgentRequest, ContainerRequest, EnvironmentRequest, InstallRequest, SandboxRequest
from agent_env.steps.run import Decision, Run, Tell

if TYPE_CHECKING:
    from agent_env.artifacts import Artifacts
    from agent_env.defaults import Limits
    from agent_env.images import BuildRequest

__all__ = [
    "AgentRequest",
    "ContainerRequest",
    "Decision",
    "EntityRef",
    "EnvironmentRequest",
    "InstallRequest",
    "OnResume",
    "Plan",
    "RetryConfig",
    "Run",
    "SandboxRequest",
    "Step",
    "StepResult",
    "Tell",
    "UnreadableError",
    "apart",
]


class UnreadableError(AttributeError):
    """A field that could not be read was looked at while the rest of its step is checked. What is wrong with the field is told already."""


def apart(*checks: Iterable[Problem]) -> Iterator[Problem]:
    """What several checks of a step find. One that needs what could not be read finds no more, and the others go on."""
    for check in checks:
        with suppress(UnreadableError):
            yield from check


class OnResume(StrEnum):
    """What a resume does to a step that was cut half-way. Declared by every step class, held by a test over the registry."""

    REPEAT = "repeat"
    """Stop what the old attempt left behind, then do it again."""
    REATTACH = "reattach"
    """Adopt what still runs; the attempt keeps its id."""
    REFUSE = "refuse"
    """A person must decide; the error says what."""


class RetryConfig(BaseModel):
    """Going back to an earlier step after a failure."""

    model_config = ConfigDict(extra="allow", frozen=True, populate_by_name=True)

    retry_from_step_id: str = Field(validation_alias=AliasChoices("retry_from_step_id", "go_to_step_id"))
    """The step to go back to: this one, or one that it depends on."""
    max_retries: int = Field(default=1, ge=0, strict=True)
    """How often, beyond the first attempt."""
    backoff_seconds: Annotated[Number, Field(ge=0)] | None = None
    """First pause before a retry; null is immediate. Doubles each time."""
    reset_places: bool = False
    """Also redeploy the sandboxes that the span itself deployed."""

    def to_dict(self) -> dict[str, Json]:
        """The stored form; what is not the reference's only when it was given."""
        ours = self.model_dump(mode="json", exclude_unset=True, exclude={"retry_from_step_id", "max_retries"})
        return {"retry_from_step_id": self.retry_from_step_id, "max_retries": self.max_retries, **ours}


@dataclass(frozen=True, slots=True)
class EntityRef:
    """A field that names another document: how bundles find and rewrite ids."""

    kind: Literal["env", "agent", "artifact", "task"]
    path: str
    """Dotted keys with `[]` for list elements: `artifacts[].id`."""
    version_field: str | None = None
    """The sibling key that pins a version."""
    role: Literal["input", "output"] = "input"
    artifact_type: str | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step achieved. Step types return a frozen subclass of their own that overrides `updates` and `scores`."""

    def updates(self) -> Iterable[Update]:
        """What it adds to the run's context."""
        return ()

    def scores(self) -> Mapping[str, float | None]:
        """Verifier id → score from 0 to 1; None is unscored, which is not 0."""
        return {}

    def summary(self) -> str:
        """One line for the progress view; may be empty."""
        return ""

    def failure(self) -> AgentEnvError | None:
        """An error that fails the step although its updates are kept (evidence that must survive)."""
        return None


class Plan(Protocol):
    """What is known before anything starts: the graph, the names that flow over it, the documents it needs."""

    @property
    def task_id(self) -> str:
        """The task's id."""
        ...

    @property
    def artifacts(self) -> object | None:
        """Where artifacts are looked up. None: nothing is known of them, so none is missing either."""
        ...

    def deployers(self, step_id: str, type: str, **fields: Json) -> Sequence[Step]:
        """Steps before `step_id` (by the graph) of that type with those field values.

        Raises:
            UnreadableError: There is none, and one that could not be read may have been meant to be it.
        """
        ...

    def step(self, step_id: str) -> Step | None:
        """A step of this task."""
        ...

    def before(self, step_id: str) -> Sequence[Step]:
        """Every step that is certain to have ended when `step_id` starts, in list order."""
        ...

    def artifact(self, id: str, version: int | None) -> Mapping[str, Json] | None:
        """An artifact's document, or None. Predicted documents of a dry run count."""
        ...

    def artifact_files(self, id: str, version: int | None) -> Sequence[str] | None:
        """The relative file names of a file artifact or universe, or None when it is not that."""
        ...

    def environment(self, id: str, version: int | None = None) -> Mapping[str, Json] | None:
        """An environment's document, or None. Predicted ones, which lack versions and images, count."""
        ...

    def preset(self, list: str) -> Sequence[Mapping[str, Json]]:
        """Records that the run starts with (`--context-json`). Raises `UnreadableError` where they could not be read."""
        ...


class Step(BaseModel):
    """One step of a task. Subclasses say `class VerifySandbox(Step, type="verify_sandbox")`."""

    model_config = ConfigDict(extra="allow", frozen=True, populate_by_name=True, defer_build=True)

    type_name: ClassVar[str] = ""
    on_resume: ClassVar[OnResume] = OnResume.REPEAT
    entity_refs: ClassVar[tuple[EntityRef, ...] | None] = ()
    """None means undeclared: bundle ids inside it can't be rewritten."""
    user_fields: ClassVar[frozenset[str]] = frozenset()
    """Fields that belong to whoever runs the task, dropped when a task is imported into a bundle."""
    own_fields: ClassVar[frozenset[str]] = frozenset()
    """Fields that the reference does not have: written only when they say something."""
    images_by_name: ClassVar[bool] = False
    """`images` gives names alone: it needs no folder, and costs nothing to ask."""
    other_words: ClassVar[Mapping[str, str]] = {}
    """Keys that people know from elsewhere (Docker, Compose) → the field that is meant. To ignore one would do what nobody asked for."""

    id: str = Field(min_length=1)
    """Unique in the task; the key of what the step leaves in the run's context."""
    type: str = ""
    """The step's type."""
    version: int | None = None
    """Version of a stored step; without effect on a run."""
    depends_on: tuple[str, ...] | None = None
    """None: after all earlier steps; empty: no dependency."""
    fail_task_on_error: bool = True
    """False: the steps that depend on this one run although it failed."""
    retry_config: RetryConfig | None = None
    """Where to go back to when the step fails (`retry_from_step_id`), and how often (`max_retries`)."""
    timeout_seconds: Seconds | None = None
    """Limit of the whole step. Some types give the field their own meaning and say so."""
    always_run: bool = False
    """Runs also after a failure or cancellation of the run (clean-up, collecting evidence)."""

    def __init_subclass__(cls, *, type: str | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if type is not None:
            cls.type_name = type

    @field_validator("depends_on", mode="before")
    @classmethod
    def _step_ids(cls, value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, str):
            raise ValueError(f"is a list of step ids, not {value!r}")
        if not isinstance(value, list | tuple):
            raise ValueError(f"is a list of step ids, not {value!r}")
        return tuple(_step_id(entry) for entry in value)

    @property
    def deadline_seconds(self) -> float | None:
        """The limit that the engine enforces on the whole step; None is no limit of its own."""
        return self.timeout_seconds

    def under(self, limits: Limits) -> Self:
        """The step as this installation runs it: its limits, where the task leaves the built-in ones.

        A stored task spells every default out, so a field that says the built-in value counts as one that says nothing.
        """
        fields = type(self).model_fields
        own = {name: mark for name, field in fields.items() for mark in field.metadata if isinstance(mark, LimitDefault)}
        changed = {
            name: configured
            for name, mark in own.items()
            if getattr(self, name) == fields[name].default and (configured := mark.of(limits)) != getattr(self, name)
        }
        return self.model_copy(update=changed) if changed else self

    def to_dict(self) -> dict[str, Json]:
        """The stored form, in the reference's shape: every field of the type, ours only where they differ from their default."""
        stored: dict[str, Json] = {"id": self.id, "type": self.type or self.type_name, "version": self.version}
        stored["fail_task_on_error"] = self.fail_task_on_error
        if self.depends_on is not None:
            stored["depends_on"] = [{"task_step_id": name} for name in self.depends_on]
        if self.retry_config is not None:
            stored["retry_config"] = self.retry_config.to_dict()
        silent = self.own_fields | (_OURS - set(type(self).__annotations__))
        values = self.model_dump(mode="json", exclude=set(stored) | {"depends_on", "retry_config"})
        for name, value in values.items():
            field = type(self).model_fields.get(name)
            if name not in silent or field is None or getattr(self, name) != field.get_default(call_default_factory=True):
                stored[name] = value
        return stored

    def problems(self, plan: Plan) -> Iterator[Problem]:
        """Everything that can be known before anything starts. `Problem.path` is relative to the step (`.criteria[0]`).

        A step of which a field could not be read is checked too: the field raises `UnreadableError`, which ends the check that looks at it.
        Checks that don't depend on each other are therefore given to `apart`.
        """
        del plan
        return iter(())

    def passed_over(self) -> Iterator[Problem]:
        """What is written in it and does nothing, as warnings; `Problem.path` is relative to the step."""
        return iter(())

    def doubts(self) -> Iterator[Problem]:
        """What is written in it and may do nothing, as a configuration says. Told as `passed_over` is, and never refused."""
        return iter(())

    def idle_fields(self) -> frozenset[str]:
        """Fields that mean nothing to this step as it is written, so that nobody looks for what they name."""
        return frozenset()

    def images(self, artifacts: Artifacts, folder: Path, limits: Limits) -> Sequence[str | BuildRequest]:
        """The images that it will need and that are known before its turn: names, or what to build. Fetched and built ahead.

        Args:
            artifacts: Where a build's files are.
            folder: Empty, private, and there until they are built.
            limits: How much may be unpacked.
        """
        del artifacts, folder, limits
        return ()

    async def execute(self, run: Run) -> StepResult:
        """Does it.

        Raises:
            AgentEnvError: The step failed; `documents.outcomes` says what that means for the run.
        """
        raise TypeError(f"step type {self.type_name!r} has no execute (asked by run {run.run_id})")


_OURS = frozenset({"timeout_seconds", "always_run"})


def _step_id(entry: Any) -> str:
    if isinstance(entry, str):
        return entry
    if isinstance(entry, dict) and isinstance(entry.get("task_step_id"), str):
        return str(entry["task_step_id"])
    raise ValueError(f'a depends_on entry is a step id or {{"task_step_id": "…"}}, not {entry!r}')
