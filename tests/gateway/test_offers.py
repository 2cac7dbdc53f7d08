"""What servers offer besides tools: prompts, resources, completions, logs, and questions to the agent's client. It passes as it is, under
the rules of roles, on both doors, over restarts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.parts import Client, Live, Raw, agent, control, eventually, gateway, messages, raw_server, text_of
from tests.gateway.raw_server import prompt, resource, template, tool

HIDDEN = {"_meta": {"agentenv.io/hiddenByDefault": True}}
QUICK = {"keep_alive_seconds": 0.3, "reopen_max_seconds": 0.5, "resume_seconds": 0.1}
UPDATED = "notifications/resources/updated"


@dataclass
class World:
    live: Live
    a: Raw
    b: Raw


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with ExitStack() as stack:
        a = stack.enter_context(
            raw_server(
                "a",
                tools=[tool("a_on")],
                prompts=[prompt("greet", title="Grüße"), prompt("secret", **HIDDEN)],
                resources=[resource("note://one"), resource("note://kept"), resource("note://hidden", **HIDDEN)],
                templates=[template("note://{id}")],
                offers=["completions", "logging"],
            )
        )
        b = stack.enter_context(raw_server("b", tools=[tool("b_on")], prompts=[prompt("bye")], resources=[resource("b://x")]))
        live = stack.enter_context(gateway(tmp_path_factory.mktemp("offers"), a, b, limits=QUICK))
        yield World(live, a, b)


def sent(server: Raw, method: str) -> list[dict[str, Any]]:
    seen = [json.loads(each["raw"]) for each in server.seen()["seen"] if "raw" in each]
    return [message["params"] for message in seen if message.get("method") == method]


def uris(client: Client) -> list[str]:
    return [each["uri"] for each in client.listed("resources/list", "resources")]


def read(client: Client, uri: str) -> dict[str, Any]:
    return client.request("resources/read", {"uri": uri})


def text(answer: dict[str, Any]) -> str:
    return str(answer["result"]["contents"][0]["text"])


@contextmanager
def listening(client: Client) -> Iterator[Iterator[dict[str, Any]]]:
    """What the client hears on its own stream."""
    with client.http.stream("GET", client.url, headers=client.headers) as stream:
        lines = stream.iter_lines()
        next(lines)
        yield (json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data:"))


@pytest.mark.parametrize("door", ["agent", "control"])
def test_prompts_and_resources_of_all_servers_are_listed_and_given_on_both_doors(world: World, door: str) -> None:
    with agent(world.live, "reader") if door == "agent" else control(world.live, "reader") as client:
        prompts = client.listed("prompts/list", "prompts")
        assert prompts == [prompt("greet", title="Grüße"), prompt("bye")]
        assert uris(client) == ["note://one", "note://kept", "b://x"]
        assert client.listed("resources/templates/list", "resourceTemplates") == [template("note://{id}")]
        got = client.request("prompts/get", {"name": "greet", "arguments": {"topic": "1"}, "_meta": {"agentenv.io/role": "root", "x": 1}})
        assert json.loads(got["result"]["messages"][0]["content"]["text"]) == ["a", "greet", {"topic": "1"}]
        meta = sent(world.a, "prompts/get")[-1]["_meta"]
        assert (meta["agentenv.io/role"], meta["x"]) == ("reader", 1)
        assert [text(read(client, uri)) for uri in ("note://one", "note://other", "b://x")] == ["a:note://one", "a:note://other", "b:b://x"]
        assert read(client, "c://y")["error"] == {"code": -32002, "message": "Resource not found: c://y", "data": {"uri": "c://y"}}
        assert client.request("prompts/get", {"name": "nope"})["error"]["code"] == -32602
    kinds = {event["event_type"] for event in world.live.trajectory()}
    assert {"mcp_request", "mcp_request_result", "mcp_request_refused"} <= kinds


def test_what_is_offered_is_said_at_the_beginning_and_nothing_that_no_server_has(tmp_path: Path, world: World) -> None:
    with agent(world.live) as client:
        assert set(client.open()["capabilities"]) == {"tools", "prompts", "resources", "completions", "logging"}
    with raw_server("plain", tools=[tool("t")]) as plain, gateway(tmp_path, plain) as live, agent(live) as client:
        assert client.open()["capabilities"] == {"tools": {"listChanged": True}}
        assert client.listed("prompts/list", "prompts") == []


def test_a_completion_goes_to_the_server_of_what_it_completes(world: World) -> None:
    with agent(world.live) as client:
        argument = {"name": "topic", "value": "x"}
        for ref in ({"type": "ref/prompt", "name": "greet"}, {"type": "ref/resource", "uri": "note://{id}"}):
            done = client.request("completion/complete", {"ref": ref, "argument": argument})
            assert done["result"]["completion"]["values"] == ["a", json.dumps(ref)]
        none = client.request("completion/complete", {"ref": {"type": "ref/prompt", "name": "bye"}, "argument": argument})
        assert none["result"]["completion"]["values"] == []
        for unknown in ({"type": "ref/prompt", "name": "secret"}, {"type": "ref/x"}, {"type": "ref/resource", "uri": "note://hidden"}):
            assert client.request("completion/complete", {"ref": unknown, "argument": argument})["error"]["code"] == -32602


def test_two_servers_with_one_prompt_or_resource_are_both_reached_under_names_of_their_own(tmp_path: Path) -> None:
    given = {"prompts": [prompt("p")], "resources": [resource("r://x")], "templates": [template("r://{id}/t")], "offers": ["completions"]}
    with ExitStack() as stack:
        servers = [stack.enter_context(raw_server(name, tools=[tool(f"{name}_t")], **given)) for name in ("a", "9b")]
        live = stack.enter_context(gateway(tmp_path, *servers, namespacing=True))
        client = stack.enter_context(agent(live))
        assert [each["name"] for each in client.listed("prompts/list", "prompts")] == ["a_p", "9b_p"]
        assert uris(client) == ["a+r://x", "s-9b+r://x"]
        for uri, who in (("a+r://x", "a"), ("s-9b+r://x", "9b")):
            contents = read(client, uri)["result"]["contents"]
            assert contents == [{"uri": uri, "text": f"{who}:r://x"}]
        assert text(read(client, "a+r://7/t")) == "a:r://7/t"
        assert read(client, "r://x")["error"]["code"] == -32002
        got = client.request("prompts/get", {"name": "9b_p"})
        assert json.loads(got["result"]["messages"][0]["content"]["text"]) == ["9b", "p", None]
        ref = {"type": "ref/prompt", "name": "a_p"}
        done = client.request("completion/complete", {"ref": ref, "argument": {"name": "topic", "value": ""}})
        assert json.loads(done["result"]["completion"]["values"][1]) == {"type": "ref/prompt", "name": "p"}


def test_without_namespacing_a_clash_costs_only_what_clashes_and_is_told(tmp_path: Path) -> None:
    with ExitStack() as stack:
        given = {"a": ["r://x", "r://a"], "b": ["r://x"]}
        servers = [stack.enter_context(raw_server(name, tools=[tool(name)], resources=[*map(resource, of)])) for name, of in given.items()]
        live = stack.enter_context(gateway(tmp_path, *servers))
        client = stack.enter_context(agent(live))
        assert uris(client) == ["r://a"]
        assert live.health()["clashes"] == {"resources": {"r://x": ["a", "b"]}}
        assert live.health()["status"] == "ready"


def test_a_changed_list_and_a_followed_resource_are_told_and_still_after_restarts(tmp_path: Path) -> None:
    given = {"tools": [tool("t")], "prompts": [prompt("p")], "resources": [resource("r://x"), resource("r://y")]}
    with raw_server("s", **given) as server, gateway(tmp_path, server, limits=QUICK) as live, agent(live) as client:

        def update(uri: str) -> None:
            eventually(lambda: server.seen()["streams"] == 1)
            server.behave(tell=[{"jsonrpc": "2.0", "method": UPDATED, "params": {"uri": uri}}])

        assert client.request("resources/subscribe", {"uri": "r://x"})["result"] == {}
        assert client.request("resources/subscribe", {"uri": "none://x"})["error"]["code"] == -32002
        with listening(client) as heard:
            update("r://y")
            update("r://x/below")
            assert next(heard) == {"jsonrpc": "2.0", "method": UPDATED, "params": {"uri": "r://x"}}
            server.behave(prompts=[prompt("p"), prompt("q")], tell=[{"jsonrpc": "2.0", "method": "notifications/prompts/list_changed"}])
            assert next(heard)["method"] == "notifications/prompts/list_changed"
        before = live.kill_server()
        eventually(lambda: live.pid() not in (None, before) and live.health()["status"] == "ready")
        eventually(lambda: len(sent(server, "resources/subscribe")) == 2)
        update("r://x")
        with listening(client) as heard:  # it changed while nobody listened
            assert next(heard)["params"] == {"uri": "r://x"}
        server.restart()
        eventually(lambda: [each["uri"] for each in sent(server, "resources/subscribe")] == ["r://x"])
        assert client.request("resources/unsubscribe", {"uri": "r://x"})["result"] == {}
        eventually(lambda: [each["uri"] for each in sent(server, "resources/unsubscribe")] == ["r://x"])


def test_a_server_that_forgot_its_session_while_it_was_away_is_told_once_what_is_followed(tmp_path: Path) -> None:
    given = {"tools": [tool("t")], "resources": [resource("r://x")]}
    with raw_server("s", **given) as server, gateway(tmp_path, server, limits=QUICK) as live, agent(live) as client:
        assert client.request("resources/subscribe", {"uri": "r://x"})["result"] == {}
        eventually(lambda: server.seen()["streams"] == 1)
        server.behave(refuses=["tools/list"], tell=[{"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}])
        eventually(lambda: live.health()["status"] != "ready" and server.seen()["streams"] == 0)
        server.behave(refuses=[], forget_sessions=True)
        eventually(lambda: live.health()["status"] == "ready" and server.seen()["streams"] == 1)
        assert server.seen()["counts"]["initialize"] == 2
        assert [each["uri"] for each in sent(server, "resources/subscribe")] == ["r://x"] * 2


def test_a_session_that_ends_follows_nothing_any_more(world: World) -> None:
    with agent(world.live) as one, agent(world.live) as two:
        for client in (one, two):
            client.request("resources/subscribe", {"uri": "b://x"})
        count = len(sent(world.b, "resources/unsubscribe"))
        one.http.delete(one.url, headers=one.headers)
        two.http.delete(two.url, headers=two.headers)
        eventually(lambda: len(sent(world.b, "resources/unsubscribe")) == count + 1)


def test_each_session_hears_the_logs_of_its_own_calls_from_the_level_that_it_asked_for(world: World) -> None:
    logs = [{"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": level, "data": 1}} for level in ("debug", "error")]
    world.a.behave(sse=True, during=logs)
    try:
        with agent(world.live) as loud, agent(world.live) as quiet, listening(Client(quiet.url, dict(quiet.headers))):
            assert quiet.request("logging/setLevel", {"level": "warning"})["result"] == {}
            assert loud.request("logging/setLevel", {"level": "debug"})["result"] == {}
            assert quiet.request("logging/setLevel", {"level": "warning"})["result"] == {}
            assert quiet.request("logging/setLevel", {"level": "shout"})["error"]["code"] == -32602
            assert [each["level"] for each in sent(world.a, "logging/setLevel")][-3:] == ["warning", "debug", "debug"]
            for client, levels in ((loud, ["debug", "error"]), (quiet, ["error"])):
                message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "a_on", "arguments": {}}}
                got = messages(client.send(message))
                assert [each["params"]["level"] for each in got[:-1]] == levels
    finally:
        world.a.behave(sse=False, during=[])


SAMPLING = {"method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 1}}
QUESTIONS = [
    (SAMPLING, {"sampling": {}}),
    ({"method": "elicitation/create", "params": {"message": "?", "requestedSchema": {}}}, {"elicitation": {}}),
    ({"method": "elicitation/create", "params": {"mode": "url", "url": "http://x"}}, {"elicitation": {"form": {}, "url": {}}}),
    ({"method": "roots/list"}, {"roots": {"listChanged": True}}),
]


def call_and_answer(client: Client, name: str, answer: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Makes a call, answers the question that comes with it; the question, and the call's result."""
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": name, "arguments": {}}}
    with client.http.stream("POST", client.url, json=message, headers=client.headers) as stream:
        said = (json.loads(line.removeprefix("data: ")) for line in stream.iter_lines() if line.startswith("data:"))
        question = next(said)
        other = Client(client.url, dict(client.headers))
        assert other.send({"jsonrpc": "2.0", "id": question["id"], **answer}).status_code == 202
        return question, next(said)["result"]


