"""The marks of a time trigger: reckoned from the clock's start, passed one by one, caught up with when time went faster than anybody
looked.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from agent_env.gateway.triggers import timing
from agent_env.gateway.triggers.armed import Armed, Due
from agent_env.gateway.triggers.grammar import TimeWhen


def first_mark(trigger: Armed, when: TimeWhen, t0: datetime) -> datetime:
    """The first mark of one that follows no other trigger: where `at` says, or one gap after the clock's start."""
    return timing.mark(when.at, t0) if when.at is not None else timing.later(t0, timedelta(seconds=trigger.gap_seconds()))


def due(trigger: Armed, when: TimeWhen, t0: datetime, now: datetime, *, most: int) -> Due:
    """Passes the marks up to `now`, at most `most` of them."""
    until = timing.mark(when.until, t0) if when.until is not None else None
    marks: list[datetime] = []
    while trigger.next_mark is not None and now >= trigger.next_mark:
        this = trigger.next_mark
        if until is not None and this > until:
            trigger.next_mark = None
            return Due(tuple(marks), capped=False, over=True)
        if len(marks) >= most:
            return Due(tuple(marks), capped=True, over=False)
        marks.append(this)
        following = timing.later(this, timedelta(seconds=trigger.gap_seconds())) if when.every is not None else None
        counted = when.count is not None and trigger.fire_count + len(marks) >= when.count
        if following is None or following <= this or counted:  # it does not grow at the calendar's end
            trigger.next_mark = None
            return Due(tuple(marks), capped=False, over=True)
        trigger.next_mark = following
    return Due(tuple(marks), capped=False, over=False)
