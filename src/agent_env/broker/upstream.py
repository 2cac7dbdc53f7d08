"""Asks a model's endpoint: again while it is busy or away, as long as nothing of an answer was passed on. Follows no redirect."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Final

import httpx

from agent_env.defaults import Limits
from agent_env.errors import ModelUnavailableError
from agent_env.waiting import pause
from agent_env.wording import counted

_BUSY: Final = frozenset({408, 429, 500, 502, 503, 504, 529})
"""529: overloaded (Anthropic)."""
_FIRST_PAUSE: Final = 0.5
_NUMBER: Final = re.compile(r"[0-9]+(\.[0-9]+)?")
_HEADERS_LEFT_OUT: Final = frozenset(
    {"connection", "keep-alive", "transfer-encoding", "content-length", "content-encoding", "set-cookie", "upgrade", "trailer", "te"}
)


@dataclass(frozen=True, slots=True)
class Begun:
    """An answer whose first bytes are here."""

    status: int
    headers: list[tuple[str, str]]
    pieces: AsyncIterator[bytes]
    """The body, decoded. Raises `ModelUnavailableError` where it breaks off."""
    attempts: int

    @property
    def content_type(self) -> str:
        """Of the body."""
        return next((value for name, value in self.headers if name == "content-type"), "application/octet-stream")


class Upstream:
    """One client for all endpoints.

    Args:
        limits: `model_*` and `connect_seconds`.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._http: httpx.AsyncClient | None = None

    @asynccontextmanager
    async def asking(self, method: str, url: str, headers: Sequence[tuple[str, str]], body: bytes) -> AsyncIterator[Begun]:
        """Asks. The answer may be an error of the endpoint's own.

        Raises:
            ModelUnavailableError: It can't be reached, or its answer breaks off.
        """
        loop = asyncio.get_running_loop()
        ends = loop.time() + self._limits.model_retry_seconds
        for attempt in range(1, self._limits.model_attempts + 1):
            problem, response = "", None
            try:
                response = await self._send(method, url, headers, body)
                pieces = response.aiter_bytes()
                first = await anext(pieces, b"")
            except (httpx.TransportError, httpx.DecodingError) as error:
                problem = f"the model's endpoint {_host(url)} can't be asked: {_said(error)}"
                if response is not None:
                    await response.aclose()
                    response = None
                if isinstance(error, httpx.ReadTimeout):
                    raise ModelUnavailableError(problem) from None
            wait = self._wait(attempt, response)
            again = attempt < self._limits.model_attempts and wait is not None and loop.time() + wait < ends
            if again and wait is not None:
                if response is not None:
                    await response.aclose()
                await pause(wait)
                continue
            if response is None:
                raise ModelUnavailableError(f"{problem} ({counted(attempt, 'attempt')})")
            try:
                yield Begun(response.status_code, _passed(response), _after(first, pieces, url), attempt)
            finally:
                await response.aclose()
            return

    async def aclose(self) -> None:
        """Ends its connections."""
        http, self._http = self._http, None
        if http is not None:
            await http.aclose()

    async def _send(self, method: str, url: str, headers: Sequence[tuple[str, str]], body: bytes) -> httpx.Response:
        if self._http is None:
            timeout = httpx.Timeout(self._limits.model_seconds, connect=self._limits.connect_seconds, pool=None)
            self._http = httpx.AsyncClient(timeout=timeout, follow_redirects=False, limits=httpx.Limits(max_connections=None))
            self._http.headers.clear()
        try:
            request = self._http.build_request(method, url, headers=list(headers), content=body if method == "POST" else None)
        except (httpx.InvalidURL, ValueError, UnicodeError) as error:
            raise ModelUnavailableError(
                f"the model's endpoint {_host(url)} can't be asked: its address or a header is not valid"
            ) from error
        return await self._http.send(request, stream=True)

    def _wait(self, attempt: int, response: httpx.Response | None) -> float | None:
        """How long to pause before another try; None for no other one."""
        if response is not None:
            if response.status_code not in _BUSY or str(response.headers.get("x-should-retry")) == "false":
                return None
            told = _told(response.headers)
            if told is not None:
                return told if told <= self._limits.model_wait_seconds else None
        longest: float = min(_FIRST_PAUSE * 2.0 ** (attempt - 1), self._limits.model_wait_seconds)
        return longest * (0.5 + random.random() / 2)


def _told(headers: httpx.Headers) -> float | None:
    """The pause that an answer asks for, in seconds."""
    text = str(headers.get("retry-after-ms") or headers.get("retry-after") or "")
    if _NUMBER.fullmatch(text):
        return float(text) / (1000 if headers.get("retry-after-ms") else 1)
    try:  # a moment counts from the answer's own date: whatever clock the endpoint has, ours says nothing of it
        return max((parsedate_to_datetime(text) - parsedate_to_datetime(headers.get("date", ""))).total_seconds(), 0.0)
    except (ValueError, TypeError):
        return None


def _passed(response: httpx.Response) -> list[tuple[str, str]]:
    return [(name.lower(), value) for name, value in response.headers.multi_items() if name.lower() not in _HEADERS_LEFT_OUT]


async def _after(first: bytes, rest: AsyncIterator[bytes], url: str) -> AsyncIterator[bytes]:
    try:
        if first:
            yield first
        async for piece in rest:
            yield piece
    except (httpx.TransportError, httpx.DecodingError) as error:
        raise ModelUnavailableError(f"the answer of the model's endpoint {_host(url)} broke off: {_said(error)}") from None


def _host(url: str) -> str:
    try:
        return httpx.URL(url).netloc.decode()
    except httpx.InvalidURL:
        return "(no valid address)"


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__
