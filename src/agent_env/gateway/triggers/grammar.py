"""What a registration may say: every field with its rule, checked whole before anything of it holds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, Literal, TypeVar

from agent_env_sdk.wire.clock import parse_duration, parse_instant
from agent_env_sdk.wire.names import DEFAULT_ROLE
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from agent_env.gateway.triggers import patterns, timing, values

Text = Annotated[str, Field(min_length=1)]
Roles = Annotated[list[Text], Field(min_length=1)]
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HOUR = r"^(?:[01]\d|2[0-3]):[0-5]\d$"


class _Said(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", validate_by_name=True, validate_by_alias=True, serialize_by_alias=True)


class Predicate(_Said):
    """Exactly one of the three."""

    regex: str | None = None
    equals: Any = None
    exists: bool | None = None

    @model_validator(mode="after")
    def _one(self) -> Predicate:
        given = self.model_fields_set & {"regex", "equals", "exists"}
        if len(given) != 1:
            raise ValueError("exactly one of 'regex', 'equals' and 'exists' is needed")
        if self.regex is not None:
            try:
                patterns.check(self.regex)
            except patterns.PatternError as error:
                raise ValueError(f"regex {self.regex!r} is no pattern: {error}") from error
        return self


Where = Mapping[str, Predicate]


class Extract(_Said):
    """The first item of a list that matches, or one field of it."""

    path: Text
    match: dict[str, Predicate] = Field(default_factory=dict)
    take: str | None = None


class Look(_Said):
    """One step of a check: a tool that only reads."""

    tool: Text
    args: dict[str, Any] = Field(default_factory=dict)
    extract: str | Extract | None = None
    bind: Text | None = None
    predicate: Predicate | None = None


class Check(_Said):
    """Steps that end in a predicate. One step may stand alone."""

    steps: Annotated[list[Look], Field(min_length=1)]

    @model_validator(mode="before")
    @classmethod
    def _single(cls, value: Any) -> Any:
        return {"steps": [value]} if isinstance(value, dict) and "steps" not in value and "tool" in value else value

    @model_validator(mode="after")
    def _decides(self) -> Check:
        if self.steps[-1].predicate is None:
            raise ValueError("the last step of a check needs a 'predicate'")
        return self


def _positive(text: str, what: str) -> str:
    if parse_duration(text) <= timedelta(0):
        raise ValueError(f"{what} must be longer than nothing")
    return text


class Exponential(_Said):
    """Gaps that are drawn: memoryless, with this mean."""

    dist: Literal["exp"]
    mean: str
    seed: int | None = None

    @field_validator("mean")
    @classmethod
    def _mean(cls, value: str) -> str:
        return _positive(value, "mean")


class Unless(_Said):
    """The call that makes a deadline pointless."""

    tool: Text
    where: dict[str, Predicate] = Field(default_factory=dict)
    roles: Roles | None = None


class ActionWhen(_Said):
    """A watched role's successful tool call."""

    type: Literal["action"]
    tool: Text
    where: dict[str, Predicate] = Field(default_factory=dict)
    repeat: bool = False
    roles: Roles | None = None


class StateWhen(_Said):
    """What reading tools say, looked at after each call that may have changed it."""

    type: Literal["state"]
    check: Check
    roles: Roles | None = None


class TimeWhen(_Said):
    """The virtual clock."""

    type: Literal["time"]
    at: str | None = None
    after: Text | None = None
    offset: str | None = None
    every: str | Exponential | None = None
    seed: int | None = None
    count: Annotated[int, Field(gt=0)] | None = None
    until: str | None = None
    unless: Unless | None = None
    roles: Roles | None = None

    @model_validator(mode="after")
    def _fits(self) -> TimeWhen:
        if self.at is None and self.after is None and self.every is None:
            raise ValueError("a time trigger needs 'at', 'after' or 'every'")
        if self.at is not None and self.after is not None:
            raise ValueError("'at' and 'after' exclude each other")
        if (self.after is None) != (self.offset is None):
            raise ValueError("'after' and 'offset' need each other")
        if self.unless is not None and self.every is not None:
            raise ValueError("'unless' is for what happens once, not for 'every'")
        if self.every is None and (self.count is not None or self.until is not None):
            raise ValueError("'count' and 'until' need 'every'")
        drawn = isinstance(self.every, Exponential)
        if drawn != (self.seed is not None):
            raise ValueError("a drawn 'every' needs a whole number as 'seed', and nothing else has one")
        for text in (self.at, self.until):
            if text is not None:
                parse_duration(text) if text.startswith("P") else parse_instant(text)
        if self.offset is not None:
            parse_duration(self.offset)
        if isinstance(self.every, str):
            _positive(self.every, "every")
        return self


class WebsiteWhen(_Said):
    """A request to a website."""

    type: Literal["website"]
    app: Text
    method: Text | None = None
    path: Predicate | None = None
    status: Predicate | None = None
    where: dict[str, Predicate] = Field(default_factory=dict)
    repeat: bool = False
    roles: Roles | None = None

    @field_validator("method")
    @classmethod
    def _upper(cls, value: str | None) -> str | None:
        return value.strip().upper() if value is not None else None


When = Annotated[ActionWhen | StateWhen | TimeWhen | WebsiteWhen, Field(discriminator="type")]


