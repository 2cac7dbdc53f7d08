"""Servers of our SDK behind the gateway, and the official MCP client before it (I5, I6, I17)."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp.client.client import Client as OfficialClient
from mcp.client.streamable_http import streamable_http_client

from tests.gateway.parts import HTTP, ROOT, Live, agent, control, gateway, messages, text_of
from tests.ports import free_port

SEED = {"items": [{"sku": "a", "qty": 2}]}


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    port = free_port()
    process = subprocess.Popen([sys.executable, "-m", "tests.gateway.sdk_server", str(port)], cwd=ROOT, stderr=subprocess.DEVNULL)
    state: Path = tmp_path_factory.mktemp("sdk")
    try:
        with gateway(state, {"name": "stock", "url": f"http://127.0.0.1:{port}"}, limits={"reopen_max_seconds": 0.3}) as live:
            yield live
    finally:
        process.kill()
        process.wait()


@pytest.fixture(autouse=True)
def seeded(live: Live) -> None:
    assert plane(live, "data/reset") == {}
    assert plane(live, "data/add", {"parts": [{"kind": "data", "data": SEED}]}) == {}


def plane(live: Live, method: str, params: dict[str, Any] | None = None) -> Any:
    return live.post("/agentenv", {"jsonrpc": "2.0", "id": 1, "method": method, "params": params or {}}).json()["result"]


def test_tools_are_listed_and_called_with_the_caller_s_role_and_session_i05(live: Live) -> None:
    with agent(live, "eve") as client:
        listed = {tool["name"]: tool for tool in client.tools()}
        assert set(listed) == {"stock_count", "stock_take"}
        assert "who" not in listed["stock_take"]["inputSchema"]["properties"]
        assert listed["stock_count"]["annotations"]["readOnlyHint"] is True
        assert client.call("stock_count", {"sku": "a"})["structuredContent"] == {"result": 2}
        client.headers["agentenv-role"] = "mallory"
        assert re.fullmatch(r"taken by eve in [0-9a-f]{32}", text_of(client.call("stock_take", {"sku": "a"})))
    with control(live) as client:
        assert text_of(client.call("stock_take", {"sku": "a"})).startswith("taken by None in ")
        refused = client.call("stock_take", {"sku": "a"})
        assert (refused["isError"], refused["structuredContent"]["code"]) == (True, "insufficient")
        assert text_of(refused) == "insufficient: someone can't take a"


def test_data_and_extensions_are_reached_through_the_gateway_s_card_i17(live: Live) -> None:
    card = live.get("/.well-known/agent-env.json").json()
    child = card["children_environments"][0]
    assert (child["name"], child["url"]) == ("stock", "/svc/mcp-stock/agentenv")
    frozen = next(each for each in child["capabilities"]["extensions"] if each["uri"] == "urn:agentenv:set-frozen/v1")
    endpoint = frozen["params"].get("endpoint") or next(iter(frozen["params"]["methods"].values()))["endpoint"]
    assert HTTP.post(live.control + endpoint, json={"on": True}).json() == {"frozen": True}
    with control(live) as client:
        assert client.call("stock_take", {"sku": "a"})["isError"] is True
    assert HTTP.post(live.control + endpoint, json={"on": False}).json() == {"frozen": False}
    assert HTTP.post(live.control + endpoint, json={}).status_code == 400
    dumped = HTTP.post(f"{live.control}/svc/mcp-stock/agentenv", json={"jsonrpc": "2.0", "id": 1, "method": "data/get"}).json()
    assert dumped["result"]["parts"][0]["data"] == SEED


def test_a_hidden_tool_of_the_sdk_is_hidden_and_its_progress_reaches_the_agent_i07(live: Live) -> None:
    with agent(live, "counter") as client:
        assert "stock_recount" not in client.names()
        live.post("/tools/enable", {"role": "counter", "tools": ["stock_recount"]})
        params = {"name": "stock_recount", "arguments": {}, "_meta": {"progressToken": "mine"}}
        got = messages(client.send({"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": params}))
        assert text_of(got[-1]["result"]) == "counted"
        steps = [each["params"] for each in got[:-1] if each["method"] == "notifications/progress"]
        assert [(step["progressToken"], step["progress"]) for step in steps] == [("mine", 1), ("mine", 2), ("mine", 3)]


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_the_official_client_lists_and_calls_through_the_agent_door_i17(live: Live, mode: Any) -> None:
    async def use() -> tuple[list[str], str]:
        headers = {"Authorization": f"Bearer {live.token('official')}"}
        async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
            transport = streamable_http_client(f"{live.agent}/mcp", http_client=http)
            async with OfficialClient(transport, mode=mode) as client:
                listed = await client.list_tools()
                result = await client.call_tool("stock_take", {"sku": "a"})
                return [tool.name for tool in listed.tools], result.content[0].text  # type: ignore[union-attr]

    names, text = asyncio.run(use())
    assert names == ["stock_count", "stock_take"]
    assert text.startswith("taken by official in ")


@pytest.mark.parametrize("generation", ["mcp-1-oldest", "mcp-1", "mcp-2"])
def test_official_clients_of_each_generation_get_through_with_a_token_in_the_path_i17(live: Live, generation: str) -> None:
    python = ROOT / "interop" / generation / ".venv" / "bin" / "python"
    if not python.exists():
        pytest.skip("agentenv-capability-missing: interop")
    url = f"{live.agent}/as/{live.token('visitor')}/mcp"
    done = subprocess.run([python, ROOT / "interop" / "official.py", url], capture_output=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    assert set(json.loads(done.stdout)["tools"]) == {"stock_count", "stock_take"}


@pytest.mark.parametrize(("serving", "using"), [("mcp-1-oldest", "mcp-2"), ("mcp-2", "mcp-1")])
def test_what_servers_of_each_generation_offer_reaches_official_clients_of_the_others(tmp_path: Path, serving: str, using: str) -> None:
    pythons = [ROOT / "interop" / generation / ".venv" / "bin" / "python" for generation in (serving, using)]
    if not all(python.exists() for python in pythons):
        pytest.skip("agentenv-capability-missing: interop")
    port = free_port()
    process = subprocess.Popen([pythons[0], ROOT / "interop" / "offers_server.py", str(port)], cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        with gateway(tmp_path, {"name": "offers", "url": f"http://127.0.0.1:{port}"}, limits={"reopen_max_seconds": 0.3}) as live:
            url = f"{live.agent}/as/{live.token('visitor')}/mcp"
            done = subprocess.run([pythons[1], ROOT / "interop" / "offers_client.py", url], capture_output=True, timeout=100, check=False)
    finally:
        process.kill()
        process.wait()
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    assert json.loads(done.stdout) == {
        "resources": ["offers://one"],
        "templates": ["offers://by/{number}"],
        "prompts": ["greet"],
        "read": ["the one", "number 7"],
        "prompt": "Speak of it.",
        "completed": ["x!"],
        "called": ["accept Eve", "sampled", "done"],
        "logs": ["told"],
    }


def test_gw17_who_shares_an_environment_can_not_reset_it_under_another(live: Live) -> None:
    """Resetting is the control door's: an agent's episode is the same whether or not another agent tries it in the middle."""
    reset = {"jsonrpc": "2.0", "id": 1, "method": "data/reset", "params": {}}

    def episode(meanwhile: Callable[[], None]) -> list[tuple[str, bool]]:
        plane(live, "data/reset")
        plane(live, "data/add", {"parts": [{"kind": "data", "data": SEED}]})
        said = []
        with agent(live, "eve") as client:
            for name in ("stock_count", "stock_take", "stock_count", "stock_take", "stock_take"):
                result = client.call(name, {"sku": "a"})
                said.append((text_of(result).partition(" in ")[0], result.get("isError", False)))
                meanwhile()
        return said

    def resets() -> None:
        headers = {"authorization": f"Bearer {live.token('mallory')}"}
        for path in ("/agentenv", "/svc/stock/agentenv", "/svc/mcp-stock/agentenv", "/control/agentenv"):
            refused = HTTP.post(f"{live.agent}{path}", json=reset, headers=headers)
            assert refused.status_code in (401, 403, 404), path

    alone = episode(lambda: None)
    assert [failed for _, failed in alone] == [False] * 4 + [True]
    assert episode(resets) == alone
