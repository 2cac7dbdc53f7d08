"""Watching runs while they go on: a small live table on a terminal, one line a step elsewhere, or nothing.

All of it goes to standard error, so that standard output holds results alone.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from agent_env.cli.output import clean, note, one_line, redrawable
from agent_env.cli.results import seconds_text
from agent_env.clock import Clock, SystemClock

if TYPE_CHECKING:
    from rich.console import RenderableType

    from agent_env.engine import Event

SHOWN_RUNS = 8
REFRESH_PER_SECOND = 8
LONG_SECONDS = 2.0
"""A step that goes on for longer is shown with its time."""
_TOLD_ABOVE = frozenset({"run_started", "review_asked", "step_retried"})
LINE_EVERY_SECONDS = 10.0
"""Where there is no terminal, so long nothing is said of a run before a step that goes on has a line."""


@dataclass(slots=True)
class Running:
    """What is known of one run by its events."""

    run_id: str
    task: str
    steps: int = 0
    before: int = 0
    """Steps that were done when this process took the run up."""
    finished: set[str] = field(default_factory=set)
    """Steps that have been done since; one that is done again after a retry counts once."""
    now: dict[str, str] = field(default_factory=dict)
    """Steps that run → what they last said."""
    since: dict[str, float] = field(default_factory=dict)
    """Steps that run → when they began, on this process's clock."""
    ended: Mapping[str, Any] | None = None
    left: Mapping[str, Any] = field(default_factory=dict)
    """The report of its teardown."""

    @property
    def done(self) -> int:
        """How many of its steps are done."""
        return min(self.before + len(self.finished), self.steps or sys.maxsize)


class Watcher(Protocol):
    """An observer of the engine that also remembers, so that an interrupted command can still say what became of its runs."""

    runs: dict[str, Running]
    total: int | None

    def begin(self, run_id: str, task: str) -> None:
        """A run begins, under the name by which its user knows the task."""
        ...

    def on_event(self, event: Event) -> None:
        """Takes one event; never blocks."""
        ...


class Silent:
    """Remembers and shows nothing.

    Args:
        clock: Tells for how long a step goes on, and how long nothing was said of a run.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self.runs: dict[str, Running] = {}
        self.total: int | None = None
        self.clock = clock or SystemClock()

    def begin(self, run_id: str, task: str) -> None:
        """Takes note of a run."""
        self.runs[run_id] = Running(run_id, task)

    def on_event(self, event: Event) -> None:
        """Keeps account of runs and their steps."""
        payload = event.payload
        run = self.runs.get(event.run_id)
        if run is None:
            run = self.runs[event.run_id] = Running(event.run_id, str(payload.get("task") or payload.get("task_id") or event.run_id))
        match event.kind:
            case "run_started":
                run.steps, run.before = int(payload.get("steps") or 0), int(payload.get("done") or 0)
            case "step_started":
                run.now[event.step_id or ""] = str(payload.get("type") or "")
                run.since[event.step_id or ""] = self.clock.monotonic()
                run.steps = int(payload.get("total") or run.steps)
            case "step_progress":
                run.now[event.step_id or ""] = _progress_text(payload)
            case "review_asked":
                run.now[event.step_id or ""] = _review_text(run, event)
            case "step_done" | "step_failed" | "step_retried":
                run.now.pop(event.step_id or "", None)
                if event.kind == "step_done" or payload.get("tolerated"):
                    run.finished.add(event.step_id or "")
            case "run_finished":
                run.now.clear()
                run.ended = payload
            case "teardown":
                run.left = payload
        self.show(run, event)

    def show(self, run: Running, event: Event) -> None:
        """Nothing."""


class Lines(Silent):
    """One line when a step or a run has ended, and one now and then of what takes long."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self._told: dict[str, float] = {}
        """Run → when something was last said of it."""

    def show(self, run: Running, event: Event) -> None:
        """Writes the line."""
        now = self.clock.monotonic()
        text = _line(run, event)
        if text is None and event.kind == "step_progress" and now - self._told.setdefault(run.run_id, now) >= LINE_EVERY_SECONDS:
            text = f"[{run.task}] {event.step_id}: {' '.join(run.now[event.step_id or ''].split())}"
        if text or event.kind == "step_started":
            self._told[run.run_id] = now
        if text:
            note(text)


