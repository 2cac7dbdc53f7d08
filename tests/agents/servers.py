"""Agents of other makings, as small A2A servers of this process: what they can, and what they get wrong, is said by the test."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
from agent_env_sdk.hosting import configuration
from agent_env_sdk.testing.agents import serve_agent_here
from agent_env_sdk.testing.here import running_here
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from agent_env.agents.client import AgentClient
from agent_env.agents.contract import Ended, Outgoing, Turn, Update
from agent_env.agents.conversation import Conversation
from agent_env.defaults import DEFAULT_LIMITS, Limits
from agent_env.environments.http import new_client
from agent_env.waiting import poll

QUICK = replace(
    DEFAULT_LIMITS, retry_backoff_seconds=0.01, agent_unreachable_seconds=2.0, agent_poll_seconds=0.05, answer_margin_seconds=0.3
)
NOW, OLD = "/.well-known/agent-card.json", "/.well-known/agent.json"


async def lives() -> None:
    """A place that is always there."""


def text(said: str) -> list[dict[str, Any]]:
    return [{"kind": "text", "text": said}]


@asynccontextmanager
async def client_of(base: str, *, token: str | None = None, limits: Limits = QUICK) -> AsyncIterator[AgentClient]:
    client = AgentClient(base, new_client(None, limits), name="solver", token=token, limits=limits)
    try:
        yield client
    finally:
        await client.aclose()


@asynccontextmanager
async def served(agent: Any, *, token: str | None = None, limits: Limits = QUICK) -> AsyncIterator[AgentClient]:
    """An agent of our SDK, and our client of it."""
    async with serve_agent_here(agent, token=token) as theirs, client_of(theirs.base, token=token, limits=limits) as ours:
        yield ours


def outgoing(said: str = "hello", **fields: Any) -> Outgoing:
    given = {"message_id": "message-1", "context_id": "context-1", "timeout_seconds": 20.0, **fields}
    return Outgoing(parts=text(said), **given)


async def told(client: AgentClient, message: Outgoing, *, alive: Callable[[], Any] = lives) -> list[Update]:
    config = {**message.config, "timeout_seconds": message.timeout_seconds}
    return [update async for update in Conversation(client, message, alive=alive, config=config).updates()]


async def turn(client: AgentClient, message: Outgoing, **more: Any) -> Turn:
    ended = (await told(client, message, **more))[-1]
    assert isinstance(ended, Ended)
    return ended.turn


def script(*actions: dict[str, Any]) -> str:
    return json.dumps(list(actions))


@dataclass
class Plain:
    """A 0.3 server without any of our extensions. What it does with a message is `behave`; it remembers no message's id."""

    streaming: bool = True
    paths: tuple[str, ...] = (OLD,)
    card: dict[str, Any] = field(default_factory=dict)
    tasks: dict[str, dict[str, Any]] = field(default_factory=dict)
    messages: list[dict[str, Any]] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)
    """The states in which tasks were looked at."""
    on_stream: Callable[[Plain, str], AsyncIterator[dict[str, Any] | None]] | None = None
    """The items of a `message/stream`; None cuts the connection."""
    on_resubscribe: Callable[[Plain, str], AsyncIterator[dict[str, Any] | None]] | None = None
    on_cancel: Callable[[Plain, str], None] | None = None
    on_send: Callable[[Plain, str], Any] | None = None
    down: bool = False
    """Answers nothing but that it can't."""
    trajectory: Callable[[Plain, dict[str, Any]], Response] | None = None

    def task(self, task_id: str, state: str, said: str | None = None, **more: Any) -> dict[str, Any]:
        status: dict[str, Any] = {"state": state}
        if said is not None:
            status["message"] = {"kind": "message", "messageId": f"m-{task_id}-{state}", "role": "agent", "parts": text(said)}
        found = {"kind": "task", "id": task_id, "contextId": "context-1", "status": status, **more}
        self.tasks[task_id] = found
        return found

    def update(self, task_id: str, state: str, said: str | None = None, *, final: bool = False) -> dict[str, Any]:
        kept = {key: self.tasks[task_id][key] for key in ("artifacts", "history") if key in self.tasks[task_id]}
        known = self.task(task_id, state, said, **kept)
        return {"kind": "status-update", "taskId": task_id, "contextId": "context-1", "status": known["status"], "final": final}

    def served_card(self) -> dict[str, Any]:
        base = {"name": "plain", "description": "", "version": "1", "url": "/a2a", "protocolVersion": "0.3.0", "skills": []}
        extensions = []
        if self.trajectory is not None:
            fields = {"oneOf": [{"required": ["task_id"]}, {"required": ["context_id", "after"], "optional": ["limit"]}]}
            methods = {"get": {"method": "POST", "request": fields}}
            extensions = [{"uri": "urn:agentenv:trajectory/v1", "params": {"endpoint": "/ext/trajectory", "methods": methods}}]
        return {**base, "capabilities": {"streaming": self.streaming, "extensions": extensions}, **self.card}

    async def _rpc(self, request: Request) -> Response:
        if self.down:
            return Response("away", 503)
        body = json.loads(await request.body())
        method, params, number = body["method"], body.get("params") or {}, body["id"]

        def result(value: Any) -> dict[str, Any]:
            return {"jsonrpc": "2.0", "id": number, "result": value}

        def error(code: int, message: str) -> Response:
            return JSONResponse({"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": message}})

        match method:
            case "message/stream" | "message/send":
                self.messages.append(params["message"])
                task_id = f"task-{len(self.messages)}"
                self.task(task_id, "submitted", history=[params["message"]])
                if method == "message/send":
                    if self.on_send is not None:
                        await self.on_send(self, task_id)
                    return JSONResponse(result(self.tasks[task_id]))
                assert self.on_stream is not None
                return StreamingResponse(_events(self.on_stream(self, task_id), result), media_type="text/event-stream")
            case "tasks/resubscribe":
                if self.on_resubscribe is None:
                    return error(-32601, "Method not found")
                return StreamingResponse(_events(self.on_resubscribe(self, params["id"]), result), media_type="text/event-stream")
            case "tasks/get":
                found = self.tasks.get(params["id"])
                self.shown += [found["status"]["state"]] if found else []
                return JSONResponse(result(found)) if found else error(-32001, "Task not found")
            case "tasks/cancel":
                self.cancelled.append(params["id"])
                if self.on_cancel is not None:
                    self.on_cancel(self, params["id"])
                else:
                    self.task(params["id"], "canceled")
                return JSONResponse(result(self.tasks[params["id"]]))
        return error(-32601, "Method not found")

    async def _trajectory(self, request: Request) -> Response:
        assert self.trajectory is not None
        return self.trajectory(self, json.loads(await request.body()))

    def application(self) -> Starlette:
        async def card(_: Request) -> Response:
            return JSONResponse(self.served_card())

        routes = [Route(path, card) for path in self.paths]
        routes += [Route("/a2a", self._rpc, methods=["POST"]), Route("/ext/trajectory", self._trajectory, methods=["POST"])]
        return Starlette(routes=routes)

    @asynccontextmanager
    async def here(self, *, limits: Limits = QUICK) -> AsyncIterator[AgentClient]:
        async with running_here(configuration(self.application()), "plain") as base, client_of(base, limits=limits) as client:
            yield client


async def _events(items: AsyncIterator[dict[str, Any] | None], result: Callable[[Any], dict[str, Any]]) -> AsyncIterator[bytes]:
    async for item in items:
        if item is None:
            raise ConnectionResetError("cut")
        yield f"data: {json.dumps(result(item))}\n\n".encode()


async def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Waits for something that another task of this loop brings about."""

    async def holds() -> bool | None:
        return condition() or None

    await poll(holds, within_seconds=seconds, what="the other task", limits=QUICK)


__all__ = ["NOW", "OLD", "QUICK", "Plain", "client_of", "httpx", "outgoing", "script", "served", "told", "turn", "until"]