@pytest.mark.parametrize(("question", "capabilities"), QUESTIONS)
def test_a_server_s_question_is_put_to_the_client_whose_call_it_belongs_to(
    world: World, question: dict[str, Any], capabilities: dict[str, Any]
) -> None:
    world.a.behave(call={"ask": question})
    try:
        with agent(world.live, **capabilities) as client, agent(world.live, **capabilities) as other:
            asked, result = call_and_answer(client, "a_on", {"result": {"ok": "ä"}})
            assert {key: asked[key] for key in question} == question
            assert json.loads(text_of(result)) == {"result": {"ok": "ä"}, "error": None}
            _, refused = call_and_answer(client, "a_on", {"error": {"code": -1, "message": "no"}})
            assert json.loads(text_of(refused))["error"] == {"code": -1, "message": "no"}
            assert other.send({"jsonrpc": "2.0", "id": asked["id"], "result": {}}).status_code == 202  # not its question: passed over
        with agent(world.live) as unable:
            answered = json.loads(text_of(unable.call("a_on")))
            assert answered["error"]["code"] == -32601
            assert "has not said that it supports" in answered["error"]["message"]
        step = world.live.post("/step", {"action": "call_tool", "tool_name": "a_on"}).json()
        assert "nobody is there to answer" in json.loads(text_of(step))["error"]["message"]
    finally:
        world.a.behave(call=None)
    assert "server_question" in {event["event_type"] for event in world.live.trajectory()}


