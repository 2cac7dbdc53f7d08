"""Loads as jobs, for servers that offer them: begun once, watched, found again after a lost answer, and cancelled when time is up."""

from __future__ import annotations

import asyncio
import hashlib
import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agent_env_sdk.wire.errors import Applied
from agent_env_sdk.wire.names import LOAD_JOBS

from agent_env.environments.faults import EnvironmentFailedError, EnvironmentUnreachableError
from agent_env.errors import AgentEnvError, DeadlineError
from agent_env.waiting import back_off, deadline, shielded

if TYPE_CHECKING:
    from agent_env.environments.client import EnvironmentClient

Json = Any
_RUNNING = "running"
_FORGOTTEN = "operation_unknown"
"""The server knows no such load: it was started since."""
_ATTEMPTS = 3
"""Of a request whose answer was lost, and of a load that its server forgot."""


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """How far a load is."""

    done: float | None = None
    total: float | None = None
    message: str = ""


Report = Callable[[LoadProgress], None]


async def run_job(
    client: EnvironmentClient, parts: Sequence[Mapping[str, Json]], *, seconds: float, size_bytes: int | None, report: Report | None
) -> None:
    """Replaces what a server holds, as a job that the server rolls back when it fails.

    A load of the same data that goes on already, begun by a command that did not live to see its end, is taken up. One that the server
    forgot, because it was started again, is begun anew.

    Args:
        client: Speaks with the server.
        parts: The data.
        seconds: How long it may take.
        size_bytes: How much it is; None is unknown. Data of another size is other data.
        report: Told of progress.

    Raises:
        EnvironmentFailedError: The job failed, or somebody cancelled it; `applied` is `no` where the server rolled back.
        DeadlineError: It took too long, and was cancelled.
    """
    job = _job(client, parts, size_bytes)
    try:
        async with deadline(seconds, f"loading {client.name}"):
            for left in reversed(range(_ATTEMPTS)):
                try:
                    status = await _watched(client, job, report)
                    break
                except EnvironmentFailedError as failed:
                    if failed.reason != _FORGOTTEN or not left:
                        raise
                job["key"] = uuid.uuid4().hex
    except BaseException:  # whoever waits no longer, nobody wants the rest of it
        await shielded(_cancel(client, job), seconds=client.limits.cleanup_seconds, what=f"cancelling the load of {client.name}")
        raise
    if status.get("state") != "done":
        error = status.get("error")
        fields: Mapping[str, Json] = error if isinstance(error, dict) else {}
        message = str(fields.get("message") or f"it was {status.get('state')}")
        applied: Applied = "no" if status.get("rolled_back") is True else "unknown"
        reason = str(fields.get("code") or "load_failed")
        raise EnvironmentFailedError(
            f"loading {client.name} failed: {message}", concerns=client.name, reason=reason, applied=applied, data=status
        )


def _job(client: EnvironmentClient, parts: Sequence[Mapping[str, Json]], size_bytes: int | None) -> dict[str, Json]:
    """A load, under a key that says what it is: another command that is to do the same finds it by that."""
    job = {"parts": list(parts), "reset": True, "rollback": True}
    said = json.dumps([client.name, job, size_bytes], sort_keys=True, separators=(",", ":"))
    return {**job, "key": hashlib.sha256(said.encode()).hexdigest()}


async def _watched(client: EnvironmentClient, job: dict[str, Json], report: Report | None) -> Mapping[str, Json]:
    """Begins it, or takes it up, and gives its last status."""
    status = await _asked(client, "start", job)
    if status.get("state") != _RUNNING:  # an earlier one, which has ended: this is another
        job["key"] = uuid.uuid4().hex
        status = await _asked(client, "start", job)
    told: LoadProgress | None = None
    while status.get("state") == _RUNNING:
        now = _progress(status)
        if report is not None and now != told:
            report(now)
        told = now
        status = await _asked(client, "status", {"operation": status.get("operation"), **_news_of(client, status)})
    return status


def _news_of(client: EnvironmentClient, status: Mapping[str, Json]) -> Mapping[str, Json]:
    """The server answers when there is news, well before the request itself would be given up."""
    return {"seen": status.get("version"), "wait": client.limits.environment_call_seconds / 2}


async def _asked(client: EnvironmentClient, method: str, params: Mapping[str, Json]) -> Mapping[str, Json]:
    """What is asked for begins nothing twice, so it is asked again while the server may be on its way back."""
    attempt, now = 1, asyncio.get_running_loop().time
    until = now() + client.limits.environment_card_seconds
    while True:
        try:
            answer = await client.invoke(LOAD_JOBS, params, method=method)
            break
        except (EnvironmentUnreachableError, DeadlineError):
            if attempt >= _ATTEMPTS and now() >= until:
                raise
        attempt += 1
        await back_off(attempt, limits=client.limits)
    if not isinstance(answer, dict) or not isinstance(answer.get("operation"), str):
        raise EnvironmentFailedError(f"{client.name} answered {method} without naming the load", concerns=client.name, reason="bad_job")
    return answer


async def _cancel(client: EnvironmentClient, job: Mapping[str, Json]) -> None:
    """By its key: whether its start was heard, and what it was called, may not be known."""
    try:
        status = await client.invoke(LOAD_JOBS, job, method="start")
        await client.invoke(LOAD_JOBS, {"operation": status.get("operation")}, method="cancel")
    except AgentEnvError:
        return  # the server is gone, or is done with it: nothing is left to cancel


def _progress(status: Mapping[str, Json]) -> LoadProgress:
    progress = status.get("progress")
    fields: Mapping[str, Json] = progress if isinstance(progress, dict) else {}
    numbers = [float(value) if isinstance(value, int | float) else None for value in (fields.get("done"), fields.get("total"))]
    return LoadProgress(numbers[0], numbers[1], str(fields.get("message") or ""))
