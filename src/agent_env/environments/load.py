"""Loads seed data into an environment's servers, all of it or none: when one fails, all that were touched get back what they held."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

import httpx
from agent_env_sdk.wire.names import ADD, GET, LOAD_JOBS, RESET

from agent_env.environments.client import EnvironmentClient, load_seconds
from agent_env.environments.contract import LiveEnvironment
from agent_env.environments.faults import EnvironmentFailedError, NotAdvertisedError
from agent_env.environments.jobs import LoadProgress
from agent_env.environments.transfers import SERVER_FOLDER, WEBSITE_FOLDER, Seed, inlined, staged
from agent_env.errors import AgentEnvError, PlacementError
from agent_env.waiting import back_off, shielded

Json = Any
Tell = Callable[[str], None]
_LEGACY_ATTEMPTS = 5
"""Of a legacy server's reset tool (reference)."""


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What was loaded."""

    loaded: tuple[str, ...]
    """Environment names, in the order given."""
    skipped: tuple[str, ...] = ()
    """Seeds of servers that this environment does not have."""


@dataclass
class _Target:
    """One server on its way."""

    key: str
    seed: Seed
    client: EnvironmentClient
    website: bool
    legacy: bool = False
    path: PurePosixPath | None = None
    part: dict[str, Json] = field(default_factory=dict)
    before: list[dict[str, Json]] | None = None
    """What it held; None where it can't say."""
    touched: bool = False
    error: AgentEnvError | None = None


async def load_seeds(
    live: LiveEnvironment, seeds: Sequence[Seed], *, tell: Tell, loaded: Callable[[str], object] | None = None
) -> LoadReport:
    """Replaces what servers hold by seed data.

    Every file is staged, and what each server holds is exported, before the first of them is touched.

    Args:
        live: The environment.
        seeds: At most one for a server; those of servers that it does not have are skipped where it has several.
        tell: Hears what goes on.
        loaded: Told each environment name whose load has succeeded, before the others have.

    Raises:
        PlacementError: A seed is for a server that the environment does not have, and it has only one.
        EnvironmentFailedError: A server did not take its data; the message says of each, and whether the previous state is back.
        InfrastructureError: A server could not be reached.
    """
    targets, skipped = _targets(live, seeds)
    for name in skipped:
        tell(f"no server of environment {live.record.env_id!r} is called {name!r}: its data is left out")
    await asyncio.gather(*(_prepare(live, target, alone=len(targets) == 1) for target in targets))
    limit = asyncio.Semaphore(targets[0].client.limits.environment_loads if targets else 1)
    try:
        await asyncio.gather(*(_bounded(limit, target, tell, loaded) for target in targets))
    except asyncio.CancelledError:
        await _undone(targets)
        raise
    failed = {target.seed.environment_name: target.error for target in targets if target.error is not None}
    if failed:
        raise _failure(live, failed, await _undone(targets))
    for target in targets:
        await live.begin_changes(target.key)
    return LoadReport(tuple(target.seed.environment_name for target in targets), tuple(skipped))


def _targets(live: LiveEnvironment, seeds: Sequence[Seed]) -> tuple[list[_Target], list[str]]:
    """A server and a website of one name share their data, and loads go to the server (reference)."""
    parts, targets, skipped = live.parts, [], []
    for seed in seeds:
        named = [key for key, part in parts.items() if part.name == seed.environment_name]
        if not named:
            skipped.append(seed.environment_name)
            continue
        key = min(named, key=lambda each: parts[each].kind != "mcp_server")
        targets.append(_Target(key, seed, live.client(key), parts[key].kind == "website"))
    if skipped and len(parts) == 1 and not targets:
        only = next(iter(parts.values())).name
        raise PlacementError(
            f"environment {live.record.env_id!r} has one server, {only!r}, and the data is for {', '.join(sorted(skipped))}",
            concerns=live.record.env_id,
            hint=f"name the data's environment {only!r}",
        )
    return targets, skipped


async def _prepare(live: LiveEnvironment, target: _Target, *, alone: bool) -> None:
    folder = WEBSITE_FOLDER if target.website else SERVER_FOLDER
    operations = await target.client.operations()
    target.legacy = not operations
    try:
        place = await live.place(target.key)
    except PlacementError:  # a plug-in's, that stands where we can't write
        target.part = await inlined(target.seed)
    else:
        target.part = await staged(target.seed, place, folder)
        target.path = folder / target.seed.filename
    rolls_back = alone and await target.client.advertises(LOAD_JOBS)
    if {RESET, ADD, GET} <= set(operations) and not rolls_back:
        try:
            target.before = await target.client.get(timeout_seconds=target.client.limits.environment_add_seconds)
        except EnvironmentFailedError:
            target.before = None


