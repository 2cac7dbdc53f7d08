"""An agent without a model: whoever claims it, answers its turns. `proxy/v1`.

The driver learns of open turns, has actions done where the agent is (a command, a tool of a registered MCP server), tells what its own
model said, and replies. The trajectory is spans of OpenTelemetry's conventions for generative AI.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import httpx
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from agent_env_sdk.hosting import JsonAnswer, whole_body
from agent_env_sdk.mcp_session import McpError
from agent_env_sdk.wire import proxy_bodies as bodies
from agent_env_sdk.wire.a2a import AgentExtension, Usage
from agent_env_sdk.wire.agent_extensions import PROXY, STANDARDS, advertised
from agent_env_sdk.wire.errors import AgentEnvError
from agent_env_sdk.wire.parts import TextPart

from .author import Agent, agent
from .hands import Toolbox, toolbox
from .registrations import InvalidFieldsError
from .serving import serve
from .tasks import now
from .turns import AgentConfig, TaskRequest, TaskResult

POLL_SECONDS: Final = 25.0
BASH_SECONDS: Final = 3600.0
TOOL_SECONDS: Final = 600.0
LISTING_SECONDS: Final = 600.0
SHOWN_BYTES: Final = 16 * 1024 * 1024
"""Of each stream of a command."""
BASH: Final = "bash"
_TOKENS: Final = (("input", "prompt"), ("output", "completion"))
"""What models' APIs call the same."""

B = TypeVar("B", bound=bodies.Driven)


class ProxyConfig(AgentConfig):
    """What it takes; the driver is told."""

    system_prompt: str | None = None


@dataclass
class _Turn:
    request: TaskRequest[ProxyConfig]
    started: str = field(default_factory=now)
    reply: asyncio.Future[bodies.Reply] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    actions: dict[str, tuple[bodies.ToolAction | bodies.BashAction, asyncio.Task[dict[str, Any]]]] = field(default_factory=dict)
    held: AsyncExitStack = field(default_factory=AsyncExitStack)
    opening: asyncio.Lock = field(default_factory=asyncio.Lock)
    toolbox: Toolbox | None = None
    recorded: bool = False
    unrun: list[tuple[str, str]] = field(default_factory=list)
    """Calls of the last recorded message that were not done yet: tool, and arguments in one spelling."""

    def span(self, name: str, operation: str, started: str, *, failed: bool = False, **attributes: Any) -> None:
        """Records something that has ended."""
        told = {"gen_ai.operation.name": operation} | {
            f"gen_ai.{key.replace('__', '.')}": value for key, value in attributes.items() if value is not None
        }
        status = {"status_code": "ERROR" if failed else "OK"}
        self.request.record({"name": name, "start_time": started, "end_time": now(), "status": status, "attributes": told})

    async def tools(self) -> Toolbox:
        """The servers' tools, opened once."""
        async with self.opening:
            if self.toolbox is None:
                async with asyncio.timeout(LISTING_SECONDS):
                    self.toolbox = await self.held.enter_async_context(toolbox(self.request.mcp_servers))
            return self.toolbox


