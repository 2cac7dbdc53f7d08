"""`triggers/v1`: what a simulated user says without a model, by rules that are registered beforehand.

A decision is all or nothing: what fired is remembered only when every rule could be looked at.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import Field, StrictBool, StrictInt, StrictStr, ValidationError, field_validator, model_validator

from agent_env_sdk.wire.agent_bodies import Body
from agent_env_sdk.wire.errors import AgentEnvError

from .registrations import InvalidFieldsError

MAX_TRIGGERS: Final = 256
MAX_CONTEXTS: Final = 1024
MAX_LOG: Final = 1024
MAX_SPEC_BYTES: Final = 16 * 1024
MAX_MESSAGE: Final = 200_000
REGEX_SECONDS: Final = 1.0
"""For all expressions of one decision together. This and the numbers above are the protocol's."""


class _Predicate(Body):
    regex: Annotated[StrictStr, Field(max_length=4096)] | None = None
    equals: StrictStr | None = None
    exists: StrictBool | None = None

    @model_validator(mode="after")
    def _one(self) -> _Predicate:
        if sum(each is not None for each in (self.regex, self.equals, self.exists)) != 1:
            raise ValueError("needs exactly one of regex, equals and exists")
        return self

    @field_validator("regex")
    @classmethod
    def _compiles(cls, value: str | None) -> str | None:
        if value is not None:
            import regex  # where it is used: it takes a good part of what an agent's start takes

            try:
                regex.compile(value)
            except regex.error as error:
                raise ValueError(f"is no regular expression: {error}") from None
        return value


class _Where(Body):
    message: _Predicate


class _Step(Body):
    type: Literal["step"]
    turn: Annotated[StrictInt, Field(ge=1)] = 1
    cmp: Literal["eq", "gte"] = "eq"


class _EnvTrigger(Body):
    type: Literal["env_trigger"]
    env_id: Annotated[StrictStr, Field(min_length=1, max_length=256)]
    trigger_id: Annotated[StrictStr, Field(min_length=1, max_length=128)]
    status: Annotated[StrictStr, Field(min_length=1, max_length=128)] = "fired"


class _Conversational(Body):
    type: Literal["conversational"]
    where: _Where


class _Several(Body):
    type: Literal["all", "any"]
    of: Annotated[list[_When], Field(min_length=1)]


_When = Annotated[_Step | _EnvTrigger | _Conversational | _Several, Field(discriminator="type")]


class _Say(Body):
    type: Literal["say"]
    text: Annotated[StrictStr, Field(min_length=1, max_length=8192)]


class _End(Body):
    type: Literal["end"]


class Trigger(Body):
    """One rule."""

    id: Annotated[StrictStr, Field(min_length=1, max_length=128)] | None = None
    once: StrictBool = True
    when: _When
    actions: Annotated[list[Annotated[_Say | _End, Field(discriminator="type")]], Field(min_length=1)]


class _Register(Body):
    triggers: list[Trigger]


class Decide(Body):
    """What a decision is made from."""

    turn: Annotated[StrictInt, Field(ge=1)]
    solver_message: Annotated[str, Field(max_length=MAX_MESSAGE)] = ""
    context_id: Annotated[StrictStr, Field(min_length=1, max_length=256)] = "default"
    env_triggers: dict[str, dict[str, str]] = Field(default_factory=dict)


B = TypeVar("B", bound=Body)


@dataclass
class _Context:
    last_turn: int = 0
    fired: set[str] = field(default_factory=set)


