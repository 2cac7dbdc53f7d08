"""What this room asks of a container engine beyond its client library: streams both ways, and the status of a refusal."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager
from json import dumps as _dumps
from json import loads as _loads
from typing import Any

import aiohttp

from agent_env.containers import Engine
from agent_env.errors import EngineFailedError

Params = Mapping[str, str]
_SHOWN = 200
"""Characters of a page of somebody else's."""


class EngineAnswerError(EngineFailedError):
    """The engine refused or failed. `status` is the HTTP status, 0 for an error amid a stream."""

    def __init__(self, status: int, said: str, *, asked: str = "", detail: int | None = None) -> None:
        super().__init__(f"{asked} failed: the container engine says {said!r} (HTTP {status})" if asked else said)
        self.status = status
        self.said = said
        """In its own words."""
        self.detail = detail
        """The code that the engine gives beside an error amid a stream, such as a command's exit code."""


def rows(answer: object) -> list[dict[str, Any]]:
    """A list of objects, for which some engines write null where it is empty.

    Raises:
        TypeError: It is none.
    """
    if answer is not None and not isinstance(answer, list):
        raise TypeError("a list was asked for")
    for row in answer or ():
        if not isinstance(row, dict):
            raise TypeError("a list of objects was asked for")
    return answer or []


class EngineApi:
    """Requests of one engine.

    Args:
        engine: The client, which the caller closes.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    async def ask(
        self,
        method: str,
        path: str,
        *,
        params: Params | None = None,
        headers: Params | None = None,
        json: Any | None = None,
        read: Callable[[Any], Any] = lambda answer: answer,
    ) -> Any:
        """What is read from one answer. Bounded by `engine_seconds`.

        Args:
            method: Of HTTP.
            path: Below the version.
            params: The query.
            headers: Further ones.
            json: The body.
            read: Takes the answer's JSON, None for an empty one. What it trips over is the engine's error.

        Raises:
            EngineAnswerError: It refused.
            EngineFailedError: The answer is none of the Engine API's.
            EngineUnavailableError: Nobody answers.
            TransportLostError: The connection broke.
            DeadlineError: It did not answer in time.
        """
        data = _dumps(json).encode() if json is not None else None
        sent = {**(headers or {}), **({"Content-Type": "application/json"} if data is not None else {})}
        async with self._answer(method, path, params=params, seconds=None, headers=sent, data=data) as response:
            text = await response.read()
            return read(_loads(text) if text else None)

    async def events(
        self,
        path: str,
        *,
        seconds: float,
        params: Params | None = None,
        headers: Params | None = None,
        data: AsyncIterator[bytes] | None = None,
    ) -> AsyncGenerator[dict[str, Any], None]:
        """A stream of JSON lines. Closing it closes the connection, by which the engine stops what it was doing.

        Raises:
            EngineAnswerError: It refused, or says amid the stream that it failed.
            EngineUnavailableError: Nobody answers.
            TransportLostError: The connection broke.
            DeadlineError: It did not end within `seconds`.
        """
        sent = {"Content-Type": "application/x-tar", **(headers or {})} if data is not None else dict(headers or {})
        async with self._answer("POST", path, params=params, seconds=seconds, headers=sent, data=data) as response:
            buffer = b""
            async for chunk in response.content.iter_any():
                *lines, buffer = (buffer + chunk).split(b"\n")
                for line in filter(None, map(bytes.strip, lines)):
                    yield _event(line)
            if buffer.strip():
                yield _event(buffer)

    def reading(self, what: str) -> AbstractContextManager[None]:
        """Wherever an event is read; see `Engine.reading`."""
        reading: AbstractContextManager[None] = self.engine.reading(what)
        return reading

    @asynccontextmanager
    async def content(
        self, path: str, *, seconds: float | None = None, params: Params | None = None
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """An answer's bytes.

        Raises:
            EngineAnswerError: It refused.
            EngineUnavailableError: Nobody answers.
            TransportLostError: The connection broke.
            DeadlineError: It did not end within `seconds`.
        """
        async with self._answer("GET", path, params=params, seconds=seconds) as response:
            yield response.content.iter_any()

    @asynccontextmanager
    async def _answer(
        self,
        method: str,
        path: str,
        *,
        params: Params | None,
        seconds: float | None,
        headers: Params | None = None,
        data: AsyncIterator[bytes] | bytes | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        await self.engine.ready()
        async with (
            self.engine.asking(f"{method} {path}", seconds=seconds) as docker,
            docker.session.request(
                method, self.engine.url(path), params=params, headers=headers, data=data, timeout=aiohttp.ClientTimeout()
            ) as response,
        ):
            if response.status >= 400:
                body = await response.read()
                said, shown = _message(body), body.decode(errors="replace").strip() or "no reason given"
                if said is None and response.status >= 500:  # an engine gives its reasons as JSON
                    raise TypeError(f"HTTP {response.status}: {shown[:_SHOWN]}")
                raise EngineAnswerError(response.status, said or shown, asked=f"{method} {path}, asked of {self.engine.endpoint},")
            yield response


def _event(line: bytes) -> dict[str, Any]:
    event: dict[str, Any] = _loads(line)
    if not isinstance(event, dict):
        raise TypeError("an event is an object")
    if "error" in event or "errorDetail" in event:
        detail = event.get("errorDetail") or {}
        code = detail.get("code")
        raise EngineAnswerError(0, str(detail.get("message") or event.get("error")), detail=code if isinstance(code, int) else None)
    return event


def _message(body: bytes) -> str | None:
    try:
        return str(_loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return None
