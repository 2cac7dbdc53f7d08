"""One MCP session with one server over streamable HTTP: a message goes out as text, its answer comes back as text.

It knows nothing of tools, agents or retries. Its errors say what may have happened to a request, because that decides whether somebody may
send it again.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Protocol
from urllib.parse import urljoin, urlsplit

from agent_env_sdk.wire.names import MCP_PROTOCOL_VERSION, MCP_VERSION_HEADER, SESSION_HEADER

from agent_env.gateway import jsontext, sse
from agent_env.gateway.defaults import GatewayLimits
from agent_env.gateway.exchange import Exchange, ExchangeError, Response, TooLargeError
from agent_env.gateway.nursery import log

CLIENT_NAME = "agent-env-gateway"
_ACCEPT = "application/json, text/event-stream"
_REDIRECTS = 3
_SHOWN_CHARACTERS = 300

Heard = Callable[["Session", str, "Audience | None"], None]
"""Takes what a server says that is no answer; with whoever waits meanwhile, where somebody does."""
Pause = Callable[[float], Awaitable[None]]
_ABILITIES = '{"sampling":{"tools":{},"context":{}},"elicitation":{"form":{},"url":{}},"roots":{}}'
"""What servers may ask for. Whether the agent's client that a question goes to can do it shows when it is asked."""


class Fault(StrEnum):
    """What went wrong with a server."""

    UNREACHABLE = "unreachable"
    """It never got the request."""
    LOST = "lost"
    """It may have run it, and its answer will not come."""
    TIMEOUT = "timeout"
    INVALID = "invalid"
    """It answered something that is no answer."""
    TOO_LARGE = "too_large"


class ChildError(Exception):
    """A server gave no answer."""

    def __init__(self, message: str, fault: Fault) -> None:
        super().__init__(message)
        self.fault = fault


class UnknownSessionError(Exception):
    """The server does not know the session, so it ran nothing."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A server's answer: the text of its `result`, or of its `error`."""

    result: str | None
    error: str | None


