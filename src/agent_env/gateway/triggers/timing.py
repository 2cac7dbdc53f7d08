"""When: marks on the virtual clock, an executor's working hours, and virtual time that runs on while the clock is set anew."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from typing import Any, Final
from zoneinfo import ZoneInfo

from agent_env_sdk.wire.clock import VirtualClock, parse_duration, parse_instant

DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_OFFSET = re.compile(r"([+-])(\d{2}):(\d{2})")
_SECOND = timedelta(0, 1)
_LAST = datetime.max.replace(tzinfo=UTC)


def mark(text: str, t0: datetime) -> datetime:
    """A moment: RFC 3339, or a duration from the clock's start.

    Raises:
        agent_env_sdk.wire.ClockError: It is neither.
    """
    return later(t0, parse_duration(text)) if text.startswith("P") else parse_instant(text)


def later(moment: datetime, by: timedelta) -> datetime:
    """A moment moved, at most to the calendar's end."""
    try:
        return moment + by
    except OverflowError:
        return _LAST


class Axis:
    """Virtual seconds that have passed, whatever happened to the clock meanwhile: at its rate while it is armed, in real time while it is
    not, and with every jump ahead.

    Args:
        clock: Gives the clock as it is now.
        real: Gives real seconds.
        kept: What `to_json` gave in an earlier life, where there was one.
    """

    def __init__(self, clock: Callable[[], VirtualClock | None], real: Callable[[], float], kept: Mapping[str, Any] | None = None) -> None:
        self._clock = clock
        self._real = real
        self._changed = asyncio.Event()
        self._passed = 0.0
        self._known = clock()
        self._since = real()
        self.generation = 0
        """Grows each time that the clock is set."""
        if kept is not None:
            self._passed, self._since, self.generation = kept["passed"], kept["since"], kept["generation"]

    def to_json(self) -> dict[str, Any]:
        """What a later life needs to go on where this one is, as long as the clock is not set."""
        return {"passed": self._passed, "since": self._since, "generation": self.generation}

    def now(self) -> datetime | None:
        """The virtual time; None while the clock is not armed."""
        clock = self._clock()
        return clock.now(self._real()) if clock is not None else None

    def elapsed(self) -> float:
        """Seconds on this axis."""
        return self._passed + max(0.0, self._real() - self._since) * self._rate(self._known)

    def reset(self) -> None:
        """The clock was set or taken away: goes on from here, ahead by what it jumped."""
        real, before, after = self._real(), self._known, self._clock()
        self._passed = self.elapsed()
        if before is not None and after is not None:
            self._passed += max(0.0, (after.now(real) - before.now(real)).total_seconds())
        self._known, self._since = after, real
        self.generation += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def until(self, seconds: float, *, generation: int | None = None) -> None:
        """Waits until the axis is at `seconds`, however the clock is set meanwhile; with a `generation`, at most until it is."""
        while (left := seconds - self.elapsed()) > 0 and generation in (None, self.generation):
            rate = self._rate(self._known)
            try:
                async with asyncio.timeout(left / rate if rate > 0 else None):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def _rate(self, clock: VirtualClock | None) -> float:
        return clock.rate if clock is not None else 1.0


def opens(now: datetime, start: str, end: str, days: tuple[str, ...], where: tzinfo) -> datetime | None:
    """When working hours open next; None while they are open.

    Args:
        now: The moment.
        start: Local `HH:MM` at which they begin on each of `days`.
        end: Local `HH:MM` at which they end, on the next day where it is before `start`.
        days: `mon` to `sun`.
        where: The local zone.
    """
    first = now.astimezone(where).date() - timedelta(days=1)
    for ahead in itertools.count():
        day = first + timedelta(days=ahead)
        if DAYS[day.weekday()] not in days:
            continue
        begin = _moment(day, start, where)
        close = _moment(day + timedelta(days=int(end < start)), end, where)
        if begin <= now < close:
            return None
        if begin > now and close > begin:
            return begin
    raise AssertionError("unreachable")


def zone(time_zone: str | None, utc_offset: str) -> tzinfo:
    """The zone of working hours.

    Raises:
        ValueError: There is none of that name, or the offset is not spelled `+hh:mm`.
    """
    if time_zone is not None:
        try:
            return ZoneInfo(time_zone)
        except (LookupError, OSError) as error:
            raise ValueError(f"time_zone {time_zone!r} is no IANA name such as Europe/Oslo") from error
    match = _OFFSET.fullmatch(utc_offset)
    if match is None or int(match[2]) > 23 or int(match[3]) > 59:
        raise ValueError(f"utc_offset {utc_offset!r} is not like +05:30")
    return timezone((1 if match[1] == "+" else -1) * timedelta(hours=int(match[2]), minutes=int(match[3])))


def _moment(day: date, clock: str, where: tzinfo) -> datetime:
    """A local time of day as an instant; one that a change of the clocks skips is the moment of the change."""
    hour, minute = (int(part) for part in clock.split(":"))
    local = datetime.combine(day, time(hour, minute), where)
    instant = local.astimezone(UTC)
    if instant.astimezone(where).replace(tzinfo=None) == local.replace(tzinfo=None):
        return instant
    low, high = local.replace(fold=1).astimezone(UTC), instant  # the same wall time read with the offsets after and before the change
    while high - low > _SECOND:
        middle = low + (high - low) / 2
        low, high = (low, middle) if middle.astimezone(where).replace(tzinfo=None) >= local.replace(tzinfo=None) else (middle, high)
    return high.replace(microsecond=0)
