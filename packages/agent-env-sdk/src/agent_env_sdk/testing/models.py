"""A model server that plays scenarios: four dialects, no model, no state but the count of faults that were given.

The scenario is chosen by the API key (`scn-<name>`), which also proves that the key arrived. The step is chosen by the request
alone: as many answers of the model as its conversation holds, so that a repeated request gets the same answer.

async with serve_models({"greet": Scenario((Step(calls=(Call("shell", {"command": "echo hi"}),)), Step("it said {last}")))}) as models:
    ...  # models.base, models.key("greet"), models.requests, models.problems
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from agent_env_sdk.hosting import configuration

from .dialects import CHAT, GEMINI, MESSAGES, RESPONSES, Asked, Called, Dialect, Event, Reply
from .here import running_here

KEY: Final = "scn-"
_SECRET_HEADERS: Final = frozenset({"authorization", "x-api-key", "x-goog-api-key", "api-key", "cookie"})

FaultKind = Literal["status", "cut", "silence", "malformed", "echo_key"]


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that goes wrong before the step is answered."""

    kind: FaultKind
    status: int = 500
    """For `status`, and for `echo_key`, whose body repeats the key."""
    retry_after_seconds: int | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a tool: by its name, or by what it is (`shell`, `read`, `mcp:<server>.<tool>`), whatever the agent calls it."""

    tool: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Step:
    """One answer of the model, and what the request has to look like."""

    text: str | Callable[[str], str] = ""
    """`{last}` is the last tool's result, or what the user said. A function is given that, and gives the answer."""
    calls: tuple[Call, ...] = ()
    faults: tuple[Fault, ...] = ()
    """Given to the first requests for this step, one each; the next one is answered."""
    last_contains: str | None = None
    offers: tuple[str, ...] = ()
    """Tools that the request has to offer, by name or by what they are."""
    model: str | None = None
    header: tuple[str, str] | None = None
    input_tokens: int = 10
    output_tokens: int = 5


@dataclass(frozen=True, slots=True)
class Scenario:
    """A conversation's answers."""

    steps: tuple[Step, ...]
    auxiliary: str | None = None
    """What a request without tools is answered (titles, probes of a quota); None: it is a step like others."""


@dataclass
class ModelServer:
    """The server, while it runs."""

    scenarios: dict[str, Scenario]
    """May be added to."""
    log: Path | None = None
    base: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)
    """Each request: dialect, scenario, step, body, headers without keys."""
    problems: list[str] = field(default_factory=list)
    """Where a request wasn't what its step expects."""
    _given: Counter[tuple[str, int]] = field(default_factory=Counter)

    @staticmethod
    def key(scenario: str) -> str:
        """The API key that chooses a scenario."""
        return f"{KEY}{scenario}"

    def routes(self) -> Iterator[Route]:
        """Where each dialect is spoken."""
        for path in ("/v1/chat/completions", "/chat/completions"):
            yield Route(path, self._endpoint(CHAT), methods=["POST"])
        for path in ("/openai/v1/responses", "/v1/responses", "/responses"):
            yield Route(path, self._endpoint(RESPONSES), methods=["POST"])
        yield Route("/v1/messages", self._endpoint(MESSAGES), methods=["POST"])
        yield Route("/v1/messages/count_tokens", _counted, methods=["POST"])
        for prefix in ("/gemini/v1beta", "/v1beta"):
            yield Route(f"{prefix}/models/{{model}}", self._endpoint(GEMINI), methods=["POST"])

    def _endpoint(self, dialect: Dialect) -> Any:
        async def endpoint(request: Request) -> Response:
            body = await request.json()
            key = _key(request)
            model, _, verb = request.path_params.get("model", "").partition(":")
            try:
                asked = dialect.read(body, model, verb.startswith("stream"))
            except (KeyError, TypeError, IndexError, AttributeError) as error:
                return self._refused(f"this is no request of {dialect.name}: {error!r}")
            scenario = self.scenarios.get(key.removeprefix(KEY)) if key.startswith(KEY) else None
            if scenario is None:
                return JSONResponse({"error": {"type": "authentication_error", "message": "the key names no scenario"}}, 401)
            auxiliary = scenario.auxiliary is not None and not asked.tools
            self._note(dialect, key, asked, request, body=body, auxiliary=auxiliary)
            if auxiliary:
                return _answered(dialect, asked, Step(scenario.auxiliary or ""), ())
            return self._step(dialect, asked, key, scenario, request)

        return endpoint

    def _step(self, dialect: Dialect, asked: Asked, key: str, scenario: Scenario, request: Request) -> Response:
        where = f"{key} step {asked.turns}"
        if asked.turns >= len(scenario.steps):
            return self._refused(f"{where}: the scenario has {len(scenario.steps)} steps")
        step = scenario.steps[asked.turns]
        given = self._given[key, asked.turns]
        if given < len(step.faults):
            self._given[key, asked.turns] += 1
            return _faulty(dialect, step.faults[given], asked, step, key)
        try:
            _expect(step, asked, request)
            calls = tuple(_called(f"call_{asked.turns}_{number}", call, asked.tools) for number, call in enumerate(step.calls))
        except LookupError as error:
            return self._refused(f"{where}: {error.args[0]}")
        return _answered(dialect, asked, step, calls)

    def _refused(self, problem: str) -> Response:
        self.problems.append(problem)
        return JSONResponse({"error": {"type": "invalid_request_error", "message": problem}}, 400)

    def _note(self, dialect: Dialect, key: str, asked: Asked, request: Request, *, body: Any, auxiliary: bool) -> None:
        headers = {name: value for name, value in request.headers.items() if name not in _SECRET_HEADERS}
        entry = {
            "dialect": dialect.name,
            "scenario": key.removeprefix(KEY),
            "step": asked.turns,
            "auxiliary": auxiliary,
            "path": request.url.path,
            "body": body,
            "headers": headers,
        }
        self.requests.append(entry)
        if self.log is not None:
            with self.log.open("a") as file:
                file.write(json.dumps(entry) + "\n")


