"""MCP over streamable HTTP, as JSON: sessions, tools, progress, cancellation, and the server's own stream.

No package of MCP is needed for it: importing one takes longer than everything else that a server does until it serves.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
import anyio.abc
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from agent_env_sdk.hosting import whole_body
from agent_env_sdk.wire.errors import AgentEnvError
from agent_env_sdk.wire.names import MCP_PROTOCOL_VERSION, MCP_VERSION_HEADER, SESSION_HEADER
from agent_env_sdk.wire.rpc import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, PARSE_ERROR, SERVER_ERROR

from .answers import plain
from .context import Caller, Report
from .tools import CursorError

logger = logging.getLogger("agent_env_sdk")
VERSIONS: Final = (MCP_PROTOCOL_VERSION, "2025-06-18", "2025-03-26", "2024-11-05")
"""The revisions that are spoken, the newest first. Clients of a later one fall back on them."""
UNSUPPORTED_VERSION: Final = -32022
"""By which later revisions tell a client to fall back."""
QUIET_SECONDS: Final = 15.0
"""A stream on which nothing else is said gets a comment so often, so that nobody in between takes it for dead."""
MOST_SESSIONS: Final = 10_000
"""Of more, the one that was used longest ago is forgotten."""

_EVENTS: Final = "text/event-stream"
_HEADERS: Final = {"Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no"}
_QUIET: Final = b": quiet\n\n"
_TOOLS_CHANGED: Final = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}

ListTools = Callable[[Caller, str | None], Awaitable[dict[str, Any]]]
CallTool = Callable[[str, Mapping[str, Any], Caller, Report | None], Awaitable[dict[str, Any]]]
Id = str | int | float


class _RefusedError(Exception):
    """A request that is answered with a JSON-RPC error."""

    def __init__(self, code: int, message: str, status: int = 200, data: Any = None) -> None:
        super().__init__(message)
        self.status = status
        self.error = {"code": code, "message": message} if data is None else {"code": code, "message": message, "data": data}


@dataclass(frozen=True, slots=True)
class _Message:
    method: str | None
    id: Id | None
    params: Mapping[str, Any]


@dataclass(slots=True)
class _Call:
    """A call that runs on, whatever becomes of the connection that asked for it."""

    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    said: asyncio.Queue[dict[str, Any]] = field(default_factory=asyncio.Queue)
    """What is told while it runs, and last its answer, which alone has an `id`."""


@dataclass(slots=True)
class _Session:
    id: str
    calls: dict[Id, _Call] = field(default_factory=dict)
    stream: asyncio.Queue[dict[str, Any] | None] | None = None
    """Of the client that listens, the newest if there were several; None ends it."""

    def tell(self, message: dict[str, Any] | None) -> None:
        """Tells whoever listens, once until it is heard: there is only one thing to tell."""
        if self.stream is not None and (message is None or self.stream.empty()):
            self.stream.put_nowait(message)


class McpEndpoint:
    """MCP over streamable HTTP, as an ASGI application.

    Args:
        name: The server's name.
        version: Its version.
        list_tools: Gives a page of tools.
        call_tool: Gives the result of a call.
        max_request_bytes: The longest request that is read.
    """

    def __init__(self, name: str, version: str, list_tools: ListTools, call_tool: CallTool, max_request_bytes: int) -> None:
        self._about = {"name": name, "version": version}
        self._list, self._call = list_tools, call_tool
        self._max_request_bytes = max_request_bytes
        self._sessions: OrderedDict[str, _Session] = OrderedDict()
        self._owner: anyio.abc.TaskGroup | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        request = Request(scope, receive)
        try:
            match request.method:
                case "POST":
                    response = await self._post(request)
                case "GET":
                    response = self._listen(self._session(request))
                case "DELETE":
                    response = self._end(self._session(request))
                case _:
                    response = Response(status_code=405, headers={"Allow": "GET, POST, DELETE"})
        except _RefusedError as refused:
            response = _refusal(None, refused)
        await response(scope, receive, send)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Holds the calls; requests are answered inside."""
        async with anyio.create_task_group() as self._owner:
            try:
                yield
            finally:
                self.stop()
                self._owner.cancel_scope.cancel()

    def stop(self) -> None:
        """Ends the streams on which clients listen, which would stay open for good."""
        for session in self._sessions.values():
            session.tell(None)

    async def tools_changed(self) -> None:
        """Tells connected clients that the list of tools has changed."""
        for session in self._sessions.values():
            session.tell(_TOOLS_CHANGED)

    # requests

    async def _post(self, request: Request) -> Response:
        message = await self._message(request)
        try:
            if message.method == "initialize" and message.id is not None:
                return self._begin(message)
            version = request.headers.get(MCP_VERSION_HEADER)
            if version is not None and version not in VERSIONS:
                data = {"supported": list(VERSIONS), "requested": version}
                raise _RefusedError(UNSUPPORTED_VERSION, f"Unsupported protocol version: {version}", 400, data)
            session = self._session(request)
            if message.method is None or message.id is None:
                _heard(session, message)
                return Response(status_code=202)
            return await self._answered(request, session, message.method, message.id, message.params)
        except _RefusedError as refused:
            return _refusal(message.id, refused)

    async def _message(self, request: Request) -> _Message:
        try:
            body = json.loads(await whole_body(request, self._max_request_bytes))
        except AgentEnvError as error:
            raise _RefusedError(SERVER_ERROR, error.message, error.status) from error
        except (ValueError, RecursionError) as error:
            raise _RefusedError(PARSE_ERROR, f"Parse error: {error}", 400) from error
        if not isinstance(body, dict):
            raise _RefusedError(INVALID_REQUEST, "Invalid request: not an object; batches are not part of MCP", 400)
        method, id = body.get("method"), body.get("id")
        answers = method is None and ("result" in body or "error" in body)
        if not (answers or isinstance(method, str)) or isinstance(id, bool) or not isinstance(id, Id | None):
            raise _RefusedError(INVALID_REQUEST, "Invalid request: method or id is of no type that it may be", 400)
        params = body.get("params")
        return _Message(method, id, params if isinstance(params, dict) else {})

    def _begin(self, message: _Message) -> Response:
        asked = message.params.get("protocolVersion")
        session = _Session(secrets.token_hex(16))
        self._sessions[session.id] = session
        if len(self._sessions) > MOST_SESSIONS:
            _, forgotten = self._sessions.popitem(last=False)
            forgotten.tell(None)
        result = {
            "protocolVersion": asked if asked in VERSIONS else MCP_PROTOCOL_VERSION,
            "capabilities": {"tools": {"listChanged": True}},
            "serverInfo": self._about,
        }
        return _json({"jsonrpc": "2.0", "id": message.id, "result": result}, headers={SESSION_HEADER: session.id})

    def _session(self, request: Request) -> _Session:
        id = request.headers.get(SESSION_HEADER)
        if id is None:
            raise _RefusedError(INVALID_REQUEST, f"no {SESSION_HEADER} header: send initialize first", 400)
        session = self._sessions.get(id)
        if session is None:
            raise _RefusedError(INVALID_REQUEST, "Session not found", 404)
        self._sessions.move_to_end(id)
        return session

    async def _answered(self, request: Request, session: _Session, method: str, id: Id, params: Mapping[str, Any]) -> Response:
        meta = params.get("_meta")
        caller = Caller.of(meta if isinstance(meta, dict) else None, request.headers)
        match method:
            case "ping":
                return _json(_result(id, {}))
            case "tools/list":
                cursor = params.get("cursor")
                try:
                    return _json(_result(id, await self._list(caller, None if cursor is None else str(cursor))))
                except CursorError as error:
                    raise _RefusedError(INVALID_PARAMS, str(error)) from error
            case "tools/call":
                token = meta.get("progressToken") if isinstance(meta, dict) else None
                call = self._start(session, id, params, caller, token)
                return await _delivered(call, events=_EVENTS in request.headers.get("accept", ""))
        raise _RefusedError(METHOD_NOT_FOUND, f"Method not found: {method}")

    # calls

    def _start(self, session: _Session, id: Id, params: Mapping[str, Any], caller: Caller, token: Any) -> _Call:
        name, arguments = params.get("name"), params.get("arguments")
        if not isinstance(name, str) or not isinstance(arguments, dict | None):
            raise _RefusedError(INVALID_PARAMS, "Invalid params: 'name' is a string, and 'arguments' an object")
        if self._owner is None:
            raise RuntimeError("the server does not run")
        call = _Call()

        async def report(done: float, total: float | None, message: str | None) -> None:
            told = {"progressToken": token, "progress": done, "total": total, "message": message}
            params = {key: value for key, value in told.items() if value is not None}
            call.said.put_nowait({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})

        async def run() -> None:
            answer = _failed(id, SERVER_ERROR, "Request cancelled")
            with call.scope:
                try:
                    answer = _result(id, await self._call(name, arguments or {}, caller, None if token is None else report))
                except Exception as error:  # a tool's own errors are results: this one is the server's, and must not end its other calls
                    logger.exception("a call of %s broke", name)
                    answer = _failed(id, SERVER_ERROR, f"the call broke: {type(error).__name__}")
            if session.calls.get(id) is call:
                del session.calls[id]
            call.said.put_nowait(answer)

        session.calls[id] = call
        self._owner.start_soon(run)
        return call

    # the server's own stream

    def _listen(self, session: _Session) -> Response:
        session.tell(None)
        session.stream = asyncio.Queue()
        return StreamingResponse(_listening(session, session.stream), media_type=_EVENTS, headers=_HEADERS)

    def _end(self, session: _Session) -> Response:
        del self._sessions[session.id]
        session.tell(None)
        for call in session.calls.values():
            call.scope.cancel()
        return Response(status_code=200)


