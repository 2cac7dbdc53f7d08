"""Asking an agent to do something, over A2A, and waiting until it says that it has."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from agent_env.defaults import GatewayLimits
from agent_env.gateway.triggers.grammar import Executor
from agent_env.waiting import poll

_ENDED = frozenset({"completed", "failed", "canceled", "rejected"})


class ExecutorError(Exception):
    """The agent did not do it."""


class RefusedError(ExecutorError):
    """It answered with an error."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """What is to be done."""

    text: str
    context_id: str
    message_id: str
    """The same each time that this is asked for: an agent that has it already may tell by it."""
    task: str | None = None
    """The agent has it, as this task."""


async def carry_out(executor: Executor, instruction: Instruction, taken: Callable[[str], Awaitable[None]], limits: GatewayLimits) -> None:
    """Sends the instruction and returns when its task is completed.

    Args:
        executor: Whom.
        instruction: What. One that the agent has is not sent again, unless the agent knows nothing of its task.
        taken: Told the task as soon as the agent has given it.
        limits: How long it may take.

    Raises:
        ExecutorError: It could not be asked, gave up, or did not end in time.
    """
    seconds = executor.timeout_seconds if executor.timeout_seconds is not None else limits.executor_seconds
    url = f"{executor.a2a_url}/a2a"
    try:
        async with asyncio.timeout(seconds), httpx.AsyncClient(timeout=seconds, trust_env=False, headers=executor.headers) as client:
            state = await _known(client, url, instruction.task, seconds) or await _sent(client, url, instruction, taken, seconds)
    except TimeoutError as error:
        raise ExecutorError(f"the executor did not complete within {seconds:g} s") from error
    except httpx.HTTPError as error:
        raise ExecutorError(f"the executor can't be reached: {type(error).__name__}: {error}") from error
    if state != "completed":
        raise ExecutorError(f"the executor's task ended as {state}")


async def _known(client: httpx.AsyncClient, url: str, task: str | None, seconds: float) -> str | None:
    """How a task that the executor was given ends; None where it knows nothing of it."""
    if task is None:
        return None
    try:
        return await _end(client, url, task, seconds)
    except RefusedError:
        return None


async def _sent(
    client: httpx.AsyncClient, url: str, instruction: Instruction, taken: Callable[[str], Awaitable[None]], seconds: float
) -> str:
    message = {
        "role": "user",
        "kind": "message",
        "messageId": instruction.message_id,
        "contextId": instruction.context_id,
        "parts": [{"kind": "text", "text": instruction.text}],
    }
    answer = await _ask(client, url, "message/send", {"message": message})
    if answer.get("kind") == "message":
        return "completed"
    task = answer.get("id")
    if not isinstance(task, str) or not task:
        raise ExecutorError("the executor gave neither a task nor a message")
    await taken(task)
    return _state(answer) if _state(answer) in _ENDED else await _end(client, url, task, seconds)


async def _end(client: httpx.AsyncClient, url: str, task: str, seconds: float) -> str:
    async def look() -> str | None:
        state = _state(await _ask(client, url, "tasks/get", {"id": task}))
        return state if state in _ENDED else None

    return await poll(look, within_seconds=seconds, what="the executor's task")


async def _ask(client: httpx.AsyncClient, url: str, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
    response = await client.post(url, json={"jsonrpc": "2.0", "id": uuid.uuid4().hex, "method": method, "params": params})
    response.raise_for_status()
    try:
        value = response.json()
    except ValueError as error:
        raise ExecutorError(f"the executor's answer to {method} is not JSON") from error
    result = value.get("result") if isinstance(value, dict) else None
    if not isinstance(result, dict):
        raise RefusedError(f"the executor refused {method}: {str(value)[:200]}")
    return result


def _state(task: Mapping[str, Any]) -> str:
    status = task.get("status")
    return str(status.get("state")) if isinstance(status, Mapping) else ""
