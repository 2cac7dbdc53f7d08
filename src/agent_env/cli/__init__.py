"""The command line: parse, call, show. Nothing here that another face would need.

This module stays almost empty: `--version` must answer before anything else is imported.
"""

from __future__ import annotations

import sys

__all__ = ["main"]


def main(argv: list[str] | None = None) -> int:
    """The console script.

    Args:
        argv: The arguments without the program's name; None takes the process's own.

    Returns:
        The exit code: 0 done, 1 failed, 2 wrong usage or documents, 130 and 143 interrupted.
    """
    arguments = sys.argv[1:] if argv is None else argv
    if arguments in (["--version"], ["-V"]):
        from agent_env import __version__

        sys.stdout.write(f"agent-env {__version__}\n")
        return 0
    from agent_env.cli.boundary import run

    return run(arguments)
