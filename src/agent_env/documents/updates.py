"""What a step adds to its run, as data.

A step never writes into a shared dictionary. It returns updates; the journal keeps them with the attempt; the run's context is
their fold in the order in which the attempts ended. Nothing is compared, so duplicates, empty lists and overlapping writes
survive, and a retry takes an attempt back by leaving it out of the fold.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Json = Any
"""A JSON value: None, bool, int, float, str, list or dict of them."""

RecordList = Literal["deployed_envs", "deployed_agents", "deployed_sandboxes", "prompt_responses"]
ScalarField = Literal["agent_model", "default_agent_model", "agent_artifact_id", "agent_harness", "instance_id"]


@dataclass(frozen=True, slots=True)
class AppendRecord:
    """Adds one record to a list of the context."""

    list: RecordList
    record: Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class SetMetadata:
    """Puts a value under a path of `metadata`; folders on the way are made."""

    path: tuple[str, ...]
    value: Json


@dataclass(frozen=True, slots=True)
class ExtendMetadata:
    """Adds items at the end of a list of `metadata`, made when absent, also with nothing to add."""

    path: tuple[str, ...]
    items: Sequence[Json]


@dataclass(frozen=True, slots=True)
class SetField:
    """Sets one of the context's own scalars."""

    name: ScalarField
    value: Json


Update = AppendRecord | SetMetadata | ExtendMetadata | SetField

_TAGS: Mapping[str, type[Update]] = {
    "append": AppendRecord,
    "set": SetMetadata,
    "extend": ExtendMetadata,
    "field": SetField,
}


def encode(updates: Iterable[Update]) -> list[list[Json]]:
    """Updates as JSON, one `[tag, where, what]` each."""
    rows: list[list[Json]] = []
    for update in updates:
        match update:
            case AppendRecord(where, record):
                rows.append(["append", where, dict(record)])
            case SetMetadata(path, value):
                rows.append(["set", list(path), value])
            case ExtendMetadata(path, items):
                rows.append(["extend", list(path), list(items)])
            case SetField(name, value):
                rows.append(["field", name, value])
    return rows


def decode(rows: Iterable[Sequence[Json]]) -> list[Update]:
    """The inverse of `encode`."""
    updates: list[Update] = []
    for tag, where, what in rows:
        kind: Any = _TAGS[tag]
        updates.append(kind(tuple(where) if isinstance(where, list) else where, what))
    return updates
