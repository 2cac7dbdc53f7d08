"""The command line: parse, call, show. Nothing here that another face would need.

This module stays almost empty: `--version` must answer before anything else is imported.
"""

from __future__ import annotations

import sys

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
    try:
        return _ended(sys.argv[1:] if argv is None else argv, owns_process=argv is None)
    except KeyboardInterrupt:  # before the first line that could answer it
        return INTERRUPTED


def _ended(arguments: list[str], *, owns_process: bool) -> int:
    import atexit
    import gc

    ending: list[int] = []
    if owns_process:
        gc.set_threshold(ALLOCATIONS_WHILE_STARTING)
        # Registered before anything else, so called after everything else.
        atexit.register(_leave, ending)
    _fill_closed_streams()
    if arguments in (["--version"], ["-V"]) and _version_is_told():
        return 0
    from agent_env.cli.interruptions import Interruptions

    interruptions = Interruptions()
    if owns_process:
        interruptions.begin()
    try:
        from agent_env.cli.boundary import run

        code = run(arguments, interruptions)
    except BaseException:  # importing, and telling of an interruption: what was raised may be wrapped, and nothing is under way
        if interruptions.first is None:
            raise
        code = 128 + interruptions.first
    interruptions.end(code)
    ending.append(code)
    return code


def _version_is_told() -> bool:
    from agent_env import __version__

    try:
        sys.stdout.write(f"agent-env {__version__}\n")
        sys.stdout.flush()
    except OSError:  # the boundary says what is wrong with the output
        return False
    return True


def _fill_closed_streams() -> None:
    """Where a standard stream was closed before we started, nothing stands in: the next file that is opened must not become it."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            import os

            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))


def _leave(ending: list[int]) -> None:
    """Ends the process without taking the interpreter apart object by object, which takes longer than importing click: all is written."""
    import os

    if ending:
        os._exit(ending[0])
