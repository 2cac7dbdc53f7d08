"""HTTP proxying for one client of a place: tunnels (CONNECT), and plain requests whose target is a whole `http://` address.

h11 parses and frames. Of a plain request only the address in its first line counts: the `Host` header is written anew from it.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import h11

from agent_env.errors import InfrastructureError
from agent_env.keeper.outside import Reached, Refusal, Trouble, Unreached
from agent_env.keeper.splice import CHUNK, Idle, Inlet, Pipe, splice
from agent_env.waiting import deadline

if TYPE_CHECKING:
    from agent_env.keeper.egress import Gate

_ABSOLUTE = re.compile(rb"(?i)http://([^/?#]*)([^#]*)")
_AUTHORITY = re.compile(r"(\[[^\]]*\]|[^:]*)(?::([0-9]{1,5}))?")
_HTTP_PORT = 80
_HOP_BY_HOP = frozenset(
    {b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te", b"trailer", b"upgrade"}
)
_STATUS = {Trouble.UNRESOLVED: 502, Trouble.CLOSED: 502, Trouble.UNREACHABLE: 502, Trouble.SLOW: 504}
_USAGE = "this port is the sandbox's way out: it takes CONNECT and requests for whole http:// addresses"
_LONGEST_REASON = 200
Headers = Iterable[tuple[bytes, bytes]]
Event = h11.Event | type[h11.PAUSED] | type[h11.NEED_DATA]


class Target(NamedTuple):
    """Where a request goes."""

    host: str
    port: int
    authority: str
    """As the origin's `Host` header."""
    path: bytes


class _Client:
    """The client inside, as HTTP."""

    def __init__(self, inlet: Inlet, pipe: Pipe) -> None:
        self.http = h11.Connection(h11.SERVER)
        self.inlet = inlet
        self.pipe = pipe

    async def event(self) -> Event:
        while (event := self.http.next_event()) is h11.NEED_DATA:
            if self.http.they_are_waiting_for_100_continue:
                await self.send(h11.InformationalResponse(status_code=100, headers=[]))
            self.http.receive_data(await self.inlet.some())
        return event

    async def send(self, event: h11.Event) -> None:
        if data := self.http.send(event):
            await self.pipe.send(data)

    async def answer(self, status: int, text: str) -> None:
        """A whole answer of our own, after which the connection ends. Many clients show nothing but the reason phrase."""
        text = "".join(character if character.isascii() and character.isprintable() else "?" for character in text)
        body = f"{text}\n".encode()
        headers = [("content-type", "text/plain"), ("content-length", str(len(body))), ("connection", "close")]
        reason = text.encode()[:_LONGEST_REASON]
        await self.send(h11.Response(status_code=status, headers=headers, reason=reason))
        await self.send(h11.Data(data=body))
        await self.send(h11.EndOfMessage())


class _Origin:
    """The server outside, as HTTP."""

    def __init__(self, reached: Reached) -> None:
        self.http = h11.Connection(h11.CLIENT)
        self._reached = reached

    async def event(self) -> Event:
        while (event := self.http.next_event()) is h11.NEED_DATA:
            self.http.receive_data(await self._reached.reader.read(CHUNK))
        return event

    async def send(self, event: h11.Event) -> None:
        if data := self.http.send(event):
            self._reached.writer.write(data)
            await self._reached.writer.drain()


async def serve(inlet: Inlet, pipe: Pipe, gate: Gate) -> None:
    """Serves the requests of one client until it ends, or its connection became a tunnel and that ended.

    Raises:
        DeadlineError: It is too slow in asking.
        InfrastructureError: The place went away.
    """
    client = _Client(inlet, pipe)
    try:
        while await _serve_one(client, gate):
            client.http.start_next_cycle()
    except h11.RemoteProtocolError as error:
        if client.http.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            why, _, _ = str(error).partition(":")  # the library goes on with the bytes as Python writes them
            await client.answer(error.error_status_hint, f"that is no HTTP request: {why}")


async def _serve_one(client: _Client, gate: Gate) -> bool:
    """Serves one request. Returns whether another one may follow."""
    async with deadline(gate.limits.keeper_head_seconds, "a client's request"):
        request = await client.event()
    if not isinstance(request, h11.Request):
        return False
    target = _tunnel_target(request) if request.method == b"CONNECT" else _plain_target(request)
    if isinstance(target, str):
        await client.answer(400, target)
        return False
    found = await gate.reach(target.host, target.port)
    match found:
        case Refusal():
            await client.answer(403, found.text)
            return False
        case Unreached():
            await client.answer(_STATUS[found.trouble], found.text)
            return False
    if request.method == b"CONNECT":
        await _tunnel(client, found, gate)
        return False
    try:
        return await _exchange(client, _Origin(found), request, target, gate)
    finally:
        found.abort()


