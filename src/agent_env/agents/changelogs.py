"""What each call of an agent's tools changed (`snapshot/v1`, changelog): asked for, fetched by way of the agent's own store, and replayed.

The agent uploads an increment a call to a corner of the store that it serves itself. That corner is known to this deployment alone: its
name is derived from the agent's token and written down nowhere.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path, PurePosixPath
from typing import Any, Final

from agent_env_sdk.wire.agent_extensions import SNAPSHOT, STAGING, STANDARDS, find
from agent_env_sdk.wire.names import STAGING_HEADER

from agent_env.agents.contract import LiveAgent
from agent_env.agents.faults import AgentFailedError, AgentNotAdvertisedError
from agent_env.agents.staging import NOWHERE, staged
from agent_env.clock import Clock
from agent_env.defaults import GIB, MIB, Limits

Json = Any
MAX_OBJECTS: Final = 10_000
MAX_OBJECT_BYTES: Final = 1 * GIB
MAX_TOTAL_BYTES: Final = 10 * GIB
"""What a changelog may be (reference)."""
_NAME: Final = re.compile(r"([0-9]{6})(?:\.[A-Za-z0-9][A-Za-z0-9._-]*)?")
"""What increments are called: the zero-based position of the tool call (reference)."""
_PURPOSE, _ROOT = "changelog", "changes"
_NOT_THERE: Final = 404
_LISTING_BYTES: Final = 16 * MIB


async def enable(agent: LiveAgent, *, clock: Clock, seconds: float, corner: str | None = None, days: int = 30) -> Sequence[str]:
    """Has an agent record what its calls change. Returns the folders that it watches.

    Args:
        agent: Which.
        clock: For how long it may upload.
        seconds: What asking may take.
        corner: Where in its store changes go; None: where only this deployment knows.
        days: How long it may upload.

    Raises:
        AgentNotAdvertisedError: It can't, or has no store of its own.
        AgentFailedError: It refused.
    """
    corner = corner or await _corner(agent)
    until = (clock.now() + timedelta(days=days)).strftime("%Y-%m-%dT%H:%M:%SZ")
    write = {
        "kind": "http-post-policy",
        "url": f"{NOWHERE}{corner}",
        "fields": {},
        "path_field": "key",
        "file_field": "file",
        "headers": {STAGING_HEADER: corner},
    }
    namespace = {
        "root_path": _ROOT,
        "expires_at": until,
        "max_objects": MAX_OBJECTS,
        "max_object_bytes": MAX_OBJECT_BYTES,
        "max_total_bytes": MAX_TOTAL_BYTES,
        "write": write,
    }
    answer = await agent.invoke(SNAPSHOT, "enable-changelog", {"write_namespace": namespace}, seconds=seconds)
    roots = answer.get("roots") if isinstance(answer, Mapping) else None
    if not isinstance(roots, list):
        raise AgentFailedError(f"agent {agent.record.agent_name!r} does not say what it watches", reason="bad_answer")
    return [str(each) for each in roots]


async def fetched(agent: LiveAgent, folder: Path, *, known: frozenset[str], limits: Limits, corner: str | None = None) -> dict[str, Path]:
    """Increments that the agent has uploaded, as files in a folder, by their names. They stay in its store until `cleared`.

    Args:
        agent: Whose.
        folder: Exists.
        known: Names that were fetched before.
        limits: For how long.
        corner: As it was enabled.

    Raises:
        AgentFailedError: What it has is no changelog, or more than one may be.
        AgentUnreachableError: It does not answer.
    """
    corner, name = corner or await _corner(agent), agent.record.agent_name
    listing = folder / "listing.json"
    try:
        await agent.get_file(f"{corner}/", listing, limit_bytes=_LISTING_BYTES, seconds=limits.transfer_seconds)
    except AgentFailedError as error:
        if error.status == _NOT_THERE:  # nothing was uploaded yet
            return {}
        raise
    objects = _objects(await asyncio.to_thread(listing.read_bytes))
    if objects is None:
        raise AgentFailedError(f"agent {name!r} does not list its objects as a store does", concerns=name, reason="bad_answer")
    names = [PurePosixPath(str(each.get("path"))).name for each in objects]
    odd = sorted(each for each in names if not _NAME.fullmatch(each))
    size = sum(told for each in objects if type(told := each.get("size_bytes")) is int)
    if odd or len(names) > MAX_OBJECTS or size > MAX_TOTAL_BYTES:
        told = f"{odd[0]!r} is no increment's name" if odd else f"{len(names)} increments of {size} bytes are too much"
        raise AgentFailedError(f"agent {name!r} keeps no changelog: {told}", concerns=name, reason="bad_changelog")
    files = {}
    for each in sorted(set(names) - known):
        files[each] = folder / each
        path = f"{corner}/{_ROOT}/{each}"
        await agent.get_file(path, files[each], limit_bytes=MAX_OBJECT_BYTES, seconds=limits.transfer_seconds)
    return files


async def cleared(agent: LiveAgent, names: Sequence[str]) -> None:
    """Removes increments that are safe from the agent's store."""
    corner = await _corner(agent)
    for name in names:
        await agent.delete(f"{corner}/{_ROOT}/{name}")


async def apply(agent: LiveAgent, increments: Mapping[str, Path], *, limits: Limits, clock: Clock, seconds: float) -> str | None:
    """Has an agent replay increments. Returns the conversation that it took up, where it says one.

    Args:
        agent: Which.
        increments: By name.
        limits: For how long.
        clock: For what may be read how long.
        seconds: What replaying may take.

    Raises:
        AgentNotAdvertisedError: It can't.
        AgentFailedError: It could not, or replayed another number of them.
    """
    if not increments:
        return None
    async with staged(agent, limits, clock) as staging:
        told = [{"sequence": sequence_of(name), "object": await staging.put(name, file)} for name, file in sorted(increments.items())]
        answer = await agent.invoke(SNAPSHOT, "apply-changelog", {"increments": told}, seconds=seconds)
    count = answer.get("count") if isinstance(answer, Mapping) else None
    if count != len(told):
        name = agent.record.agent_name
        raise AgentFailedError(f"agent {name!r} replayed {count} of {len(told)} changes", concerns=name, reason="bad_answer")
    context = answer.get("context_id")
    return context if isinstance(context, str) else None


def _objects(listing: bytes) -> list[Mapping[str, Json]] | None:
    """What a store's listing names; None where it is no listing."""
    try:
        value = json.loads(listing)
    except (ValueError, RecursionError):
        return None
    found = value.get("objects") if isinstance(value, Mapping) else None
    return found if isinstance(found, list) and all(isinstance(each, Mapping) for each in found) else None


def sequence_of(name: str) -> int:
    """The position of the tool call that an increment is named after.

    Raises:
        ValueError: It is no increment's name.
    """
    found = _NAME.fullmatch(name)
    if found is None:
        raise ValueError(f"{name!r} is no increment's name")
    return int(found[1])


async def _corner(agent: LiveAgent) -> str:
    """Where in its store this deployment's changes are."""
    name = agent.record.agent_name
    extension, secret = find(await agent.card(), STAGING), agent.secret_name(_PURPOSE)
    if extension is None or secret is None:
        why = "has no store of its own" if extension is None else "is known by its address alone, so nothing in it is only ours"
        raise AgentNotAdvertisedError(f"agent {name!r} {why}, through which its changes could go", concerns=name)
    endpoint = str((extension.params or {}).get("endpoint") or STANDARDS[STAGING].path)
    return f"{endpoint.rstrip('/')}/{secret}"
