"""A small client of MCP over streamable HTTP: raw JSON in and out, so that nothing which a server says is lost on the way."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from typing import Any

import httpx
from agent_env_sdk.wire.names import MCP_PROTOCOL_VERSION, MCP_VERSION_HEADER, SESSION_HEADER

from agent_env import __version__
from agent_env.defaults import DEFAULT_LIMITS, Limits
from agent_env.environments.faults import EnvironmentFailedError, SessionLostError
from agent_env.environments.http import answered, read_body
from agent_env.errors import AgentEnvError

Json = Any
Heard = Callable[[Mapping[str, Json]], None]
"""Hears what a server says besides its answers: notifications of progress, of a changed list, of its log."""
_ACCEPT = "application/json, text/event-stream"
_EVENTS = "text/event-stream"
_PAGES = 1000
"""Of a list of tools: more is a server that goes round in circles."""


class McpSession:
    """One session. `open`, then calls, then `aclose`; several calls may be under way at once.

    Args:
        url: The endpoint.
        http: How it is reached; the caller closes it.
        name: What messages call the server.
        headers: Sent with each request.
        heard: See `Heard`.
        limits: Deadlines and sizes.
    """

    def __init__(
        self,
        url: str,
        http: httpx.AsyncClient,
        *,
        name: str,
        headers: Mapping[str, str] | None = None,
        heard: Heard | None = None,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self.url = url
        self.server: Mapping[str, Json] = {}
        """What the server said of itself: `protocolVersion`, `capabilities`, `serverInfo`, `instructions`."""
        self._http = http
        self._name = name
        self._given = dict(headers or {})
        self._heard = heard
        self._limits = limits
        self._numbers = itertools.count(1)
        self._session: str | None = None

    async def open(self) -> None:
        """Begins the session.

        Raises:
            EnvironmentUnreachableError: Nobody answers.
            EnvironmentFailedError: The server refuses.
        """
        params = {
            "protocolVersion": MCP_PROTOCOL_VERSION,
            "capabilities": {},
            "clientInfo": {"name": "agent-env", "version": __version__},
        }
        self.server = await self.ask("initialize", params, seconds=self._limits.environment_call_seconds)
        await self.notify("notifications/initialized")

    async def tools(self) -> list[dict[str, Json]]:
        """Every tool of every page, as the server describes it."""
        found: list[dict[str, Json]] = []
        cursor: str | None = None
        for _ in range(_PAGES):
            page = await self.ask("tools/list", {"cursor": cursor} if cursor else {}, seconds=self._limits.environment_call_seconds)
            tools = page.get("tools")
            if not isinstance(tools, list) or not all(isinstance(tool, dict) and isinstance(tool.get("name"), str) for tool in tools):
                raise EnvironmentFailedError(f"{self._name} lists tools without names", concerns=self._name, reason="bad_tools")
            found += tools
            cursor = page.get("nextCursor") or None
            if cursor is None:
                return found
        raise EnvironmentFailedError(f"the tools of {self._name} have more than {_PAGES} pages", concerns=self._name, reason="bad_tools")

    async def call(
        self, tool: str, arguments: Mapping[str, Json], *, meta: Mapping[str, Json] | None = None, timeout_seconds: float | None = None
    ) -> dict[str, Json]:
        """Calls a tool. Never repeated by itself: a call may have had its effect.

        Returns:
            The result as sent: `content`, `structuredContent`, `isError`.

        Raises:
            SessionLostError: The server forgot this session.
            EnvironmentFailedError: It refused the call (no such tool, wrong arguments); a tool's own failure is a result with `isError`.
        """
        params: dict[str, Json] = {"name": tool, "arguments": dict(arguments)}
        if meta:
            params["_meta"] = dict(meta)
        return await self.ask("tools/call", params, seconds=timeout_seconds or self._limits.tool_call_seconds)

    async def ask(self, method: str, params: Mapping[str, Json], *, seconds: float) -> dict[str, Json]:
        """Any request of MCP. Returns its result. Raises as `call`."""
        number = next(self._numbers)
        what = f"{method} of {self._name}"
        body = {"jsonrpc": "2.0", "id": number, "method": method, "params": dict(params)}
        async with answered(
            self._http, "POST", self.url, seconds=seconds, what=what, limits=self._limits, headers=self._headers(), body=body
        ) as answer:
            said = await self._answer(answer, number, what)
            if method == "initialize":
                self._session = answer.headers.get(SESSION_HEADER)
        error, result = said.get("error"), said.get("result")
        if isinstance(error, dict):
            message = f"{what} failed: {error.get('message')}"
            raise EnvironmentFailedError(message, concerns=self._name, reason=str(error.get("code")), data=error.get("data"))
        if not isinstance(result, dict):
            raise EnvironmentFailedError(f"{what}: the answer holds no result", concerns=self._name, reason="bad_answer")
        return result

    async def notify(self, method: str, params: Mapping[str, Json] | None = None) -> None:
        """Tells the server something that has no answer."""
        body: dict[str, Json] = {"jsonrpc": "2.0", "method": method, **({"params": dict(params)} if params else {})}
        what, seconds = f"{method} of {self._name}", self._limits.environment_call_seconds
        async with answered(
            self._http, "POST", self.url, seconds=seconds, what=what, limits=self._limits, headers=self._headers(), body=body
        ) as answer:
            if answer.status_code >= httpx.codes.BAD_REQUEST:
                raise await self._refused(answer, what)

    async def aclose(self) -> None:
        """Ends the session, as far as the server still hears it."""
        if self._session is None:
            return
        headers, self._session = self._headers(), None
        with suppress(AgentEnvError):  # it forgets the session by itself
            seconds = self._limits.kill_grace_seconds
            async with answered(
                self._http, "DELETE", self.url, seconds=seconds, what="ending the session", limits=self._limits, headers=headers
            ):
                pass

    def _headers(self) -> dict[str, str]:
        headers = {**self._given, "accept": _ACCEPT}
        if self._session is not None:
            headers[SESSION_HEADER] = self._session
        version = self.server.get("protocolVersion")
        if isinstance(version, str):
            headers[MCP_VERSION_HEADER] = version
        return headers

    async def _answer(self, answer: httpx.Response, number: int, what: str) -> Mapping[str, Json]:
        if answer.status_code >= httpx.codes.BAD_REQUEST or answer.is_redirect:
            raise await self._refused(answer, what)
        if answer.headers.get("content-type", "").partition(";")[0].strip() == _EVENTS:
            async for message in events(answer, self._limits.environment_answer_bytes):
                if message.get("id") == number and ("result" in message or "error" in message):
                    return message
                if self._heard is not None:
                    self._heard(message)
            raise EnvironmentFailedError(f"{what}: the stream of answers ended without one", concerns=self._name, reason="no_answer")
        data = await read_body(answer, what, limit_bytes=self._limits.environment_answer_bytes)
        found = _object(data)
        if found is None:
            raise EnvironmentFailedError(f"{what}: the answer is no JSON object", concerns=self._name, reason="bad_answer")
        return found

    async def _refused(self, answer: httpx.Response, what: str) -> EnvironmentFailedError:
        status = answer.status_code
        said = _object(await read_body(answer, what, limit_bytes=self._limits.environment_answer_bytes)) or {}
        error = said.get("error")
        detail = error.get("message") if isinstance(error, dict) else error if isinstance(error, str) else None
        if status == httpx.codes.NOT_FOUND and self._session is not None:
            self._session = None
            return SessionLostError(f"{what}: the server no longer knows this session", concerns=self._name, reason="404", status=status)
        message = f"{what}: status {status}{f', {detail}' if detail else ''}"
        return EnvironmentFailedError(message, concerns=self._name, reason=f"http_{status}", status=status, data=said or None)


async def events(answer: httpx.Response, limit_bytes: int) -> AsyncIterator[Mapping[str, Json]]:
    """The JSON objects of an event stream, in order; what is none is passed over.

    Lines end as the format says and nowhere else: JSON may hold every other line separator of Unicode as it is.

    Raises:
        EnvironmentFailedError: One of them is larger than the limit.
    """
    begun, fields, size = list[bytes](), list[bytes](), 0
    async for piece in answer.aiter_bytes():
        first, *others = piece.split(b"\n")
        begun.append(first)
        size += len(piece)
        if size > limit_bytes:
            raise EnvironmentFailedError(f"an event holds more than {limit_bytes} bytes", reason="too_large")
        for other in others:
            line, begun = b"".join(begun).removesuffix(b"\r"), [other]
            if line.startswith(b"data:"):
                fields.append(line[5:].removeprefix(b" "))
            elif not line:
                found = _object(b"\n".join(fields)) if fields else None
                fields, size = [], len(other)
                if found is not None:
                    yield found


def _object(data: bytes) -> Mapping[str, Json] | None:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