def test_what_names_no_call_is_for_the_only_caller_that_a_server_has_had(tmp_path: Path) -> None:
    behaviour = {"call": {"ask": SAMPLING, "aside": True}}
    with raw_server("s", tools=[tool("t")], behaviour=behaviour) as server, gateway(tmp_path, server, limits=QUICK) as live:
        eventually(lambda: server.seen()["streams"] == 1)
        with agent(live, "one", sampling={}) as one, agent(live, "two", sampling={}) as two:
            _, result = call_and_answer(one, "t", {"result": {"to": "one"}})
            assert json.loads(text_of(result))["result"] == {"to": "one"}
            for client in (two, one):
                refused = json.loads(text_of(client.call("t")))["error"]
                assert refused["code"] == -32601
                assert "belongs to no agent's call" in refused["message"]


def test_a_question_whose_call_ends_is_withdrawn_and_its_server_told(world: World) -> None:
    world.a.behave(call={"ask": SAMPLING})
    try:
        with agent(world.live, sampling={}) as client:
            message = {"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": {"name": "a_on", "arguments": {}}}
            with client.http.stream("POST", client.url, json=message, headers=client.headers) as stream:
                said = (json.loads(line.removeprefix("data: ")) for line in stream.iter_lines() if line.startswith("data:"))
                question = next(said)
                cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 9}}
                Client(client.url, dict(client.headers)).send(cancel)
                rest = list(said)
            withdrawn = next(each for each in rest if each.get("method") == "notifications/cancelled")
            assert withdrawn["params"]["requestId"] == question["id"]
            assert rest[-1]["error"]["message"] == "Request cancelled"
            eventually(lambda: [each for each in world.a.seen()["seen"] if "has ended" in each.get("raw", "")])
    finally:
        world.a.behave(call=None)


