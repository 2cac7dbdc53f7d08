"""An agent speaks to its peers with tools of its own server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from agent_env_sdk.agent import Agent, TaskRequest, TaskResult, agent
from agent_env_sdk.agent.hands import toolbox
from agent_env_sdk.agent.peers import PEERS_PATH, PEERS_SERVER
from agent_env_sdk.mcp_session import McpSession
from agent_env_sdk.testing.agents import AgentClient, ending, serve_agent_here
from agent_env_sdk.wire.a2a import CARD_PATHS
from agent_env_sdk.wire.agent_extensions import PEER_AGENTS, find

from tests.sdk.agents import Echo


@agent("asker")
class Asker(Agent):
    """Passes what it was asked on to the peer of that name."""

    async def run(self, request: TaskRequest[Any]) -> TaskResult:
        name, _, text = request.text.partition(" ")
        async with toolbox(request.mcp_servers) as tools:
            answer, failed = await tools.call(PEERS_SERVER, "peer_send_message", {"name": name, "prompt": text})
        return TaskResult.said(answer, structured={"failed": failed})


@asynccontextmanager
async def two(*, only_v1: bool = False) -> AsyncIterator[tuple[AgentClient, AgentClient, Echo]]:
    """An agent that asks, and its peer, which needs a token."""
    echo = Echo()
    async with serve_agent_here(echo, token="peer-t0ken") as peer, serve_agent_here(Asker(), token="t") as asker:
        card = (await peer.http.get(f"{peer.base}{CARD_PATHS[1]}")).json() if only_v1 else {}
        if only_v1:
            card = {key: value for key, value in card.items() if key not in {"url", "preferredTransport"}}
            card["supportedInterfaces"] = [each for each in card["supportedInterfaces"] if each["protocolVersion"] == "1.0"]
        record = {
            "name": "echo",
            "url": peer.base,
            "headers": {"Authorization": "Bearer peer-t0ken"},
            "card": card,
            "description": "Echoes.",
        }
        await asker.invoke(PEER_AGENTS, "set", {"peers": [record]})
        yield asker, peer, echo


@asynccontextmanager
async def tools(client: AgentClient) -> AsyncIterator[Any]:
    async with httpx.AsyncClient(timeout=30) as http:
        session = McpSession(http, f"{client.base}{PEERS_PATH}", {})
        await session.open()

        async def call(name: str, /, **arguments: Any) -> tuple[dict[str, Any], bool]:
            result = await session.call(name, arguments)
            return json.loads(result.text), result.is_error

        yield call


@pytest.mark.parametrize("only_v1", [False, True], ids=["0.3", "1.x"])
async def test_an_agent_asks_its_peer_in_a_turn(only_v1: bool) -> None:
    async with two(only_v1=only_v1) as (asker, _, _):
        task = await asker.prompt("echo hello")
        assert ending(task).structured_output == {"failed": False}
        answer = json.loads(ending(task).text or "")
        assert (answer["state"], answer["text"], answer["settled"]) == ("completed", "hello", True)
        assert "peer-t0ken" not in json.dumps(await asker.invoke(PEER_AGENTS, "list"))
        told = find(await asker.card(), PEER_AGENTS)
        assert told is not None
        assert (told.params or {})["features"] == ["headers"]


async def test_every_tool_does_what_it_says() -> None:
    async with two() as (asker, _, echo), tools(asker) as call:
        assert await call("peer_list") == ({"peers": [{"name": "echo", "description": "Echoes."}]}, False)
        assert (await call("peer_get_card", name="echo"))[0]["name"] == "echo"
        failed, _ = await call("peer_send_message", name="echo", parts=[{"kind": "text", "text": "fail no"}])
        assert (failed["state"], failed["error"]) == ("failed", "no")
        started, _ = await call("peer_start_task", name="echo", prompt="wait g", context_id="c")
        waited, _ = await call("peer_send_message", name="echo", prompt="wait h", timeout_seconds=0.05)
        assert (started["context_id"], waited["settled"]) == ("c", False)
        echo.gate("g").set()
        ended, _ = await call("peer_cancel_task", name="echo", task_id=waited["task_id"])
        assert ended["state"] == "canceled"
        assert (await call("peer_get_task", name="echo", task_id=waited["task_id"]))[0]["state"] == "canceled"


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("peer_send_message", {"name": "none", "prompt": "x"}, "there is no peer 'none'; there are: echo"),
        ("peer_send_message", {"name": "echo"}, "say either prompt"),
        ("peer_send_message", {"name": "echo", "prompt": "x", "timeout_seconds": 0}, "timeout_seconds"),
        ("peer_get_task", {"name": "echo", "task_id": "none"}, "Task not found"),
        ("peer_get_task", {"name": "echo"}, "task_id must name a task"),
    ],
)
async def test_what_can_not_be_done_is_told_as_the_tools_own_error(name: str, arguments: dict[str, Any], said: str) -> None:
    async with two() as (asker, _, _), tools(asker) as call:
        answer, failed = await call(name, **arguments)
    assert failed
    assert said in answer["error"]


async def test_a_peer_that_is_gone_is_told() -> None:
    async with serve_agent_here(Asker()) as asker, tools(asker) as call:
        await asker.invoke(PEER_AGENTS, "set", {"peers": [{"name": "gone", "url": "http://127.0.0.1:9"}]})
        assert await call("peer_send_message", name="gone", prompt="x") == ({"error": "the peer can't be reached: ConnectError"}, True)
