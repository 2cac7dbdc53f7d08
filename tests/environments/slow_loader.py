"""A server of our SDK, with tool access, whose loads wait for a file: `python -m tests.environments.slow_loader PORT FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from agent_env_sdk.environment import DataPart, Environment, add_data, environment, get_data, reset_data, serve, tool

from agent_env.waiting import poll

FOLDER = Path(sys.argv[2])


@environment(name="slow")
class Slow(Environment):
    tool_access = True

    def __init__(self) -> None:
        self.rows: list[Any] = []

    @reset_data
    async def wipe(self) -> None:
        self.rows = []

    @add_data
    async def fill(self, parts: list[Any]) -> None:
        with (FOLDER / "begun").open("a") as log:
            log.write("x")
        await poll(self._may_go, within_seconds=60, what="the file")
        self.rows += [part.data for part in parts]

    async def _may_go(self) -> bool | None:
        return (FOLDER / "go").exists() or None

    @get_data
    async def dump(self) -> list[DataPart]:
        return [DataPart(data=row) for row in self.rows]

    @tool(name="one")
    def one(self) -> str:
        """One tool."""
        return "1"

    @tool(name="other")
    def other(self) -> str:
        """Another tool."""
        return "2"


if __name__ == "__main__":
    serve(Slow(), "127.0.0.1", int(sys.argv[1]))