async def _bounded(limit: asyncio.Semaphore, target: _Target, tell: Tell, loaded: Callable[[str], object] | None) -> None:
    async with limit:
        name = target.seed.environment_name
        tell(f"loading {name}")
        target.touched = True
        size = target.seed.size_bytes

        def report(progress: LoadProgress) -> None:
            total = f" of {progress.total:g}" if progress.total else ""
            tell(f"loading {name}: {progress.done or 0:g}{total} {progress.message}".rstrip())

        try:
            if target.legacy:
                await _legacy(target, load_seconds(size, target.client.limits))
            else:
                await target.client.load([target.part], size_bytes=size, report=report)
        except AgentEnvError as error:  # the others are seen to their end, so that all that is wrong is told at once
            target.error = error
            return
        if loaded is not None:
            loaded(name)


async def _legacy(target: _Target, seconds: float) -> None:
    """Servers from before cards (reference): by REST, and an MCP server also by its reset tool."""
    client, path = target.client, str(target.path)
    if target.path is None:
        raise NotAdvertisedError(f"{client.name} has no data plane, and its place can't be written to", concerns=client.name)
    if target.website:
        await _post(client, "/api/reset", None, client.limits.environment_add_seconds)
        await _post(client, "/api/add", {"file_path": path}, seconds)
        return
    try:
        await _post(client, "/api/reset", {"mock_data_path": path}, client.limits.environment_call_seconds)
    except AgentEnvError:
        await _reset_tool(target, path)


async def _reset_tool(target: _Target, path: str) -> None:
    attempt, tool = 1, f"{target.seed.environment_name}_reset"
    while True:
        try:
            result = await target.client.call(tool, {"mock_data_path": path})
            if result.get("isError") is not True:
                return
            raise EnvironmentFailedError(
                f"{tool} of {target.client.name} failed: {_text(result)}", concerns=target.client.name, reason=tool
            )
        except AgentEnvError:
            if attempt >= _LEGACY_ATTEMPTS:
                raise
        attempt += 1
        await back_off(attempt, limits=target.client.limits)


def _text(result: Mapping[str, Json]) -> str:
    return " ".join(str(block.get("text") or "") for block in result.get("content") or () if isinstance(block, dict)).strip()


async def _post(client: EnvironmentClient, path: str, body: Json, seconds: float) -> None:
    async with client.request("POST", path, seconds=seconds, body=body) as answer:
        if answer.status_code >= httpx.codes.BAD_REQUEST:
            message = f"POST {path} of {client.name}: status {answer.status_code}"
            raise EnvironmentFailedError(message, concerns=client.name, reason=f"http_{answer.status_code}", status=answer.status_code)


async def _undone(targets: Sequence[_Target]) -> list[str]:
    seconds = sum(load_seconds(target.seed.size_bytes, target.client.limits) for target in targets)
    return await shielded(_roll_back(targets), seconds=seconds, what="putting back what the servers held")


async def _roll_back(targets: Sequence[_Target]) -> list[str]:
    """Puts back what every touched server held. Returns those whose earlier state is lost."""

    async def back(target: _Target) -> str | None:
        if isinstance(target.error, EnvironmentFailedError | NotAdvertisedError) and getattr(target.error, "applied", "no") == "no":
            return None  # the server itself has put it back, or never began
        if target.before is None:
            return target.seed.environment_name
        try:
            await target.client.reset(timeout_seconds=target.client.limits.environment_add_seconds)
            if target.before:
                await target.client.add(target.before, timeout_seconds=load_seconds(target.seed.size_bytes, target.client.limits))
        except AgentEnvError:
            return target.seed.environment_name
        return None

    return [name for name in await asyncio.gather(*(back(target) for target in targets if target.touched)) if name is not None]


def _failure(live: LiveEnvironment, failed: Mapping[str, AgentEnvError], lost: Sequence[str]) -> EnvironmentFailedError:
    why = "; ".join(f"{name}: {error}" for name, error in failed.items())
    state = f"what these held before is lost: {', '.join(lost)}" if lost else "all servers hold again what they held before"
    return EnvironmentFailedError(
        f"loading into environment {live.record.env_id!r} failed ({why}); {state}",
        concerns=live.record.env_id,
        reason="load_failed",
        applied="unknown" if lost else "no",
    )
