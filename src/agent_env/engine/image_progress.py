"""What work on images says, as the few words that whoever watches a run wants to read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent_env.defaults import MIB

if TYPE_CHECKING:
    from agent_env.images import Progress

Say = Callable[[str], None]
_EACH_BYTES = 64 * MIB
"""Of a long transfer, how much lies between two messages."""


@dataclass
class ImageProgress:
    """Passes on the steps of builds, waits, and large transfers now and then; never the lines that a build prints."""

    say: Say
    _said: str = ""

    def __call__(self, progress: Progress) -> None:
        """Takes an event."""
        text = _words(progress)
        if text and text != self._said:
            self._said = text
            self.say(text)


def _words(progress: Progress) -> str:
    match str(progress.stage):
        case "step":
            return f"{progress.image}: step {progress.step} of {progress.steps}: {progress.message}"
        case "moving" | "sending":
            done = progress.done_bytes // _EACH_BYTES * _EACH_BYTES // MIB
            return f"{progress.image}: {done} MiB" if done else ""
        case "waiting" | "retrying":
            return f"{progress.image}: {progress.message}"
    return ""
