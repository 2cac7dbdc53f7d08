"""The MCP endpoint and the servers behind it, one reported case each."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from pathlib import Path

import httpx
import pytest

from tests.busy import lasting
from tests.gateway.conftest import Pair
from tests.gateway.parts import HTTP, Client, Live, Raw, agent, eventually, gateway, messages, raw_server, text_of
from tests.gateway.raw_server import tool

MIB = 1 << 20
QUICK = {"keep_alive_seconds": 0.3, "reopen_max_seconds": 0.5, "resume_seconds": 0.1}


@contextmanager
def before(
    tmp_path: Path, *tools: dict, behaviour: dict | None = None, limits: dict | None = None, **config: object
) -> Iterator[tuple[Live, Raw]]:
    with ExitStack() as stack:
        server = stack.enter_context(raw_server("s", tools=list(tools) or [tool("t")], behaviour=behaviour or {}))
        yield stack.enter_context(gateway(tmp_path, server, limits={**QUICK, **(limits or {})}, **config)), server


def calls(server: Raw) -> int:
    return server.seen()["counts"].get("executed", 0)


@pytest.mark.parametrize("lost", [404, 400])
def test_gw02_a_restarted_server_gets_one_new_session_and_the_agent_s_own_stays(tmp_path: Path, lost: int) -> None:
    with (
        before(tmp_path, behaviour={"no_stream": True, "lost_status": lost}, limits={"keep_alive_seconds": 600}) as (live, server),
        agent(live) as client,
    ):
        first = client.call("t")["structuredContent"]["pid"]
        server.restart()
        again = [None] * 8
        sessions = [Client(client.url, dict(client.headers)) for _ in again]

        def one(place: int) -> None:
            again[place] = sessions[place].call("t")["structuredContent"]["pid"]

        together(one, len(again))
        assert set(again) == {server.process.pid} != {first}
        assert server.seen()["counts"]["initialize"] == 1
        assert calls(server) == len(again)


def test_gw02_an_expired_session_is_opened_once_and_the_refused_call_is_made_again(tmp_path: Path) -> None:
    with before(tmp_path) as (live, server), agent(live) as client:
        client.call("t")
        server.behave(forget_sessions=True)
        assert text_of(client.call("t")) == "s.t"
        assert server.seen()["counts"]["initialize"] == 2


HOSTS = [
    ("gateway:8000", 200),
    ("host.docker.internal:1", 200),
    ("172.17.0.1:18765", 200),
    ("[::1]:18765", 200),
    ("evil.example", 421),
    ("a.b.c:18765", 421),
]


@pytest.mark.parametrize(("host", "status"), HOSTS)
def test_gw03_names_that_the_framework_hands_out_are_accepted_and_foreign_ones_are_not(pair: Pair, host: str, status: int) -> None:
    message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}
    assert HTTP.post(f"{pair.live.control}/mcp", json=message, headers={"host": host}).status_code == status
    token = {"authorization": f"Bearer {pair.live.token()}"}
    assert HTTP.post(f"{pair.live.agent}/mcp", json=message, headers={"host": host, **token}).status_code == 200


@pytest.mark.parametrize(
    ("origin", "status"), [("http://evil.example", 403), ("null", 403), ("http://localhost:3", 200), ("http://gateway:18765", 200)]
)
def test_gw03_a_foreign_page_gets_nothing(pair: Pair, origin: str, status: int) -> None:
    headers = {"authorization": f"Bearer {pair.live.token()}", "origin": origin}
    message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}
    assert HTTP.post(f"{pair.live.agent}/mcp", json=message, headers=headers).status_code == status


def test_gw05_sessions_that_vanish_leave_nothing_and_a_long_call_is_not_cut(tmp_path: Path) -> None:
    with before(tmp_path, behaviour={"call": "hold"}) as (live, server), agent(live) as client:
        start = descriptors(live)
        result: list[dict] = []
        long = threading.Thread(target=lambda: result.append(client.call("t")))
        long.start()
        headers = {"authorization": client.headers["authorization"]}
        for _ in range(60):
            assert HTTP.get(client.url, headers=headers).status_code == 400
            assert HTTP.delete(client.url, headers=headers).status_code == 400
        for _ in range(60):
            with agent(live) as other, HTTP.stream("GET", other.url, headers=other.headers) as stream:
                assert next(stream.iter_raw())
        ended = Client(client.url, dict(client.headers))
        ended.open()
        assert ended.http.delete(ended.url, headers=ended.headers).status_code == 200
        assert ended.send({"jsonrpc": "2.0", "id": 1, "method": "ping"}).status_code == 404
        assert not result
        server.behave(call=None)
        long.join()
        assert text_of(result[0]) == "s.t"
        eventually(lambda: live.health()["streams"] == 0)
        ended.http.close()
        eventually(lambda: descriptors(live) <= start + 8)
        assert server.seen()["sessions"] == 1


def descriptors(live: Live) -> int:
    return len(list(Path(f"/proc/{live.health()['pid']}/fd").iterdir()))


def test_gw06_gw09_notifications_and_stray_text_out_of_turn_break_nothing_and_a_changed_list_is_told(tmp_path: Path) -> None:
    changed = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
    log = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "\u2028hello\u0085"}}
    odd = [{"jsonrpc": "2.0", "id": 5, "method": "sampling/createMessage", "params": {}}, {"jsonrpc": "2.0", "id": "p", "method": "ping"}]
    odd += [{"jsonrpc": "2.0", "method": "notifications/progress", "params": 7}, [], "stray text"]
    behaviour = {"sse": "all", "after_initialize": [changed, log], "during": [changed, log, *odd], "progress": 2}
    with before(tmp_path, behaviour=behaviour) as (live, server), agent(live) as client:
        message = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "tools/call",
            "params": {"name": "t", "arguments": {}, "_meta": {"progressToken": 7}},
        }
        got = messages(client.send(message))
        assert [each["params"] for each in got[:2]] == [{"progressToken": 7, "progress": 0}, {"progressToken": 7, "progress": 1}]
        assert got[2] == log
        assert text_of(got[3]["result"]) == "s.t"
        with client.http.stream("GET", client.url, headers=client.headers) as stream:
            lines = stream.iter_lines()
            next(lines)
            server.behave(tools=[tool("t"), tool("new")], tell=[changed])
            assert "notifications/tools/list_changed" in next(line for line in lines if line.startswith("data:"))
        assert client.names() == ["t", "new"]
        answers = [json.loads(each["raw"]) for each in server.seen()["seen"] if "raw" in each and "method" not in json.loads(each["raw"])]
        assert {"jsonrpc": "2.0", "id": "p", "result": {}} in answers
        assert any(each["id"] == 5 and each["error"]["code"] == -32601 for each in answers)


def test_gw09_stray_text_goes_to_the_log_with_the_server_s_name_and_the_session_goes_on(tmp_path: Path) -> None:
    """A server that prints where it should speak: before the handshake, inside a tool, and when it is told to stop."""
    log, behaviour = tmp_path / "log", {"sse": "all", "stray": ["Welcome to s 1.0"]}
    with before(tmp_path, behaviour=behaviour, log=log) as (live, server), agent(live) as client:
        server.behave(stray=["counting shelves", '{"half": '])
        assert [text_of(client.call("t")) for _ in range(2)] == ["s.t"] * 2
        server.behave(stray=[], tell=["stopping now"])
        said = eventually(lambda: "stopping now" in (text := log.read_text()) and text)
        for line in ("Welcome to s 1.0", "counting shelves", '{"half":', "stopping now"):
            assert any("server 's' sent what is no message" in each and line in each for each in said.splitlines()), line
        assert text_of(client.call("t")) == "s.t"
        assert (server.seen()["counts"]["initialize"], live.health()["status"]) == (1, "ready")


def test_a_changed_rule_is_told_to_the_role_that_it_concerns(pair: Pair) -> None:
    with agent(pair.live, "told") as client, client.http.stream("GET", client.url, headers=client.headers) as stream:
        lines = stream.iter_lines()
        next(lines)
        pair.live.post("/tools/disable", {"role": "told", "tools": ["a_write"]})
        assert "list_changed" in next(line for line in lines if line.startswith("data:"))


@pytest.mark.parametrize("how", ["hang", "cut", "die", "html", "http_error"])
def test_gw08_a_call_without_an_answer_ends_and_the_next_is_fine(tmp_path: Path, how: str) -> None:
    with before(tmp_path, behaviour={"call": how}, limits={"call_seconds": 4.0}) as (live, server), agent(live) as client:
        result = client.call("t")
        assert result["isError"] is True
        assert "server 's'" in text_of(result)
        if how == "die":
            server.process.wait()
            server.restart()
            eventually(lambda: live.health()["status"] == "ready")
        server.behave(call=None)
        assert [text_of(client.call("t")) for _ in range(3)] == ["s.t"] * 3


def test_gw08_a_call_that_ran_out_of_time_is_cancelled_at_its_server(tmp_path: Path) -> None:
    with before(tmp_path, behaviour={"call": "hang"}, limits={"call_seconds": 0.5}) as (live, server), agent(live) as client:
        assert "within 0.5 s" in text_of(client.call("t"))
        eventually(lambda: server.seen()["counts"].get("notifications/cancelled") == 1)


def test_gw08_an_answer_after_the_limit_is_dropped_and_is_no_other_call_s(tmp_path: Path) -> None:
    behaviour, limit = {"echo": "raw", "call": "hold"}, lasting(0.5)
    with before(tmp_path, behaviour=behaviour, limits={"call_seconds": limit}) as (live, server), agent(live) as client:
        began = time.monotonic()
        assert f"within {limit:g} s" in text_of(client.call("t", {"n": 0}))
        took, number = time.monotonic() - began, json.loads(last_call(server))["id"]
        late = {"jsonrpc": "2.0", "id": number, "result": {"content": [], "structuredContent": {"value": {"n": 0}}}}
        server.behave(call=None)  # the real one comes now, on its own connection
        values = [client.call("t", {"n": number})["structuredContent"]["value"]["n"] for number in range(1, 51)]
        server.behave(sse="all", during=[late], tell=[late])  # and here on others, as a server could send it
        (got,) = messages(client.send({**call_of({"n": "last"}), "id": number}))
        assert (got["id"], got["result"]["structuredContent"]["value"]) == (number, {"n": "last"})
        assert values == list(range(1, 51))
        assert took >= 0.5
        assert live.health()["calls_in_progress"] == 0


def call_of(arguments: dict) -> dict:
    return {"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "t", "arguments": arguments}}


def test_an_agent_s_cancellation_reaches_the_server_and_ends_the_call(tmp_path: Path) -> None:
    with before(tmp_path, behaviour={"call": "hang"}) as (live, server), agent(live) as client:
        other = Client(client.url, dict(client.headers))
        answers: list[dict] = []
        waiting = threading.Thread(target=lambda: answers.append(client.request("tools/call", {"name": "t", "arguments": {}})))
        waiting.start()
        eventually(lambda: live.health()["calls_in_progress"] == 1)
        other.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": client.number}})
        waiting.join()
        assert answers[0]["error"]["message"] == "Request cancelled"
        eventually(lambda: server.seen()["counts"].get("notifications/cancelled") == 1)


def test_a_client_that_goes_away_leaves_its_call_to_end(tmp_path: Path) -> None:
    with before(tmp_path, behaviour={"call": "hold"}) as (live, server), agent(live) as client:
        url, message = httpx.URL(client.url), {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "t", "arguments": {}}}
        leaving = HTTPConnection(url.host, url.port or 80)
        leaving.request("POST", url.path, json.dumps(message), client.headers)
        eventually(lambda: live.health()["calls_in_progress"] == 1)
        leaving.close()
        assert live.health()["calls_in_progress"] == 1
        server.behave(call=None)
        eventually(lambda: "tool_call_result" in [event["event_type"] for event in live.trajectory()])


def test_gw11_two_servers_with_one_name_are_both_reached_under_names_of_their_own(tmp_path: Path) -> None:
    long = "x" * 60
    served = {"a": ["search", long], "b": ["search", long], "paris": ["local_weather"], "paris_local": ["weather"]}
    clash = {"x": ["y_z"], "x_y": ["z"], "w": ["y_z", "z"]}
    with ExitStack() as stack:
        servers = [
            stack.enter_context(raw_server(name, tools=[tool(each) for each in names])) for name, names in {**served, **clash}.items()
        ]
        live = stack.enter_context(gateway(tmp_path, *servers, namespacing=True))
        client = stack.enter_context(agent(live))
        names = client.names()
        assert len(names) == len(set(names)) == 10
        assert max(map(len, names)) <= 64
        assert {"a_search", "b_search", "local_weather", "weather"} <= set(names)
        reached = sorted(text_of(client.call(name)) for name in names)
        assert reached == sorted(f"{name}.{each}" for name, each_of in {**served, **clash}.items() for each in each_of)
        live.post("/tools/disable", {"role": "*", "tools": ["search"]})
        assert not {"a_search", "b_search"} & set(client.names())


def test_gw11_without_namespacing_a_clash_costs_only_the_clashing_tools_and_is_told(tmp_path: Path) -> None:
    with (
        raw_server("a", tools=[tool("search"), tool("x")]) as a,
        raw_server("b", tools=[tool("search"), tool("y")]) as b,
        gateway(tmp_path, a, b) as live,
        agent(live) as client,
    ):
        assert client.names() == ["x", "y"]
        assert live.get("/state").json()["tool_name_clashes"] == {"search": ["a", "b"]}
        assert live.health()["status"] == "degraded"
        refused = live.post("/step", {"action": "call_tool", "tool_name": "search"})
        assert (refused.status_code, refused.json()["error"]) == (503, "tool name clash: 'search' is served by a, b")


def test_gw12_one_dead_and_one_hanging_server_cost_only_their_own_tools(tmp_path: Path) -> None:
    with raw_server("good", tools=[tool("t")]) as good, raw_server("hangs", behaviour={"hang_initialize": True}) as hangs:
        servers = [good, hangs, {"name": "gone", "url": "http://127.0.0.1:9"}]
        with gateway(tmp_path, *servers, wait=False, limits=QUICK) as live:
            with agent(live) as client:
                eventually(lambda: client.names() == ["t"])
                assert text_of(client.call("t")) == "good.t"
            health = eventually(lambda: (now := live.health()) and now["status"] == "unavailable" and now)
            assert health["missing"] == ["hangs", "gone"]
            told = {child["name"]: child["error"] for child in health["children"]}
            assert told["good"] is None
            assert "no answer within 5 s" in told["hangs"]
            assert "onnect" in told["gone"]


def test_gw12_a_server_that_is_not_required_does_not_hold_up_readiness(tmp_path: Path) -> None:
    gone = {"name": "gone", "url": "http://127.0.0.1:9", "required": False}
    with raw_server("good", tools=[tool("t")]) as good, gateway(tmp_path, good, gone) as live:
        assert live.health()["status"] == "degraded"


def test_gw14_what_a_client_says_of_its_identity_is_replaced_and_told(pair: Pair) -> None:
    with agent(pair.live, "real") as client:
        client.headers["agentenv-role"] = "fake"
        client.call("a_write", {}, _meta={"agentenv.io/role": "fake", "agentenv.io/session": "fake", "kept": [1]})
        meta = json.loads(last_call(pair.a))["params"]["_meta"]
        assert (meta["agentenv.io/role"], meta["kept"]) == ("real", [1])
        assert meta["agentenv.io/session"] != "fake"
        assert [event["role"] for event in pair.live.trajectory() if "forged_identity" in event] == ["real"]


def last_call(server: Raw) -> str:
    return next(each["raw"] for each in reversed(server.seen()["seen"]) if "tools/call" in each.get("raw", ""))


def test_gw15_a_closed_port_is_told_as_what_it_is(tmp_path: Path) -> None:
    with gateway(tmp_path, {"name": "gone", "url": "http://127.0.0.1:9"}, wait=False, limits=QUICK) as live:
        health = eventually(lambda: (now := live.health()) and now["status"] == "unavailable" and now)
        assert health["children"][0]["error"].endswith("no connection to 127.0.0.1:9: Connection refused")


def test_gw15_a_session_that_is_given_up_while_it_is_opened_makes_no_noise(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with raw_server("hangs", tools=[tool("t")], behaviour={"hang_initialize": True}) as hangs:
        with gateway(tmp_path, hangs, wait=False, log=log, limits={"initialize_seconds": 60.0}) as live, agent(live) as client:
            call = {"action": "call_tool", "tool_name": "t"}
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(f"{live.control}/step", json=call, timeout=0.3, trust_env=False)
            eventually(lambda: hangs.seen()["counts"].get("initialize"))
            listing = threading.Thread(target=lambda: client.http.post(client.url, json={**LIST}, headers=client.headers))
            listing.start()
            live.process.terminate()
            listing.join()
            assert live.process.wait(60) == 0
        noise = [line for line in log.read_text().splitlines() if "WARNING" not in line]
        assert not noise, noise


LIST = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}


def test_gw17_agents_of_one_environment_have_sessions_of_their_own(pair: Pair) -> None:
    keys = []
    for role in ("one", "one", "two"):
        with agent(pair.live, role) as client:
            client.call("a_write")
            client.call("a_write")
            keys.append(json.loads(last_call(pair.a))["params"]["_meta"]["agentenv.io/session"])
    assert len(set(keys)) == 3


@pytest.mark.parametrize("page", [1, 7])
def test_lists_are_read_and_given_page_by_page(tmp_path: Path, page: int) -> None:
    with (
        raw_server("s", tools=[tool(f"t{n}") for n in range(20)], page=page) as server,
        gateway(tmp_path, server, limits={"tools_page": 6}) as live,
        agent(live) as client,
    ):
        assert client.names() == [f"t{n}" for n in range(20)]
        first = client.request("tools/list")["result"]
        assert len(first["tools"]) == 6
        assert client.request("tools/list", {"cursor": "bm90aGluZw=="})["error"]["code"] == -32602


@pytest.mark.parametrize("declared", ["/v2/mcp", "absolute"])
def test_the_path_and_port_that_a_server_s_card_declares_are_used(tmp_path: Path, declared: str) -> None:
    with ExitStack() as stack:
        speaks = stack.enter_context(raw_server("mcp", tools=[tool("t")], path="/v2/mcp"))
        url = "/v2/mcp" if declared == "/v2/mcp" else f"http://0.0.0.0:{speaks.port}/v2/mcp"
        card = {"name": "s", "additionalInterfaces": [{"url": url, "transport": "mcp"}]}
        described = stack.enter_context(raw_server("card", tools=[tool("t")], path="/v2/mcp", card=card))
        client = stack.enter_context(agent(stack.enter_context(gateway(tmp_path, {"name": "s", "url": described.url}))))
        assert text_of(client.call("t")) == ("card.t" if declared == "/v2/mcp" else "mcp.t")


def test_a_server_without_sessions_and_one_that_answers_only_in_events_are_served(tmp_path: Path) -> None:
    with (
        raw_server("free", tools=[tool("f")], behaviour={"stateless": True, "no_stream": True}) as free,
        raw_server("events", tools=[tool("e")], behaviour={"sse": "all"}) as events,
        gateway(tmp_path, free, events, limits=QUICK) as live,
        agent(live) as client,
    ):
        assert [text_of(client.call(name)) for name in ("f", "e")] == ["free.f", "events.e"]
        eventually(lambda: free.seen()["counts"].get("ping", 0) >= 2)
        assert live.health()["status"] == "ready"


def test_a_server_that_hangs_is_told_as_such_and_found_again(tmp_path: Path) -> None:
    with before(tmp_path, limits={"list_seconds": 0.5}) as (live, server), agent(live) as client:
        server.process.send_signal(signal.SIGSTOP)
        health = eventually(lambda: (now := live.health()) and now["status"] == "unavailable" and now)
        assert "did not answer" in health["children"][0]["error"]
        assert client.names() == ["t"]
        server.process.send_signal(signal.SIGCONT)
        eventually(lambda: live.health()["status"] == "ready")
        assert text_of(client.call("t")) == "s.t"


@pytest.mark.parametrize("card", [{"name": "s", "additionalInterfaces": 7}, {"name": 7}, [], "x", {"name": "s", "capabilities": [1]}])
def test_a_card_that_is_none_does_no_harm(tmp_path: Path, card: object) -> None:
    with raw_server("s", tools=[tool("t")], card=card) as server, gateway(tmp_path, server) as live, agent(live) as client:
        assert text_of(client.call("t")) == "s.t"
        assert live.get("/.well-known/agent-env.json").status_code == 200


def test_a_server_s_own_error_reaches_the_agent_as_it_is(tmp_path: Path) -> None:
    with before(tmp_path, behaviour={"call": "error"}) as (live, _), agent(live) as client:
        answer = client.request("tools/call", {"name": "t", "arguments": {}})
        assert answer["error"] == {"code": -32042, "message": "own", "data": {"x": [1]}}


def test_a_payload_over_the_limit_is_refused_with_both_numbers_and_nothing_else_suffers(tmp_path: Path) -> None:
    limits = {"request_bytes": 100_000, "answer_bytes": 200_000}
    with before(tmp_path, limits=limits) as (live, server), agent(live) as client:
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "t", "arguments": {"x": "y" * 150_000}}}
        refused = client.send(message)
        assert refused.status_code == 413
        assert "the limit is 100000" in refused.json()["error"]["message"]
        server.behave(call="huge", size=300_000)
        assert "more than the limit of 200000" in text_of(client.call("t"))
        server.behave(call="huge", size=300_000, sse="all")
        assert "larger than 200000 bytes" in text_of(client.call("t"))
        server.behave(call=None)
        assert text_of(client.call("t")) == "s.t"


@pytest.mark.parametrize("sse", [None, "all"])
def test_what_is_far_over_the_limit_is_named_and_is_never_held_in_memory(tmp_path: Path, sse: str | None) -> None:
    size, limits = 64 * MIB, {"request_bytes": 100_000, "answer_bytes": 200_000}
    with before(tmp_path, limits=limits, behaviour={"call": "huge", "size": size, "sse": sse}) as (live, server), agent(live) as client:
        pid = live.health()["pid"]
        Path(f"/proc/{pid}/clear_refs").write_text("5")
        start = peak_bytes(pid)
        result = client.call("t")
        assert "server 's': " in text_of(result)
        assert "200000" in text_of(result)
        whole = client.http.post(client.url, content=b" " * size, headers=client.headers)
        pieces = client.http.post(client.url, content=iter([b" " * MIB] * 64), headers=client.headers)
        for refused in (whole, pieces):
            assert (refused.status_code, refused.json()["error"]["code"]) == (413, -32000)
            assert "request too large: the body holds" in refused.json()["error"]["message"]
        assert peak_bytes(pid) - start < 16 * MIB
        server.behave(call=None)
        assert text_of(client.call("t")) == "s.t"


def peak_bytes(pid: int) -> int:
    """The most resident memory of a process since it was last asked to forget that."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024


