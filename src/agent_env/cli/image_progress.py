"""Watching images move and builds run, on standard error: a line a step, and on a terminal a bar for bytes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from agent_env.cli.output import clean, note, redrawable

if TYPE_CHECKING:
    from rich.progress import Progress as Bars

    from agent_env.images import OnProgress, Progress

_SAID = frozenset({"step", "log", "waiting", "retrying"})
_BAR, _COUNT = 20, 14
"""Columns of a bar, and of how much of how much has been moved: `999.9/999.9 MB`."""
_UNITS = ((1000**3, "GB"), (1000**2, "MB"), (1000, "kB"))


@contextmanager
def moving(*, quiet: bool) -> Iterator[OnProgress]:
    """The watcher that fits where standard error goes."""
    if quiet:
        yield lambda _: None
    elif not redrawable(sys.stderr):
        yield _line
    else:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn
        from rich.table import Column

        # A name that is too long for the terminal is cut, so that a bar stays a line.
        named = TextColumn("{task.description}", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis"))
        columns = (named, BarColumn(bar_width=_BAR), DownloadColumn(table_column=Column(no_wrap=True, min_width=_COUNT)))
        # What goes to a file or a pipe stays there.
        with Progress(*columns, console=Console(stderr=True), transient=True, expand=True, redirect_stdout=sys.stdout.isatty()) as bars:
            yield _Screen(bars)


def bytes_text(count: int) -> str:
    """A number of bytes as people read it."""
    return next((f"{count / size:.1f} {unit}" for size, unit in _UNITS if count >= size), f"{count} B")


def _line(event: Progress) -> None:
    text = _text(event)
    if text:
        note(text)


def _text(event: Progress) -> str | None:
    if event.stage not in _SAID:
        return None
    return f"[{event.step}/{event.steps}] {event.message}" if event.stage == "step" else event.message


class _Screen:
    """Bars for what moves; lines go above them."""

    def __init__(self, bars: Bars) -> None:
        self._bars = bars
        self._tasks: dict[str, int] = {}

    def __call__(self, event: Progress) -> None:
        text = _text(event)
        if text is not None:
            self._bars.console.print(clean(text), markup=False, highlight=False)
            return
        if event.stage not in self._tasks:
            self._tasks[event.stage] = int(self._bars.add_task(f"{event.stage} {clean(event.image)}", total=None))
        task = next(one for one in self._bars.task_ids if int(one) == self._tasks[event.stage])
        done = event.total_bytes is not None and event.done_bytes >= event.total_bytes
        self._bars.update(task, completed=event.done_bytes, total=event.total_bytes, visible=not done, refresh=done)
