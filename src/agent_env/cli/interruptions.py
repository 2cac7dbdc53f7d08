"""Ctrl-C and SIGTERM, from the first line of ours to the last: the command that is under way is left by an exception, wherever it stands.

Knows nothing of commands. While an event loop runs, `session.run_async` takes the signals instead, and gives them back.
"""

from __future__ import annotations

import os
import signal
import sys

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruptions:
    """What this process was told. One that it was started to ignore stays ignored.

    An exception that is raised where nobody can catch it, such as in a finalizer, is dropped by the interpreter, and the command would go
    on. Such a one ends the process at once, as a kill does: whatever is stored withstands that.
    """

    def __init__(self) -> None:
        self.first: int | None = None
        """The signal that came first; None while there is none."""
        self._code: int | None = None
        self._dropped = sys.unraisablehook

    def begin(self) -> None:
        """From here on, each signal raises KeyboardInterrupt in the main thread."""
        sys.unraisablehook = self._unraisable
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._arrived)

    def end(self, code: int) -> None:
        """From here on, nothing is under way: a signal ends the process at once, with this exit code."""
        self._code = code

    def _arrived(self, number: int, _frame: object) -> None:
        if self._code is not None:
            os._exit(self._code)
        if self.first is None:
            self.first = number
        raise KeyboardInterrupt

    def _unraisable(self, dropped: sys.UnraisableHookArgs) -> None:
        if self.first is not None and isinstance(dropped.exc_value, KeyboardInterrupt):
            os._exit(128 + self.first)
        self._dropped(dropped)
