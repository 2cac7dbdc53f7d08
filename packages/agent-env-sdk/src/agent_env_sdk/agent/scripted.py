"""An agent that plays a list of actions: an oracle, a no-op, or one that misbehaves in a chosen way. It needs no model.

The script is the prompt's own, when the prompt is a JSON list or has a data part with `script`; else the setting `script`;
else the variable `AGENTENV_SCRIPT` (JSON, or a file of it). A script is a list of turns' actions; a conversation that is to act
differently in later turns says `{"turns": [[...], [...]]}`.

| action | what it does |
|---|---|
| `{"say": "text"}` | adds to the answer; `{last}` is the last command's or tool's output, `{prompt}` what was asked |
| `{"progress": "text"}` | tells it from within the turn |
| `{"shell": "command", "timeout_seconds": 600}` | runs it |
| `{"mcp": "tool", "arguments": {}}` | calls a tool of whichever server has it; `server.tool` of that one |
| `{"sleep": seconds}` | waits |
| `{"record": {...}}` | adds an event to the trajectory as it is |
| `{"stream": bytes}` | tells and records that many bytes, in pieces |
| `{"structured": value}`, `{"usage": {...}}`, `{"remember": "text"}` | go with the answer |
| `{"fail": {"code", "message", "type"}}`, `{"reject": true}` | end the turn so |
| `{"raise": "text"}` | a bug: raises it |
| `{"crash": exit code}` | ends the process at once |
| `{"hang": true}` | never ends; cancelling ends it |
| `{"stubborn": "text"}` | hangs, and answers with the text after it was cancelled |
"""

from __future__ import annotations

import asyncio
import json
import os
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

from agent_env_sdk.wire.a2a import ErrorType, Usage
from agent_env_sdk.wire.parts import DataPart
from agent_env_sdk.wire.trajectory import EndEvent, MessageEvent, ToolCallEvent, ToolResultEvent

from .author import Agent, agent
from .hands import SHELL_SECONDS, Toolbox, shell, toolbox
from .serving import serve
from .turns import AgentConfig, Progress, TaskRequest, TaskResult

SCRIPT_VARIABLE: Final = "AGENTENV_SCRIPT"
PIECE_BYTES: Final = 64 * 1024

Script: TypeAlias = list[dict[str, Any]]


class ScriptConfig(AgentConfig):
    """What a scripted agent takes."""

    script: list[dict[str, Any]] | dict[str, list[list[dict[str, Any]]]] | None = None
    model: str | None = None
    system_prompt: str | None = None
    task_id: str | None = None


@dataclass
class _Turn:
    """What a turn has come to so far."""

    request: TaskRequest[ScriptConfig]
    tools: Toolbox
    folder: Path | None
    said: list[str] = field(default_factory=list)
    last: str = ""
    structured: Any = None
    usage: dict[str, Any] = field(default_factory=dict)
    remembered: str | None = None
    calls: int = 0

    def result(self) -> TaskResult:
        told = {"tool_call_count": self.calls, **self.usage}
        reference = self.remembered or str(int(self.request.session_ref or 0) + 1 if (self.request.session_ref or "0").isdigit() else 1)
        return TaskResult.said("\n".join(self.said), usage=Usage(**told), structured=self.structured, session_ref=reference)


@agent("scripted", description="Plays a given list of actions; needs no model.")
class Scripted(Agent):
    """Plays scripts.

    Args:
        script: What is played when neither the prompt nor the settings say; None for the variable `AGENTENV_SCRIPT`.
        folder: Where commands run, and what snapshots hold; None: where the agent does, without snapshots.
    """

    config = ScriptConfig
    triggers = True

    def __init__(self, script: Script | None = None, folder: Path | None = None) -> None:
        self._script: Any = script if script is not None else _from_environment()
        self._folder = self.workspace = folder

    async def run(self, request: TaskRequest[ScriptConfig]) -> AsyncIterator[Progress | TaskResult]:
        """Plays the turn's actions."""
        request.record(MessageEvent(source="user", text=request.text))
        try:
            actions = _actions(request, self._script)
        except ValueError as error:
            yield TaskResult.failed("scripted.invalid_script", str(error))
            return
        async with toolbox(request.mcp_servers if any("mcp" in action for action in actions) else {}) as tools:
            turn = _Turn(request, tools, self._folder)
            for action in actions:
                async for item in _play(turn, action):
                    yield item
                    if isinstance(item, TaskResult):
                        return
        request.record(MessageEvent(text="\n".join(turn.said)))
        request.record(EndEvent(state="completed"))
        yield turn.result()


