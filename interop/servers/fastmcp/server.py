"""A server that knows nothing of environments: plain FastMCP, without a card and without data."""

from __future__ import annotations

import os
from typing import Annotated

from mcp.server.fastmcp import FastMCP
from pydantic import Field

server = FastMCP("adder", host="0.0.0.0", port=int(os.environ.get("MCP_PORT", "18765")))


@server.tool()
def add(a: Annotated[int, Field(description="One number.")], b: Annotated[int, Field(description="The other one.")]) -> int:
    """Add two numbers."""
    return a + b


if __name__ == "__main__":
    server.run(transport="streamable-http")