async def _delivered(call: _Call, *, events: bool) -> Response:
    """The answer alone as JSON where it comes first; as events where something is told before it, or it takes long."""
    first = await _next(call.said) if events else None
    while not events and (first is None or "id" not in first):
        first = await call.said.get()
    if first is not None and "id" in first:
        return _json(first)
    return StreamingResponse(_told(call, first), media_type=_EVENTS, headers=_HEADERS)


async def _told(call: _Call, first: dict[str, Any] | None) -> AsyncIterator[bytes]:
    said = first
    while True:
        yield _QUIET if said is None else _event(said)
        if said is not None and "id" in said:
            return
        said = await _next(call.said)


async def _listening(session: _Session, stream: asyncio.Queue[dict[str, Any] | None]) -> AsyncIterator[bytes]:
    try:
        yield _QUIET
        while True:
            try:
                async with asyncio.timeout(QUIET_SECONDS):
                    said = await stream.get()
            except TimeoutError:
                yield _QUIET
                continue
            if said is None:
                return
            yield _event(said)
    finally:
        if session.stream is stream:
            session.stream = None


async def _next(said: asyncio.Queue[dict[str, Any]]) -> dict[str, Any] | None:
    """What is said next; None when nothing is for a while."""
    try:
        async with asyncio.timeout(QUIET_SECONDS):
            return await said.get()
    except TimeoutError:
        return None


def _heard(session: _Session, message: _Message) -> None:
    """A notification: of them, only one that cancels a call says something."""
    id = message.params.get("requestId")
    if message.method == "notifications/cancelled" and isinstance(id, Id) and id in session.calls:
        session.calls[id].scope.cancel()


def _result(id: Id, result: Mapping[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "result": result}


def _failed(id: Id, code: int, message: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}}


def _refusal(id: Id | None, refused: _RefusedError) -> Response:
    return _json({"jsonrpc": "2.0", "id": id, "error": refused.error}, refused.status)


def _json(message: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(_text(message), status, headers, "application/json")


def _event(message: Mapping[str, Any]) -> bytes:
    return f"event: message\ndata: {_text(message)}\n\n".encode()


def _text(message: Mapping[str, Any]) -> str:
    """ASCII alone, so that no reader of lines sees an end of one inside."""
    try:
        return json.dumps(message, separators=(",", ":"), allow_nan=False)
    except (ValueError, TypeError):  # infinities, and what JSON has no word for
        return json.dumps(plain(message), separators=(",", ":"))