class Audience(Protocol):
    """Whoever waits for a server's answer, as far as that server may speak to it meanwhile."""

    @property
    def key(self) -> str:
        """What tells it from others: its session with us."""
        ...

    def told(self, text: str) -> None:
        """Takes a notification."""
        ...

    async def asked(self, method: str, params: str | None, /) -> Reply:
        """Answers a question of the server."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Session:
    """See the module. Made by `open_session`."""

    name: str
    """The server's, as errors say it."""
    exchange: Exchange
    path: str
    limits: GatewayLimits
    heard: Heard
    pause: Pause
    """Waits before a stream is taken up again."""
    id: str | None = None
    """None for a server that keeps no sessions."""
    version: str = MCP_PROTOCOL_VERSION
    capabilities: Mapping[str, Any] = field(default_factory=dict)
    """What the server says that it can do."""

    async def ask(self, number: int, method: str, params: str | None, audience: Audience | None) -> Reply:
        """Sends a request and gives its answer.

        Args:
            number: Its id, never used before in this session.
            method: The MCP method.
            params: Its parameters, as text.
            audience: Whom the server may speak to meanwhile.

        Raises:
            UnknownSessionError: The server does not know this session.
            ChildError: The answer is none.
            ExchangeError: No answer came.
            TooLargeError: It is larger than it may be.
        """
        body = f'{{"jsonrpc":"2.0","id":{number},"method":{json.dumps(method)}'
        body += f',"params":{params}}}' if params is not None else "}"
        async with self.exchange.request("POST", self.path, self._headers(_ACCEPT), body.encode("utf-8", "surrogatepass")) as response:
            if response.status == 200 and _kind(response) == "text/event-stream":
                return await self._stream(response, number, audience)
            text = await response.read(self.limits.answer_bytes)
            if response.status in (400, 404) and self.id is not None and _answer(text, number) is None:
                raise UnknownSessionError(f"HTTP {response.status} {shown(text)}")
            return self._whole(text, response, number)

    async def tell(self, message: str) -> None:
        """Sends what has no answer.

        Raises:
            ExchangeError: It could not be sent.
            TooLargeError: What came back is larger than it may be.
        """
        async with self.exchange.request("POST", self.path, self._headers(_ACCEPT), message.encode()) as response:
            await response.read(self.limits.answer_bytes)

    async def listen(self, place: StreamPlace) -> bool:
        """Reads the server's own stream to its end. False where it has none.

        Raises:
            UnknownSessionError: The server does not know this session.
            ExchangeError: The stream broke, or could not be had.
            TooLargeError: An event is larger than it may be.
        """
        headers = self._headers("text/event-stream")
        if place.id is not None:
            headers["Last-Event-ID"] = place.id
        async with self.exchange.request("GET", self.path, headers) as response:
            if response.status == 404 and self.id is not None:
                raise UnknownSessionError("HTTP 404")
            if response.status != 200 or _kind(response) != "text/event-stream":
                return False
            async for event in self._events(response, place):
                self.heard(self, event.data, None)
        return True

    async def end(self) -> None:
        """Tells the server that the session is over.

        Raises:
            ExchangeError: It could not be told.
        """
        async with self.exchange.request("DELETE", self.path, self._headers(_ACCEPT)) as response:
            await response.read(self.limits.answer_bytes)

    async def _stream(self, response: Response, number: int, audience: Audience | None) -> Reply:
        """Reads a stream to the answer; one that ends before it is taken up again where the server numbers its events."""
        place = StreamPlace()
        reply = await self._until_reply(response, number, audience, place)
        attempts = self.limits.resume_attempts
        while reply is None and place.id is not None and attempts:
            attempts -= 1
            await self.pause(place.retry_seconds(self.limits.resume_seconds))
            headers = {**self._headers("text/event-stream"), "Last-Event-ID": place.id}
            async with self.exchange.request("GET", self.path, headers) as again:
                if again.status == 200:
                    reply = await self._until_reply(again, number, audience, place)
        if reply is None:
            raise ExchangeError("the stream ended before the answer", sent=True)
        return reply

    async def _until_reply(self, response: Response, number: int, audience: Audience | None, place: StreamPlace) -> Reply | None:
        try:
            async for event in self._events(response, place):
                try:
                    reply = _reply(event.data, number)
                except jsontext.JsonTextError as error:  # stray text between messages: the answer may still come
                    log.warning("server '%s' sent what is no message: %s: %s", self.name, error, shown(event.data.encode()))
                    continue
                if reply is not None:
                    return reply
                self.heard(self, event.data, audience)
        except ExchangeError:
            if place.id is None:
                raise
        return None

    async def _events(self, response: Response, place: StreamPlace) -> AsyncIterator[sse.Event]:
        reader = sse.EventReader(self.limits.answer_bytes)
        try:
            async for chunk in response.chunks():
                for event in reader.feed(chunk):
                    place.take(event)
                    if event.data and event.kind == "message":
                        yield event
        except sse.TooLargeError as error:
            raise TooLargeError(str(error)) from error

    def _whole(self, body: bytes, response: Response, number: int) -> Reply:
        reply = _answer(body, number)
        if reply is None:
            what = f"HTTP {response.status}, {_kind(response) or 'no content type'}: {shown(body)}"
            raise ChildError(f"server '{self.name}' gave no JSON-RPC answer ({what})", Fault.INVALID)
        return reply

    def _headers(self, accept: str) -> dict[str, str]:
        fields = {MCP_VERSION_HEADER: self.version, "Accept": accept, "Content-Type": "application/json"}
        return {**fields, SESSION_HEADER: self.id} if self.id is not None else fields


