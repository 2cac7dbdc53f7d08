"""Drives an MCP endpoint with the official client of whichever generation is installed, and prints what it saw as JSON.

Usage: official.py URL [NAME=VALUE of a header ...]
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import mcp

SECOND = hasattr(mcp, "Client")


@asynccontextmanager
async def first(url: str, headers: dict[str, str]) -> AsyncIterator[Any]:
    """A session of the first generation."""
    from mcp.client.streamable_http import streamablehttp_client

    async with streamablehttp_client(url, headers=headers) as (read, write, _), mcp.ClientSession(read, write) as session:
        started = await session.initialize()
        yield session, started.protocolVersion


@asynccontextmanager
async def second(url: str, headers: dict[str, str]) -> AsyncIterator[Any]:
    """A client of the second generation, which speaks the newest protocol that the server knows."""
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    async with httpx2.AsyncClient(headers=headers, timeout=60) as http, mcp.Client(streamable_http_client(url, http_client=http)) as client:
        yield client, client.protocol_version


def spelled(value: Any) -> dict[str, Any]:
    """A result as the wire has it."""
    found: dict[str, Any] = value.model_dump(mode="json", by_alias=True, exclude_none=True)
    return found


async def main(url: str, headers: dict[str, str]) -> None:
    """Lists and calls tools."""
    told: list[list[Any]] = []

    async def progress(done: float, total: float | None, message: str | None) -> None:
        told.append([done, total, message])

    async with (second if SECOND else first)(url, headers) as (session, version):
        tools = {tool["name"]: tool for tool in map(spelled, (await session.list_tools()).tools)}
        seen = {
            "protocol": version,
            "tools": tools,
            "who": spelled(await session.call_tool("whoami", {})),
            "refused": spelled(await session.call_tool("stock_take", {"sku": "a", "qty": 9})),
            "steps": spelled(await session.call_tool("steps", {}, progress_callback=progress)),
            "progress": told,
        }
    print(json.dumps(seen))  # noqa: T201 - this is the answer


asyncio.run(main(sys.argv[1], dict(pair.split("=", 1) for pair in sys.argv[2:])))
