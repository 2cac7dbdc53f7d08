"""Tools of MCP servers as a command, for agents that know a shell alone.

Usage: python -m agent_env_sdk.agent.mcp_command list | call SERVER TOOL [JSON of the arguments]

The servers are in the file that the variable `AGENTENV_MCP` names: by name, an object with `url` and `headers`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import httpx

from agent_env_sdk.mcp_session import McpError

from .hands import toolbox
from .turns import McpServer

VARIABLE: Final = "AGENTENV_MCP"
_USAGE: Final = "usage: list | call SERVER TOOL [JSON of the arguments]"


async def answer(arguments: Sequence[str], servers: dict[str, McpServer]) -> tuple[str, int]:
    """What is printed, and the exit code: 2 for a wrong use, 1 for a tool that failed."""
    match arguments:
        case ["list"]:
            async with toolbox(servers) as tools:
                told = [{"server": each.server, "tool": each.tool, "description": each.description, "arguments": each.schema}
                        for each in tools.tools.values()]  # fmt: skip
            return "\n".join(json.dumps(each, ensure_ascii=False) for each in told), 0
        case ["call", server, tool, *rest] if len(rest) <= 1 and server in servers:
            try:
                given: Any = json.loads(rest[0]) if rest else {}
            except ValueError as error:
                return f"the arguments are not JSON: {error}", 2
            async with toolbox({server: servers[server]}) as tools:
                text, failed = await tools.call(server, tool, given)
            return text, int(failed)
    return f"{_USAGE}\nservers: {', '.join(servers) or 'none'}", 2


def main(arguments: Sequence[str]) -> int:
    """Runs the command."""
    known = json.loads(Path(os.environ[VARIABLE]).read_text()) if VARIABLE in os.environ else {}
    servers = {name: McpServer(each["url"], each.get("headers") or {}) for name, each in known.items()}
    try:
        text, code = asyncio.run(answer(arguments, servers))
    except (httpx.HTTPError, McpError) as error:
        text, code = f"{type(error).__name__}: {error}", 1
    sys.stdout.write(f"{text}\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
