"""The two pure machines that server and gateway share: rules for tools (I8) and the virtual clock (I10)."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from agent_env_sdk.wire import AgentEnvError, ClockError, ToolAccess, VirtualClock
from agent_env_sdk.wire.clock import current_time, parse_duration, parse_instant, parse_rate
from hypothesis import given
from hypothesis import strategies as st

OFF, ON = True, False


@pytest.mark.parametrize(
    ("rules", "role", "tool", "hidden", "allowed"),
    [
        ([], "a", "t", False, True),
        ([], "a", "t", True, False),
        ([("a", "t", OFF)], "a", "t", False, False),
        ([("a", "t", OFF)], "b", "t", False, True),
        ([("a", "*", OFF)], "a", "t", False, False),
        ([("a", "*", OFF), ("a", "t", ON)], "a", "t", False, True),
        ([("a", "t", ON), ("a", "*", OFF)], "a", "t", False, False),
        ([("*", "t", OFF)], "a", "t", False, False),
        ([("*", "t", OFF), ("a", "t", ON)], "a", "t", False, True),
        ([("a", "t", ON), ("*", "t", OFF)], "a", "t", False, False),
        ([("*", "*", OFF), ("a", "*", ON)], "a", "t", False, True),
        ([("a", "t", OFF), ("*", "*", ON)], "a", "t", False, True),
        ([("*", "*", OFF)], "a", "t", False, False),
        ([("a", "u", OFF), ("*", "t", OFF)], "a", "t", False, False),
        ([("a", "*", ON), ("*", "t", OFF)], "a", "t", False, False),
        ([("a", "*", ON)], "a", "t", True, False),
        ([("*", "*", ON)], "a", "t", True, False),
        ([("a", "t", ON)], "a", "t", True, True),
        ([("*", "t", ON)], "a", "t", True, True),
        ([("a", "t", ON), ("a", "*", ON)], "a", "t", True, False),
        ([("a", "*", OFF), ("*", "t", ON)], "a", "t", True, True),
    ],
)
def test_i08_the_rule_that_names_the_tool_decides_the_roles_own_first(
    rules: list, role: str, tool: str, hidden: bool, allowed: bool
) -> None:
    access = ToolAccess()
    for rule in rules:
        access = access.apply(*rule)
    assert access.allowed(role, tool, hidden) is allowed
    assert ToolAccess.from_json(access.to_json()).allowed(role, tool, hidden) is allowed


def test_i08_a_change_answers_with_the_roles_own_rules() -> None:
    access, answer = ToolAccess().change("disable", {"role": "a", "tools": ["u", "t"]})
    assert answer == {"role": "a", "disabled": ["t", "u"], "allowed": []}
    access, answer = access.change("enable", {"role": "a", "tools": ["t"]})
    assert answer == {"role": "a", "disabled": ["u"], "allowed": ["t"]}
    access, answer = access.change("disable", {"role": "a", "tools": "*"})
    assert answer == {"role": "a", "disabled": ["*"], "allowed": []}
    assert access.roles() == {"a": {"disabled": ["*"], "allowed": []}}


@pytest.mark.parametrize(
    "body",
    [
        None,
        [],
        {},
        {"role": "", "tools": []},
        {"role": 1, "tools": []},
        {"role": "a"},
        {"role": "a", "tools": "t"},
        {"role": "a", "tools": [1]},
    ],
)
def test_i08_a_body_that_says_nothing_usable_is_refused_and_changes_nothing(body: object) -> None:
    with pytest.raises(AgentEnvError) as refused:
        ToolAccess().change("disable", body)
    assert (refused.value.code, refused.value.status) == ("invalid_params", 400)


NAMES = st.sampled_from(["*", "a", "b"])


@given(st.lists(st.tuples(NAMES, NAMES, st.booleans())), st.sampled_from(["a", "b"]), st.sampled_from(["a", "b"]), st.booleans())
def test_i08_the_last_rule_for_everything_settles_it(rules: list, role: str, tool: str, off: bool) -> None:
    access = ToolAccess()
    for rule in rules:
        access = access.apply(*rule)
    assert access.apply("*", "*", off).allowed(role, tool) is not off
    assert access.apply("*", tool, off).allowed(role, tool) is not off
    assert access.apply(role, "*", off).allowed(role, tool) is not off
    assert access.apply(role, tool, off).allowed(role, tool, hidden=True) is not off


@pytest.mark.parametrize(
    ("text", "utc"),
    [
        ("2026-05-01T10:00:00Z", "2026-05-01T10:00:00+00:00"),
        ("2026-05-01t10:00:00z", "2026-05-01T10:00:00+00:00"),
        ("2026-05-01 10:00:00.25+02:00", "2026-05-01T08:00:00.250000+00:00"),
        ("2026-05-01T10:00:00.123456789-05:30", "2026-05-01T15:30:00.123456+00:00"),
    ],
)
def test_i10_moments_that_the_clock_takes(text: str, utc: str) -> None:
    assert parse_instant(text).isoformat() == utc


@pytest.mark.parametrize(
    "text",
    [
        "2026-05-01T10:00Z",
        "2026-05-01T10:00:00",
        "2026-05-01",
        " 2026-05-01T10:00:00Z",
        "2026-05-01T10:00:00Z\n",
        "20260501T100000Z",
        "2026-W18-5T10:00:00Z",
        "2026-05-01T10:00:00+0200",
        "2026-05-01T10:00:00+02:00:30",
        "2026-02-30T10:00:00Z",
        "2026-05-01T25:00:00Z",
        "0001-01-01T00:00:00+23:00",
        "٢٠٢٦-05-01T10:00:00Z",
        1777629600,
        None,
    ],
)
def test_i10_moments_that_it_refuses(text: object) -> None:
    with pytest.raises(ClockError):
        parse_instant(text)


@pytest.mark.parametrize("rate", [-1, 86_400.5, math.nan, math.inf, True, "1", [1]])
def test_i10_rates_that_it_refuses(rate: object) -> None:
    with pytest.raises(ClockError):
        parse_rate(rate)


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("PT48H", timedelta(hours=48)),
        ("P1DT6H", timedelta(days=1, hours=6)),
        ("P2W", timedelta(weeks=2)),
        ("PT1.5S", timedelta(seconds=1.5)),
        ("PT0S", timedelta()),
    ],
)
def test_durations_have_fixed_lengths(text: str, length: timedelta) -> None:
    assert parse_duration(text) == length


@pytest.mark.parametrize("text", ["", "P", "PT", "P1Y", "P1M", "1H", "PT1H ", "P-1D", "P99999999999D", None, 3])
def test_durations_without_one_are_refused(text: object) -> None:
    with pytest.raises(ClockError):
        parse_duration(text)


def test_i10_virtual_time_runs_at_its_rate_and_reading_does_not_move_it() -> None:
    clock = VirtualClock.arm("2026-05-01T10:00:00Z", 60, real=100.0)
    assert clock.time(100.0) == clock.time(100.0) == {"virtual_time": "2026-05-01T10:00:00Z"}
    assert clock.time(101.5) == {"virtual_time": "2026-05-01T10:01:30Z"}
    assert clock.state(101.0) == {
        "armed": True,
        "t0": "2026-05-01T10:00:00Z",
        "virtual_seconds_per_real_second": 60.0,
        "virtual_time": "2026-05-01T10:01:00Z",
    }
    assert VirtualClock.from_json(clock.to_json()) == clock


def test_i10_a_frozen_clock_stands_and_a_real_clock_that_steps_back_does_not_turn_it() -> None:
    assert VirtualClock.arm("2026-05-01T10:00:00Z", 0, real=0.0).time(1e9) == {"virtual_time": "2026-05-01T10:00:00Z"}
    assert VirtualClock.arm("2026-05-01T10:00:00Z", None, real=50.0).time(10.0) == {"virtual_time": "2026-05-01T10:00:00Z"}


def test_i10_the_calendars_end_is_refused_at_arming_and_stood_at_when_reached() -> None:
    with pytest.raises(ClockError, match="calendar"):
        VirtualClock.arm("9999-12-31T23:00:00Z", 1, real=0.0)
    VirtualClock.arm("9999-12-31T23:00:00Z", 0, real=0.0)
    assert VirtualClock.arm("9990-01-01T00:00:00Z", 1000, real=0.0).now(1e9).year == 9999


def test_i10_get_time_tells_seconds_and_a_zone() -> None:
    now = datetime(2026, 5, 1, 10, 0, 0, 999, tzinfo=UTC)
    assert current_time(now) == {"current_time": "2026-05-01T10:00:00Z"}
    assert current_time(now, "Europe/Oslo") == {
        "current_time": "2026-05-01T10:00:00Z",
        "time_zone": "Europe/Oslo",
        "local_time": "2026-05-01T12:00:00+02:00",
    }
    for wrong in ("Mars/Base", "", "../etc/passwd", 3):
        bad: Any = wrong
        with pytest.raises(ClockError, match="time zone"):
            current_time(now, bad)
