"""Exactly what was loaded, and nothing of what was done since."""

from __future__ import annotations

import json
from typing import Any

from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client


async def verify(mcp_url: str) -> list[dict[str, Any]]:
    """One row for each server."""
    async with streamable_http_client(mcp_url) as (receive, send, _), ClientSession(receive, send) as session:
        await session.initialize()
        tickets = json.loads((await session.call_tool("tickets_list", {})).content[0].text)
        lumen = json.loads((await session.call_tool("crm_find", {"name": "Lumen"})).content[0].text)
    return [
        {"id": "tickets", "result": [ticket["number"] for ticket in tickets] == [1, 2]},
        {"id": "crm", "result": lumen == {"name": "Lumen", "city": "Oslo", "notes": ["prefers mail"]}},
    ]
