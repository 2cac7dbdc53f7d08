"""Agents that the tests serve."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any

from agent_env_sdk.agent import Agent, AgentConfig, MessageEvent, Progress, TaskRequest, TaskResult, Usage, WriteOnly, agent


class EchoConfig(AgentConfig):
    model: str = "none"
    system_prompt: str | None = None
    api_key: Annotated[str | None, WriteOnly()] = None


@agent("echo", description="Says it again.", version="7")
class Echo(Agent):
    """Says what it was told, after its conversation's earlier words; some words make it do something else."""

    config = EchoConfig
    triggers = True

    def __init__(self) -> None:
        self.gates: dict[str, asyncio.Event] = {}
        self.running: list[str] = []
        self.most_at_once = 0

    def gate(self, name: str) -> asyncio.Event:
        return self.gates.setdefault(name, asyncio.Event())

    async def run(self, request: TaskRequest[EchoConfig]) -> AsyncIterator[Progress | TaskResult]:
        word, _, rest = request.text.partition(" ")
        request.record(MessageEvent(source="user", text=request.text))
        match word:
            case "wait":
                yield Progress(f"waiting for {rest}")
                self.running.append(request.context_id)
                self.most_at_once = max(self.most_at_once, self.running.count(request.context_id))
                try:
                    await self.gate(rest).wait()
                finally:
                    self.running.remove(request.context_id)
            case "stubborn":
                yield Progress("stubborn")
                try:
                    await self.gate(rest).wait()
                except asyncio.CancelledError:
                    yield TaskResult.said("answered all the same")
                    return
            case "raise":
                raise ValueError(f"the password is {rest}")
            case "fail":
                yield TaskResult.failed("echo.unable", rest, usage=Usage(tool_call_count=1))
                return
            case "reject":
                yield TaskResult(rejected=True)
                return
            case "nothing":
                return
            case "record":
                for number in range(int(rest)):
                    request.record({"native": number})
            case "settings":
                config = request.config
                yield TaskResult.said("", structured={"model": config.model, "key": config.api_key, "prompt": config.system_prompt})
                return
        heard = f"{request.session_ref} {request.text}" if request.session_ref else request.text
        yield TaskResult.said(heard, usage=Usage(input_tokens=1), session_ref=heard)


@agent("plain")
class Plain(Agent):
    async def run(self, request: TaskRequest[Any]) -> TaskResult:
        return TaskResult.said(request.text)