def _tunnel_target(request: h11.Request) -> Target | str:
    return _target(request.target.decode("latin-1"), None, b"")


def _plain_target(request: h11.Request) -> Target | str:
    found = _ABSOLUTE.fullmatch(request.target)
    if found is None:
        return _USAGE
    path = found[2] if found[2].startswith(b"/") else b"/" + found[2]
    return _target(found[1].decode("latin-1"), _HTTP_PORT, path)


def _target(authority: str, default_port: int | None, path: bytes) -> Target | str:
    """Reads `host:port`. Nothing but a host and a port is an authority here: user info is where look-alikes hide."""
    found = _AUTHORITY.fullmatch(authority)
    port = int(found[2]) if found is not None and found[2] else default_port
    if found is None or "@" in authority or not found[1] or port is None or not 0 < port < 65536:
        return "the address is not host:port"
    return Target(found[1], port, authority, path)


async def _tunnel(client: _Client, reached: Reached, gate: Gate) -> None:
    try:
        while not isinstance(await client.event(), h11.EndOfMessage):
            continue
        await client.send(h11.Response(status_code=200, headers=[], reason=b"Connection established"))
        early, _ = client.http.trailing_data
        client.inlet.give_back(early)
    except BaseException:  # whatever happened, nobody else ends the connection outside
        reached.abort()
        raise
    await splice(client.inlet, client.pipe, reached, idle_seconds=gate.limits.keeper_idle_stream_seconds)


async def _exchange(client: _Client, origin: _Origin, request: h11.Request, target: Target, gate: Gate) -> bool:
    """One request and its answer. Returns whether the client's connection can take another one.

    Raises:
        InfrastructureError: The answer broke off after it had begun.
    """
    headers = [*_forwarded(request.headers, b"host", b"expect"), (b"host", target.authority.encode("latin-1"))]
    head = h11.Request(method=request.method, target=target.path, headers=[*headers, (b"connection", b"close")])
    try:
        await _both_ways(client, origin, head, gate)
    except (h11.ProtocolError, OSError) as error:
        if client.http.our_state is not h11.SEND_RESPONSE:
            raise InfrastructureError("the answer broke off") from error
        await client.answer(502, f"{target.host}:{target.port} did not answer as HTTP: {error or type(error).__name__}")
    return client.http.our_state is h11.DONE and client.http.their_state is h11.DONE


async def _both_ways(client: _Client, origin: _Origin, head: h11.Request, gate: Gate) -> None:
    try:
        async with Idle(gate.limits.keeper_idle_stream_seconds) as idle, asyncio.TaskGroup() as group:
            await origin.send(head)
            upload = group.create_task(_upload(client, origin, idle))
            await _download(origin, client, idle)
            upload.cancel()
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from errors


async def _upload(client: _Client, origin: _Origin, idle: Idle) -> None:
    """The request's body. A server that has heard enough may close its ear: its answer says why."""
    with contextlib.suppress(OSError):
        while True:
            event = await client.event()
            idle.moved()
            if not isinstance(event, h11.Data | h11.EndOfMessage):
                return
            await origin.send(event)
            if isinstance(event, h11.EndOfMessage):
                return


async def _download(origin: _Origin, client: _Client, idle: Idle) -> None:
    while True:
        event = await origin.event()
        idle.moved()
        match event:
            case h11.InformationalResponse():
                continue
            case h11.Response():
                headers = _forwarded(event.headers)
                await client.send(h11.Response(status_code=event.status_code, headers=headers, reason=event.reason))
            case h11.Data():
                await client.send(h11.Data(data=event.data))
            case h11.EndOfMessage():
                await client.send(h11.EndOfMessage(headers=event.headers))
                return
            case _:
                raise h11.RemoteProtocolError("it closed the connection")


def _forwarded(headers: Headers, *without: bytes) -> list[tuple[bytes, bytes]]:
    """What is meant for the other end: nothing that belongs to this connection alone."""
    found = list(headers)
    named = {word.strip().lower() for name, value in found if name == b"connection" for word in value.split(b",")}
    left_out = _HOP_BY_HOP | named | set(without)
    return [(name, value) for name, value in found if name not in left_out]
