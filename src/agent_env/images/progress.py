"""What long work on images says while it goes on: plain values, so that any face may show them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum


class Stage(StrEnum):
    """What is going on."""

    WAITING = "waiting"
    """For another process, or for a turn."""
    SENDING = "sending"
    """The build context goes to the engine."""
    STEP = "step"
    """An instruction of the Dockerfile begins."""
    LOG = "log"
    """A line that a build printed."""
    MOVING = "moving"
    """Layers are pulled or pushed."""
    UNPACKING = "unpacking"
    RETRYING = "retrying"


@dataclass(frozen=True, slots=True)
class Progress:
    """One event."""

    stage: Stage
    image: str
    message: str = ""
    done_bytes: int = 0
    total_bytes: int | None = None
    """None when it is not known."""
    step: int = 0
    steps: int = 0


OnProgress = Callable[[Progress], None]
"""Takes an event; never blocks and never raises."""


def nobody(_: Progress) -> None:
    """Nobody watches."""


@dataclass
class Bytes:
    """Bytes of several parts that move at once, as one figure that never runs backwards."""

    image: str
    tell: OnProgress
    stage: Stage = Stage.MOVING
    _parts: dict[str, tuple[int, int]] = field(default_factory=dict)
    _said: int = -1

    def update(self, part: str, done: int, total: int | None) -> None:
        """A part has come so far."""
        before = self._parts.get(part, (0, 0))
        self._parts[part] = (max(before[0], done), max(before[1], total or 0, done))
        sum_done = sum(done for done, _ in self._parts.values())
        if sum_done > self._said:
            self._said = sum_done
            sum_total = sum(total for _, total in self._parts.values())
            self.tell(Progress(self.stage, self.image, "", sum_done, sum_total or None))

    def finish(self, part: str, total: int | None = None) -> None:
        """A part is complete; `total` is its size, where that is told with it."""
        _, known = self._parts.get(part, (0, 0))
        self.update(part, total or known, total)

    @property
    def done(self) -> int:
        """Bytes of all parts so far."""
        return max(self._said, 0)
