"""One HTTP request to an environment, with its deadline, its errors in our words, and a retry only where nothing can have happened."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
from agent_env_sdk.wire.encoding import json_bytes

from agent_env.defaults import Limits
from agent_env.environments.faults import EnvironmentFailedError, EnvironmentUnreachableError
from agent_env.errors import DeadlineError
from agent_env.waiting import back_off, deadline

Json = Any
_ATTEMPTS = 3
"""Of a request that certainly did not arrive, or that changes nothing."""
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.LocalProtocolError, httpx.UnsupportedProtocol)
_SAFE = frozenset({"GET", "HEAD"})
_BODY_SHOWN = 300


def new_client(transport: httpx.AsyncBaseTransport | None, limits: Limits) -> httpx.AsyncClient:
    """A client of httpx that reads no proxy and no other setting of this process: an environment is reached as its endpoint says."""
    timeout = httpx.Timeout(None, connect=limits.connect_seconds)
    return httpx.AsyncClient(transport=transport or httpx.AsyncHTTPTransport(), timeout=timeout, trust_env=False, follow_redirects=False)


@asynccontextmanager
async def answered(
    http: httpx.AsyncClient,
    method: str,
    url: str,
    *,
    seconds: float,
    what: str,
    limits: Limits,
    headers: Mapping[str, str] | None = None,
    params: Mapping[str, Any] | None = None,
    body: Json | None = None,
    content: bytes | AsyncIterator[bytes] | None = None,
) -> AsyncIterator[httpx.Response]:
    """An answer whose body is still to be read, inside of the deadline.

    Raises:
        EnvironmentUnreachableError: Nobody answered, or the answer broke off.
        EnvironmentFailedError: What a card named as an address is none.
        DeadlineError: It took too long.
    """
    given: dict[str, Any] = {"headers": dict(headers or {}), "params": dict(params) if params else None}
    if body is not None:
        given["content"] = json_bytes(body)
        given["headers"]["content-type"] = "application/json"
    elif content is not None:
        given["content"] = content
    async with deadline(seconds, what):
        try:
            request = http.build_request(method, url, **given)
        except (httpx.InvalidURL, UnicodeError) as error:
            raise EnvironmentFailedError(f"{what}: {url!a} is no address that can be asked", reason="bad_address") from error
        answer = await _sent(http, request, what, limits)
        try:
            yield answer
        except httpx.HTTPError as error:
            raise _unreachable(what, error, "unknown") from error
        finally:
            await answer.aclose()


async def _sent(http: httpx.AsyncClient, request: httpx.Request, what: str, limits: Limits) -> httpx.Response:
    attempt = 1
    while True:
        try:
            return await http.send(request, stream=True)
        except httpx.HTTPError as error:
            never = isinstance(error, _NOT_SENT)
            whole = isinstance(request.stream, httpx.ByteStream)
            if not (whole and (never or request.method in _SAFE)) or attempt >= _ATTEMPTS:
                raise _unreachable(what, error, "no" if never else "unknown") from error
        attempt += 1
        await back_off(attempt, limits=limits)


def _unreachable(what: str, error: httpx.HTTPError, applied: Any) -> EnvironmentUnreachableError | DeadlineError:
    if isinstance(error, httpx.TimeoutException) and applied != "no":
        return DeadlineError(f"{what} did not end in time")
    return EnvironmentUnreachableError(f"{what}: {_why(error)}", applied=applied)


def _why(error: httpx.HTTPError) -> str:
    """What the operating system said of it, if anything: the libraries between say only that all attempts failed."""
    said, inner = str(error) or type(error).__name__, error.__cause__ or error.__context__
    while inner is not None:
        if isinstance(inner, OSError) and inner.errno is not None:
            # A name that can't be found has numbers of its own.
            said = os.strerror(inner.errno) if inner.errno > 0 else inner.strerror or said
        inner = inner.__cause__ or inner.__context__
    return said


async def read_json(answer: httpx.Response, what: str, *, limit_bytes: int) -> Json:
    """The answer's JSON.

    Raises:
        EnvironmentFailedError: It is none, or larger than the limit.
    """
    data = await read_body(answer, what, limit_bytes=limit_bytes)
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        shown = data[:_BODY_SHOWN].decode(errors="replace")
        raise EnvironmentFailedError(
            f"{what}: the answer (status {answer.status_code}) is no JSON: {shown!r}",
            reason=f"http_{answer.status_code}",
            status=answer.status_code,
        ) from error


async def read_body(answer: httpx.Response, what: str, *, limit_bytes: int) -> bytes:
    """The answer's bytes.

    Raises:
        EnvironmentFailedError: They are more than the limit.
    """
    parts, size = [], 0
    async for piece in answer.aiter_bytes():
        size += len(piece)
        if size > limit_bytes:
            raise EnvironmentFailedError(f"{what}: the answer holds more than {limit_bytes} bytes", reason="too_large")
        parts.append(piece)
    return b"".join(parts)
