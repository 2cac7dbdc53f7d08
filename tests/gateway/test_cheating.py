"""With nothing but an agent's token: no disabled or hidden tool, no control route, no other role, no server direct, and the same after a
restart (must-show 3, I7, I14).
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from tests.gateway.parts import HTTP, Client, Live, Raw, agent, control, eventually, gateway, raw_server, text_of
from tests.gateway.raw_server import tool
from tests.processes import is_alive

HIDDEN = {"_meta": {"agentenv.io/hiddenByDefault": True}}
FORBIDDEN = ("a_off", "a_secret")
CONTROL_ROUTES = [
    ("GET", "/state"),
    ("GET", "/trajectory"),
    ("GET", "/changes"),
    ("GET", "/clock/state"),
    ("PUT", "/clock/set-time"),
    ("POST", "/clock/clear"),
    ("POST", "/tools/enable"),
    ("POST", "/tools/disable"),
    ("GET", "/triggers/state"),
    ("POST", "/triggers/register"),
    ("POST", "/triggers/remove"),
    ("POST", "/triggers/clear"),
    ("POST", "/agentenv"),
    ("GET", "/control/health"),
    ("GET", "/control/children"),
    ("GET", "/control/journal"),
    ("POST", "/control/tokens"),
    ("POST", "/control/tokens/revoke"),
    ("POST", "/control/drain"),
]
SITE_CARD = {
    "name": "site",
    "url": "/rpc",
    "additionalInterfaces": [{"url": "/own-mcp", "transport": "mcp"}],
    "capabilities": {"extensions": [{"uri": "urn:x:y/v1", "params": {"methods": {"go": {"method": "POST", "endpoint": "/knobs/go"}}}}]},
}


@dataclass
class World:
    live: Live
    a: Raw
    site: Raw
    token: str

    def ask(self, method: str, path: str, **more: object) -> httpx.Response:
        """A request with exactly this path, which a client would otherwise tidy."""
        extensions = {"target": path.encode()}
        request = HTTP.build_request(
            method, self.live.agent, headers={"authorization": f"Bearer {self.token}"}, extensions=extensions, **more
        )
        return HTTP.send(request)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    tools = [tool("a_on"), tool("a_off"), tool("a_secret", **HIDDEN)]
    state = tmp_path_factory.mktemp("cheat")
    with raw_server("a", tools=tools) as a, raw_server("site", card=SITE_CARD) as site, raw_server("old") as old:
        servers = [
            {"name": "a", "url": a.url},
            {"name": "site", "url": site.url, "website": True, "frontend": site.url},
            {"name": "old", "url": old.url, "website": True},
        ]
        with gateway(state, *servers) as live:
            assert live.post("/tools/disable", {"role": "eve", "tools": ["a_off"]}).status_code == 200
            live.post("/tools/enable", {"role": "root", "tools": ["a_secret"]})
            yield World(live, a, site, live.token("eve"))


@pytest.fixture(params=["as it was started", "after its server was killed"])
def restarted(world: World, request: pytest.FixtureRequest) -> World:
    if request.param.startswith("after"):
        before = world.live.kill_server()
        eventually(lambda: world.live.pid() not in (None, before))
        eventually(lambda: world.live.health()["status"] == "ready")
    return world


def eve(world: World) -> Client:
    return Client(f"{world.live.agent}/mcp", {"authorization": f"Bearer {world.token}"})


def calls_of(server: Raw) -> list[str]:
    seen = [json.loads(each["raw"]) for each in server.seen()["seen"] if "raw" in each]
    return [message["params"]["name"] for message in seen if message.get("method") == "tools/call"]


def test_i14_a_disabled_or_hidden_tool_is_neither_listed_nor_called_by_any_path(restarted: World) -> None:
    world, before = restarted, len(calls_of(restarted.a))
    with eve(world) as client:
        assert client.names() == ["a_on", "list_website_urls"]
        for name in FORBIDDEN:
            assert text_of(client.call(name)) == f"Tool '{name}' is disabled for role 'eve'"
            assert world.ask("POST", "/step", json={"action": "call_tool", "tool_name": name}).status_code == 403
    listed = world.ask("POST", "/step", json={"action": "list_tools"}).json()["tools"]
    assert [each["name"] for each in listed] == ["a_on", "list_website_urls"]
    card = world.ask("GET", "/.well-known/agent-env.json").json()
    assert "a_off" not in json.dumps(card)
    assert "a_secret" not in json.dumps(card)
    assert not set(FORBIDDEN) & set(calls_of(world.a)[before:])


SMUGGLED = [
    '{"name":"a_on","name":"a_off","arguments":{}}',
    '{"name":"a_off","name":"a_on","arguments":{}}',
    '{"name":"a_on","n\\u0061me":"a_off","arguments":{}}',
    '{"name":"a_on","NAME":"a_off","arguments":{}}',
    '{"name":"a_on","Name":"a_secret","arguments":{}}',
    '{"name":"a_on","arguments":{},"_meta":{},"_meta":{"agentenv.io/role":"root"}}',
    '{"name":"a_on","arguments":{},"_META":{"agentenv.io/role":"root"}}',
]


@pytest.mark.parametrize("params", SMUGGLED)
def test_two_readings_of_one_call_are_no_way_in(world: World, params: str) -> None:
    before = len(calls_of(world.a))
    with eve(world) as client:
        answer = client.send(f'{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}').json()
        assert answer["error"]["code"] == -32602
        doubled = f'{{"jsonrpc":"2.0","id":1,"method":"tools/list","method":"tools/call","params":{params}}}'
        assert client.send(doubled).status_code == 400
    assert len(calls_of(world.a)) == before


def test_names_in_other_spellings_reach_no_forbidden_tool(world: World) -> None:
    before = len(calls_of(world.a))
    with eve(world) as client:
        for name in ("A_OFF", "a_off ", " a_off", "a_off\u0000", "a.off", "a/a_off", "mcp-a:a_off"):
            assert text_of(client.call(name)) == f"Unknown tool: {name}"
        spelled = '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a\\u005foff","arguments":{}}}'
        assert "disabled" in client.send(spelled).text
        assert client.send(f"[{spelled}]").status_code == 400
    assert not set(FORBIDDEN) & set(calls_of(world.a)[before:])


def test_no_control_route_answers_on_the_agent_door(restarted: World) -> None:
    for method, path in CONTROL_ROUTES:
        answer = restarted.ask(method, path, json={})
        assert (answer.status_code, answer.json()) == (404, {"error": "not found"}), path
        assert HTTP.request(method, f"{restarted.live.agent}/as/{restarted.token}{path}", json={}).status_code == 404
    for method, path in (("GET", "/trajectory"), ("POST", "/tools/enable"), ("POST", "/agentenv")):
        for variant in (
            f"/{path}",
            f"{path}/",
            f"/.{path}",
            path.replace("/", "/%2e/", 1),
            path.upper(),
            f"/x/..{path}",
            f"{path}?x=1",
            f"{path}%00",
        ):
            assert restarted.ask(method, variant, json={}).status_code in (400, 404), variant


@pytest.mark.parametrize("key", ["mcp-a", "a", "gateway", "..", "mcp-a%2f", "%6dcp-a", "mcp-a;x", "old%00"])
def test_no_server_is_reached_through_the_proxy(world: World, key: str) -> None:
    before = len(world.a.seen()["seen"])
    for tail in ("", "/", "/mcp", "/mcp/", "/seen", "/../seen", "//mcp"):
        for method in ("GET", "POST", "DELETE"):
            assert world.ask(method, f"/svc/{key}{tail}").status_code in (400, 404)
    assert len(world.a.seen()["seen"]) == before


PRIVATE = {
    "site": [
        "/rpc",
        "/agentenv",
        "/knobs/go",
        "/own-mcp",
        "/export-state",
        "/.well-known/agent-env.json",
        "/tools/enable",
        "/agentenv/ext/x",
    ],
    "old": ["/api/reset", "/api/add", "/export-state", "/agentenv", "/agentenv/interface-manifest"],
}


@pytest.mark.parametrize(("site", "path"), [(site, path) for site, paths in PRIVATE.items() for path in paths])
def test_a_website_s_data_plane_and_knobs_are_not_for_agents_in_any_spelling(world: World, site: str, path: str) -> None:
    first, rest = path[1], path[2:]
    spellings = [path, f"{path}/", f"/{path}", f"/./{path}", f"/x/..{path}", f"{path};a=b", f"/%{ord(first):x}{rest}", path.upper()]
    spellings += [
        quote(quote(path, safe=""), safe="/%"),
        path.replace("/", "%2f"),
        path.replace("/", "/%5c"),
        f"{path}?a=/api/x",
        f"{path}/below",
    ]
    for route in ("svc", "website") if site == "site" else ("svc",):
        for spelled in spellings:
            tail = spelled if spelled.startswith("/") else f"/{spelled}"
            assert world.ask("POST", f"/{route}/{site}{tail}").status_code == 404, spelled


def test_a_website_s_pages_and_own_api_are_for_agents(world: World) -> None:
    for path in (
        "/svc/site/api/items",
        "/website/site/",
        "/website/site",
        "/website/site/index.html?q=1",
        "/svc/old/api/orders",
        "/svc/site/rpcx",
    ):
        answer = world.ask("GET", path)
        assert answer.status_code == 200, path
        assert ["agentenv-role", "eve"] in answer.json()["headers"]
        assert "authorization" not in dict(answer.json()["headers"])


def test_no_other_role_can_be_taken(restarted: World) -> None:
    world = restarted
    root_session = Client(f"{world.live.agent}/mcp", {"authorization": f"Bearer {world.live.token('root')}"})
    root_session.open()
    assert "a_secret" in root_session.names()
    with eve(world) as client:
        client.headers["agentenv-role"] = "root"
        assert "a_secret" not in client.names()
        client.call("a_on", _meta={"agentenv.io/role": "root", "agentenv.io/session": "x", "AgentEnv.io/Role": "root", "own": 1})
        sent = json.loads(next(each["raw"] for each in reversed(world.a.seen()["seen"]) if "tools/call" in each.get("raw", "")))
        assert sent["params"]["_meta"]["agentenv.io/role"] == "eve"
        assert set(sent["params"]["_meta"]) == {"agentenv.io/role", "agentenv.io/session", "own"}
        client.headers["mcp-session-id"] = root_session.headers["mcp-session-id"]
        assert client.send({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}).status_code == 404
    forged = [event for event in world.live.trajectory() if "forged_identity" in event]
    assert forged, "the attempt is told"


def tokens(good: str) -> list[str]:
    role, nonce, mac = good.removeprefix("aet_").split(".")
    other = "cm9vdA"  # root
    return [
        f"aet_{other}.{nonce}.{mac}",
        f"aet_{role}.{nonce}x.{mac}",
        f"aet_{role}.{nonce}.{mac[:-2]}",
        f"aet_{role}.{nonce}.",
        "aet_",
        f"{good}x",
        good[4:],
    ]


def test_a_made_up_token_lets_nobody_in(world: World) -> None:
    for wrong in [*tokens(world.token), "x", "é"]:
        for path in ("/mcp", "/.well-known/agent-env.json", "/step", "/svc/site/x", "/state"):
            answer = HTTP.post(world.live.agent + path, headers={"authorization": f"Bearer {wrong}".encode()}, json={})
            assert answer.status_code == 401, (wrong, path)
        assert HTTP.get(f"{world.live.agent}/as/{quote(wrong)}/.well-known/agent-env.json").status_code == 401
    assert HTTP.get(f"{world.live.agent}/mcp").status_code == 401


def test_a_revoked_token_lets_nobody_in_also_after_a_restart(world: World) -> None:
    mallory, other = world.live.token("mallory"), world.live.token("mallory")

    def let_in(token: str) -> bool:
        return HTTP.get(f"{world.live.agent}/.well-known/agent-env.json", headers={"authorization": f"Bearer {token}"}).status_code == 200

    world.live.post("/control/tokens/revoke", {"token": mallory})
    assert (let_in(mallory), let_in(other)) == (False, True)
    world.live.post("/control/tokens/revoke", {"role": "mallory"})
    before = world.live.kill_server()
    eventually(lambda: world.live.pid() not in (None, before))
    assert (let_in(mallory), let_in(other), let_in(world.live.token("mallory"))) == (False, False, False)
    assert let_in(world.token)


def test_i07_a_hidden_tool_is_shown_only_to_a_role_that_a_rule_names_it_for(world: World) -> None:
    live = world.live
    live.post("/tools/enable", {"role": "sam", "tools": "*"})
    with agent(live, "sam") as client:
        assert "a_secret" not in client.names()
        live.post("/tools/enable", {"role": "sam", "tools": ["a_secret"]})
        assert "a_secret" in client.names()
        assert text_of(client.call("a_secret")) == "a.a_secret"
    with control(live, "sam") as client:
        listed = next(each for each in client.tools() if each["name"] == "a_secret")
        assert listed["_meta"] == {"agentenv.io/hiddenByDefault": True}


def test_without_an_unauthenticated_role_nobody_gets_in_and_with_one_only_as_that_role(tmp_path: Path, world: World) -> None:
    with gateway(tmp_path, world.a, unauthenticated_role="guest") as live:
        live.post("/tools/disable", {"role": "guest", "tools": ["a_off"]})
        assert live.health()["unauthenticated_role"] == "guest"
        with Client(f"{live.agent}/mcp", {"agentenv-role": "root"}) as client:
            assert client.names() == ["a_on"]
        assert HTTP.get(f"{live.agent}/state").status_code == 404
        assert HTTP.post(f"{live.agent}/mcp", headers={"authorization": "Bearer aet_x.y.z"}).status_code == 401


def test_the_supervisor_outlives_its_server_and_a_killed_supervisor_leaves_no_server(tmp_path: Path, world: World) -> None:
    with gateway(tmp_path, world.a) as live:
        server = live.health()["pid"]
        os.kill(live.process.pid, signal.SIGKILL)
        live.process.wait()
        eventually(lambda: not is_alive(server))
