"""A server of whichever generation of `mcp` is installed, with everything that servers offer besides tools.

Usage: offers_server.py PORT
"""

from __future__ import annotations

import sys

from mcp.types import Completion, SamplingMessage, TextContent
from pydantic import BaseModel

try:
    from mcp.server.mcpserver import Context, MCPServer

    FIRST = False
except ImportError:
    from mcp.server.fastmcp import Context
    from mcp.server.fastmcp import FastMCP as MCPServer

    FIRST = True

PORT = int(sys.argv[1])
server = MCPServer("offers", **({"host": "127.0.0.1", "port": PORT} if FIRST else {}))


class Name(BaseModel):
    """What is asked for."""

    name: str


@server.resource("offers://one")
def one() -> str:
    """The one resource that is listed."""
    return "the one"


@server.resource("offers://by/{number}")
def numbered(number: str) -> str:
    """Any other."""
    return f"number {number}"


@server.prompt()
def greet(topic: str) -> str:
    """Greets."""
    return f"Speak of {topic}."


@server.completion()
async def complete(ref, argument, context):  # noqa: ANN001, ANN201 - the types are called differently in each generation
    """Completes anything."""
    del ref, context
    return Completion(values=[f"{argument.value}!"])


@server.tool()
async def ask(ctx: Context) -> str:
    """Asks whoever uses the client."""
    answered = await ctx.elicit("Who?", Name)
    return f"{answered.action} {answered.data.name}"


@server.tool()
async def sample(ctx: Context) -> str:
    """Asks the client's model."""
    question = SamplingMessage(role="user", content=TextContent(type="text", text="?"))
    answered = await ctx.session.create_message([question], max_tokens=5, related_request_id=ctx.request_id)
    return answered.content.text


@server.tool()
async def tell(ctx: Context) -> str:
    """Logs."""
    await ctx.info("told")
    return "done"


if __name__ == "__main__":
    server.run("streamable-http", **({} if FIRST else {"host": "127.0.0.1", "port": PORT}))