def _progress_text(payload: Mapping[str, Any]) -> str:
    """What a step says of itself, and how far it is where it counts."""
    said, done, total = str(payload.get("message") or ""), payload.get("done"), payload.get("total")
    counted = f"{done} of {total}" if total and done is not None else str(total) if total else ""
    return f"{said} {counted}".strip()


def _review_text(run: Running, event: Event) -> str:
    """What is asked, and how it is answered."""
    asked = f": {one_line(str(event.payload['label']))}" if event.payload.get("label") else ""
    return f"waits for a person{asked} (agent-env runs review {run.run_id} {event.step_id} continue|abort)"


def _line(run: Running, event: Event) -> str | None:
    payload = event.payload
    number = f" {run.done}/{run.steps}" if run.steps else ""
    took = f" ({seconds_text(payload['duration_seconds'])})" if payload.get("duration_seconds") is not None else ""
    match event.kind:
        case "run_started" if payload.get("again"):
            return f"[{run.task}] goes on in new sandboxes; done again: {', '.join(payload['again'])}"
        case "step_done":
            said = f": {payload['summary']}" if payload.get("summary") else ""
            return f"[{run.task}]{number} {event.step_id}{said}{took}"
        case "review_asked":
            return f"[{run.task}] {event.step_id} {run.now[event.step_id or '']}"
        case "step_failed" if payload.get("code") == "cancelled":
            return f"[{run.task}] {event.step_id} cancelled{took}"
        case "step_failed":
            error = payload.get("error") or payload
            place, tolerated = (number, " (tolerated)") if payload.get("tolerated") else ("", "")
            message = one_line(str(error.get("message", "")))
            return f"[{run.task}]{place} {event.step_id} failed{tolerated}: {error.get('code', '')}: {message}{took}"
        case "step_retried":
            back = payload.get("retry_from_step_id") or payload.get("to") or "an earlier step"
            return f"[{run.task}] {event.step_id} failed, going back to {back}"
        case "run_finished":
            return f"[{run.task}] {payload.get('word') or payload.get('status') or 'finished'}{took}"
        case _:
            return None


class Live(Silent):
    """A table of at most a handful of running tasks, and counts of all; above it stays what is to be read in full, or done."""

    def show(self, run: Running, event: Event) -> None:
        """Writes what the table has no room for, and no result tells later."""
        if event.kind in _TOLD_ABOVE and (text := _line(run, event)):
            note(text)

    def render(self) -> RenderableType:
        """What the terminal shows now."""
        from rich.table import Table
        from rich.text import Text

        grid = Table.grid(padding=(0, 2))
        runs = list(self.runs.values())  # at once: it is another thread that draws, while runs begin
        live = [run for run in runs if run.ended is None]
        for run in live[:SHOWN_RUNS]:
            now = ", ".join(f"{step}{self._taking(run, step)} {said}".strip() for step, said in list(run.now.items())[:3])
            count = f"{run.done}/{run.steps}" if run.steps else str(run.done)
            grid.add_row(*(Text(clean(cell).replace("\n", " "), no_wrap=True, overflow="ellipsis") for cell in (run.task, count, now)))
        ended = Counter(str((run.ended or {}).get("word") or (run.ended or {}).get("status")) for run in runs if run.ended)
        more = f"{len(live) - SHOWN_RUNS} more running · " if len(live) > SHOWN_RUNS else ""
        total = f" of {self.total}" if self.total else ""
        words = "".join(f" · {count} {word}" for word, count in ended.items())
        grid.add_row(Text(f"{more}{sum(ended.values())}{total} done{words}", style="dim"))
        return grid

    def _taking(self, run: Running, step: str) -> str:
        """For how long a step goes on, once that is longer than a step that is short."""
        taking = self.clock.monotonic() - run.since.get(step, self.clock.monotonic())
        return "" if taking < LONG_SECONDS else f" ({taking:.0f} s)" if taking < 100 else f" ({seconds_text(taking)})"


@contextmanager
def watching(*, quiet: bool) -> Iterator[Watcher]:
    """The watcher that fits where standard error goes; a terminal that can't move its cursor gets lines."""
    if quiet:
        yield Silent()
    elif not redrawable(sys.stderr):
        yield Lines()
    else:
        from rich.console import Console
        from rich.live import Live as Screen

        watcher = Live()
        with Screen(
            get_renderable=watcher.render,
            console=Console(stderr=True),
            refresh_per_second=REFRESH_PER_SECOND,
            transient=True,
            redirect_stdout=sys.stdout.isatty(),  # what goes to a file or a pipe stays there
        ):
            yield watcher
