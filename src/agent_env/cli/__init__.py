"""The command line: parse, call, show. Nothing here that another face would need.

This module stays almost empty: `--version` must answer before anything else is imported.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from contextlib import suppress

__all__ = ["main"]

INTERRUPTED = 130
"""The exit code after Ctrl-C."""
ALLOCATIONS_WHILE_STARTING = 200_000
"""Starting up makes some ten thousand objects that stay: they are not searched for garbage while they are made."""


def main(argv: list[str] | None = None) -> int:
    """The console script.

    Args:
        argv: The arguments without the program's name; None takes the process's own, and the process is taken to end with the answer.

    Returns:
        The exit code: 0 done, 1 failed, 2 wrong usage or documents, 130 and 143 interrupted.
    """
    arguments = sys.argv[1:] if argv is None else argv
    _fill_closed_streams()
    if arguments in (["--version"], ["-V"]):
        from agent_env import __version__

        with suppress(OSError):  # the boundary says what is wrong with the output
            sys.stdout.write(f"agent-env {__version__}\n")
            sys.stdout.flush()
            return 0
    ending: list[int] = []
    if argv is None:
        gc.set_threshold(ALLOCATIONS_WHILE_STARTING)
        # Registered before anything else, so called after everything else.
        atexit.register(_leave, ending)
    try:
        from agent_env.cli.boundary import run

        code = run(arguments)
    except KeyboardInterrupt:  # while that was imported, or while an interruption was told: nothing is under way
        code = INTERRUPTED
    ending.append(code)
    return code


def _fill_closed_streams() -> None:
    """Where a standard stream was closed before we started, nothing stands in: the next file that is opened must not become it."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))


def _leave(ending: list[int]) -> None:
    """Ends the process without taking the interpreter apart object by object, which takes longer than importing click: all is written."""
    if ending:
        os._exit(ending[0])
