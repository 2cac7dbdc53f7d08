"""Drives a server with the published package's client, through every operation that it has, and prints what it saw as JSON.

Usage: drive.py URL GRANT, where GRANT is the JSON of a grant of a namespace.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from typing import Any

import agentenv_protocol
import httpx
from agentenv_protocol import client
from agentenv_protocol import manifest as manifests
from agentenv_protocol.types import DataPart, FilePart, FileWithBytes, TextPart

SEED = {"items": [{"sku": "a", "qty": 3}, {"sku": "b", "qty": 1}]}


async def card(base: str, seen: dict[str, Any]) -> dict[str, Any]:
    """Everything that the client reads of a card."""
    found: dict[str, Any] = await client.get_card(base)
    model = agentenv_protocol.EnvironmentCard.model_validate(found)
    declaration = client.intake_declaration(found)
    seen["card"] = {
        "v1": await client.supports_v1(base),
        "name": model.name,
        "operations": found["capabilities"]["operations"],
        "take": client.find_tool(found, "stock_take")["inputSchema"]["required"],
        "unknown": client.find_extension(found, "urn:none"),
        "mcp": client.mcp_path(found) if hasattr(client, "mcp_path") else "/mcp",
        "intake": declaration,
        "fits": agentenv_protocol.preflight.intake_fit_check(declaration, SEED),
        "misfits": len(agentenv_protocol.preflight.intake_fit_check(declaration, SEED, content_format="csv")),
    }
    return found


async def data(base: str, seen: dict[str, Any]) -> None:
    """The data plane."""
    await client.reset_data(base)
    empty = await client.get_data(base)
    await client.add_data(base, [DataPart(data=SEED)])
    inline = await client.get_data(base)
    await client.reset_data(base)
    content = base64.b64encode(json.dumps(SEED).encode()).decode()
    await client.add_data(base, [FilePart(file=FileWithBytes(bytes=content, mimeType="application/json", name="seed.json"))])
    seen["data"] = [part.data for answer in (empty, inline, await client.get_data(base)) for part in answer.parts]
    seen["failures"] = [
        await refused(client.add_data(base, [])),
        await refused(client.add_data(base, [TextPart(text="no JSON")])),
        await refused(client._rpc(base, "data/none", {}, 30, True)),
    ]


async def refused(call: Any) -> str:
    """What the client says of a call that fails."""
    try:
        await call
    except RuntimeError as error:
        return str(error)
    return "nothing"


async def upload(base: str, grant: str, seen: dict[str, Any]) -> None:
    """An export under a grant, where the client knows grants."""
    if not hasattr(agentenv_protocol, "uploaded_object_path"):
        return
    from agentenv_protocol.transfers import WriteNamespaceGrant

    answer = await client.get_data(base, write_namespace=WriteNamespaceGrant.model_validate_json(grant))
    seen["uploaded"] = [agentenv_protocol.uploaded_object_path(part) for part in answer.parts]


async def extensions(base: str, found: dict[str, Any], seen: dict[str, Any]) -> None:
    """Extensions over REST: POST, GET with a query, one of several methods, errors."""
    invoke = client.invoke_extension
    seen["extensions"] = [
        await invoke(base, found, "urn:agentenv:set-errors/v1", {"tool_name": "t"}),
        (await invoke(base, found, "urn:agentenv:coerce/v1", {"flag": "yes", "count": "7", "colour": "blue"}))["count"],
        await invoke(base, found, "urn:agentenv:disable-tool/v1", {"role": "clerk", "tools": ["stock_take"]}),
    ]
    if not hasattr(agentenv_protocol, "ExtensionCallError"):
        return
    seen["extensions"].append(await invoke(base, found, "urn:agentenv:shelf/v1", {"name": "s"}, method="put"))
    seen["errors"] = []
    for uri, params, method in (
        ("urn:agentenv:fail/v1", {}, "purpose"),
        ("urn:agentenv:fail/v1", {}, "accident"),
        ("urn:agentenv:set-errors/v1", {}, None),
    ):
        try:
            await invoke(base, found, uri, params, method=method)
        except agentenv_protocol.ExtensionCallError as error:
            seen["errors"].append([error.response.status_code, error.code, error.retryable, error.applied])


async def interface(base: str, found: dict[str, Any], seen: dict[str, Any]) -> None:
    """The manifest of a command line."""
    endpoint = client.extension_params(found, manifests.GET_INTERFACES_EXTENSION_URI)["endpoint"]
    served = manifests.CliManifest.model_validate(await client.get_interface_manifest(base, "cli", endpoint))
    seen["manifest"] = [manifests.manifest_compatible(served.manifest_version), served.entities[0].commands["get"].tool]
    try:
        await client.get_interface_manifest(base, "gui", endpoint)
    except httpx.HTTPStatusError as error:
        seen["manifest"].append(error.response.status_code)


async def tools(base: str, seen: dict[str, Any]) -> None:
    """Tools over MCP, where the client has a session for them."""
    if not hasattr(agentenv_protocol, "ToolSession"):
        return
    async with agentenv_protocol.ToolSession(mcp_url=f"{base}/mcp", role="clerk") as session:
        listed = [tool.name for tool in await session.list_tools()]
        calls = [
            await session.call_tool(name, arguments)
            for name, arguments in (
                ("stock_count", {"sku": "a"}),
                ("stock_take", {"sku": "a", "qty": 1}),
                ("whoami", {}),
                ("crash", {}),
                ("none", {}),
                ("stock_count", {"sku": 3}),
            )
        ]
        seen["tools"] = {
            "hidden": [name for name in ("audit", "stock_take") if name in listed],
            "listed": "stock_count" in listed,
            "protocol": session.protocol_version,
            "calls": [[result.isError, result.text.partition("\n")[0]] for result in calls],
        }


async def main(base: str, grant: str) -> None:
    """Everything, in the order of a task."""
    seen: dict[str, Any] = {}
    found = await card(base, seen)
    await data(base, seen)
    await upload(base, grant, seen)
    await extensions(base, found, seen)
    await interface(base, found, seen)
    await tools(base, seen)
    print(json.dumps(seen))  # noqa: T201 - this is the answer


asyncio.run(main(sys.argv[1], sys.argv[2]))