class StreamPlace:
    """How far a stream was read, as far as its server numbers what it sends."""

    def __init__(self) -> None:
        self.id: str | None = None
        self._retry_milliseconds: int | None = None

    def take(self, event: sse.Event) -> None:
        """An event was read."""
        self.id = event.id if event.id is not None else self.id
        self._retry_milliseconds = event.retry_milliseconds if event.retry_milliseconds is not None else self._retry_milliseconds

    def retry_seconds(self, otherwise: float) -> float:
        """How long to wait before the stream is taken up again."""
        return self._retry_milliseconds / 1000 if self._retry_milliseconds is not None else otherwise


async def open_session(name: str, endpoint: tuple[Exchange, str], limits: GatewayLimits, heard: Heard, pause: Pause) -> Session:
    """Agrees on a session with a server. Redirects on the server itself are followed.

    Raises:
        ChildError: It refused.
        ExchangeError: No answer came.
        TooLargeError: It is larger than it may be.
    """
    exchange, path = endpoint
    client = json.dumps({"name": CLIENT_NAME, "version": MCP_PROTOCOL_VERSION})
    params = f'{{"protocolVersion":"{MCP_PROTOCOL_VERSION}","capabilities":{_ABILITIES},"clientInfo":{client}}}'
    body = f'{{"jsonrpc":"2.0","id":0,"method":"initialize","params":{params}}}'.encode()
    headers = {"Accept": _ACCEPT, "Content-Type": "application/json"}
    for _ in range(_REDIRECTS):
        async with exchange.request("POST", path, headers, body) as response:
            moved = response.headers.get("location") if response.status in (307, 308) else None
            if moved is not None:
                await response.read(limits.answer_bytes)
                path = _same_server(name, moved, path)
                continue
            session = await _agreed(Session(name, exchange, path, limits, heard, pause), response)
        await session.tell('{"jsonrpc":"2.0","method":"notifications/initialized"}')
        return session
    raise ChildError(f"server '{name}' only redirects", Fault.INVALID)


async def _agreed(draft: Session, response: Response) -> Session:
    if response.status == 200 and _kind(response) == "text/event-stream":
        reply = await draft._stream(response, 0, None)
    else:
        reply = draft._whole(await response.read(draft.limits.answer_bytes), response, 0)
    result: Any = jsontext.value_of(reply.result or "null")
    if not isinstance(result, dict):
        raise ChildError(f"server '{draft.name}' refused initialize: {shown((reply.error or '').encode())}", Fault.INVALID)
    version = str(result.get("protocolVersion") or MCP_PROTOCOL_VERSION)
    identifier = response.headers.get(SESSION_HEADER.lower())
    capabilities = result.get("capabilities")
    return replace(draft, id=identifier, version=version, capabilities=capabilities if isinstance(capabilities, dict) else {})


def shown(body: bytes) -> str:
    """What an error tells of a body."""
    text = body.decode("utf-8", "replace").strip()
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"


def _kind(response: Response) -> str:
    return response.headers.get("content-type", "").partition(";")[0].strip().lower()


def _answer(body: bytes, number: int) -> Reply | None:
    try:
        return _reply(jsontext.decode_utf8(body), number)
    except jsontext.JsonTextError:
        return None


def _reply(text: str, number: int) -> Reply | None:
    """The answer to a request in a message; None where the message is something else."""
    members = jsontext.whole_object(text)
    if jsontext.raw(text, members.get("id")) not in (str(number), f'"{number}"') or "method" in members:
        return None
    result, error = jsontext.raw(text, members.get("result")), jsontext.raw(text, members.get("error"))
    return Reply(result, error) if result is not None or error is not None else None


def _same_server(name: str, location: str, path: str) -> str:
    """The path of a redirect, which stays on the server that was asked.

    Raises:
        ChildError: It leads nowhere.
    """
    try:
        parts = urlsplit(urljoin(f"http://server{path}", location))
    except ValueError as error:
        raise ChildError(f"server '{name}' redirects to what is no address: {shown(location.encode())}", Fault.INVALID) from error
    return parts.path + (f"?{parts.query}" if parts.query else "")
