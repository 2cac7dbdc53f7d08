"""A small client of MCP over streamable HTTP, in raw JSON: what agents call tools with, and tests too."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from agent_env_sdk.wire.names import MCP_PROTOCOL_VERSION, MCP_VERSION_HEADER, SESSION_HEADER


class McpError(Exception):
    """A JSON-RPC error of the MCP endpoint. A tool that fails is not one: its result says so.

    Args:
        code: The error's code.
        message: Its text.
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{message} ({code})")
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True)
class CallResult:
    """What a tool gave back."""

    content: list[dict[str, Any]]
    structured: dict[str, Any] | None
    is_error: bool
    raw: dict[str, Any] = field(repr=False)
    notifications: list[dict[str, Any]] = field(default_factory=list, repr=False)
    """What the server told while the call ran, such as progress."""

    @property
    def text(self) -> str:
        """The text blocks, line by line."""
        return "\n".join(block["text"] for block in self.content if block.get("type") == "text")


class McpSession:
    """One MCP session over streamable HTTP, as raw JSON.

    Args:
        http: The client to send with.
        url: The MCP endpoint.
        headers: Sent with every request.
    """

    def __init__(self, http: httpx.AsyncClient, url: str, headers: Mapping[str, str]) -> None:
        self._http, self._url = http, url
        self._headers = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json", **headers}
        self._ids = itertools.count(1)
        self.server: dict[str, Any] = {}
        """The server's answer to `initialize`."""

    async def open(self) -> None:
        """Starts the session."""
        about = {"name": "agent-env-sdk", "version": "1"}
        params = {"protocolVersion": MCP_PROTOCOL_VERSION, "capabilities": {}, "clientInfo": about}
        self.server, _ = await self.request("initialize", params)
        self._headers[MCP_VERSION_HEADER] = self.server["protocolVersion"]
        await self._http.post(self._url, content=_said({"jsonrpc": "2.0", "method": "notifications/initialized"}), headers=self._headers)

    async def close(self) -> None:
        """Ends the session."""
        if SESSION_HEADER in self._headers:
            await self._http.delete(self._url, headers=self._headers)

    async def tools(self) -> list[dict[str, Any]]:
        """Every tool that is listed, page by page."""
        found: list[dict[str, Any]] = []
        cursor: dict[str, Any] = {}
        while True:
            page, _ = await self.request("tools/list", cursor)
            found += page["tools"]
            if not page.get("nextCursor"):
                return found
            cursor = {"cursor": page["nextCursor"]}

    async def call(self, tool: str, arguments: Mapping[str, Any] | None = None, *, meta: Mapping[str, Any] | None = None) -> CallResult:
        """Calls a tool."""
        params: dict[str, Any] = {"name": tool, "arguments": dict(arguments or {})}
        result, told = await self.request("tools/call", {**params, "_meta": dict(meta)} if meta else params)
        return CallResult(result["content"], result.get("structuredContent"), result.get("isError", False), result, told)

    async def request(self, method: str, params: Mapping[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """The result of a request, and the notifications that came before it.

        Raises:
            McpError: The answer is an error.
            httpx.HTTPStatusError: The server answered with a status of 400 or more.
        """
        message = {"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": dict(params)}
        told: list[dict[str, Any]] = []
        async with self._http.stream("POST", self._url, content=_said(message), headers=self._headers) as response:
            if response.is_error:
                await response.aread()
                response.raise_for_status()
            if session := response.headers.get(SESSION_HEADER):
                self._headers[SESSION_HEADER] = session
            async for answer in messages(response):
                if answer.get("id") != message["id"]:
                    told.append(answer)
                elif "error" in answer:
                    raise McpError(answer["error"]["code"], answer["error"]["message"])
                else:
                    return answer["result"], told
        raise McpError(0, f"{method}: the stream ended before the answer")


def _said(message: Mapping[str, Any]) -> bytes:
    """In ASCII: what a model writes may hold half a character."""
    return json.dumps(message, allow_nan=False).encode()


async def messages(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    """The JSON objects of an answer: of an event stream as they come, else the one that it is."""
    if not response.headers.get("content-type", "").startswith("text/event-stream"):
        text = await response.aread()
        if text:
            yield json.loads(text)
        return
    data: list[bytes] = []
    async for line in _lines(response):
        if line.startswith(b"data:"):
            data.append(line[5:].removeprefix(b" "))
        elif not line and any(data):
            yield json.loads(b"\n".join(data))
            data = []


async def _lines(response: httpx.Response) -> AsyncIterator[bytes]:
    """The lines of an event stream, which end at line feeds alone; httpx's own also end at what JSON may carry, such as U+2028."""
    rest = b""
    async for chunk in response.aiter_bytes():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r")
