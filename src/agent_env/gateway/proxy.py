"""Servers and websites by plain HTTP: `/svc/<key>/…` and `/website/<name>/…`, streamed both ways, with the caller's role in a header."""

from __future__ import annotations

import asyncio
import json
import posixpath
from collections.abc import AsyncIterator, Awaitable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import parse_qsl, unquote, urlsplit

from agent_env_sdk.wire import names

from agent_env.gateway import jsontext
from agent_env.gateway.asgi import Incoming, RequestTooLargeError
from agent_env.gateway.backend import Backend, declared_mcp, is_address
from agent_env.gateway.calls import Calls
from agent_env.gateway.defaults import GatewayLimits

if TYPE_CHECKING:
    import httpx

METHODS = frozenset({"GET", "POST", "PUT", "DELETE", "PATCH"})
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"transfer-encoding",
        b"te",
        b"trailer",
        b"upgrade",
        b"proxy-authorization",
        b"proxy-authenticate",
    }
)
_ROLE = names.ROLE_HEADER.lower().encode()
_DROPPED_ON_THE_WAY_IN = _HOP_BY_HOP | {b"host", _ROLE}
_DROPPED_ON_THE_WAY_OUT = _HOP_BY_HOP | {b"date", b"server"}
_LEGACY_DATA = ("/api/reset", "/api/add")
_NEVER_FOR_AGENTS = (names.RPC_PATH, "/.well-known", "/export-state", names.ENABLE_PATH, names.DISABLE_PATH, names.READY_PATH)


@dataclass(frozen=True, slots=True)
class Target:
    """Where a request goes."""

    route: str
    """`svc` or `website`."""
    key: str
    base: str
    tail: bytes
    """The path below the key, still encoded."""
    backend: Backend


