"""Drives an MCP endpoint with the official client of whichever generation is installed, through what servers offer besides tools.

Usage: offers_client.py URL
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import mcp
from mcp import types

SECOND = hasattr(mcp, "Client")
LOGS: list[Any] = []


async def elicited(context: Any, params: Any) -> types.ElicitResult:
    """Whoever uses the client answers."""
    del context, params
    return types.ElicitResult(action="accept", content={"name": "Eve"})


async def sampled(context: Any, params: Any) -> types.CreateMessageResult:
    """The client's model answers."""
    del context, params
    return types.CreateMessageResult(role="assistant", model="m", content=types.TextContent(type="text", text="sampled"))


async def logged(params: Any) -> None:
    """The client hears a log."""
    LOGS.append(params.data)


@asynccontextmanager
async def client(url: str) -> AsyncIterator[Any]:
    """A session of the first generation, or a client of the second."""
    able = {"elicitation_callback": elicited, "sampling_callback": sampled, "logging_callback": logged}
    if SECOND:
        import httpx2
        from mcp.client.streamable_http import streamable_http_client

        async with httpx2.AsyncClient(timeout=60) as http, mcp.Client(streamable_http_client(url, http_client=http), **able) as made:
            yield made
    else:
        from mcp.client.streamable_http import streamablehttp_client

        async with streamablehttp_client(url) as (read, write, _), mcp.ClientSession(read, write, **able) as session:
            await session.initialize()
            yield session


def spelled(value: Any) -> dict[str, Any]:
    """A result as the wire has it."""
    found: dict[str, Any] = value.model_dump(mode="json", by_alias=True, exclude_none=True)
    return found


async def main(url: str) -> None:
    """Everything, once."""
    async with client(url) as session:
        templates = spelled(await session.list_resource_templates())
        argument = {"name": "topic", "value": "x"}
        seen = {
            "resources": [each["uri"] for each in spelled(await session.list_resources())["resources"]],
            "templates": [each["uriTemplate"] for each in templates["resourceTemplates"]],
            "prompts": [each["name"] for each in spelled(await session.list_prompts())["prompts"]],
            "read": [spelled(await session.read_resource(uri))["contents"][0]["text"] for uri in ("offers://one", "offers://by/7")],
            "prompt": spelled(await session.get_prompt("greet", {"topic": "it"}))["messages"][0]["content"]["text"],
            "completed": spelled(await session.complete(types.PromptReference(type="ref/prompt", name="greet"), argument))["completion"][
                "values"
            ],
            "called": [spelled(await session.call_tool(name, {}))["content"][0]["text"] for name in ("ask", "sample", "tell")],
        }
    print(json.dumps({**seen, "logs": LOGS}))  # noqa: T201 - this is the answer


asyncio.run(main(sys.argv[1]))