@asynccontextmanager
async def serve_models(
    scenarios: Mapping[str, Scenario], *, log: Path | None = None, host: str = "127.0.0.1"
) -> AsyncIterator[ModelServer]:
    """Serves scenarios while the block runs.

    Args:
        scenarios: By name.
        log: A file that each request is appended to, as a line of JSON without keys.
        host: The address to listen on.
    """
    server = ModelServer(dict(scenarios), log)
    async with running_here(configuration(Starlette(routes=list(server.routes()))), "the model server", host) as base:
        server.base = base
        yield server


def _expect(step: Step, asked: Asked, request: Request) -> None:
    if step.last_contains is not None and step.last_contains not in asked.last_result:
        raise LookupError(f"the last result doesn't contain {step.last_contains!r}: {asked.last_result[:500]!r}")
    if step.model is not None and asked.model != step.model:
        raise LookupError(f"the model is {asked.model!r}, not {step.model!r}")
    if step.header is not None and request.headers.get(step.header[0]) != step.header[1]:
        raise LookupError(f"the header {step.header[0]} is {request.headers.get(step.header[0])!r}, not {step.header[1]!r}")
    for tool in step.offers:
        _tool_name(tool, asked.tools)


_KNOWN: Final[Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "shell": (
        ("shell", "bash", "Bash", "exec_command", "shell_command", "local_shell", "run_shell_command", "execute_bash", "terminal"),
        ("command", "cmd"),
    ),
    "read": (("read", "Read", "read_file"), ("path", "file_path", "filePath", "absolute_path")),
}
"""By what a tool is: what agents call it, and its argument."""


def _tool_name(tool: str, offered: Mapping[str, Any]) -> str:
    names: tuple[str, ...] = _KNOWN[tool][0] if tool in _KNOWN else (tool,)
    if tool.startswith("mcp:"):
        server, _, plain = tool.removeprefix("mcp:").partition(".")
        spelled = ("mcp__{}__{}", "{}_{}", "{}__{}", "mcp_{}_{}", "mcp__{}/{}")
        names = (plain, *(each.format(server, plain) for each in spelled))
    found = next((name for name in names if name in offered), None)
    if found is None:
        raise LookupError(f"no tool is {tool!r}; there are {', '.join(offered) or 'none'}")
    return found


def _called(call_id: str, call: Call, offered: Mapping[str, Mapping[str, Any]]) -> Called:
    name = _tool_name(call.tool, offered)
    arguments = dict(call.arguments)
    if call.tool in _KNOWN and _KNOWN[call.tool][1][0] in arguments:
        properties = offered[name].get("properties") or {}
        spelled = _KNOWN[call.tool][1]
        wanted = next((each for each in spelled if each in properties), spelled[0])
        value = arguments.pop(spelled[0])
        kind = (properties.get(wanted) or {}).get("type")
        arguments[wanted] = ["bash", "-lc", value] if isinstance(kind, str) and kind.lower() == "array" else value
    return Called(call_id, name, arguments)


def _answered(dialect: Dialect, asked: Asked, step: Step, calls: tuple[Called, ...]) -> Response:
    reply = _reply(asked, step, calls)
    if not asked.streamed:
        return JSONResponse(dialect.whole(reply))
    return StreamingResponse((_spelled(event) for event in dialect.events(reply)), media_type="text/event-stream")


def _reply(asked: Asked, step: Step, calls: tuple[Called, ...]) -> Reply:
    text = step.text(asked.last_result) if callable(step.text) else step.text.replace("{last}", asked.last_result.strip())
    return Reply(f"reply_{asked.turns}", asked.model, text, calls, step.input_tokens, step.output_tokens)


def _faulty(dialect: Dialect, fault: Fault, asked: Asked, step: Step, key: str) -> Response:
    match fault.kind:
        case "status" | "echo_key":
            text = f"the key {key} is refused" if fault.kind == "echo_key" else "as the scenario says"
            wait = {} if fault.retry_after_seconds is None else {"retry-after": str(fault.retry_after_seconds)}
            return JSONResponse({"error": {"type": "scripted", "message": text}}, fault.status, wait)
        case "malformed":
            return Response(
                "data: {not json\n\n" if asked.streamed else "{not json",
                media_type="text/event-stream" if asked.streamed else "application/json",
            )
        case "silence":
            return StreamingResponse(_silent(), media_type="text/event-stream" if asked.streamed else "application/json")
        case "cut":
            return StreamingResponse(_cut(dialect, _reply(asked, step, ())), media_type="text/event-stream")


async def _silent() -> AsyncIterator[bytes]:
    await asyncio.Event().wait()
    yield b""


async def _cut(dialect: Dialect, reply: Reply) -> AsyncIterator[bytes]:
    """The first event, and then the connection breaks off."""
    yield _spelled(next(dialect.events(reply)))
    raise ConnectionResetError("as the scenario says")


def _spelled(event: Event) -> bytes:
    name, data = event
    text = data if isinstance(data, str) else json.dumps(data)
    return f"{f'event: {name}{chr(10)}' if name else ''}data: {text}\n\n".encode()


def _key(request: Request) -> str:
    bearer = request.headers.get("authorization", "").partition(" ")[2]
    return bearer or request.headers.get("x-api-key") or request.headers.get("x-goog-api-key") or request.query_params.get("key") or ""


async def _counted(request: Request) -> Response:
    return JSONResponse({"input_tokens": max(1, len(await request.body()) // 4)})