class _Action(_Said):
    delay: str | Exponential | None = None

    @field_validator("delay")
    @classmethod
    def _delay(cls, value: str | Exponential | None) -> str | Exponential | None:
        if isinstance(value, Exponential) and value.seed is None:
            raise ValueError("a drawn 'delay' needs a whole number as 'seed'")
        return _positive(value, "delay") if isinstance(value, str) else value


class ToolAction(_Action):
    """A tool call of the environment's own."""

    type: Literal["tool"]
    tool: Text
    args: dict[str, Any] = Field(default_factory=dict)
    acting: str | None = Field(default=None, alias="as")
    verify: Check | None = None

    @field_validator("acting")
    @classmethod
    def _role(cls, value: str | None) -> str | None:
        role = value.strip() if value is not None else None
        if role is not None and (not role or role == DEFAULT_ROLE or "${" in role):
            raise ValueError(f"'as' must be a role other than {DEFAULT_ROLE!r}, written out")
        return role


class PermissionAction(_Action):
    """A change of who may use what."""

    type: Literal["permission"]
    action: Literal["enable", "disable"]
    role: Text
    tools: list[str] | Literal["*"]
    verify: Check | None = None


class InstructionAction(_Action):
    """Something that an agent is asked to do."""

    type: Literal["nl"]
    instruction: Text
    executor: Text | None = None
    verify: Check | None = None

    @field_validator("instruction")
    @classmethod
    def _literal(cls, value: str) -> str:
        reached = values.reaches_for_call(value)
        if reached is not None:
            raise ValueError(f"instruction: {reached!r} would stay as it is: instructions are not filled in")
        return value


Action = Annotated[ToolAction | PermissionAction | InstructionAction, Field(discriminator="type")]


class Barrier(_Said):
    """What waits for the fire."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    at: Literal["provoking_call"]
    timeout_seconds: Annotated[float, Field(gt=0)] | None = None


class Trigger(_Said):
    """One trigger."""

    id: Text
    when: When
    actions: Annotated[list[Action], Field(min_length=1)]
    barrier: Barrier | None = None

    @model_validator(mode="after")
    def _fits(self) -> Trigger:
        when = self.when
        roots = {"action": ("args", "result"), "website": ("args",)}.get(when.type, ())
        for key in getattr(when, "where", {}):
            root, path = values.rooted(key)
            if path and root not in roots:
                raise ValueError(f"where.{key}: what sets this trigger off carries no {root}")
            if path:
                values.check_path(path)
        for action in self.actions:
            if isinstance(action, ToolAction):
                values.check_template(action.args, roots)
            for look in action.verify.steps if action.verify is not None else ():
                values.check_template(look.args, roots)
        if self.barrier is not None:
            if not isinstance(when, ActionWhen | WebsiteWhen):
                raise ValueError("barrier: only a call or a request can be made to wait")
            if any(action.delay is not None for action in self.actions):
                raise ValueError("barrier: nothing may wait for an action with a 'delay'")
        return self

    def tools(self) -> list[tuple[str, str]]:
        """Each tool that it names, and where."""
        when, found = self.when, []
        match when:
            case ActionWhen():
                found.append(("when.tool", when.tool))
            case StateWhen():
                found += [("when.check", look.tool) for look in when.check.steps]
            case TimeWhen() if when.unless is not None:
                found.append(("when.unless.tool", when.unless.tool))
        for place, action in enumerate(self.actions):
            if isinstance(action, ToolAction):
                found.append((f"actions[{place}].tool", action.tool))
            found += [(f"actions[{place}].verify", look.tool) for look in (action.verify.steps if action.verify else ())]
        return found


class Hours(_Said):
    """When an executor works."""

    start: Annotated[str, Field(pattern=_HOUR)]
    end: Annotated[str, Field(pattern=_HOUR)]
    utc_offset: str | None = None
    time_zone: str | None = None
    days: Annotated[tuple[Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"], ...], Field(min_length=1)] = timing.DAYS

    @model_validator(mode="after")
    def _fits(self) -> Hours:
        if self.start == self.end:
            raise ValueError("start and end are the same: the hours would never be open")
        if self.utc_offset is not None and self.time_zone is not None:
            raise ValueError("'utc_offset' and 'time_zone' exclude each other")
        timing.zone(self.time_zone, self.utc_offset or "+00:00")
        return self


class Executor(_Said):
    """An agent that carries out instructions."""

    a2a_url: Text
    role: Text
    timeout_seconds: Annotated[float, Field(gt=0)] | None = None
    hours: Hours | None = None
    headers: dict[Text, str] = Field(default_factory=dict, repr=False)
    """What it is asked with, such as `Authorization`; kept, and shown to nobody."""

    @field_validator("headers")
    @classmethod
    def _plain(cls, value: dict[str, str]) -> dict[str, str]:
        for name, text in value.items():
            if not _HEADER.fullmatch(name) or not text.isprintable() or not text.isascii():
                raise ValueError(f"headers.{name}: no header could carry it")
        return value

    @field_validator("a2a_url")
    @classmethod
    def _bare(cls, value: str) -> str:
        return value.rstrip("/")


Model = TypeVar("Model", bound=BaseModel)


def read(kind: type[Model], value: Any, where: str) -> Model:
    """The value as its model.

    Raises:
        ValueError: It is none; says where it departs first.
    """
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        said = "no such key" if first["type"] == "extra_forbidden" else first["msg"].removeprefix("Value error, ")
        raise ValueError(f"{where}{': ' + place if place else ''}: {said}") from error
