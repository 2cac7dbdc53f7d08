"""After the morning's work: the ticket is there at the office's time, the office reacted, and trainees can't close anything."""

from __future__ import annotations

import json
from typing import Any

from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client


async def verify(mcp_url: str) -> list[dict[str, Any]]:
    """One row for each thing that must hold."""
    async with streamable_http_client(mcp_url) as (receive, send, _), ClientSession(receive, send) as session:
        await session.initialize()
        tools = [tool.name for tool in (await session.list_tools()).tools]
        tickets = json.loads((await session.call_tool("tickets_list", {})).content[0].text)
        lumen = json.loads((await session.call_tool("crm_find", {"name": "Lumen"})).content[0].text)
    heating = [ticket for ticket in tickets if ticket["title"] == "Heating is off"]
    return [
        {"id": "the-ticket-is-open", "result": [ticket["open"] for ticket in heating] == [True]},
        {"id": "at-the-office's-time", "result": [ticket["at"] for ticket in heating] == ["2030-01-07T09:00:00+00:00"]},
        {"id": "the-office-reacted", "result": lumen["notes"] == ["prefers mail", "urgent: Heating is off"], "weight": 2},
        {"id": "the-earlier-tickets-are-there", "result": {1, 2} <= {ticket["number"] for ticket in tickets}},
        {"id": "purging-is-for-nobody", "result": "tickets_list" in tools, "description": f"tools: {tools}"},
    ]