class WebsiteWatcher(Protocol):
    """What wants to know of requests to websites."""

    def wants_role(self, role: str) -> bool:
        """Whether requests of this role matter at all now."""
        ...

    def may_hold(self, role: str, app: str, method: str) -> bool:
        """Whether such a request's answer may have to wait."""
        ...

    async def requested(self, role: str, request: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
        """One was answered. Returns when its answer may go out."""
        ...


class Proxy:
    """See the module.

    Args:
        backends: What there is.
        calls: Attributes what is written.
        limits: How long, how much.
    """

    def __init__(self, backends: list[Backend], calls: Calls, limits: GatewayLimits) -> None:
        self._by_key = {backend.server.proxy_key: backend for backend in backends}
        self._fronts = {backend.server.name: backend for backend in backends if backend.server.frontend is not None}
        self._calls = calls
        self._limits = limits
        self._kept: httpx.AsyncHTTPTransport | None = None

        self.watcher: WebsiteWatcher | None = None

    @property
    def websites(self) -> Mapping[str, str]:
        """Frontends by name."""
        return {name: str(backend.server.frontend) for name, backend in self._fronts.items()}

    async def serve(self, request: Incoming, raw_path: bytes, role: str, *, agent: bool) -> bool:
        """Answers a request to `/svc/…` or `/website/…`; False where no such thing is served.

        Args:
            request: It.
            raw_path: Its path, still encoded, without what came before the route.
            role: Whose it is.
            agent: Whether only what agents may reach is served.
        """
        named = raw_path.split(b"/", 3)[2:3]
        if named and b"%2f" in named[0].lower():
            await request.json(400, {"error": "an escaped slash in the name of a service"})
            return True
        target = self._target(raw_path)
        if target is None or request.method not in METHODS or (agent and not await self._agents_may(target)):
            return False
        await self._forward(request, target, role)
        return True

    async def _agents_may(self, target: Target) -> bool:
        """What of a website agents may reach: its pages and its own API, and nothing that loads, resets, dumps or configures it."""
        if not target.backend.server.website:
            return False
        path = _plain(target.tail)
        if any(_is_below(path, private) for private in _NEVER_FOR_AGENTS):
            return False
        declared = await target.backend.card()
        if declared is None and target.backend.card_error is not None:
            return False  # what is private is not known
        private = _LEGACY_DATA if declared is None else _declared_paths(declared)
        return not any(_is_below(path, each) for each in private)

    def _target(self, raw_path: bytes) -> Target | None:
        _, route, *rest = raw_path.split(b"/", 3)
        if not rest:
            return None
        name = unquote(rest[0].decode("latin-1"))
        tail = b"/" + rest[1] if len(rest) > 1 else b""
        if route == b"svc" and name in self._by_key:
            backend = self._by_key[name]
            return Target("svc", name, backend.server.url, tail, backend)
        if route == b"website" and name in self._fronts:
            backend = self._fronts[name]
            return Target("website", name, str(backend.server.frontend), tail, backend)
        return None

    async def _forward(self, request: Incoming, target: Target, role: str) -> None:
        try:
            body = await self._body(request, target, role)
        except RequestTooLargeError as error:
            await request.json(413, {"error": f"request too large: {error}"})
            return
        except jsontext.JsonTextError as error:
            await request.json(400, {"error": f"not a message that can be marked with its caller: {error}"})
            return
        kept = bytearray()
        if not isinstance(body, bytes) and body is not None:
            body = _kept(body, kept, self._limits.regex_text_bytes)
        writes = request.method not in _SAFE
        before = await self._calls.position() if writes else None
        prefix = urlsplit(target.base).path.rstrip("/").encode()
        path = prefix + (target.tail or b"/") + (b"?" + request.query if request.query else b"")
        headers = _inward(request.raw_headers, role, None if not isinstance(body, bytes) else len(body))
        import httpx

        timeout = httpx.Timeout(self._limits.proxy_seconds, connect=self._limits.connect_seconds)
        extensions = {"target": path, "timeout": timeout.as_dict()}
        outgoing = httpx.Request(request.method, target.base, headers=headers, content=body, extensions=extensions)
        try:
            answer = await self._transport().handle_async_request(outgoing)
        except httpx.HTTPError as error:
            await request.json(502, {"error": f"Proxy request failed: {type(error).__name__}: {error}"})
            return
        watched = target.backend.server.website and self.watcher is not None and self.watcher.wants_role(role)
        try:
            ahead, rest = b"", answer.aiter_raw()
            if watched and self.watcher is not None:
                if self.watcher.may_hold(role, target.backend.server.name, request.method):
                    ahead = await _read_ahead(rest, self._limits.barrier_bytes)
                said = {"app": target.backend.server.name, "method": request.method, "path": unquote(target.tail.decode("latin-1")) or "/"}
                await self.watcher.requested(role, {**said, "status": answer.status_code}, _arguments(request, bytes(kept)))
            await request.start(answer.status_code, _outward(answer.headers.raw))
            if ahead:
                await request.more(ahead)
            async for chunk in _until(request.gone(), rest):
                await request.more(chunk)
            if writes:
                await self._wrote(request, target, role, answer.status_code, before)
            await request.more(b"", last=True)
        finally:
            await answer.aclose()

    def _transport(self) -> httpx.AsyncHTTPTransport:
        """Below a client, which would keep cookies. Made when it is first needed: many environments have nothing to proxy."""
        import httpx

        if self._kept is None:
            pool = httpx.Limits(max_connections=self._limits.calls, keepalive_expiry=self._limits.idle_connection_seconds)
            self._kept = httpx.AsyncHTTPTransport(limits=pool, trust_env=False)
        return self._kept

    async def close(self) -> None:
        """Closes its connections."""
        if self._kept is not None:
            await self._kept.aclose()

    async def _wrote(self, request: Incoming, target: Target, role: str, status: int, before: int | None) -> None:
        after = await self._calls.position()
        if before is None or after is None or after <= before:
            return
        path = unquote(target.tail.decode("latin-1")) or "/"
        fields: dict[str, Any] = {"route": target.route, "service": target.key, "method": request.method, "path": path, "status": status}
        span = {"changelog_id_before": before, "changelog_id_after": after}
        event = self._calls.trajectory.add("http_request", {**fields, "role": role, **span, **self._calls.ruling.virtual_time()})
        self._calls.windows.add(before, after, {"kind": "request", "event_id": event, "role": role, **fields})

    async def _body(self, request: Incoming, target: Target, role: str) -> bytes | AsyncIterator[bytes] | None:
        if request.method == "POST" and not target.backend.server.website and _is_below(_plain(target.tail), _mcp_path(target.backend)):
            body = await request.body(self._limits.request_bytes)
            return stamped(jsontext.decode_utf8(body), role).encode("utf-8", "surrogatepass")
        if request.header(b"content-length") is None and request.header(b"transfer-encoding") is None:
            return None
        return request.chunks()


def stamped(text: str, role: str) -> str:
    """MCP messages with the caller's role in each one's `_meta`, and without a session that the caller wrote.

    Raises:
        jsontext.JsonTextError: It is no JSON object or array of them, or says the same thing twice.
    """
    if text.lstrip()[:1] == "[":
        items = [stamped(text[start:end], role) for start, end in jsontext.array_items(text)]
        return "[" + ",".join(items) + "]"
    members = jsontext.whole_object(text, exact=("method", "params", "id"))
    params = members.get("params")
    if params is None or text[params.start] != "{":
        return text
    inner, _ = jsontext.object_members(text, params.start, exact=("name", "arguments", "_meta"))
    mark = f"{json.dumps(names.ROLE_META)}:{json.dumps(role)}"
    meta = next((member for member in inner if member.key == "_meta"), None)
    if meta is None:
        rest = text[inner[0].key_start : params.end] if inner else "}"
        return text[: params.start] + f'{{"_meta":{{{mark}}}' + ("," if inner else "") + rest + text[params.end :]
    kept = []
    if text[meta.start] == "{":
        ours = {names.ROLE_META.casefold(), names.SESSION_META.casefold()}
        said, _ = jsontext.object_members(text, meta.start)
        kept = [text[member.key_start : member.end] for member in said if member.key.strip().casefold() not in ours]
    return text[: meta.start] + "{" + ",".join([*kept, mark]) + "}" + text[meta.end :]


def _declared_paths(card: Mapping[str, Any]) -> list[str]:
    found = [str(card.get("url") or names.RPC_PATH), declared_mcp(dict(card))]
    capabilities = card.get("capabilities")
    extensions = capabilities.get("extensions") if isinstance(capabilities, Mapping) else None
    for extension in extensions if isinstance(extensions, list) else []:
        params = extension.get("params") if isinstance(extension, Mapping) else None
        if isinstance(params, Mapping):
            methods = params.get("methods")
            entries = [params, *(methods.values() if isinstance(methods, Mapping) else ())]
            found += [str(entry["endpoint"]) for entry in entries if isinstance(entry, Mapping) and entry.get("endpoint")]
    return [_plain(urlsplit(path).path.encode("utf-8", "replace")) for path in found if is_address(path)]


def _plain(tail: bytes) -> str:
    """A path as the most lenient server would read it."""
    text = tail.decode("latin-1")
    for _ in range(4):
        once = unquote(text)
        if once == text:
            break
        text = once
    parts = [part.partition(";")[0].strip() for part in text.replace("\\", "/").split("/")]
    return posixpath.normpath("/" + "/".join(part for part in parts if part)).casefold()


def _is_below(path: str, root: str) -> bool:
    folded = root.casefold().rstrip("/")
    return bool(folded) and (path == folded or path.startswith(f"{folded}/"))


def _mcp_path(backend: Backend) -> str:
    return _plain((backend.server.mcp_path or urlsplit(declared_mcp(backend.last_card)).path).encode("utf-8", "replace"))


def _inward(headers: list[tuple[bytes, bytes]], role: str, length: int | None) -> list[tuple[bytes, bytes]]:
    named = _nominated(headers)
    chunked = any(key.lower() == b"transfer-encoding" for key, _ in headers)  # then a length says nothing
    dropped = _DROPPED_ON_THE_WAY_IN | named | ({b"content-length"} if length is not None or chunked else set())
    kept = [(key, value) for key, value in headers if key.lower() not in dropped and not _carries_token(key, value)]
    kept.append((names.ROLE_HEADER.encode(), role.encode("utf-8")))
    if length is not None:
        kept.append((b"content-length", str(length).encode()))
    if not any(key.lower() == b"accept-encoding" for key, _ in kept):
        kept.append((b"accept-encoding", b"identity"))
    return kept


def _carries_token(key: bytes, value: bytes) -> bool:
    """The agent's own way in is nobody else's business."""
    return key.lower() == b"authorization" and value.partition(b" ")[2].strip().startswith(b"aet_")


def _outward(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    dropped = _DROPPED_ON_THE_WAY_OUT | _nominated(headers)
    return [(key, value) for key, value in headers if key.lower() not in dropped]


def _nominated(headers: list[tuple[bytes, bytes]]) -> set[bytes]:
    values = [value for key, value in headers if key.lower() == b"connection"]
    return {name.strip().lower() for value in values for name in value.split(b",")}


async def _kept(chunks: AsyncIterator[bytes], kept: bytearray, most: int) -> AsyncIterator[bytes]:
    """The body as it passes; its beginning is kept."""
    async for chunk in chunks:
        kept += chunk[: max(0, most - len(kept))]
        yield chunk


async def _until(end: Awaitable[None], chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The chunks, for as long as somebody takes them: a stream that never ends must not be read for nobody."""
    ended = asyncio.ensure_future(end)
    following: asyncio.Future[bytes] | None = None
    try:
        while not ended.done():
            following = asyncio.ensure_future(anext(chunks, b""))
            await asyncio.wait([following, ended], return_when=asyncio.FIRST_COMPLETED)
            if not following.done():
                return
            chunk = following.result()
            if not chunk:
                return
            yield chunk
    finally:
        ended.cancel()
        if following is not None:
            following.cancel()


async def _read_ahead(chunks: AsyncIterator[bytes], most: int) -> bytes:
    """The body to its end, or as much of it as may be held."""
    read = bytearray()
    async for chunk in chunks:
        read += chunk
        if len(read) >= most:
            break
    return bytes(read)


def _arguments(request: Incoming, body: bytes) -> dict[str, Any]:
    """What a request says: the fields of its query, and those of a form or a JSON object in its body, which win."""
    said = _fields(request.query)
    kind = (request.header(b"content-type") or "").partition(";")[0].strip().lower()
    if kind == "application/x-www-form-urlencoded":
        said.update(_fields(body))
    elif kind == "application/json" or kind.endswith("+json"):
        value = jsontext.value_of(body.decode("utf-8", "replace"))
        said.update(value if isinstance(value, dict) else {})
    return said


def _fields(text: bytes) -> dict[str, Any]:
    grouped: dict[str, list[str]] = {}
    for key, value in parse_qsl(text.decode("utf-8", "replace"), keep_blank_values=True):
        grouped.setdefault(key, []).append(value)
    return {key: values[0] if len(values) == 1 else values for key, values in grouped.items()}