def test_a_resource_that_a_tool_handed_over_may_be_read_by_that_session_alone(world: World) -> None:
    link = {"type": "resource_link", "uri": "b://made/7", "name": "seven"}
    world.b.behave(call={"result": {"content": [link]}}, unlisted=["b://made/7"])
    try:
        with agent(world.live) as client, agent(world.live) as other:
            assert read(client, "b://made/7")["error"]["code"] == -32002
            client.call("b_on")
            assert text(read(client, "b://made/7")) == "b:b://made/7"
            assert read(other, "b://made/7")["error"]["code"] == -32002
    finally:
        world.b.behave(call=None)


def test_a_server_that_refuses_its_own_lists_keeps_its_tools(tmp_path: Path) -> None:
    refusing = raw_server(
        "s", tools=[tool("t")], offers=["prompts", "resources"], behaviour={"refuses": ["prompts/list", "resources/list"]}
    )
    with refusing as server, gateway(tmp_path, server) as live, agent(live) as client:
        assert (client.names(), uris(client), client.listed("prompts/list", "prompts")) == (["t"], [], [])


# roles


SPELLINGS = ["note://kept", "note://%6bept", "note://KEPT", "note://kept/", "note://./kept", "note://kept#a", "note://kept?", "NOTE://kept"]
SPELLINGS += ["note:///kept", "note://%256bept", "note://x/../kept", "note://kept%20", "note://ｋept", "note:\\\\kept"]