async def _play(turn: _Turn, action: Mapping[str, Any]) -> AsyncIterator[Progress | TaskResult]:
    kind = next(name for name in ACTIONS if name in action)
    match kind:
        case "progress":
            yield Progress(str(action["progress"]))
        case "stream":
            async for piece in _stream(turn, int(action["stream"])):
                yield piece
        case "fail":
            what = action["fail"]
            error_type: ErrorType = "infra_error" if what.get("type") == "infra_error" else "agent_error"
            yield TaskResult.failed(what.get("code", "scripted.failed"), what.get("message", "as the script says"), type=error_type)
        case "reject":
            yield TaskResult(rejected=True)
        case "stubborn":
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                yield TaskResult.said(str(action["stubborn"]))
        case "shell":
            await _shell(turn, action)
            await turn.request.calls_over(1)
        case "mcp":
            await _mcp(turn, action)
            await turn.request.calls_over(1)
        case "sleep":
            await asyncio.sleep(float(action["sleep"]))
        case "hang":
            await asyncio.Event().wait()
        case _:
            _NOTES[kind](turn, action[kind])


def _say(turn: _Turn, text: str) -> None:
    turn.said.append(text.replace("{last}", turn.last).replace("{prompt}", turn.request.text))


def _raise(_: _Turn, text: str) -> None:
    raise RuntimeError(text)


_NOTES: Final[Mapping[str, Callable[[_Turn, Any], object]]] = {
    "say": _say,
    "record": lambda turn, event: turn.request.record(event),
    "structured": lambda turn, value: setattr(turn, "structured", value),
    "usage": lambda turn, value: turn.usage.update(value),
    "remember": lambda turn, value: setattr(turn, "remembered", str(value)),
    "raise": _raise,
    "crash": lambda _, code: os._exit(int(code)),
}
ACTIONS: Final = ("say", "progress", "shell", "mcp", "sleep", "stream", "fail", "reject", "hang", "stubborn", *list(_NOTES)[1:])


async def _shell(turn: _Turn, action: Mapping[str, Any]) -> None:
    call = _called(turn, "shell", {"command": action["shell"]}, None)
    result = await shell(action["shell"], folder=turn.folder, timeout_seconds=float(action.get("timeout_seconds", SHELL_SECONDS)))
    turn.last = result.output.rstrip("\n")
    turn.request.record(ToolResultEvent(call_id=call, content=result.output, is_error=result.exit_code != 0))


async def _mcp(turn: _Turn, action: Mapping[str, Any]) -> None:
    server, dot, tool = str(action["mcp"]).partition(".")
    if not dot:
        server, tool = "*", server
    if server == "*":
        server = next((each.server for each in turn.tools.tools.values() if each.tool == tool), server)
    arguments = action.get("arguments") or {}
    call = _called(turn, tool, arguments, server)
    turn.last, is_error = await turn.tools.call(server, tool, arguments)
    turn.request.record(ToolResultEvent(call_id=call, content=turn.last, is_error=is_error))


def _called(turn: _Turn, name: str, arguments: Any, server: str | None) -> str:
    turn.calls += 1
    call = f"call_{turn.calls}_{uuid.uuid4().hex[:8]}"
    turn.request.record(ToolCallEvent(call_id=call, name=name, arguments=arguments, server=server))
    return call


async def _stream(turn: _Turn, size: int) -> AsyncIterator[Progress]:
    for start in range(0, size, PIECE_BYTES):
        text = "x" * min(PIECE_BYTES, size - start)
        turn.request.record(MessageEvent(text=text))
        yield Progress(text)
        await asyncio.sleep(0)  # lets the server send it


def _actions(request: TaskRequest[ScriptConfig], usual: Any) -> Script:
    """This turn's actions.

    Raises:
        ValueError: There is no script, or an action isn't one.
    """
    script = next((part.data["script"] for part in request.parts if isinstance(part, DataPart) and "script" in part.data), None)
    if script is None and request.text.lstrip().startswith("["):
        script = json.loads(request.text)
    script = script if script is not None else request.config.script if request.config.script is not None else usual
    if script is None:
        raise ValueError(f"there is no script: neither in the prompt, nor in the settings, nor in {SCRIPT_VARIABLE}")
    if isinstance(script, dict):
        turns = script.get("turns")
        number = int(request.session_ref or 0) if (request.session_ref or "0").isdigit() else 0
        if not isinstance(turns, list) or not turns:
            raise ValueError("a script is a list of actions, or an object with a list of turns")
        script = turns[min(number, len(turns) - 1)]
    for number, action in enumerate(script if isinstance(script, list) else [script]):
        if not isinstance(action, dict) or not any(name in action for name in ACTIONS):
            raise ValueError(f"action {number} of the script is none of {', '.join(ACTIONS)}")
    return list(script)


def _from_environment() -> Any:
    value = os.environ.get(SCRIPT_VARIABLE)
    if not value:
        return None
    return json.loads(value if value.lstrip()[:1] in {"[", "{"} else Path(value).read_text())


if __name__ == "__main__":
    serve(Scripted(folder=Path.cwd()))
