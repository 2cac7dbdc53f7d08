"""The default agent: a loop of a model, a shell and MCP tools, on any endpoint that speaks OpenAI's chat completions.

Its endpoint and key are the variables `LITELLM_BASE_URL` and `LITELLM_API_KEY`, or `OPENAI_BASE_URL` and `OPENAI_API_KEY`. What it
runs inherits neither.
"""

from __future__ import annotations

import json
import os
import random
import re
from asyncio import sleep
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx

from agent_env_sdk.mcp_session import McpError
from agent_env_sdk.wire.a2a import Usage
from agent_env_sdk.wire.parts import FileBytes, FilePart, FileUri
from agent_env_sdk.wire.trajectory import EndEvent, ErrorEvent, MessageEvent, ReasoningEvent, ToolCallEvent, ToolResultEvent, UsageEvent

from .author import Agent, agent
from .hands import Toolbox, shell, toolbox
from .memory import Memory
from .serving import serve
from .turns import AgentConfig, Progress, TaskRequest, TaskResult

MODEL_SECONDS: Final = 600.0
ATTEMPTS: Final = 5
BACKOFF_SECONDS: Final = 1.0
LONGEST_WAIT_SECONDS: Final = 60.0
MAX_TURNS: Final = 100
_AGAIN: Final = frozenset({408, 409, 429, 500, 502, 503, 504})
_VARIABLES: Final = (("LITELLM_BASE_URL", "OPENAI_BASE_URL"), ("LITELLM_API_KEY", "OPENAI_API_KEY"), ("LITELLM_EXTRA_HEADERS",))

PROMPT: Final = """You are an agent that works with a shell and tools. Do what the user asks, check that it is done, and answer briefly."""

_SHELL: Final[dict[str, Any]] = {
    "type": "function",
    "function": {
        "name": "shell",
        "description": "Runs a command in bash and gives its output and exit code. Each call is a fresh shell in the same folder.",
        "parameters": {
            "type": "object",
            "properties": {
                "command": {"type": "string", "description": "The command."},
                "timeout_seconds": {"type": "number", "description": "How long it may take; 600 when left out."},
            },
            "required": ["command"],
        },
    },
}


class MiniConfig(AgentConfig):
    """What the mini agent takes."""

    model: str | None = None
    system_prompt: str | None = None
    max_turns: int | None = None
    """Requests to the model in one turn; None for 100."""
    effort: str | None = None
    output_format: dict[str, Any] | None = None
    model_params: dict[str, Any] | None = None
    task_id: str | None = None


