"""The MCP endpoint that agents see: sessions that need no memory, all servers' tools of one role, calls passed on as they come."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlsplit

from agent_env_sdk.wire.access import denial
from agent_env_sdk.wire.names import MCP_PROTOCOL_VERSION

from agent_env.gateway import jsontext
from agent_env.gateway.asgi import JSON, Incoming, RequestTooLargeError, is_known_host
from agent_env.gateway.calls import ROUTED_KEYS, Answer, Calls, failed_result
from agent_env.gateway.catalogue import Catalogue, Entry
from agent_env.gateway.config import Settings
from agent_env.gateway.delivering import Waiting, error_text
from agent_env.gateway.following import Following
from agent_env.gateway.listing import BY_METHOD, Kind
from agent_env.gateway.marking import Caller
from agent_env.gateway.nursery import Nursery
from agent_env.gateway.passing import Passing
from agent_env.gateway.questions import Questions, abilities
from agent_env.gateway.ruling import Ruling
from agent_env.gateway.session import Reply
from agent_env.gateway.streams import Streams
from agent_env.gateway.tokens import SessionId, read_session, session_id

VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, REFUSED = -32700, -32600, -32601, -32602, -32000
UNSUPPORTED_VERSION = -32022
_MESSAGE_KEYS = ("jsonrpc", "id", "method", "params", "result", "error")
_OFFERS: Final[Mapping[str, Mapping[str, Any]]] = {
    "tools": {"listChanged": True},
    "prompts": {"listChanged": True},
    "resources": {"listChanged": True, "subscribe": True},
    "completions": {},
    "logging": {},
}
"""What a client is told that it can ask for, where a server behind can, or may."""


class RefusalError(Exception):
    """A request that is answered with a JSON-RPC error."""

    def __init__(self, code: int, message: str, status: int = 200) -> None:
        super().__init__(message)
        self.code = code
        self.status = status


@dataclass(frozen=True, slots=True)
class _Message:
    text: str
    members: dict[str, jsontext.Member]
    method: str | None
    id: str | None
    """As it is written."""

    @property
    def params(self) -> str | None:
        return jsontext.raw(self.text, self.members.get("params"))


class McpEndpoint:
    """See the module.

    Args:
        settings: The configuration and the key of session ids.
        catalogue: What there is.
        ruling: Who may use which.
        calls: Makes them.
        following: Who wants to be told what.
        nursery: Where calls run on, whatever becomes of the connection that asked for them.
    """

    def __init__(
        self, settings: Settings, catalogue: Catalogue, ruling: Ruling, calls: Calls, *, following: Following, nursery: Nursery
    ) -> None:
        self._settings = settings
        self._limits = settings.limits
        self._catalogue = catalogue
        self._ruling = ruling
        self._calls = calls
        self._nursery = nursery
        self._running: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._following = following
        self._questions = Questions(settings.limits)
        self._passing = Passing(catalogue, calls, following, nursery)
        self._streams = Streams(catalogue, ruling, following, self._passing)
        self.draining = False

    @property
    def streams(self) -> int:
        """Open streams of clients."""
        return len(self._streams)

    async def serve(self, request: Incoming, role: str, *, fixed: bool) -> None:
        """Answers one request.

        Args:
            request: It.
            role: Whose it is. On the control door what a session's first request says of itself.
            fixed: Whether the role is proven; then a session of another role is none.
        """
        if not fixed and not is_known_host(request.header(b"host"), self._settings.config.hosts):
            await request.json(HTTPStatus.MISDIRECTED_REQUEST, {"error": "Invalid Host header: not a name of this gateway"})
            return
        origin = request.header(b"origin")
        page = urlsplit(origin).netloc or "null.invalid" if origin is not None else None
        if page != request.header(b"host") and not is_known_host(page, self._settings.config.hosts):
            await request.json(HTTPStatus.FORBIDDEN, {"error": "Invalid Origin header: not a page of this gateway"})
            return
        try:
            match request.method:
                case "POST":
                    await self._post(request, role, fixed=fixed)
                case "GET":
                    await self._listen(request, self._session(request, role, fixed=fixed))
                case "DELETE":
                    await self._delete(request, self._session(request, role, fixed=fixed))
                case _:
                    await request.answer(HTTPStatus.METHOD_NOT_ALLOWED, headers=[("allow", "GET, POST, DELETE")])
        except RefusalError as fault:
            await _refuse(request, "null", fault)

    # requests

    async def _post(self, request: Incoming, role: str, *, fixed: bool) -> None:
        message = await self._message(request)
        if message.method == "initialize" and message.id is not None:
            await self._initialize(request, message, role)
            return
        try:
            version = request.header(b"mcp-protocol-version")
            if version is not None and version not in VERSIONS:
                await self._unsupported(request, message, version)
                return
            session = self._session(request, role, fixed=fixed)
            if message.id is None or message.method is None:
                self._notified(session, message)
                await request.answer(HTTPStatus.ACCEPTED)
                return
            if message.method == "tools/call" or message.method in self._passing.methods:
                await self._pass(request, session, message)
                return
            await _result(request, message.id, await self._answer(session, message))
        except RefusalError as fault:
            await _refuse(request, message.id or "null", fault)

    async def _message(self, request: Incoming) -> _Message:
        try:
            text = jsontext.decode_utf8(await request.body(self._limits.request_bytes))
            if text.lstrip()[:1] == "[":
                raise RefusalError(INVALID_REQUEST, "batches are not part of MCP; send one message a request", HTTPStatus.BAD_REQUEST)
            members = jsontext.whole_object(text, exact=_MESSAGE_KEYS)
        except RequestTooLargeError as error:
            raise RefusalError(REFUSED, f"request too large: {error}", HTTPStatus.REQUEST_ENTITY_TOO_LARGE) from error
        except jsontext.JsonTextError as error:
            raise RefusalError(PARSE_ERROR, f"parse error: {error}", HTTPStatus.BAD_REQUEST) from error
        method, request_id = members.get("method"), jsontext.raw(text, members.get("id"))
        if method is not None and text[method.start] != '"':
            raise RefusalError(INVALID_REQUEST, "invalid request: method is not a string", HTTPStatus.BAD_REQUEST)
        if request_id is not None and request_id[0] not in '"-0123456789':
            raise RefusalError(INVALID_REQUEST, "invalid request: id is neither a string nor a number", HTTPStatus.BAD_REQUEST)
        if method is None and "result" not in members and "error" not in members:
            raise RefusalError(INVALID_REQUEST, "invalid request: no method", HTTPStatus.BAD_REQUEST)
        return _Message(text, members, jsontext.string_value(text, method), request_id)

    async def _initialize(self, request: Incoming, message: _Message, role: str) -> None:
        given = jsontext.value_of(message.params or "{}")
        params = given if isinstance(given, dict) else {}
        asked = params.get("protocolVersion")
        version = asked if asked in VERSIONS else MCP_PROTOCOL_VERSION
        identifier, _ = session_id(self._settings.key, role, str(version), abilities(params.get("capabilities")))
        await self._catalogue.settle(self._limits.introduce_seconds)
        offers = {capability: said for capability, said in _OFFERS.items() if capability == "tools" or self._catalogue.can(capability)}
        result = {
            "protocolVersion": version,
            "capabilities": offers,
            "serverInfo": {"name": self._settings.config.name, "version": "1.0"},
        }
        await _result(request, message.id or "null", json.dumps(result), [("mcp-session-id", identifier)])

    async def _unsupported(self, request: Incoming, message: _Message, version: str) -> None:
        error = {"code": UNSUPPORTED_VERSION, "message": f"Unsupported protocol version: {version}"}
        error["data"] = {"supported": list(VERSIONS), "requested": version}
        body = f'{{"jsonrpc":"2.0","id":{message.id or "null"},"error":{json.dumps(error)}}}'
        await request.answer(HTTPStatus.BAD_REQUEST, body.encode(), [JSON])

    def _session(self, request: Incoming, role: str, *, fixed: bool) -> SessionId:
        text = request.header(b"mcp-session-id")
        if text is None:
            raise RefusalError(INVALID_REQUEST, "no Mcp-Session-Id header: send initialize first", HTTPStatus.BAD_REQUEST)
        session = read_session(self._settings.key, text)
        if session is None or (fixed and session.role != role) or self._ruling.has_ended(session):
            raise RefusalError(INVALID_REQUEST, "session not found: send initialize again", HTTPStatus.NOT_FOUND)
        return session

    def _notified(self, session: SessionId, message: _Message) -> None:
        if message.method is None:
            result, error = (jsontext.raw(message.text, message.members.get(key)) for key in ("result", "error"))
            self._questions.answered(session, jsontext.value_of(message.id or "null"), Reply(result, None if result is not None else error))
            return
        if message.method != "notifications/cancelled" or message.params is None:
            return
        try:
            members = jsontext.whole_object(message.params)
        except jsontext.JsonTextError:
            return
        running = self._running.get((session.key, jsontext.raw(message.params, members.get("requestId")) or ""))
        if running is not None:
            running.cancel()

    async def _answer(self, session: SessionId, message: _Message) -> str:
        kind = BY_METHOD.get(message.method or "")
        if message.method == "ping":
            return "{}"
        if kind is None:
            raise RefusalError(METHOD_NOT_FOUND, f"Method not found: {message.method}")
        await self._catalogue.settle(self._limits.discovery_seconds)
        return self._page(session, kind, message.params)

    def _page(self, session: SessionId, kind: Kind, params: str | None) -> str:
        given = jsontext.value_of(params or "{}")
        cursor = given.get("cursor") if isinstance(given, dict) else None
        entries: Sequence[Entry] = self._catalogue.visible(session.role, self._ruling.access, kind)
        start = 0
        if cursor is not None:
            after = _read_cursor(cursor)
            start = next((place + 1 for place, entry in enumerate(entries) if entry.name == after), -1)
            if start < 0:
                raise RefusalError(INVALID_PARAMS, f"invalid cursor: list the {kind.noun}s from the beginning")
        page = entries[start : start + self._limits.tools_page]
        more = len(entries) > start + len(page)
        rest = f',"nextCursor":{json.dumps(_cursor(page[-1].name))}' if more else ""
        return f'{{"{kind.key}":[{",".join(entry.raw for entry in page)}]{rest}}}'

    # what takes a server's answer

    async def _pass(self, request: Incoming, session: SessionId, message: _Message) -> None:
        if self.draining or self._calls.in_progress >= self._limits.calls:
            why = "the gateway is stopping" if self.draining else f"{self._limits.calls} calls are in progress already"
            raise RefusalError(REFUSED, f"{why}; the call was not made, try again", HTTPStatus.SERVICE_UNAVAILABLE)
        waiting = Waiting(request, message.id or "null", session, questions=self._questions, following=self._following, calls=self._calls)
        work: Awaitable[Answer]
        if message.method == "tools/call":
            entry = await self._callable(session, message)
            if isinstance(entry, str):
                await _result(request, message.id or "null", entry)
                return
            work, what = self._call(session, entry, message.params or "{}", waiting), f"a call of {entry.name}"
        else:
            what = str(message.method)
            work = self._passing.answer(session, what, message.params or "{}", waiting)
        identity = (session.key, message.id or "")
        task = self._running[identity] = self._nursery.soon(_run(work, waiting), what)
        task.add_done_callback(lambda done: self._running.pop(identity) if self._running.get(identity) is done else None)
        await waiting.deliver(keep_alive_seconds=self._limits.keep_alive_seconds)

    async def _call(self, session: SessionId, entry: Entry, params: str, waiting: Waiting) -> Answer:
        answer = await self._calls.call(Caller(session.role, session.key), entry, params, audience=waiting)
        if entry.child is not None:
            self._passing.hand_over(session, entry.child.name, answer.result)
        return answer

    async def _callable(self, session: SessionId, message: _Message) -> Entry | str:
        """The tool that a call names, or the result that says why there is none for this role."""
        try:
            members = jsontext.whole_object(message.params or "{}", exact=(*ROUTED_KEYS, "_meta"))
        except jsontext.JsonTextError as error:
            raise RefusalError(INVALID_PARAMS, f"invalid params: {error}") from error
        name = jsontext.string_value(message.params or "", members.get("name"))
        if name is None:
            raise RefusalError(INVALID_PARAMS, "invalid params: 'name' must be a string")
        entry = self._catalogue.get(name)
        if entry is None:
            await self._catalogue.settle(self._limits.discovery_seconds)
            entry = self._catalogue.get(name)
        if entry is None:
            return failed_result(f"Unknown tool: {name}")
        if not entry.allowed(session.role, self._ruling.access):
            self._calls.refused(Caller(session.role, session.key), name)
            return failed_result(denial(name, session.role).message)
        return entry

    # the server's own stream

    async def _listen(self, request: Incoming, session: SessionId) -> None:
        if self.draining or len(self._streams) >= self._limits.calls:
            raise RefusalError(REFUSED, "too many streams are open, or the gateway is stopping", HTTPStatus.SERVICE_UNAVAILABLE)
        keep_alive = self._limits.keep_alive_seconds
        await self._streams.serve(request, session, draining=lambda: self.draining, keep_alive_seconds=keep_alive)

    async def _delete(self, request: Incoming, session: SessionId) -> None:
        await self._ruling.end_session(session)
        await self._passing.end(session)
        self._streams.end(session.key)
        await request.answer(HTTPStatus.OK)


async def _run(work: Awaitable[Answer], waiting: Waiting) -> None:
    answer = Answer(None, error_text(REFUSED, "the gateway could not make the call; it is told in its log"))
    try:
        answer = await work
    except jsontext.JsonTextError as error:
        answer = Answer(None, error_text(INVALID_PARAMS, f"invalid params: {error}"))
    except asyncio.CancelledError:
        answer = Answer(None, error_text(REFUSED, "Request cancelled"))
        raise
    finally:
        waiting.answered(answer)


async def _result(request: Incoming, request_id: str, result: str, headers: Sequence[tuple[str, str]] = ()) -> None:
    body = f'{{"jsonrpc":"2.0","id":{request_id},"result":{result}}}'
    await request.answer(HTTPStatus.OK, body.encode("utf-8", "surrogatepass"), [JSON, *headers])


async def _refuse(request: Incoming, request_id: str, fault: RefusalError) -> None:
    body = f'{{"jsonrpc":"2.0","id":{request_id},"error":{error_text(fault.code, str(fault))}}}'
    await request.answer(fault.status, body.encode("utf-8", "backslashreplace"), [JSON])


def _cursor(name: str) -> str:
    return base64.urlsafe_b64encode(name.encode("utf-8", "surrogatepass")).decode()


def _read_cursor(cursor: object) -> str | None:
    try:
        return base64.urlsafe_b64decode(str(cursor).encode()).decode("utf-8", "surrogatepass")
    except ValueError:
        return None