def test_calls_over_the_limit_are_refused_and_were_not_made(tmp_path: Path) -> None:
    with before(tmp_path, behaviour={"call": "hold"}, limits={"calls": 2}) as (live, server), agent(live) as client:
        statuses: list[int] = []
        clients = [Client(client.url, dict(client.headers)) for _ in range(5)]
        held = [threading.Thread(target=lambda one=one: statuses.append(one.send(call_text(1)).status_code)) for one in clients[:2]]
        for thread in held:
            thread.start()
        eventually(lambda: live.health()["calls_in_progress"] == 2)
        assert [one.send(call_text(1)).status_code for one in clients[2:]] == [503] * 3
        server.behave(call=None)
        for thread in held:
            thread.join()
        assert statuses == [200, 200]
        assert calls(server) == 2


def test_a_message_that_is_none_is_answered_as_the_protocol_says(pair: Pair) -> None:
    with agent(pair.live) as client:
        for body, status, code in [
            ("{", 400, -32700),
            ("[]", 400, -32600),
            ("7", 400, -32700),
            ('{"jsonrpc":"2.0","id":1}', 400, -32600),
            ('{"jsonrpc":"2.0","id":1,"method":7}', 400, -32600),
            ('{"jsonrpc":"2.0","id":{},"method":"ping"}', 400, -32600),
            ('{"jsonrpc":"2.0","id":1,"method":"tasks/list"}', 200, -32601),
            ('{"jsonrpc":"2.0","id":1,"method":"tools/call"}', 200, -32602),
            ('{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":7}}', 200, -32602),
        ]:
            answer = client.send(body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), body
        client.headers["mcp-protocol-version"] = "2026-07-28"
        newer = client.send('{"jsonrpc":"2.0","id":1,"method":"server/discover"}')
        assert newer.json()["error"]["code"] == -32022
        assert "2025-11-25" in newer.json()["error"]["data"]["supported"]


def test_consistent_mode_runs_one_call_at_a_time(tmp_path: Path) -> None:
    with before(tmp_path, behaviour={"call": {"slow": 0.2}}, mode="consistent") as (live, _), agent(live) as client:
        began = time.monotonic()
        together(lambda place: Client(client.url, dict(client.headers)).send(call_text(place)), 4)
        assert time.monotonic() - began >= 0.8


def call_text(number: int) -> str:
    return f'{{"jsonrpc":"2.0","id":{number},"method":"tools/call","params":{{"name":"t","arguments":{{}}}}}}'


def together(work: object, count: int) -> None:
    threads = [threading.Thread(target=work, args=(place,)) for place in range(count)]  # type: ignore[arg-type]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
