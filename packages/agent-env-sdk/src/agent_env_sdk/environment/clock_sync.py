"""Following a virtual clock: a step says where it is read, and `Environment.now()` tells virtual time from then on."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from agent_env_sdk.wire.clock import MAX_RATE, ClockError, parse_instant
from agent_env_sdk.wire.errors import AgentEnvError

if TYPE_CHECKING:
    import httpx

logger = logging.getLogger("agent_env_sdk")
READ_SECONDS: Final = 5.0
"""The longest that a reading may take."""
BETWEEN_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Reading:
    """What the clock showed, and when."""

    virtual: datetime
    real: float
    rate: float = 0.0
    """Virtual seconds a real second. Zero until it is known: a clock that stands a moment is never seen to run back."""
    candidate: float | None = None
    """The rate since the reading before."""

    def at(self, real: float) -> datetime:
        """What it shows later, if it went on as it did."""
        try:
            return self.virtual + timedelta(seconds=(real - self.real) * self.rate)
        except OverflowError:
            return self.virtual


class FollowedClock:
    """Virtual time as the gateway tells it; real time as long as nobody has said where, and while it isn't armed.

    It is read anew before each tool call, so that a clock that was set a moment ago is already right, and each second besides.
    In between it goes on at the rate that its readings showed.
    """

    def __init__(self) -> None:
        self._url: str | None = None
        self._reading: Reading | None = None
        self._http: httpx.AsyncClient | None = None
        self._lock = asyncio.Lock()

    def now(self) -> datetime:
        """The time, UTC."""
        return self._reading.at(time.monotonic()) if self._reading is not None else datetime.now(UTC)

    async def sync(self, url: str) -> dict[str, Any]:
        """Follows the clock at that address from now on.

        Raises:
            AgentEnvError: It can't be read.
        """
        import httpx

        self._url, self._reading = url, None
        try:
            await self._read()
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            self._url = None
            raise AgentEnvError(
                "clock_unavailable", f"the clock can't be read: {type(error).__name__}", status=502, retryable=True
            ) from error
        return {"synced": True, "armed": self._reading is not None}

    async def refresh(self) -> None:
        """Reads the clock again, if there is one to follow; a clock that can't be read goes on as it did."""
        if self._url is None:
            return
        import httpx

        try:
            await self._read()
        except (httpx.HTTPError, ValueError) as error:
            logger.warning("the virtual clock can't be read: %r", error)

    async def close(self) -> None:
        """Lets go of the connection."""
        if self._http is not None:
            await self._http.aclose()

    async def _read(self) -> None:
        import httpx

        async with self._lock:
            if self._http is None:
                self._http = httpx.AsyncClient(timeout=READ_SECONDS)
            response = await self._http.get(str(self._url))
            real = time.monotonic()
            if response.status_code == HTTPStatus.NOT_FOUND:
                self._reading = None
                return
            body = response.raise_for_status().json()
            if not isinstance(body, dict):
                raise ClockError("the clock's answer is not an object")
            virtual = parse_instant(body.get("virtual_time"))
            self._reading = _next(self._reading, virtual, real)


def _next(last: Reading | None, virtual: datetime, real: float) -> Reading:
    """A reading with its rate, which is believed when two spans agree: a single one may hold the moment of setting the clock."""
    if last is None or real <= last.real:
        return Reading(virtual, real)
    seen = (virtual - last.virtual).total_seconds() / (real - last.real)
    agrees = last.candidate is not None and 0 <= seen <= MAX_RATE and math.isclose(seen, last.candidate, rel_tol=0.2, abs_tol=0.05)
    return Reading(virtual, real, seen if agrees else last.rate, seen)