def test_rules_about_a_resource_or_prompt_hold_in_every_spelling_and_after_a_restart(world: World) -> None:
    live = world.live
    live.post("/tools/disable", {"role": "eve", "tools": ["note://kept", "greet"]})
    live.post("/tools/enable", {"role": "root", "tools": ["note://hidden", "secret"]})
    for restart in (False, True):
        if restart:
            before = live.kill_server()
            eventually(lambda before=before: live.pid() not in (None, before) and live.health()["status"] == "ready")
        with agent(live, "eve") as eve, agent(live, "root") as root:
            assert uris(eve) == ["note://one", "b://x"]
            assert uris(root) == ["note://one", "note://kept", "note://hidden", "b://x"]
            assert [each["name"] for each in eve.listed("prompts/list", "prompts")] == ["bye"]
            count = len(sent(world.a, "resources/read"))
            for spelled in [*SPELLINGS, *(each.replace("kept", "hidden") for each in SPELLINGS[:8])]:
                assert read(eve, spelled)["error"]["code"] == -32002, spelled
                assert eve.request("resources/subscribe", {"uri": spelled})["error"]["code"] == -32002, spelled
            for body in ('{"uri":"note://one","uri":"note://kept"}', '{"uri":"note://one","URI":"note://kept"}', '{"uri":7}', "{}"):
                doubled = eve.send(f'{{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{body}}}').json()
                assert doubled["error"]["code"] == -32602
            for name in ("greet", "secret", "GREET", "a_greet"):
                assert eve.request("prompts/get", {"name": name})["error"] == {"code": -32602, "message": f"Unknown prompt: {name}"}
            assert len(sent(world.a, "resources/read")) == count
            assert text(read(root, "note://hidden")) == "a:note://hidden"
            assert eve.request("tools/list", None)["result"]["tools"]


def test_a_server_that_is_hidden_from_a_role_hides_all_that_it_offers_and_what_changes_in_it(world: World) -> None:
    live = world.live
    with agent(live, "mallory") as client:
        client.request("resources/subscribe", {"uri": "note://one"})
        client.request("resources/subscribe", {"uri": "b://x"})
        live.post("/tools/disable", {"role": "mallory", "tools": ["a_on"]})
        assert uris(client) == ["b://x"]
        assert client.listed("resources/templates/list", "resourceTemplates") == []
        assert [each["name"] for each in client.listed("prompts/list", "prompts")] == ["bye"]
        for uri in ("note://one", "note://any"):
            assert read(client, uri)["error"]["code"] == -32002
        assert client.request("prompts/get", {"name": "greet"})["error"]["code"] == -32602
        with listening(client) as heard:
            for server, uri in ((world.a, "note://one"), (world.b, "b://x")):
                eventually(lambda server=server: server.seen()["streams"] == 1)
                server.behave(tell=[{"jsonrpc": "2.0", "method": UPDATED, "params": {"uri": uri}}])
            assert next(heard)["params"] == {"uri": "b://x"}
        live.post("/tools/disable", {"role": "mallory", "tools": "*"})
        assert (uris(client), client.listed("prompts/list", "prompts"), client.names()) == ([], [], [])
        client.http.delete(client.url, headers=client.headers)  # so that nothing is followed any more


def test_a_server_of_resources_alone_is_served_and_hidden_where_a_role_may_do_nothing(tmp_path: Path) -> None:
    with raw_server("s", resources=[resource("r://x")]) as server, gateway(tmp_path, server) as live:
        live.post("/tools/disable", {"role": "none", "tools": "*"})
        with agent(live) as client, agent(live, "none") as none:
            assert text(read(client, "r://x")) == "s:r://x"
            assert uris(none) == []
            assert read(none, "r://x")["error"]["code"] == -32002
