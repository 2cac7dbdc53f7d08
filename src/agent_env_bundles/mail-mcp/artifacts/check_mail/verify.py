"""Searches the mailbox the way an agent does."""

import json

from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client


async def verify(mcp_url: str) -> list[dict[str, object]]:
    """One row for each thing that must hold."""
    async with streamable_http_client(mcp_url) as (receive, send, _), ClientSession(receive, send) as session:
        await session.initialize()
        answer = await session.call_tool("search_emails", {"query": "invoice"})
        found = [message["id"] for message in json.loads(answer.content[0].text)]
        bad = await session.call_tool("send_email", {"to": "nobody", "subject": "x", "body": "y"})
    return [
        {"id": "finds-the-invoice", "result": found == ["m-1"], "description": f"found {found}"},
        {"id": "refuses-a-bad-address", "result": bool(bad.isError), "description": bad.content[0].text},
    ]
