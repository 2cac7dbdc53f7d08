"""SOCKS5 (RFC 1928) for one client of a place: CONNECT alone, names resolved here (`socks5h`)."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from agent_env.keeper.outside import Refusal, Trouble, Unreached
from agent_env.keeper.splice import Inlet, Pipe, splice
from agent_env.waiting import deadline

if TYPE_CHECKING:
    from agent_env.keeper.egress import Gate

_V4, _V5 = 4, 5
VERSIONS = (_V4, _V5)
_NO_AUTHENTICATION, _NONE_ACCEPTABLE = 0, 0xFF
_CONNECT = 1
_IPV4, _NAME, _IPV6 = 1, 3, 4
_GRANTED, _FAILED, _NOT_ALLOWED, _UNREACHABLE, _CLOSED, _NO_COMMAND, _NO_ADDRESS = 0, 1, 2, 4, 5, 7, 8
_REPLIES = {
    Trouble.UNRESOLVED: _UNREACHABLE,
    Trouble.UNREACHABLE: _UNREACHABLE,
    Trouble.CLOSED: _CLOSED,
    Trouble.SLOW: _FAILED,
}
_V4_REJECTED = b"\0\x5b" + bytes(6)


async def serve(inlet: Inlet, pipe: Pipe, gate: Gate) -> None:
    """Serves one client: its greeting, its one request, and then its bytes.

    Raises:
        EOFError: It ended in the middle of a request.
        DeadlineError: It is too slow in asking.
    """
    async with deadline(gate.limits.keeper_head_seconds, "a client's request"):
        asked = await _asked(inlet, pipe)
    if asked is None:
        return
    found = await gate.reach(*asked)
    match found:
        case Refusal():
            await pipe.send(_reply(_NOT_ALLOWED))
        case Unreached():
            await pipe.send(_reply(_REPLIES[found.trouble]))
        case reached:
            await pipe.send(_reply(_GRANTED))
            await splice(inlet, pipe, reached, idle_seconds=gate.limits.keeper_idle_stream_seconds)


async def _asked(inlet: Inlet, pipe: Pipe) -> tuple[str, int] | None:
    """Host and port that are asked for; None when the client was already told why not."""
    version, count = await inlet.exactly(2)
    if version == _V4:
        await pipe.send(_V4_REJECTED)
        return None
    if _NO_AUTHENTICATION not in await inlet.exactly(count):
        await pipe.send(bytes([_V5, _NONE_ACCEPTABLE]))
        return None
    await pipe.send(bytes([_V5, _NO_AUTHENTICATION]))
    version, command, _, kind = await inlet.exactly(4)
    host = await _host(inlet, kind) if version == _V5 else None
    if host is None:
        await pipe.send(_reply(_NO_ADDRESS))
        return None
    port = int.from_bytes(await inlet.exactly(2), "big")
    if command != _CONNECT:
        await pipe.send(_reply(_NO_COMMAND))
        return None
    return host, port


async def _host(inlet: Inlet, kind: int) -> str | None:
    if kind == _NAME:
        (length,) = await inlet.exactly(1)
        return (await inlet.exactly(length)).decode("latin-1")
    length = {_IPV4: 4, _IPV6: 16}.get(kind, 0)
    return str(ipaddress.ip_address(await inlet.exactly(length))) if length else None


def _reply(code: int) -> bytes:
    return bytes([_V5, code, 0, _IPV4]) + bytes(6)
