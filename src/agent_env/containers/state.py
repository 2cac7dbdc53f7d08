"""What became of a container, for errors: its state, its ending, the end of its log, and what runs instead."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from agent_env.containers import objects
from agent_env.containers.engine import Engine
from agent_env.containers.spec import HOME, ROLE, RUN, SANDBOX
from agent_env.defaults import Limits
from agent_env.errors import (
    AgentEnvError,
    ContainerNotRunningError,
    DeadlineError,
    InfrastructureError,
    NotFoundError,
    PlaceEndedError,
    TransportLostError,
)
from agent_env.waiting import poll

_RUNNING, _PAUSED = "running", "paused"
_OVER = ("exited", "dead")
_STAYS = "a container runs as long as its image's own command: take an image whose command stays, such as a server or `sleep infinity`"
_ENDING = "stopped"
"""Podman's word for one that has ended, but whose exit code it does not know yet."""


async def started_at(engine: Engine, container_id: str) -> str:
    """When the engine last started a container, by its own clock: tells one life of it from the next.

    Raises:
        ContainerNotRunningError: There is none with this id.
    """
    try:
        found = await objects.inspect(engine, container_id)
    except NotFoundError as error:
        raise ContainerNotRunningError(error.message, concerns=container_id) from error
    return life_of(found)


def life_of(found: Mapping[str, Any]) -> str:
    """As `started_at`, of what the engine said of a container."""
    return str((found.get("State") or {}).get("StartedAt", ""))


async def failed(engine: Engine, container_id: str, name: str) -> ContainerNotRunningError | None:
    """The error that says that a container has failed: ended with another code than 0, or is gone. None while it runs, or has ended well.

    Args:
        engine: The engine.
        container_id: The container.
        name: Its name, for people.
    """
    try:
        found = await objects.inspect(engine, container_id)
    except NotFoundError:
        return await _error(engine, name, {}, {}, "")
    state = found.get("State") or {}
    if runs(state) or not state.get("ExitCode"):
        return None
    return await _error(engine, name, (found.get("Config") or {}).get("Labels") or {}, state, await log_tail(engine, container_id))


async def not_running(
    engine: Engine,
    container_id: str,
    name: str,
    *,
    otherwise: AgentEnvError,
    known: Mapping[str, str] | None = None,
    worked_in: tuple[str, AgentEnvError | None] = ("", None),
) -> AgentEnvError:
    """The error that says that a container is not running, and why; `otherwise` when it runs, or when the engine does not tell.

    Args:
        engine: The engine.
        container_id: The container.
        name: Its name, for people.
        otherwise: What went wrong.
        known: The labels that it has or had. Of them, and of those that the engine tells, those of its run say which containers are named
            beside it: of other runs nobody is told.
        worked_in: The life of it (see `started_at`) that was worked in, and how the connection to it ended, if it did.
    """
    try:
        life, broke = worked_in
        seconds = _to_be_known(broke, engine.limits)
        found = await (_ended(engine, container_id, life, seconds) if seconds else objects.inspect(engine, container_id))
    except NotFoundError:
        return await _error(engine, name, known or {}, {}, "")
    except InfrastructureError:
        return otherwise
    state = found.get("State") or {}
    if runs(state):
        return otherwise
    labels = (found.get("Config") or {}).get("Labels") or {}
    return await _error(engine, name, {**(known or {}), **labels}, state, await log_tail(engine, container_id))


def _to_be_known(broke: AgentEnvError | None, limits: Limits) -> float:
    """How long an engine may take to know of an end, in seconds. A helper says that it ends, where the kernel leaves it the time."""
    match broke:
        case PlaceEndedError():
            return limits.engine_stop_seconds
        case TransportLostError():
            return limits.engine_knows_seconds
    return 0.0


async def _ended(engine: Engine, container_id: str, life: str, within_seconds: float) -> dict[str, Any]:
    """What the engine says once it knows that a container's life is over (stopped, or started again by somebody), or else in the end."""
    said: dict[str, Any] = {}

    async def over() -> bool | None:
        nonlocal said
        said = await objects.inspect(engine, container_id)
        state = said.get("State") or {}
        return True if (not runs(state) and state.get("Status") != _ENDING) or life_of(said) != life else None

    with contextlib.suppress(DeadlineError):
        await poll(over, within_seconds=within_seconds, what="a container's end", limits=engine.limits)
    return said


def runs(state: Mapping[str, Any]) -> bool:
    """Whether a container of this state is at work: neither over nor paused."""
    return bool(state.get("Status") == _RUNNING and state.get("Running", True))


async def _error(engine: Engine, name: str, labels: Mapping[str, str], state: Mapping[str, Any], log: str) -> ContainerNotRunningError:
    role = labels.get(ROLE) or name.partition("-")[0]
    what = f"{role.capitalize()} container" if role in {"agent", "environment", "sandbox"} else "Container"
    said = f" Its log ends with: {log}" if log else ""
    others = await _beside(engine, labels, name)
    why = _why(state)
    if state.get("Status") == _PAUSED:
        why = f"somebody has paused it, and nothing in it moves until `{(await engine.info()).kind} unpause {name}`"
    hint = _STAYS if state.get("Status") in _OVER and state.get("ExitCode") == 0 else None
    return ContainerNotRunningError(f"{what} '{name}' is not running: {why}.{others}{said}", concerns=name, hint=hint)


async def _beside(engine: Engine, labels: Mapping[str, str], name: str) -> str:
    """What else runs of the same run; of the same sandbox where the run is not known; of a container that is nobody's, nothing."""
    own = next((label for label in (RUN, SANDBOX) if labels.get(label)), None)
    if own is None:
        return ""
    try:
        running = await objects.running_names(engine, {label: labels[label] for label in (HOME, own) if labels.get(label)})
        return f" Running containers: {[other for other in running if other != name]}."
    except AgentEnvError:
        return ""


def _why(state: Mapping[str, Any]) -> str:
    status = str(state.get("Status") or "")
    if not status:
        return "it was removed"
    if status in _OVER:
        memory = ", out of memory" if state.get("OOMKilled") else ""
        error = f" ({state['Error']})" if state.get("Error") else ""
        return f"it has exited with code {state.get('ExitCode')}{memory}{error}"
    return f"it is {status}"


async def log_tail(engine: Engine, container_id: str) -> str:
    """The end of what a container's own command wrote, or nothing if the engine does not tell.

    Returns:
        At most `Limits.container_log_bytes`, as text.
    """
    try:
        async with engine.asking("reading a container's log", concerns=container_id) as docker:
            lines = await docker.containers.container(container_id).log(stdout=True, stderr=True, tail=50)
    except AgentEnvError:
        return ""
    return "".join(lines).strip()[-engine.limits.container_log_bytes :]
