"""The command line: parse, call, show. Nothing here that another face would need.

This module stays almost empty: `--version` must answer before anything else is imported.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys

__all__ = ["main"]

ALLOCATIONS_BETWEEN_COLLECTIONS = 50_000
"""Starting up makes some hundred thousand objects that stay; the interpreter's own number would search them for garbage a hundred times."""


def main(argv: list[str] | None = None) -> int:
    """The console script.

    Args:
        argv: The arguments without the program's name; None takes the process's own, and the process is taken to end with the answer.

    Returns:
        The exit code: 0 done, 1 failed, 2 wrong usage or documents, 130 and 143 interrupted.
    """
    arguments = sys.argv[1:] if argv is None else argv
    if arguments in (["--version"], ["-V"]):
        from agent_env import __version__

        sys.stdout.write(f"agent-env {__version__}\n")
        return 0
    ending: list[int] = []
    if argv is None:
        gc.set_threshold(ALLOCATIONS_BETWEEN_COLLECTIONS)
        # Registered before anything else, so called after everything else.
        atexit.register(_leave, ending)
    from agent_env.cli.boundary import run

    code = run(arguments)
    ending.append(code)
    return code


def _leave(ending: list[int]) -> None:
    """Ends the process without taking the interpreter apart object by object, which takes longer than importing click: all is written."""
    if ending:
        os._exit(ending[0])
