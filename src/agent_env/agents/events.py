"""An answer's JSON objects as they come: of a stream of server-sent events, or the one that an answer is."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any

import httpx

from agent_env.agents.faults import AgentFailedError

_SHOWN = 300


async def objects(answer: httpx.Response, *, limit_bytes: int) -> AsyncGenerator[dict[str, Any] | None, None]:
    """Each object of an answer; None for a sign of life that says nothing.

    Args:
        answer: Opened, not read.
        limit_bytes: What one object may hold.

    Raises:
        AgentFailedError: It is no JSON object, or too large.
        httpx.HTTPError: It broke off.
    """
    if not answer.headers.get("content-type", "").startswith("text/event-stream"):
        yield _object(await whole(answer, limit_bytes=limit_bytes), answer.status_code)
        return
    data: list[bytes] = []
    size = 0
    async for line in _lines(answer, limit_bytes):
        if line is None:
            yield None
        elif line.startswith(b"data:"):
            data.append(line[5:].removeprefix(b" "))
            size += len(line)
            if size > limit_bytes:
                raise _too_large(limit_bytes)
        elif not line and any(data):
            yield _object(b"\n".join(data), answer.status_code)
            data, size = [], 0


async def whole(answer: httpx.Response, *, limit_bytes: int) -> bytes:
    """All bytes of an answer.

    Raises:
        AgentFailedError: They are more than the limit.
    """
    parts, size = [], 0
    async for piece in answer.aiter_bytes():
        size += len(piece)
        if size > limit_bytes:
            raise _too_large(limit_bytes)
        parts.append(piece)
    return b"".join(parts)


async def _lines(answer: httpx.Response, limit_bytes: int) -> AsyncGenerator[bytes | None, None]:
    """The stream's lines, which end at line feeds alone; None after each piece that ended none, which shows that the agent lives."""
    rest: list[bytes] = []
    held = 0
    async for piece in answer.aiter_bytes():
        first, *further = piece.split(b"\n")
        rest.append(first)
        held += len(first)
        if held > limit_bytes:
            raise _too_large(limit_bytes)
        if not further:
            yield None
            continue
        for line in (b"".join(rest), *further[:-1]):
            yield None if line.startswith(b":") else line.removesuffix(b"\r")
        rest, held = [further[-1]], len(further[-1])


def _object(data: bytes, status: int) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        shown = data[:_SHOWN].decode(errors="replace")
        raise AgentFailedError(f"the agent's answer (status {status}) is no JSON object: {shown!r}", reason=f"http_{status}", status=status)
    return value


def _too_large(limit_bytes: int) -> AgentFailedError:
    return AgentFailedError(f"the agent's answer holds more than {limit_bytes} bytes (agent_answer_bytes)", reason="too_large")
