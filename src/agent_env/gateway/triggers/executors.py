"""Asking an agent to do something, over A2A, and waiting until it says that it has."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from agent_env.errors import DeadlineError
from agent_env.gateway import jsontext
from agent_env.gateway.defaults import GatewayLimits
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


@dataclass(frozen=True, slots=True)
class _Agent:
    """Who is asked, and how much it may answer at once."""

    client: httpx.AsyncClient
    url: str
    most_bytes: int

    async def ask(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """One request.

        Raises:
            RefusedError: It answered with an error.
            ExecutorError: What it answered can't be read.
            httpx.HTTPError: It did not answer.
        """
        sent = json.dumps({"jsonrpc": "2.0", "id": uuid.uuid4().hex, "method": method, "params": params}).encode()
        said = bytearray()
        async with self.client.stream("POST", self.url, content=sent, headers={"content-type": "application/json"}) as response:
            response.raise_for_status()
            async for piece in response.aiter_bytes():
                said += piece
                if len(said) > self.most_bytes:
                    raise ExecutorError(f"the executor's answer to {method} is longer than {self.most_bytes} bytes")
        value = jsontext.value_of(said.decode("utf-8", "replace"))
        if not isinstance(value, dict):
            raise ExecutorError(f"the executor's answer to {method} is no JSON object")
        result = value.get("result")
        if not isinstance(result, dict):
            raise RefusedError(f"the executor refused {method}: {str(value)[:200]}")
        return result


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
            agent = _Agent(client, url, limits.answer_bytes)
            state = await _known(agent, instruction.task, seconds) or await _sent(agent, instruction, taken, seconds)
    except (TimeoutError, DeadlineError) as error:
        raise ExecutorError(f"the executor did not complete within {seconds:g} s") from error
    except httpx.HTTPError as error:
        raise ExecutorError(f"the executor can't be reached: {type(error).__name__}: {error}") from error
    if state != "completed":
        raise ExecutorError(f"the executor's task ended as {state}")


async def _known(agent: _Agent, task: str | None, seconds: float) -> str | None:
    """How a task that the executor was given ends; None where it knows nothing of it."""
    if task is None:
        return None
    try:
        return await _end(agent, task, seconds)
    except RefusedError:
        return None


async def _sent(agent: _Agent, instruction: Instruction, taken: Callable[[str], Awaitable[None]], seconds: float) -> str:
    message = {
        "role": "user",
        "kind": "message",
        "messageId": instruction.message_id,
        "contextId": instruction.context_id,
        "parts": [{"kind": "text", "text": instruction.text}],
    }
    answer = await agent.ask("message/send", {"message": message})
    if answer.get("kind") == "message":
        return "completed"
    task = answer.get("id")
    if not isinstance(task, str) or not task:
        raise ExecutorError("the executor gave neither a task nor a message")
    await taken(task)
    return _state(answer) if _state(answer) in _ENDED else await _end(agent, task, seconds)


async def _end(agent: _Agent, task: str, seconds: float) -> str:
    async def look() -> str | None:
        state = _state(await agent.ask("tasks/get", {"id": task}))
        return state if state in _ENDED else None

    return await poll(look, within_seconds=seconds, what="the executor's task")


def _state(task: Mapping[str, Any]) -> str:
    status = task.get("status")
    return str(status.get("state")) if isinstance(status, Mapping) else ""
