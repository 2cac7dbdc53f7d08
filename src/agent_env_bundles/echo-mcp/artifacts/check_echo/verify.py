"""Calls the echo tool the way an agent does, with texts that are easily mangled on the way."""

from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client

TEXTS = {"plain": "hello", "looks-like-json": '{"a": [1, null]}', "unicode": "naïve ☂ \u2028 line", "empty": ""}


async def verify(mcp_url: str) -> list[dict[str, object]]:
    """One row for each thing that must hold."""
    rows = []
    async with streamable_http_client(mcp_url) as (receive, send, _), ClientSession(receive, send) as session:
        await session.initialize()
        listed = [tool.name for tool in (await session.list_tools()).tools]
        rows.append({"id": "listed", "result": "echo" in listed, "description": f"tools: {listed}"})
        for name, text in TEXTS.items():
            answer = await session.call_tool("echo", {"text": text})
            said = "".join(getattr(part, "text", "") for part in answer.content)
            rows.append({"id": name, "result": not answer.isError and said == text, "description": f"echo returned {said!r}"})
    return rows
