"""Serving an agent in this process, and speaking to it as clients of A2A 0.3 do."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from agent_env_sdk.agent.application import Application
from agent_env_sdk.agent.author import Agent
from agent_env_sdk.hosting import configuration
from agent_env_sdk.mcp_session import messages
from agent_env_sdk.wire.a2a import (
    CARD_PATHS,
    AgentCard,
    Ending,
    Method,
    StatusUpdate,
    Task,
    interfaces,
    read_ending,
    read_update,
    rpc_address,
)
from agent_env_sdk.wire.agent_extensions import AGENT_CONFIG, endpoint_of, operation
from agent_env_sdk.wire.errors import read_error
from agent_env_sdk.wire.rpc import read_answer, request

from .client import CALL_SECONDS
from .here import running_here


@dataclass(frozen=True, slots=True)
class AgentClient:
    """Speaks to an agent.

    Args:
        base: Its address.
        http: Speaks HTTP; an agent's token is among its headers.
    """

    base: str
    http: httpx.AsyncClient

    async def card(self) -> AgentCard:
        """The agent's card."""
        answer = await self.http.get(f"{self.base}{CARD_PATHS[0]}")
        return AgentCard.model_validate(answer.raise_for_status().json())

    async def rpc(self, method: str, params: Mapping[str, Any]) -> Any:
        """Calls a method of A2A.

        Raises:
            RpcError: The agent answered with an error.
        """
        answer = await self.http.post(await self._address(), json=request(method, params))
        return read_answer(answer.raise_for_status().json())

    async def prompt(
        self,
        text: str,
        *,
        context_id: str | None = None,
        message_id: str | None = None,
        config: Mapping[str, Any] | None = None,
        wait: bool = True,
    ) -> Task:
        """Sends a message.

        Args:
            text: What is said.
            context_id: The conversation; None for a new one.
            message_id: The message's id; None for a new one.
            config: Settings of this message alone.
            wait: Whether the answer waits for the task's end.

        Raises:
            RpcError: The message was refused.
        """
        params = _message(text, context_id, message_id, config) | {"configuration": {"blocking": wait}}
        return Task.model_validate(await self.rpc(Method.SEND, params))

    async def stream(self, text: str, *, context_id: str | None = None) -> AsyncIterator[Task | StatusUpdate]:
        """Sends a message and gives the task, then each update up to the last."""
        async for update in self.follow(Method.STREAM, _message(text, context_id, None, None)):
            yield update

    async def follow(self, method: str, params: Mapping[str, Any]) -> AsyncIterator[Task | StatusUpdate]:
        """The items of a stream.

        Raises:
            RpcError: The agent answered with an error in the stream's place, or in it.
        """
        async with self.http.stream("POST", await self._address(), json=request(method, params)) as answer:
            async for value in messages(answer):
                update = read_update(read_answer(value))
                if isinstance(update, Task | StatusUpdate):
                    yield update

    async def task(self, task_id: str) -> Task:
        """A task as it stands.

        Raises:
            RpcError: There is none of that id.
        """
        return Task.model_validate(await self.rpc(Method.GET, {"id": task_id}))

    async def cancel(self, task_id: str) -> Task:
        """Ends a task.

        Raises:
            RpcError: There is none of that id, or it has ended.
        """
        return Task.model_validate(await self.rpc(Method.CANCEL, {"id": task_id}))

    async def invoke(self, uri: str, name: str, body: Mapping[str, Any] | None = None) -> Any:
        """Calls an operation of an extension where the card says.

        Raises:
            AgentEnvError: The agent refused it.
        """
        path = endpoint_of(await self.card(), uri, name)
        answer = await self.http.request(operation(uri, name).verb, f"{self.base}{path}", json=body)
        if not answer.is_success:
            raise read_error(answer.json(), answer.status_code)
        return answer.json()

    async def _address(self) -> str:
        card = await self.card()
        return rpc_address(self.base, next(each.url for each in interfaces(card) if not each.is_v1))


def ending(task: Task) -> Ending:
    """What the task's last message says."""
    return read_ending(task.status.message.parts if task.status.message else [])


@asynccontextmanager
async def serve_agent_here(agent: Agent, *, token: str | None = None, state: Path | None = None) -> AsyncIterator[AgentClient]:
    """Serves the agent while the block runs.

    Args:
        agent: What is served.
        token: The bearer token that it asks for; the client sends it.
        state: The folder for what outlives a restart; None for a new one.

    Raises:
        AssemblyError: The agent can't be served as it is written.
    """
    application = Application(agent, token=token, state=state)
    headers = {"authorization": f"Bearer {token}"} if token else {}
    config = configuration(application.starlette())
    async with running_here(config, type(agent).__name__) as base, httpx.AsyncClient(timeout=CALL_SECONDS, headers=headers) as http:
        yield AgentClient(base, http)


def _message(text: str, context_id: str | None, message_id: str | None, config: Mapping[str, Any] | None) -> dict[str, Any]:
    message: dict[str, Any] = {"messageId": message_id or str(uuid.uuid4()), "role": "user", "parts": [{"kind": "text", "text": text}]}
    if context_id is not None:
        message["contextId"] = context_id
    if config is not None:
        message["metadata"] = {AGENT_CONFIG: dict(config)}
    return {"message": message}
