"""Drives an agent with what was published for the existing framework: its own A2A client, and the protocol package's bodies of extensions.
Prints what it saw as JSON.

Usage: drive_agent.py URL, of an agent without a token: that client knows none.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
import uuid
from pathlib import Path
from typing import Any

import httpx
from a2a.types import AgentCard
from agentenv_protocol import a2a_agent as sdk

FRAMEWORK = Path(__file__).parent / "reference/.packages/agent_env/a2a_agent/protocol.py"


def client() -> Any:
    """The published framework's client: one module that stands by itself."""
    spec = importlib.util.spec_from_file_location("published_client", FRAMEWORK)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


async def turn(url: str, text: str, seconds: int = 30) -> dict[str, Any]:
    """One turn as the framework takes it: sent, polled, and read from the last message."""
    published = client()
    task_id, context = await published.send_a2a_message(url, [{"kind": "text", "text": text}], uuid.uuid4().hex, "c", seconds)
    try:
        task = await published.poll_a2a_task(url, task_id, seconds, poll_interval_seconds=0)
    except TimeoutError:
        return {"timed out": True, "task": task_id}
    read = published.TerminalResponse.from_message(task["status"].get("message"))
    return {"state": task["status"]["state"], "context": context, "task": task_id, **{k: v for k, v in vars(read).items() if v is not None}}


async def extended(http: httpx.AsyncClient, uri: str, verb: str, path: str, body: Any = None) -> Any:
    """One call of an extension. Its request is what the package's own model makes of it."""
    assert uri.startswith("urn:agentenv:")
    payload = body.model_dump(mode="json", exclude_none=True) if hasattr(body, "model_dump") else body
    answer = await http.request(verb, path, json=payload)
    return [answer.status_code, answer.json() if "json" in answer.headers["content-type"] else answer.text]


async def extensions(http: httpx.AsyncClient, task_id: str) -> dict[str, Any]:
    """The extensions that the package knows, each with its own request."""
    trigger = {"id": "over", "when": {"type": "conversational", "where": {"message": {"equals": "done"}}}, "actions": [{"type": "end"}]}
    return {
        "config": [
            await extended(http, "urn:agentenv:agent-config/v1", "POST", "/ext/agent-config", {"model": "m", "api_key": "k"}),
            await extended(http, "urn:agentenv:agent-config/v1", "GET", "/ext/agent-config"),
            (await extended(http, "urn:agentenv:agent-config/v1", "POST", "/ext/agent-config", {"none": 1}))[0],
        ],
        "mcp": [
            await extended(http, "urn:agentenv:mcp-config/v1", "POST", "/ext/mcp-config", sdk.McpAddRequest(url="http://x/mcp", name="x")),
            (await extended(http, "urn:agentenv:mcp-config/v1", "POST", "/ext/mcp-config", sdk.McpAddRequest(url="http://x/mcp")))[0],
            await extended(http, "urn:agentenv:mcp-config/v1", "GET", "/ext/mcp-config"),
        ],
        "peers": [
            await extended(
                http, "urn:agentenv:peer-agents/v1", "POST", "/ext/peer-agents",
                sdk.PeerAgentsSetRequest(peers=[sdk.PeerAgent(name="p", url="http://p", card={})]),
            ),
            await extended(http, "urn:agentenv:peer-agents/v1", "GET", "/ext/peer-agents"),
        ],
        "trajectory": [
            await extended(
                http, "urn:agentenv:trajectory/v1", "POST", "/ext/trajectory", sdk.TaskTrajectoryRequest(task_id=task_id)
            ),
            (await extended(
                http, "urn:agentenv:trajectory/v1", "POST", "/ext/trajectory", sdk.TaskEventsTrajectoryRequest(task_id=task_id, after=1)
            ))[1],
        ],
        "triggers": [
            await extended(http, "urn:agentenv:triggers/v1", "POST", "/ext/triggers", {"triggers": [trigger]}),
            await extended(http, "urn:agentenv:triggers/v1", "POST", "/ext/triggers/decide", {"turn": 1, "solver_message": "done"}),
        ],
    }  # fmt: skip


async def main(url: str) -> None:
    """Card, turns, extensions."""
    async with httpx.AsyncClient(base_url=url, timeout=30) as http:
        raw = (await http.get("/.well-known/agent.json")).json()
        card = AgentCard.model_validate(raw)
        seen: dict[str, Any] = {
            "card": [card.name, card.url, card.protocol_version, card.preferred_transport],
            "extensions": sorted(each.uri for each in card.capabilities.extensions or []),
            "turns": [await turn(url, text) for text in ("hello", "again", "fail no", "reject")],
            "slow": await turn(url, "wait forever", 1),
        }
        slow = {"jsonrpc": "2.0", "id": 1, "method": "tasks/get", "params": {"id": seen["slow"]["task"]}}
        seen["slow"]["then"] = (await http.post("/a2a", json=slow)).json()["result"]["status"]["state"]
        seen |= {"called": await extensions(http, seen["turns"][0]["task"])}
    print(json.dumps(seen))  # noqa: T201 - this is the answer


asyncio.run(main(sys.argv[1]))
