"""The virtual clock: its grammar and its arithmetic, with real time passed in.

Virtual time is a start, a rate, and the real moment at which it was armed; reading never changes it. Whoever holds a clock
chooses the real time (monotonic in one process, the wall's in what is journalled) and passes it to every call.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

MAX_RATE: Final = 86_400.0
"""Virtual seconds a real second, at most: a day a second."""
HORIZON_SECONDS: Final = 86_400.0
"""Real seconds that an armed clock must be able to run before the calendar ends (year 9999)."""

# Stricter than `datetime.fromisoformat`, which also takes week dates, basic format and offsets with seconds.
_INSTANT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]+)?(?:[Zz]|[+-][0-9]{2}:[0-9]{2})")
_DURATION = re.compile(
    r"P(?:(?P<weeks>[0-9]+)W)?(?:(?P<days>[0-9]+)D)?"
    r"(?:T(?:(?P<hours>[0-9]+)H)?(?:(?P<minutes>[0-9]+)M)?(?:(?P<seconds>[0-9]+(?:\.[0-9]+)?)S)?)?"
)
_LAST = datetime.max.replace(tzinfo=UTC)


class ClockError(ValueError):
    """A time, a rate or a duration that the clock can't take."""


def parse_instant(text: object) -> datetime:
    """A moment in RFC 3339, with seconds and an offset (`Z` or `+hh:mm`), in UTC.

    Raises:
        ClockError: It isn't one, or lies outside the calendar.
    """
    if not isinstance(text, str):
        raise ClockError(f"virtual_time must be a string in RFC 3339, not {type(text).__name__}")
    if not _INSTANT.fullmatch(text):
        raise ClockError(f"virtual_time {text!r} is not RFC 3339: expected YYYY-MM-DDThh:mm:ss[.fff](Z|+hh:mm)")
    try:
        return datetime.fromisoformat(text.upper().replace("Z", "+00:00")).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise ClockError(f"virtual_time {text!r} is no moment of the calendar: {error}") from None


def parse_rate(value: object) -> float:
    """Virtual seconds a real second, 0 (frozen) to 86400.

    Raises:
        ClockError: It isn't a number, or lies outside.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ClockError(f"virtual_seconds_per_real_second must be a number, not {type(value).__name__}")
    if not (math.isfinite(value) and 0 <= value <= MAX_RATE):
        raise ClockError(f"virtual_seconds_per_real_second must lie between 0 (frozen) and {MAX_RATE:g}, not {value:g}")
    return float(value)


def parse_duration(text: object) -> timedelta:
    """An ISO 8601 duration in weeks, days, hours, minutes and seconds; no months or years, which have no fixed length.

    Raises:
        ClockError: It isn't one, or is longer than the calendar.
    """
    match = _DURATION.fullmatch(text) if isinstance(text, str) else None
    parts = {unit: float(amount) for unit, amount in match.groupdict().items() if amount} if match else {}
    if not parts:
        raise ClockError(f"{text!r} is no ISO 8601 duration: expected for example PT24H, P1DT6H or PT30M")
    try:
        return timedelta(**parts)
    except OverflowError:
        raise ClockError(f"the duration {text!r} is longer than the calendar") from None


def zone(name: object) -> ZoneInfo | None:
    """The IANA time zone of that name; None when there is none."""
    try:
        return ZoneInfo(name) if isinstance(name, str) and name else None
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return None


def instant(moment: datetime) -> str:
    """A moment as the wire spells it: UTC, with `Z`."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


@dataclass(frozen=True, slots=True)
class VirtualClock:
    """An armed clock. An environment whose clock is not armed has none."""

    t0: datetime
    """Virtual time at the moment of arming, UTC."""
    rate: float
    """Virtual seconds a real second."""
    armed_at: float
    """Real seconds at the moment of arming, on the clock of whoever holds this."""

    @classmethod
    def arm(cls, virtual_time: object, rate: object, real: float) -> Self:
        """A clock that starts now.

        Args:
            virtual_time: What it shows now, RFC 3339.
            rate: Virtual seconds a real second; None for 1.
            real: Real seconds now.

        Raises:
            ClockError: The time or the rate can't be taken, or it would leave the calendar within a real day.
        """
        t0, speed = parse_instant(virtual_time), parse_rate(1.0 if rate is None else rate)
        if t0 > _LAST - timedelta(seconds=HORIZON_SECONDS * speed):
            raise ClockError(f"virtual_time {virtual_time!r} would leave the calendar within a day at rate {speed:g}")
        return cls(t0, speed, real)

    def now(self, real: float) -> datetime:
        """Virtual time; stands still at the calendar's end."""
        try:
            return self.t0 + timedelta(seconds=max(0.0, real - self.armed_at) * self.rate)
        except OverflowError:
            return _LAST

    def time(self, real: float) -> dict[str, Any]:
        """What `/clock/time` answers."""
        return {"virtual_time": instant(self.now(real))}

    def state(self, real: float) -> dict[str, Any]:
        """What `/clock/state` answers; whoever serves it adds where the time can be read."""
        return {"armed": True, "t0": instant(self.t0), "virtual_seconds_per_real_second": self.rate, **self.time(real)}

    def to_json(self) -> dict[str, Any]:
        """The clock as a JSON object, for a journal."""
        return {"t0": instant(self.t0), "rate": self.rate, "armed_at": self.armed_at}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """The clock that `to_json` wrote."""
        return cls(parse_instant(value["t0"]), float(value["rate"]), float(value["armed_at"]))


def current_time(now: datetime, time_zone: object = None) -> dict[str, str]:
    """What the agents' tool `get_time` answers: to the second, in UTC and in a zone if one is asked for.

    Raises:
        ClockError: There is no such zone.
    """
    answer = {"current_time": instant(now.replace(microsecond=0))}
    if time_zone is None:
        return answer
    place = zone(time_zone)
    if place is None:
        raise ClockError(f"unknown time zone {time_zone!r}: expected an IANA name such as Europe/Oslo")
    return {**answer, "time_zone": str(time_zone), "local_time": now.replace(microsecond=0).astimezone(place).isoformat()}