class ModelError(Exception):
    """The model can't be asked.

    Args:
        code: What went wrong.
        message: More of it, without the key.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass
class _Spent:
    requests: int = 0
    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0

    def usage(self) -> Usage:
        total = self.input_tokens + self.output_tokens
        return Usage(self.calls, self.input_tokens, self.output_tokens, total, provider_details={"model_requests": self.requests})


@dataclass
class _Turn:
    request: TaskRequest[MiniConfig]
    messages: list[dict[str, Any]]
    tools: Toolbox
    spent: _Spent = field(default_factory=_Spent)


@agent("mini", description="A loop of a model, a shell and MCP tools.", input_modes=("text", "image/png", "image/jpeg"))
class Mini(Agent):
    """The agent.

    Args:
        base_url: The endpoint, up to `/chat/completions`; None for the variables.
        api_key: Its key; None for the variables.
        folder: Where commands run, and what snapshots hold; None: where the agent does, without snapshots.
        model: The model when no setting names one.
    """

    config = MiniConfig
    triggers = True

    def __init__(
        self, base_url: str | None = None, api_key: str | None = None, *, folder: Path | None = None, model: str | None = None
    ) -> None:
        # Taken out of the environment: what the model runs must not read them.
        address, key, more = (next((value for name in names if (value := os.environ.pop(name, None))), None) for names in _VARIABLES)
        self._base, self._key = base_url or address or "", api_key or key or ""
        self._headers: dict[str, str] = json.loads(more) if more else {}
        self._model, self.workspace = model, folder
        self._memory = Memory(self)

    async def run(self, request: TaskRequest[MiniConfig]) -> AsyncIterator[Progress | TaskResult]:
        """Asks the model and does what it says, until it only speaks."""
        request.record(MessageEvent(source="user", text=request.text))
        async with httpx.AsyncClient(timeout=MODEL_SECONDS) as http:
            try:
                async with toolbox(request.mcp_servers) as tools:
                    turn = _Turn(request, [*self._memory.of(request.context_id), _user(request)], tools)
                    async for item in self._loop(http, turn):
                        yield item
            except (httpx.HTTPError, McpError) as error:
                yield _failed(request, "mini.tools_unreachable", f"the MCP servers can't be reached: {type(error).__name__}")

    async def save_context(self, context_id: str) -> bytes:
        """The conversation's messages."""
        return json.dumps(self._memory.of(context_id)).encode()

    async def load_context(self, context_id: str, saved: bytes) -> None:
        """Takes them up."""
        self._memory.keep(context_id, json.loads(saved) if saved else [])

    async def _loop(self, http: httpx.AsyncClient, turn: _Turn) -> AsyncIterator[Progress | TaskResult]:
        limit = turn.request.config.max_turns or MAX_TURNS
        for _ in range(limit):
            try:
                message = await self._ask(http, turn)
            except ModelError as error:
                yield _failed(turn.request, error.code, str(error), turn.spent)
                return
            turn.messages.append(_kept(message))
            text = message.get("content") or ""
            if message.get("reasoning_content"):
                turn.request.record(ReasoningEvent(text=str(message["reasoning_content"])))
            if text:
                turn.request.record(MessageEvent(text=text))
            calls = message.get("tool_calls") or []
            if not calls:
                self._memory.keep(turn.request.context_id, turn.messages)
                turn.request.record(EndEvent(state="completed"))
                yield TaskResult.said(text, usage=turn.spent.usage(), structured=_structured(turn.request.config, text))
                return
            if text:
                yield Progress(text)
            for call in calls:
                turn.messages.append(await self._do(turn, call))
        self._memory.keep(turn.request.context_id, turn.messages)
        yield _failed(turn.request, "mini.max_turns", f"the model was asked {limit} times and had not finished", turn.spent, "agent_error")

    async def _ask(self, http: httpx.AsyncClient, turn: _Turn) -> dict[str, Any]:
        config = turn.request.config
        model = config.model or self._model
        if not self._base or not model:
            raise ModelError("mini.no_model", "no model is named" if self._base else f"no endpoint: set {' or '.join(_VARIABLES[0])}")
        system = "\n\n".join(
            [
                config.system_prompt or PROMPT,
                *(f"Skill {each.name}: {each.description}\n{each.skill_md or ''}" for each in turn.request.skills),
            ]
        )
        body: dict[str, Any] = {
            **(config.model_params or {}),
            "model": model,
            "messages": [{"role": "system", "content": system}, *turn.messages],
            "tools": [_SHELL, *(_tool(tool.name, tool.description, tool.schema) for tool in turn.tools.tools.values())],
        }
        if config.effort:
            body["reasoning_effort"] = config.effort
        if config.output_format:
            schema = config.output_format.get("schema") or {}
            body["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
        answer = await self._post(http, body)
        usage = answer.get("usage") or {}
        turn.spent.requests += 1
        turn.spent.input_tokens += int(usage.get("prompt_tokens") or 0)
        turn.spent.output_tokens += int(usage.get("completion_tokens") or 0)
        turn.request.record(UsageEvent(model=model, input_tokens=usage.get("prompt_tokens"), output_tokens=usage.get("completion_tokens")))
        try:
            message: dict[str, Any] = answer["choices"][0]["message"]
        except (KeyError, IndexError, TypeError):
            raise ModelError("mini.invalid_answer", "the endpoint's answer has no message") from None
        return message

    async def _post(self, http: httpx.AsyncClient, body: Mapping[str, Any]) -> dict[str, Any]:
        headers = {**self._headers, "authorization": f"Bearer {self._key}", "content-type": "application/json"}
        sent = json.dumps(body).encode()  # in ASCII: what a tool tells may hold half a character
        problem = "it was not asked"
        for attempt in range(ATTEMPTS):
            wait = min(LONGEST_WAIT_SECONDS, BACKOFF_SECONDS * 2**attempt * random.uniform(0.5, 1.0))
            try:
                answer = await http.post(f"{self._base.rstrip('/')}/chat/completions", content=sent, headers=headers)
                if answer.is_success:
                    value: dict[str, Any] = answer.json()
                    return value
                problem = f"status {answer.status_code}: {self._cleaned(answer.text)}"
                if answer.status_code not in _AGAIN:
                    raise ModelError("mini.model_refused", f"the model's endpoint answered with {problem}")
                told = answer.headers.get("retry-after", "")
                wait = min(LONGEST_WAIT_SECONDS, float(told)) if re.fullmatch(r"[0-9]+(\.[0-9]+)?", told) else wait
            except httpx.TransportError as error:
                problem = type(error).__name__
            except ValueError:
                problem = "an answer that is not JSON"
            if attempt + 1 < ATTEMPTS:
                await sleep(wait)
        raise ModelError("mini.model_unreachable", f"the model's endpoint did not answer in {ATTEMPTS} attempts; at last {problem}")

    def _cleaned(self, text: str) -> str:
        return (text.replace(self._key, "***") if self._key else text)[:500]

    async def _do(self, turn: _Turn, call: Mapping[str, Any]) -> dict[str, Any]:
        """Does what the model asks for, and gives the message that tells it what came of it."""
        turn.spent.calls += 1
        function = call.get("function") or {}
        name, call_id = str(function.get("name")), str(call.get("id"))
        tool = turn.tools.tools.get(name)
        try:
            arguments = json.loads(function.get("arguments") or "{}")
            if not isinstance(arguments, dict):
                raise ValueError("they are no object")
        except ValueError as error:
            arguments, text, failed = {}, f"the arguments are not JSON: {error}", True
        else:
            turn.request.record(ToolCallEvent(call_id=call_id, name=name, arguments=arguments, server=tool.server if tool else None))
            if tool is not None:
                text, failed = await turn.tools.call(tool.server, tool.tool, arguments)
            else:
                text, failed = await self._shell(arguments) if name == "shell" else (f"there is no tool {name!r}", True)
        turn.request.record(ToolResultEvent(call_id=call_id, content=text, is_error=failed))
        await turn.request.calls_over(1)
        return {"role": "tool", "tool_call_id": call_id, "content": text}

    async def _shell(self, arguments: Mapping[str, Any]) -> tuple[str, bool]:
        command, limit = arguments.get("command"), arguments.get("timeout_seconds", MODEL_SECONDS)
        if not isinstance(command, str) or not isinstance(limit, int | float) or not limit > 0:
            return "the shell needs `command`, a string, and takes `timeout_seconds`, a number above 0", True
        result = await shell(command, folder=self.workspace, timeout_seconds=float(limit))
        return f"{result.output}\n[exit code {result.exit_code}]", result.exit_code != 0


def _user(request: TaskRequest[MiniConfig]) -> dict[str, Any]:
    content: list[dict[str, Any]] = [{"type": "text", "text": request.text}] if request.text else []
    for part in request.parts:
        if isinstance(part, FilePart):
            content.append(_attached(part.file))
    return {"role": "user", "content": request.text if len(content) == 1 and request.text else content}


def _attached(file: FileBytes | FileUri) -> dict[str, Any]:
    kind = file.mime_type or "application/octet-stream"
    address = file.uri if isinstance(file, FileUri) else f"data:{kind};base64,{file.bytes}"
    if kind.startswith("image/"):
        return {"type": "image_url", "image_url": {"url": address}}
    if isinstance(file, FileUri):
        return {"type": "text", "text": f"Attached file {file.name or ''} ({kind}): {file.uri}"}
    return {"type": "file", "file": {"filename": file.name or "file", "file_data": address}}


def _tool(name: str, description: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": description, "parameters": dict(schema)}}


def _kept(message: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: message[name] for name in ("content", "tool_calls") if message.get(name)}
    return {"role": "assistant", "content": None, **kept}


def _structured(config: MiniConfig, text: str) -> Any:
    if config.output_format is None:
        return None
    try:
        return json.loads(text)
    except ValueError:
        return None


def _failed(
    request: TaskRequest[MiniConfig], code: str, message: str, spent: _Spent | None = None, kind: Any = "infra_error"
) -> TaskResult:
    request.record(ErrorEvent(code=code, message=message))
    return TaskResult.failed(code, message, type=kind, usage=spent.usage() if spent else None)


if __name__ == "__main__":
    serve(Mini(folder=Path.cwd()))