@agent("agentenv-proxy", description="An agent without a model: whoever claims it, answers its turns.")
class Proxy(Agent):
    """The agent.

    Args:
        folder: Where commands run; None: where the agent does.
        poll_seconds: How long a request may wait for something to tell.
    """

    config = ProxyConfig
    trajectory_format = "agentenv-proxy/v1"

    def __init__(self, folder: Path | None = None, *, poll_seconds: float = POLL_SECONDS) -> None:
        self._folder, self._poll = folder, poll_seconds
        self.skills_folder = Path.home() / "skills"
        self._turns: dict[str, _Turn] = {}
        self._version = 0
        self._changed = asyncio.Condition()
        self._token: str | None = None

    def extensions(self) -> Iterable[AgentExtension]:
        """`proxy/v1`."""
        yield advertised(PROXY, [each.name for each in STANDARDS[PROXY].operations])

    def routes(self) -> Iterable[BaseRoute]:
        """Its operations. The driver's token is in front of each."""
        answers: list[tuple[str, type[Any], Callable[[Any], Awaitable[dict[str, Any]]]]] = [
            ("claim", bodies.Claim, self._claim),
            ("next", bodies.Next, self._next),
            ("tools", bodies.ToolsOf, self._tools),
            ("act", bodies.Act, self._act),
            ("result", bodies.ResultOf, self._result),
            ("record", bodies.Record, self._record),
            ("reply", bodies.Reply, self._reply),
        ]
        for name, model, answer in answers:
            yield Route(f"{STANDARDS[PROXY].path}/{name}", self._answering(name, model, answer), methods=["POST"])

    async def run(self, request: TaskRequest[ProxyConfig]) -> TaskResult:
        """Waits for the driver."""
        if not all(isinstance(part, TextPart) for part in request.parts):
            return TaskResult.failed("proxy.unsupported_part", "a driver is told texts alone")
        turn = self._turns[request.task_id] = _Turn(request)
        await self._tell()
        try:
            reply = await turn.reply
        finally:
            del self._turns[request.task_id]
            await self._tell()
            running = [task for _, task in turn.actions.values()]
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            await turn.held.aclose()
        said = "\n".join(part.text for part in reply.parts or [])
        failed = reply.error is not None
        turn.span("turn", "chain", turn.started, failed=failed, prompt=request.text, completion=reply.error if failed else said)
        usage = Usage(tool_call_count=len(turn.actions))
        if reply.error is not None:
            return TaskResult.failed("proxy.driver_error", reply.error, usage=usage)
        return TaskResult(tuple(TextPart(text=part.text) for part in reply.parts or []), usage)

    # what a driver asks

    def _answering(self, name: str, model: type[B], answer: Callable[[B], Awaitable[dict[str, Any]]]) -> Callable[[Request], Any]:
        async def answering(request: Request) -> Response:
            try:
                body = model.model_validate_json(await whole_body(request, self.max_request_bytes))
                if name != "claim":
                    self._check(body.token)
                return JsonAnswer(await answer(body))
            except ValidationError as error:
                refused: AgentEnvError = InvalidFieldsError(error)
            except AgentEnvError as error:
                refused = error
            return JsonAnswer(refused.body(), refused.status)

        return answering

    async def _claim(self, body: bodies.Claim) -> dict[str, Any]:
        known = self._known()
        if known is None:
            self._keep(body.token)
        elif not hmac.compare_digest(known.encode(), body.token.encode()):
            raise AgentEnvError("already_claimed", "another driver has claimed this agent", status=409)
        return {"status": "claimed"}

    def _known(self) -> str | None:
        """The driver's token, also after a restart."""
        if self._token is None and self.state is not None and (kept := self.state / "driver").exists():
            self._token = kept.read_text()
        return self._token

    def _keep(self, token: str) -> None:
        self._token = token
        if self.state is not None:
            self.state.mkdir(parents=True, exist_ok=True)
            with os.fdopen(os.open(self.state / "driver", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                file.write(token)

    def _check(self, token: str) -> None:
        known = self._known()
        if known is None or not hmac.compare_digest(known.encode(), token.encode()):
            raise AgentEnvError("unauthorized", "this is not the token of the driver that claimed the agent", status=401)

    async def _next(self, body: bodies.Next) -> dict[str, Any]:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._poll), self._changed:
                await self._changed.wait_for(lambda: self._version > body.after)
        return {"version": self._version, "turns": [_told(each.request) for each in self._turns.values() if not each.reply.done()]}

    async def _tools(self, body: bodies.ToolsOf) -> dict[str, Any]:
        turn = self._turn(body.task_id)
        schema = {"type": "object", "properties": {"command": {"type": "string", "description": "The command."}}, "required": ["command"]}
        told: list[dict[str, Any]] = [{"name": BASH, "description": "Runs a command where the agent works.", "input_schema": schema}]
        for tool in (await _opened(turn)).tools.values():
            if any(each["name"] == tool.tool for each in told):
                raise AgentEnvError("duplicate", f"two tools are named {tool.tool!r}", status=409)
            told.append({"name": tool.tool, "description": tool.description, "input_schema": tool.schema, "server": tool.server})
        return {"tools": told}

    async def _act(self, body: bodies.Act) -> dict[str, Any]:
        turn = self._turn(body.task_id)
        known = turn.actions.get(body.action_id)
        if known is None:
            if turn.recorded:
                _take(turn, body.action)
            task = asyncio.create_task(self._do(turn, body.action_id, body.action), name=f"action {body.action_id}")
            known = turn.actions[body.action_id] = (body.action, task)
        elif known[0] != body.action:
            raise AgentEnvError("conflict", "another action has this id", status=409)
        return await self._came(known[1])

    async def _result(self, body: bodies.ResultOf) -> dict[str, Any]:
        task = next((turn.actions[body.action_id][1] for turn in self._turns.values() if body.action_id in turn.actions), None)
        if task is None:
            raise AgentEnvError("not_found", "there is no such action of an open turn", status=404)
        return await self._came(task)

    async def _record(self, body: bodies.Record) -> dict[str, Any]:
        turn = self._turn(body.task_id)
        _nothing_unrun(turn)
        turn.recorded, turn.unrun = True, list(_calls(body.message))
        usage = body.usage or {}
        read, written = (usage.get(f"{ours}_tokens", usage.get(f"{theirs}_tokens")) for ours, theirs in _TOKENS)
        turn.span(
            "chat", "chat", turn.started, request__model=body.model, completion=json.dumps(body.message, ensure_ascii=False),
            usage__input_tokens=read, usage__output_tokens=written,
        )  # fmt: skip
        return {"status": "recorded"}

    async def _reply(self, body: bodies.Reply) -> dict[str, Any]:
        turn = self._turn(body.task_id)
        if body.error is None:
            _nothing_unrun(turn)
        turn.reply.set_result(body)
        return {"status": "replied"}

    def _turn(self, task_id: str) -> _Turn:
        turn = self._turns.get(task_id)
        if turn is None or turn.reply.done():
            raise AgentEnvError("not_found", "there is no such open turn", status=404)
        return turn

    async def _tell(self) -> None:
        async with self._changed:
            self._version += 1
            self._changed.notify_all()

    # actions

    async def _came(self, task: asyncio.Task[dict[str, Any]]) -> dict[str, Any]:
        done, _ = await asyncio.wait({task}, timeout=self._poll)
        if not done:
            return {"done": False}
        if task.cancelled():
            raise AgentEnvError("not_found", "the turn has closed", status=404)
        return {"done": True, "result": task.result()}

    async def _do(self, turn: _Turn, action_id: str, action: bodies.ToolAction | bodies.BashAction) -> dict[str, Any]:
        started = now()
        if isinstance(action, bodies.BashAction):
            result = await _bash(action.command, self._folder, action.timeout_seconds or BASH_SECONDS)
            name, arguments, failed = BASH, {"command": action.command}, result["exit_code"] != 0
        else:
            text, failed = await _tool(turn, action)
            name, arguments = action.name, action.arguments
            result = {"kind": "tool", "content": [{"type": "text", "text": text}], "is_error": failed}
        turn.span(
            name, "execute_tool", started, failed=failed, tool__name=name, tool__call__id=action_id,
            prompt=json.dumps(arguments, ensure_ascii=False), completion=json.dumps(result, ensure_ascii=False),
        )  # fmt: skip
        return result


async def _opened(turn: _Turn) -> Toolbox:
    try:
        return await turn.tools()
    except (httpx.HTTPError, McpError, TimeoutError) as error:
        raise AgentEnvError("tools_unreachable", f"the MCP servers can't be reached: {type(error).__name__}", status=502) from error


async def _tool(turn: _Turn, action: bodies.ToolAction) -> tuple[str, bool]:
    try:
        async with asyncio.timeout(action.timeout_seconds or TOOL_SECONDS):
            return await (await _opened(turn)).call(action.server, action.name, action.arguments)
    except (AgentEnvError, TimeoutError) as error:
        return f"{type(error).__name__}: {error}", True


async def _bash(command: str, folder: Path | None, seconds: float) -> dict[str, Any]:
    """What a command came to. What it left running goes on; what that still writes is not waited for."""
    timed_out = False
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        running = await asyncio.create_subprocess_exec(
            shutil.which("bash") or "sh", "-c", command, cwd=folder, start_new_session=True, stdin=asyncio.subprocess.DEVNULL,
            stdout=out, stderr=err,
        )  # fmt: skip
        try:
            async with asyncio.timeout(seconds):
                await running.wait()
        except TimeoutError:
            timed_out = True
        finally:
            if running.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(running.pid, signal.SIGKILL)
                await running.wait()
        for stream in (out, err):
            stream.seek(0)
        said, complained = (stream.read(SHOWN_BYTES).decode(errors="replace") for stream in (out, err))
    code = None if timed_out else running.returncode
    return {"kind": BASH, "exit_code": code, "stdout": said, "stderr": complained, "timed_out": timed_out}


def _told(request: TaskRequest[ProxyConfig]) -> dict[str, Any]:
    told: dict[str, Any] = {
        "task_id": request.task_id,
        "context_id": request.context_id,
        "parts": [{"kind": "text", "text": part.text} for part in request.parts if isinstance(part, TextPart)],
        "skills": [{"name": each.name, "description": each.description, "path": str(each.folder)} for each in request.skills],
    }
    return told | ({"system_prompt": request.config.system_prompt} if request.config.system_prompt else {})


def _canonical(arguments: Any) -> str:
    if isinstance(arguments, str):
        with contextlib.suppress(ValueError):
            arguments = json.loads(arguments)
    return json.dumps(arguments or {}, sort_keys=True)


def _calls(message: str | dict[str, Any]) -> Iterable[tuple[str, str]]:
    """The calls of a message in OpenAI's or Anthropic's shape."""
    if isinstance(message, str):
        return
    for call in message.get("tool_calls") or []:
        function = call.get("function") or {}
        yield str(function.get("name")), _canonical(function.get("arguments"))
    content = message.get("content")
    for block in content if isinstance(content, list) else []:
        if isinstance(block, dict) and block.get("type") == "tool_use":
            yield str(block.get("name")), _canonical(block.get("input"))


def _take(turn: _Turn, action: bodies.ToolAction | bodies.BashAction) -> None:
    """Takes the recorded call that an action is.

    Raises:
        AgentEnvError: It is none (409).
    """
    name, arguments = (BASH, {"command": action.command}) if isinstance(action, bodies.BashAction) else (action.name, action.arguments)
    wanted = (name, _canonical(arguments))
    if wanted not in turn.unrun:
        raise AgentEnvError("conflict", "the last recorded message has no such call", status=409)
    turn.unrun.remove(wanted)


def _nothing_unrun(turn: _Turn) -> None:
    if turn.unrun:
        names = ", ".join(name for name, _ in turn.unrun)
        raise AgentEnvError("conflict", f"calls of the last recorded message were not done: {names}", status=409)


if __name__ == "__main__":
    serve(Proxy())
