"""`python -m agent_env.keeper STATE_ROOT [NAME=VALUE]...`: becomes the keeper of an installation. Started by its clients.

The first process forks and ends at once, so that the keeper is nobody's child. Its standard output says `ready`, `taken` (another keeper
lives) or what went wrong, and is closed then. NAME=VALUE are limits.
"""

from __future__ import annotations

import os
import sys


def main(arguments: list[str]) -> int:
    """Serves until there is nothing to carry; returns the process's exit code."""
    import asyncio
    import resource
    from dataclasses import replace
    from pathlib import Path

    from agent_env.defaults import DEFAULT_LIMITS
    from agent_env.errors import AgentEnvError
    from agent_env.keeper.serving import Keeper

    root, *given = arguments
    kinds = {name: type(getattr(DEFAULT_LIMITS, name)) for name in DEFAULT_LIMITS.names()}
    pairs = (text.partition("=") for text in given)
    limits = replace(DEFAULT_LIMITS, **{name: kinds[name](value) for name, _, value in pairs if name in kinds})
    told = False

    def tell(word: str) -> None:
        nonlocal told
        if not told:
            told = True
            os.write(1, f"{word}\n".encode())
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, 1)
            os.close(null)

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # it knows keys, and what it knows belongs into no file
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # each connection takes one, and there may be hundreds for each place

    async def serve() -> bool:
        return await Keeper(Path(root), limits=limits).serve(lambda: tell("ready"))

    try:
        if not asyncio.run(serve()):
            tell("taken")
    except AgentEnvError as error:
        tell(f"failed: {error.message}")
        return 1
    return 0


if __name__ == "__main__":
    if os.fork():
        os._exit(0)
    os.umask(0o077)
    raise SystemExit(main(sys.argv[1:]))
