"""Routes, bodies and cards as version 1 has them (I8, I10, I11, I12 and the shapes of the specification's section 4)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agent_env.gateway.cards import rewritten
from tests.gateway.parts import HTTP, Live, Raw, control, eventually, gateway, raw_server, text_of
from tests.gateway.raw_server import tool

EXTENSIONS = ["disable-tool", "enable-tool", "triggers", "clock", "trajectory", "step", "state", "changes"]


@dataclass
class World:
    live: Live
    a: Raw
    site: Raw


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    card = {
        "name": "a",
        "url": "/agentenv",
        "capabilities": {"operations": ["data/get"]},
        "additionalInterfaces": [{"url": "/mcp", "transport": "mcp"}],
    }
    tools = [tool("a_one"), tool("a_two"), tool("a_hid", _meta={"agentenv.io/hiddenByDefault": True})]
    state = tmp_path_factory.mktemp("wire")
    with raw_server("a", tools=tools, card=card, behaviour={"echo": "raw"}) as a, raw_server("site", card={"name": "site"}) as site:
        backend = {"name": "site", "url": f"{site.url}/base", "website": True, "frontend": site.url}
        with gateway(state, a, backend) as live:
            yield World(live, a, site)


@pytest.fixture
def live(world: World) -> Live:
    world.live.post("/tools/enable", {"role": "*", "tools": "*"}).raise_for_status()
    world.live.post("/clock/clear")
    return world.live


def test_the_card_composes_the_servers_cards_and_offers_the_gateway_s_extensions(live: Live) -> None:
    card = live.get("/.well-known/agent-env.json").json()
    assert [each["uri"] for each in card["capabilities"]["extensions"]] == [f"urn:agentenv:{name}/v1" for name in EXTENSIONS]
    assert {child["name"]: child["url"] for child in card["children_environments"]} == {
        "a": "/svc/mcp-a/agentenv",
        "site": "/svc/site/agentenv",
    }


def test_a_card_that_a_server_shows_later_appears_and_one_that_it_no_longer_shows_stays(tmp_path: Path) -> None:
    with (
        raw_server("late", tools=[tool("t")], card={"name": "late"}) as late,
        gateway(tmp_path, late, limits={"card_fresh_seconds": 0.1}) as live,
    ):

        def children() -> list[str]:
            return [child["name"] for child in live.get("/.well-known/agent-env.json").json()["children_environments"]]

        assert eventually(children) == ["late"]
        late.kill()
        assert children() == ["late"]


DISABLE = {"uri": "urn:agentenv:disable-tool/v1"}
REWRITES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("an endpoint", {"uri": "x", "params": {"endpoint": "/e"}}, {"uri": "x", "params": {"endpoint": "/svc/k/e"}}),
    (
        "a method's endpoint",
        {"uri": "x", "params": {"methods": {"m": {"method": "GET", "endpoint": "/m"}}}},
        {"uri": "x", "params": {"methods": {"m": {"method": "GET", "endpoint": "/svc/k/m"}}}},
    ),
    (
        "methods that share an endpoint",
        {"uri": "x", "params": {"endpoint": "/e", "methods": {"m": {}, "n": {"endpoint": "/n"}}, "own": 1}},
        {"uri": "x", "params": {"endpoint": "/svc/k/e", "methods": {"m": {}, "n": {"endpoint": "/svc/k/n"}}, "own": 1}},
    ),
    ("a relative or absolute URL", {"uri": "x", "params": {"endpoint": "http://h/e"}}, {"uri": "x", "params": {"endpoint": "http://h/e"}}),
    ("a declaration", {"uri": "x", "params": {"add": []}}, {"uri": "x", "params": {"add": []}}),
    ("nothing", {"uri": "x", "params": None}, {"uri": "x", "params": None}),
    (
        "what the gateway itself offers",
        {**DISABLE, "params": {"methods": {"disable": {"method": "POST", "endpoint": "/tools/disable"}}}},
        {**DISABLE, "params": {"methods": {"disable": {"method": "POST", "endpoint": "/tools/disable"}}}},
    ),
    (
        "the same with another verb",
        {**DISABLE, "params": {"methods": {"disable": {"method": "PUT", "endpoint": "/tools/disable"}}}},
        {**DISABLE, "params": {"methods": {"disable": {"method": "PUT", "endpoint": "/svc/k/tools/disable"}}}},
    ),
    (
        "a sibling of what the gateway offers",
        {**DISABLE, "params": {"endpoint": "/tools/disable", "methods": {"disable": {}, "list": {"method": "GET"}}}},
        {
            **DISABLE,
            "params": {
                "endpoint": "/tools/disable",
                "methods": {"disable": {}, "list": {"method": "GET", "endpoint": "/svc/k/tools/disable"}},
            },
        },
    ),
]


@pytest.mark.parametrize(("given", "expected"), [each[1:] for each in REWRITES], ids=[each[0] for each in REWRITES])
def test_i11_a_server_s_paths_lead_through_the_gateway_except_those_that_it_answers_itself(
    given: dict[str, Any], expected: dict[str, Any]
) -> None:
    child = {
        "name": "c",
        "url": "/agentenv",
        "capabilities": {"extensions": [given], "tools": None},
        "children_environments": [{"name": "x"}],
        "more": 1,
    }
    made = rewritten(child, "k")
    assert made["capabilities"]["extensions"] == [expected]
    assert (made["url"], made["additionalInterfaces"], made["children_environments"]) == ("/svc/k/agentenv", [], None)
    assert made["more"] == 1


def test_a_server_s_own_access_routes_are_answered_by_the_gateway(world: World) -> None:
    assert world.live.post("/tools/disable", {"role": "x", "tools": ["a_one"]}).json()["disabled"] == ["a_one"]


RULES: list[tuple[list[tuple[str, str, Any]], str, dict[str, bool]]] = [
    ([], "r", {"a_one": True, "a_hid": False}),
    ([("disable", "r", ["a_one"])], "r", {"a_one": False, "a_two": True}),
    ([("disable", "r", ["a_one"])], "other", {"a_one": True}),
    ([("disable", "r", "*")], "r", {"a_one": False, "a_two": False, "a_hid": False}),
    ([("disable", "r", "*"), ("enable", "r", ["a_two"])], "r", {"a_one": False, "a_two": True}),
    ([("disable", "r", ["a_one"]), ("enable", "r", "*")], "r", {"a_one": True}),
    ([("disable", "*", ["a_one"]), ("enable", "r", ["a_one"])], "r", {"a_one": True}),
    ([("enable", "r", ["a_one"]), ("disable", "*", ["a_one"])], "r", {"a_one": False}),
    ([("enable", "r", "*"), ("disable", "*", ["a_one"])], "r", {"a_one": False, "a_two": True}),
    ([("disable", "r", ["a_one"]), ("enable", "*", "*")], "r", {"a_one": True}),
    ([("enable", "*", "*")], "r", {"a_hid": False}),
    ([("enable", "r", "*")], "r", {"a_hid": False}),
    ([("enable", "*", ["a_hid"])], "r", {"a_hid": True}),
    ([("enable", "r", ["a_hid"])], "r", {"a_hid": True}),
    ([("enable", "r", ["a_hid"])], "other", {"a_hid": False}),
]


@pytest.mark.parametrize(("rules", "role", "expected"), RULES)
def test_i08_the_rules_add_up_as_specified_for_listing_calling_and_step(
    live: Live, rules: list[tuple[str, str, Any]], role: str, expected: dict[str, bool]
) -> None:
    for action, of, tools in rules:
        live.post(f"/tools/{action}", {"role": of, "tools": tools}).raise_for_status()
    with control(live, role) as client:
        listed = client.names()
        stepped = [each["name"] for each in live.post("/step", {"action": "list_tools"}, headers={"agentenv-role": role}).json()["tools"]]
        for name, allowed in expected.items():
            assert (name in listed) is allowed
            assert (name in stepped) is allowed
            assert ("disabled for role" in text_of(client.call(name))) is not allowed
            body = {"action": "call_tool", "tool_name": name}
            assert (live.post("/step", body, headers={"agentenv-role": role}).status_code == 403) is not allowed


DEEP = [f'{{"role":"r","tools":["t"],"more":{"[" * levels}{"]" * levels}}}' for levels in (300, 100_000)]


@pytest.mark.parametrize(
    "body",
    ["{", "[]", "7", "{}", '{"role":""}', '{"role":"r"}', '{"role":"r","tools":"x"}', '{"role":"r","tools":[1]}', *DEEP],
    ids=lambda body: body[:40],
)
@pytest.mark.parametrize("action", ["enable", "disable"])
def test_a_rule_that_is_none_is_refused_in_words(live: Live, action: str, body: str) -> None:
    answer = HTTP.post(f"{live.control}/tools/{action}", content=body)
    assert answer.status_code == 400
    assert isinstance(answer.json()["error"], str)


CLOCKS = [
    ({"virtual_time": "2030-01-01T00:00:00Z"}, 200),
    ({"virtual_time": "2030-01-01 00:00:00.5+01:30"}, 200),
    ({"virtual_time": "2030-01-01t00:00:00z", "virtual_seconds_per_real_second": 0}, 200),
    ({"virtual_time": "2030-01-01T00:00Z"}, 400),
    ({"virtual_time": "2030-01-01T00:00:00"}, 400),
    ({"virtual_time": " 2030-01-01T00:00:00Z"}, 400),
    ({"virtual_time": "2030-13-01T00:00:00Z"}, 400),
    ({"virtual_time": 7}, 400),
    ({}, 400),
    ({"virtual_time": "2030-01-01T00:00:00Z", "virtual_seconds_per_real_second": -1}, 400),
    ({"virtual_time": "2030-01-01T00:00:00Z", "virtual_seconds_per_real_second": 86401}, 400),
    ({"virtual_time": "2030-01-01T00:00:00Z", "virtual_seconds_per_real_second": True}, 400),
    ({"virtual_time": "9999-12-31T23:59:59Z"}, 400),
]


@pytest.mark.parametrize(("body", "status"), CLOCKS)
def test_i10_the_clock_takes_what_its_grammar_says(live: Live, body: dict[str, Any], status: int) -> None:
    answer = live.put("/clock/set-time", body)
    assert answer.status_code == status
    if status == 400:
        assert answer.json()["ok"] is False
        assert live.get("/clock/state").json() == {"armed": False}
        assert (live.get("/clock/time").status_code, live.get("/clock/time").json()) == (404, {"ok": False, "error": "clock not armed"})
    else:
        assert answer.json()["armed"] is True
        assert set(answer.json()) == {"armed", "t0", "virtual_seconds_per_real_second", "virtual_time", "env_get_time_url"}


def test_i10_an_armed_clock_is_a_tool_and_stamps_events_and_is_read_without_a_token(live: Live) -> None:
    with control(live) as client:
        assert "get_time" not in client.names()
        live.put("/clock/set-time", {"virtual_time": "2030-06-01T12:00:00Z", "virtual_seconds_per_real_second": 0})
        assert "get_time" in client.names()
        assert client.call("get_time")["structuredContent"] == {"current_time": "2030-06-01T12:00:00Z"}
        local = client.call("get_time", {"time_zone": "Europe/Oslo"})["structuredContent"]
        assert local == {"current_time": "2030-06-01T12:00:00Z", "time_zone": "Europe/Oslo", "local_time": "2030-06-01T14:00:00+02:00"}
        assert client.call("get_time", {"time_zone": "Mars/Base"})["isError"] is True
        assert HTTP.get(f"{live.agent}/clock/time").json() == {"virtual_time": "2030-06-01T12:00:00Z"}
        assert live.trajectory()[-1]["virtual_time"] == "2030-06-01T12:00:00Z"
        assert live.post("/clock/clear").json() == {"ok": True, "armed": False}
        assert "get_time" not in client.names()


def test_a_server_s_own_get_time_wins_and_the_clock_is_refused(tmp_path: Path) -> None:
    with raw_server("a", tools=[tool("get_time")]) as a, gateway(tmp_path, a) as live, control(live) as client:
        assert live.put("/clock/set-time", {"virtual_time": "2030-01-01T00:00:00Z"}).status_code == 409
        assert text_of(client.call("get_time")) == "a.get_time"


def test_step_answers_as_version_1_does(live: Live) -> None:
    listed = live.post("/step", {"action": "list_tools"}).json()["tools"]
    assert listed[0] == {"name": "a_one", "description": "Does a_one.", "parameters": {"type": "object", "properties": {}}}
    made = live.post("/step", {"action": "call_tool", "tool_name": "a_one", "arguments": {"x": '{"a":1}', "_y": None}}).json()
    assert made["structuredContent"]["value"] == {"x": '{"a":1}', "_y": None}
    assert (made["isError"], made["changelog_id"]) == (False, None)
    for body, status in [
        ("{", 400),
        ("[1]", 400),
        ('{"action":"dance"}', 400),
        ('{"action":"call_tool"}', 400),
        ('{"action":"call_tool","tool_name":"a_one","arguments":[]}', 400),
        ('{"action":"call_tool","tool_name":"nope"}', 404),
    ]:
        answer = HTTP.post(f"{live.control}/step", content=body)
        assert answer.status_code == status, body
        assert isinstance(answer.json()["error"], str)


def test_state_shows_servers_tools_rules_and_clashes(live: Live) -> None:
    live.post("/tools/disable", {"role": "r", "tools": ["a_two"]})
    state = live.get("/state").json()
    assert [each["name"] for each in state["mcp_servers"][0]["tools"]] == ["a_one", "a_two", "a_hid"]
    assert state["roles"]["r"] == {"disabled": ["a_two"], "allowed": []}
    assert (state["tool_name_clashes"], state["changelog_id"]) == ({}, None)
    assert live.get("/changes").status_code == 404


def test_the_trajectory_tells_each_call_with_its_answer(live: Live) -> None:
    with control(live, "teller") as client:
        client.call("a_one", {"x": 1})
    call = next(event for event in live.trajectory() if event["event_type"] == "tool_call" and event["role"] == "teller")
    assert call["tool_call"] == {"function_name": "a_one", "arguments": {"x": 1}}
    result = next(event for event in live.trajectory() if event.get("tool_call_event_id") == call["event_id"])
    assert (result["event_type"], result["tool_call_result"]["structuredContent"]["value"]) == ("tool_call_result", {"x": 1})
    answer = live.get("/trajectory")
    assert answer.headers["x-trajectory-total-bytes"] == str(len(answer.content))


def test_a_role_on_the_control_door_is_that_of_the_session_s_first_request(live: Live) -> None:
    live.post("/tools/disable", {"role": "first", "tools": ["a_one"]})
    with control(live, "first") as client:
        client.headers["agentenv-role"] = "second"
        assert "a_one" not in client.names()


@pytest.mark.parametrize(("method", "status"), [("data/reset", -32000), ("data/nope", -32601)])
def test_the_environment_s_data_plane_needs_exactly_one_server(live: Live, method: str, status: int) -> None:
    answer = live.post("/agentenv", {"jsonrpc": "2.0", "id": 3, "method": method})
    assert (answer.status_code, answer.json()["error"]["code"], answer.json()["id"]) == (200, status, 3)
    assert HTTP.post(f"{live.control}/agentenv", content="{").json()["error"]["code"] == -32700


def test_the_data_plane_of_one_server_is_forwarded_as_it_is(tmp_path: Path) -> None:
    with raw_server("a", tools=[tool("t")]) as a, gateway(tmp_path, a) as live:
        sent = '{"jsonrpc":"2.0",  "id":1,"method":"data/add","params":{"parts":[]}}'
        seen = HTTP.post(f"{live.control}/agentenv", content=sent).json()
        assert (seen["body"], seen["raw_path"]) == (sent, "/agentenv")


def test_i12_paths_queries_headers_and_bodies_pass_as_they_are_and_the_role_is_replaced(live: Live) -> None:
    headers = [("x-a", "1"), ("x-a", "2"), ("cookie", "c=d"), ("agentenv-role", "one"), ("agentenv-role", "two"), ("te", "trailers")]
    headers += [("connection", "x-drop, keep-alive"), ("x-drop", "y"), ("authorization", "Bearer site")]
    request = HTTP.build_request(
        "PATCH", live.control, headers=headers, content=b"\x00\xff", extensions={"target": b"/svc/site/a%20b/%2Fc//d;e=f?x=%20&x=1&y"}
    )
    answer = HTTP.send(request)
    seen = answer.json()
    assert (seen["method"], seen["raw_path"], seen["query"]) == ("PATCH", "/base/a%20b/%2Fc//d;e=f", "x=%20&x=1&y")
    assert seen["body"].encode("latin-1") == b"\x00\xff"
    got = [tuple(pair) for pair in seen["headers"]]
    assert [value for key, value in got if key == "x-a"] == ["1", "2"]
    assert [value for key, value in got if key == "agentenv-role"] == ["one"]
    names = {key for key, _ in got}
    assert not {"te", "x-drop", "connection"} & names or dict(got).get("connection") == "close"
    assert ("authorization", "Bearer site") in got
    assert answer.headers.get_list("set-cookie") == ["a=1", "b=2"]
    assert answer.headers["x-own"] == "yes"


def test_i12_a_website_is_at_its_root_and_unknown_services_and_methods_are_not_there(live: Live) -> None:
    assert HTTP.get(f"{live.control}/website/site").json()["raw_path"] == "/"
    assert HTTP.get(f"{live.control}/website/site/x%2Fy").json()["raw_path"] == "/x%2Fy"
    for method, path in [("GET", "/svc/nope/x"), ("GET", "/website/a/x"), ("GET", "/svc"), ("OPTIONS", "/svc/site/x")]:
        assert HTTP.request(method, live.control + path).status_code == 404
    assert HTTP.send(HTTP.build_request("GET", live.control, extensions={"target": b"/svc/si%2fte/x"})).status_code == 400


def test_i12_calls_to_a_server_s_own_mcp_are_marked_with_the_role_also_in_batches(world: World) -> None:
    params = '{"name":"a_one","arguments":{"x":1.0},"_meta":{"agentenv.io/session":"s","k":1}}'
    call = f'{{"jsonrpc":"2.0","id":"mine","method":"tools/call","params":{params}}}'
    for body in (call, f"[{call}, {call}]", call.replace('"_meta"', '"other"')):
        HTTP.post(f"{world.live.control}/svc/mcp-a/%6dcp", content=body, headers={"agentenv-role": "r"})
        HTTP.post(f"{world.live.control}/svc/mcp-a/mcp", content=body, headers={"agentenv-role": "r"})
    raws = [each["raw"] for each in world.a.seen()["seen"] if '"mine"' in each.get("raw", "")]
    assert raws
    for raw in raws:
        for message in json.loads(raw) if raw.startswith("[") else [json.loads(raw)]:
            meta = message["params"]["_meta"]
            assert meta["agentenv.io/role"] == "r"
            assert "agentenv.io/session" not in meta
        assert '{"x":1.0}' in raw


def test_a_service_that_is_gone_is_a_bad_gateway(tmp_path: Path) -> None:
    with gateway(tmp_path, {"name": "gone", "url": "http://127.0.0.1:9", "website": True}) as live:
        answer = live.get("/svc/gone/x")
        assert answer.status_code == 502
        assert answer.json()["error"].startswith("Proxy request failed: ")


def test_large_bodies_stream_through_the_proxy_both_ways(live: Live) -> None:
    body = b"0123456789" * 500_000
    seen = HTTP.post(f"{live.control}/svc/site/big", content=iter([body[:1_000_000], body[1_000_000:]])).json()
    assert seen["body"].encode() == body


def test_a_stream_that_never_ends_is_not_read_for_a_client_that_is_gone(world: World) -> None:
    for _ in range(3):
        with HTTP.stream("GET", f"{world.live.control}/website/site/endless") as stream:
            chunks = stream.iter_raw()  # held: a client closes its stream with the last reader
            assert next(chunks) == b"data: 1\n\n"
            assert world.site.seen()["counts"]["endless"] == 1
        eventually(lambda: world.site.seen()["counts"]["endless"] == 0)


@pytest.mark.parametrize("role", ["", " ", "a\nb", "a\x00", None, 7])
def test_a_token_is_made_only_for_what_can_be_a_role(live: Live, role: object) -> None:
    assert live.post("/control/tokens", {"role": role}).status_code == 400


def test_the_websites_are_told_by_a_tool(live: Live) -> None:
    with control(live) as client:
        told = client.call("list_website_urls")["structuredContent"]["websites"]
    assert [each["name"] for each in told] == ["site"]


@pytest.mark.parametrize("path", ["/", "/health", "/nope", "/mcp/x", "/step/x"])
def test_unknown_paths_are_unknown_and_known_ones_say_their_methods(live: Live, path: str) -> None:
    assert live.get(path).status_code == 404
    assert HTTP.delete(f"{live.control}/clock/set-time").headers["allow"] == "PUT"
