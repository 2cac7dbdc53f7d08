"""A run's context: the fold of what its committed attempts returned, over what it started with.

Contexts are values. Every commit makes a new one that shares all it did not touch, so a commit costs what it adds, whoever holds
an older one keeps it unchanged, and a rollback is a fold over fewer attempts. Readers get frozen JSON: a step that tries to write
into it is told to return updates.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from agent_env.documents.updates import AppendRecord, ExtendMetadata, Json, SetField, SetMetadata, Update


def _read_only(*_: object, **__: object) -> NoReturn:
    raise TypeError("the run's context is read only: a step returns updates instead of writing into it")


class FrozenDict(dict[str, Json]):
    """A JSON object that is read like a dict and can't be changed. `copy.deepcopy` gives a plain dict."""

    __setitem__ = __delitem__ = update = pop = popitem = clear = setdefault = __ior__ = _read_only

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Json]:
        return {key: thawed(value) for key, value in self.items()}

    def __copy__(self) -> dict[str, Json]:
        return dict(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (self.__deepcopy__({}),)


class FrozenList(list[Json]):
    """A JSON list that can't be changed. `copy.deepcopy` gives a plain list."""

    __setitem__ = __delitem__ = append = extend = insert = pop = remove = clear = sort = reverse = _read_only
    __iadd__ = __imul__ = _read_only

    def __deepcopy__(self, memo: dict[int, Any]) -> list[Json]:
        return [thawed(value) for value in self]

    def __copy__(self) -> list[Json]:
        return list(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (self.__deepcopy__({}),)


_FROZEN = (FrozenDict, FrozenList, str, int, float)


def frozen(value: Json) -> Json:
    """The value as frozen JSON; what is frozen already is shared, not copied."""
    if value is None or isinstance(value, _FROZEN):
        return value
    if isinstance(value, dict | Mapping):  # what is nearly always one is asked first: of the other, Python asks at length
        return FrozenDict({key: frozen(below) for key, below in value.items()})
    if isinstance(value, list | tuple):
        return FrozenList(map(frozen, value))
    return value


def thawed(value: Json) -> Json:
    """A plain copy that may be changed."""
    if isinstance(value, dict):
        return {key: thawed(below) for key, below in value.items()}
    if isinstance(value, list):
        return [thawed(below) for below in value]
    return value


def extended(context: FrozenDict, updates: Iterable[Update]) -> FrozenDict:
    """The context with the updates folded in. The given one is unchanged."""
    top: dict[str, Json] = dict(context)
    for update in updates:
        match update:
            case AppendRecord(where, record):
                top[where] = FrozenList([*(top.get(where) or ()), frozen(record)])
            case SetField(name, value):
                top[name] = frozen(value)
            case SetMetadata(path, value):
                top["metadata"] = _with(top.get("metadata"), path, frozen(value))
            case ExtendMetadata(path, items):
                existing = _at(top.get("metadata"), path)
                before = existing if isinstance(existing, list) else ()
                top["metadata"] = _with(top.get("metadata"), path, FrozenList([*before, *map(frozen, items)]))
    return FrozenDict(top)


def _with(folder: Json, path: Sequence[str], value: Json) -> FrozenDict:
    copy = dict(folder) if isinstance(folder, dict) else {}
    copy[path[0]] = value if len(path) == 1 else _with(copy.get(path[0]), path[1:], value)
    return FrozenDict(copy)


def _at(folder: Json, path: Sequence[str]) -> Json:
    for name in path:
        if not isinstance(folder, dict):
            return None
        folder = folder.get(name)
    return folder


@dataclass(frozen=True)
class Committed:
    """A finished attempt, as the fold needs it."""

    attempt_id: str
    step_id: str
    updates: tuple[Update, ...] = ()
    failure: Mapping[str, Json] | None = None
    """Its `failed_steps` entry, when it failed."""
    scores: Mapping[str, float | None] = field(default_factory=dict)
    superseded: bool = False
    """Rolled back: its updates and scores count no more, its failure stays on record as retried."""


@dataclass(frozen=True)
class Fold:
    """What a run knows: its start, the attempts that ended, in that order, and the retries that took some back."""

    start: FrozenDict
    attempts: tuple[Committed, ...] = ()
    resets: tuple[Mapping[str, Json], ...] = ()
    context: FrozenDict = field(default_factory=FrozenDict)

    @classmethod
    def of(cls, start: Mapping[str, Json], attempts: Iterable[Committed] = (), resets: Iterable[Mapping[str, Json]] = ()) -> Fold:
        """The fold of a whole history."""
        frozen_start = frozen(start)
        attempts, resets = tuple(attempts), tuple(resets)
        context: FrozenDict = extended(frozen_start, (u for attempt in attempts if not attempt.superseded for u in attempt.updates))
        return cls(frozen_start, attempts, resets, extended(context, _audit(attempts, resets)))

    def committed(self, attempt: Committed) -> Fold:
        """With one more attempt; costs what the attempt adds."""
        updates = [*attempt.updates]
        if attempt.failure is not None:
            updates.append(ExtendMetadata(("failed_steps",), [attempt.failure]))
        return Fold(self.start, (*self.attempts, attempt), self.resets, extended(self.context, updates))

    def rolled_back(self, attempt_ids: Iterable[str], reset: Mapping[str, Json] | None) -> Fold:
        """With some attempts taken back, and the entry that says so."""
        gone = frozenset(attempt_ids)
        attempts = (_superseded(attempt) if attempt.attempt_id in gone else attempt for attempt in self.attempts)
        return Fold.of(self.start, attempts, (*self.resets, reset) if reset else self.resets)

    def standing(self, step_id: str) -> Committed | None:
        """The attempt of a step that counts: the last one that was not taken back."""
        return next((a for a in reversed(self.attempts) if a.step_id == step_id and not a.superseded), None)

    @property
    def scores(self) -> Mapping[str, float | None]:
        """Verifier → score, of the attempts that count; a later one of the same name wins."""
        return {name: score for attempt in self.attempts if not attempt.superseded for name, score in attempt.scores.items()}

    def retries_of(self, step_id: str) -> int:
        """How often a step has asked for a retry."""
        own = [reset for reset in self.resets if reset.get("step_id") == step_id]
        return sum(1 for reset in own if not reset.get("redeployed") and not reset.get("resumed"))


def _superseded(attempt: Committed) -> Committed:
    return Committed(attempt.attempt_id, attempt.step_id, attempt.updates, attempt.failure, attempt.scores, superseded=True)


def _audit(attempts: Iterable[Committed], resets: Sequence[Mapping[str, Json]]) -> Iterable[Update]:
    failures = [{**a.failure, "retried": True} if a.superseded else a.failure for a in attempts if a.failure is not None]
    if failures:
        yield ExtendMetadata(("failed_steps",), failures)
    if resets:
        yield ExtendMetadata(("retry_resets",), resets)