class Triggers:
    """The rules of one agent, and what each conversation has seen of them."""

    def __init__(self) -> None:
        self._rules: dict[str, Trigger] = {}
        self._contexts: dict[str, _Context] = {}
        self._log: deque[dict[str, Any]] = deque(maxlen=MAX_LOG)
        self._one_at_a_time = asyncio.Lock()

    def register(self, sent: Mapping[str, Any]) -> dict[str, Any]:
        """Adds rules, all of them or none; the same rule again is no change.

        Raises:
            AgentEnvError: A rule doesn't fit, is longer than allowed, or another one has its id.
        """
        rules = self._rules.copy()
        added = []
        for rule in _validated(_Register, sent).triggers:
            if len(json.dumps(rule.model_dump(mode="json"))) > MAX_SPEC_BYTES:
                raise AgentEnvError("invalid_params", f"a trigger is longer than {MAX_SPEC_BYTES} bytes")
            name = rule.id or f"trg_{uuid.uuid4().hex[:12]}"
            named = rule.model_copy(update={"id": name})
            if rules.setdefault(name, named) != named:
                raise AgentEnvError("invalid_params", f"another trigger has the id {name!r}")
            added.append(name)
        if len(rules) > MAX_TRIGGERS:
            raise AgentEnvError("invalid_params", f"no more than {MAX_TRIGGERS} triggers can be registered")
        self._rules = rules
        self._log.append({"kind": "registered", "added": added})
        return {"ok": True, "added": added, "all": list(rules)}

    async def decide(self, sent: Mapping[str, Any]) -> dict[str, Any]:
        """What the user says at this turn, and whether the conversation ends.

        Raises:
            AgentEnvError: The fields don't fit, too many conversations are known, or the expressions took too long (504).
        """
        body = _validated(Decide, sent)
        async with self._one_at_a_time:
            known = self._contexts.get(body.context_id)
            if known is None and len(self._contexts) >= MAX_CONTEXTS:
                raise AgentEnvError("invalid_params", f"no more than {MAX_CONTEXTS} conversations can be decided for")
            before = known if known is not None and body.turn > known.last_turn else _Context()
            # On a thread: an expression may take its whole second, and the loop serves others meanwhile.
            fired = await asyncio.to_thread(lambda: list(self._matching(body, before)))
            self._contexts[body.context_id] = _Context(body.turn, before.fired | {name for name, _ in fired})
        actions = [action for _, rule in fired for action in rule.actions]
        said = "\n".join(action.text for action in actions if isinstance(action, _Say))
        names = [name for name, _ in fired]
        self._log.extend({"kind": "fired", "id": name, "turn": body.turn, "context_id": body.context_id} for name in names)
        return {
            "parts": [{"kind": "text", "text": said}] if said else [],
            "done": any(isinstance(action, _End) for action in actions),
            "fired": names,
        }

    def state(self) -> dict[str, Any]:
        """The rules, and what has happened with them."""
        rules = [{"id": name, "when_type": rule.when.type, "once": rule.once} for name, rule in self._rules.items()]
        return {"triggers": rules, "firing_log": list(self._log)}

    def _matching(self, body: Decide, context: _Context) -> Iterator[tuple[str, Trigger]]:
        deadline = time.monotonic() + REGEX_SECONDS
        for name, rule in self._rules.items():
            if not (rule.once and name in context.fired) and _holds(rule.when, body, deadline):
                yield name, rule


def _holds(when: Any, body: Decide, deadline: float) -> bool:
    match when:
        case _Step(turn=turn, cmp=cmp):
            return body.turn == turn if cmp == "eq" else body.turn >= turn
        case _EnvTrigger(env_id=env, trigger_id=trigger, status=status):
            return body.env_triggers.get(env, {}).get(trigger) == status
        case _Conversational(where=where):
            return _says(where.message, body.solver_message, deadline)
        case _:
            inner = (_holds(each, body, deadline) for each in when.of)
            return all(inner) if when.type == "all" else any(inner)


def _says(predicate: _Predicate, message: str, deadline: float) -> bool:
    if predicate.equals is not None:
        return message == predicate.equals
    if predicate.exists is not None:
        return bool(message) == predicate.exists
    if predicate.regex is None:
        return False
    import regex

    left = deadline - time.monotonic()
    try:
        if left <= 0:
            raise TimeoutError
        return regex.search(predicate.regex, message, timeout=left, concurrent=True) is not None
    except TimeoutError:
        raise AgentEnvError(
            "regex_timeout", f"the expressions took longer than {REGEX_SECONDS:g} s", status=504, hint="make them simpler"
        ) from None


def _validated(model: type[B], sent: Mapping[str, Any]) -> B:
    try:
        return model.model_validate(dict(sent))
    except ValidationError as error:
        raise InvalidFieldsError(error) from None
