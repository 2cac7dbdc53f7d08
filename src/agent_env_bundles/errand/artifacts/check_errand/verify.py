"""Reads the mailbox the way an agent does."""

import json

from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client


async def verify(mcp_url: str) -> list[dict[str, object]]:
    """One row for each thing that must hold."""
    async with streamable_http_client(mcp_url) as (receive, send, _), ClientSession(receive, send) as session:
        await session.initialize()
        answer = await session.call_tool("search_emails", {"query": "paid"})
        sent = [message for message in json.loads(answer.content[0].text) if "to" in message]
    told = [each for each in sent if each["to"] == "accounts@northwind.example" and each["subject"] == "Paid"]
    return [
        {"id": "the-sender-was-told", "result": len(told) == 1, "description": f"sent {sent}"},
        {"id": "which-invoice", "result": any("2041" in each["body"] for each in told), "description": f"{told}"},
    ]
