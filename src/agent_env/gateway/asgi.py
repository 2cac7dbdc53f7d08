"""Requests and answers at the level of ASGI: little enough between the socket and a tool call."""

from __future__ import annotations

import asyncio
import ipaddress
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, MutableMapping
from contextlib import suppress
from typing import Any

from agent_env_sdk.wire.encoding import json_bytes
from agent_env_sdk.wire.rpc import DEEPEST, nests_deeper

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = Iterable[tuple[str, str]]

JSON = ("content-type", "application/json")
EVENTS = (("content-type", "text/event-stream"), ("cache-control", "no-cache, no-transform"), ("x-accel-buffering", "no"))
_DEEP = f"the body nests deeper than {DEEPEST} levels"
_LOCAL_NAMES = frozenset({"localhost", "host.docker.internal", "host.containers.internal"})


class RequestTooLargeError(Exception):
    """A body holds more than its reader takes."""


class Incoming:
    """One HTTP request."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.raw_path: bytes = scope.get("raw_path") or self.path.encode()
        self.query: bytes = scope.get("query_string") or b""
        self.raw_headers: list[tuple[bytes, bytes]] = scope["headers"]
        self._receive = receive
        self._send = send
        self._streaming = False

    def header(self, name: bytes) -> str | None:
        """The first header of that name (in lower case)."""
        for key, value in self.raw_headers:
            if key == name:
                return value.decode("latin-1")
        return None

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it arrives."""
        while True:
            message = await self._receive()
            if message["type"] != "http.request":
                return
            if message.get("body"):
                yield message["body"]
            if not message.get("more_body"):
                return

    async def body(self, limit_bytes: int) -> bytes:
        """The whole body.

        Raises:
            RequestTooLargeError: It holds more than `limit_bytes`.
        """
        declared = self.header(b"content-length")
        if declared is not None and declared.isdigit() and int(declared) > limit_bytes:
            raise RequestTooLargeError(f"the body holds {declared} bytes; the limit is {limit_bytes}")
        parts, size = [], 0
        async for chunk in self.chunks():
            size += len(chunk)
            if size > limit_bytes:
                raise RequestTooLargeError(f"the body holds more than the limit of {limit_bytes} bytes")
            parts.append(chunk)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def gone(self) -> None:
        """Waits until the client is gone, once its body was read."""
        while (await self._receive())["type"] != "http.disconnect":
            continue

    async def answer(self, status: int, body: bytes = b"", headers: Headers = ()) -> None:
        """A whole answer."""
        fields = [(key.encode("latin-1"), value.encode("latin-1")) for key, value in headers]
        fields.append((b"content-length", str(len(body)).encode()))
        await self._send({"type": "http.response.start", "status": status, "headers": fields})
        await self._send({"type": "http.response.body", "body": body})

    async def json(self, status: int, value: Any, headers: Headers = ()) -> None:
        """An answer of JSON."""
        await self.answer(status, json_bytes(value), (JSON, *headers))

    async def start(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """The head of an answer whose body follows in pieces."""
        await self._send({"type": "http.response.start", "status": status, "headers": list(headers)})

    async def more(self, chunk: bytes, *, last: bool = False) -> None:
        """A piece of the body."""
        await self._send({"type": "http.response.body", "body": chunk, "more_body": not last})

    async def object_body(self, limit_bytes: int) -> dict[str, Any]:
        """The body as a JSON object; an empty one is `{}`.

        Raises:
            ValueError: It is something else.
            RequestTooLargeError: It is too large.
        """
        body = await self.body(limit_bytes)
        if not body.strip():
            return {}
        try:
            value = json.loads(body)
        except RecursionError as error:
            raise ValueError(_DEEP) from error
        except ValueError as error:
            raise ValueError(f"invalid JSON: {error}") from error
        if not isinstance(value, dict):
            raise ValueError("the body must be a JSON object")
        if nests_deeper(value):
            raise ValueError(_DEEP)
        return value


def is_known_host(authority: str | None, further: Iterable[str]) -> bool:
    """Whether a `Host` (or the authority of an `Origin`) is a name that the framework hands out: an address, a name without dots (as
    containers on one network call each other), or a configured one. What a foreign web page would use is none of these.
    """
    if authority is None:
        return True
    host = authority.strip().lower()
    host = host.partition("]")[0].lstrip("[") if host.startswith("[") else host.rpartition(":")[0] or host
    known = {name.lower() for name in further}
    if "*" in known or host in known or host in _LOCAL_NAMES or host.endswith(".localhost"):
        return True
    with suppress(ValueError):
        ipaddress.ip_address(host)
        return True
    return bool(host) and "." not in host


async def first_of(*works: Awaitable[Any], seconds: float | None = None) -> int | None:
    """Waits for the first of several; gives its place, or None after `seconds`. The others are cancelled."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        return next((place for place, task in enumerate(tasks) if task in done), None)
    finally:
        for task in tasks:
            task.cancel()
