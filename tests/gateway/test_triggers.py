"""What an environment does by itself: each kind of trigger, action and schedule, in a real gateway."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from agent_env.gateway.defaults import GatewayLimits
from agent_env.gateway.triggers.executors import ExecutorError, Instruction, carry_out
from agent_env.gateway.triggers.grammar import Executor
from tests.busy import within
from tests.gateway.parts import HTTP, WITHIN, Live, Raw, agent, eventually, gateway, raw_server
from tests.gateway.raw_server import tool

READS = {"annotations": {"readOnlyHint": True}}
HIDDEN = {"_meta": {"agentenv.io/hiddenByDefault": True}}
TOOLS = [tool("send"), tool("deliver"), tool("look", **READS), tool("hidden", **HIDDEN)]
LIMITS = {"trigger_tick_seconds": 0.05, "barrier_seconds": 60.0}
DELIVER = {"type": "tool", "tool": "deliver"}


@dataclass
class World:
    live: Live
    server: Raw
    site: Raw

    def register(self, *triggers: dict[str, Any], **more: Any) -> dict[str, Any]:
        answer = self.live.post("/triggers/register", {"triggers": list(triggers), **more})
        assert answer.status_code == 200, answer.text
        return answer.json()

    def trigger(self, trigger_id: str) -> dict[str, Any]:
        return next(each for each in self.state()["triggers"] if each["id"] == trigger_id)

    def state(self) -> dict[str, Any]:
        return self.live.get("/triggers/state").json()

    def kinds(self, trigger_id: str) -> list[str]:
        return [event["kind"] for event in self.state()["events"] if event.get("trigger_id") == trigger_id]

    def fired(self, trigger_id: str, count: int = 1) -> None:
        eventually(lambda: self.trigger(trigger_id)["fire_count"] >= count)

    def called(self) -> list[dict[str, Any]]:
        messages = [json.loads(each["raw"]) for each in self.server.seen()["seen"] if "raw" in each]
        return [each["params"] for each in messages if each.get("method") == "tools/call"]

    def deliveries(self) -> list[dict[str, Any]]:
        return [params for params in self.called() if params["name"] == "deliver"]

    def clock(self, virtual_time: str, rate: float = 0) -> None:
        body = {"virtual_time": virtual_time, "virtual_seconds_per_real_second": rate}
        assert self.live.put("/clock/set-time", body).status_code == 200


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with raw_server("s", tools=TOOLS) as server, raw_server("site") as site:
        website = {"name": "site", "url": site.url, "website": True, "frontend": site.url}
        with gateway(tmp_path_factory.mktemp("triggers"), server, website, limits=LIMITS) as live:
            yield World(live, server, site)


@pytest.fixture
def world(shared: World) -> World:
    shared.live.post("/triggers/clear").raise_for_status()
    shared.live.post("/clock/clear")
    shared.server.behave(call=None, forget=False)
    before = len(shared.server.seen()["seen"])
    assert before < 2000
    return shared


def action(trigger_id: str, *actions: dict[str, Any], **when: Any) -> dict[str, Any]:
    return {"id": trigger_id, "when": {"type": "action", "tool": "send", **when}, "actions": list(actions) or [DELIVER]}


def test_a_call_that_matches_sets_off_a_call_with_its_values(world: World) -> None:
    args = {"to": "${args.to}", "note": "re: ${args.subject}", "all": "${args.list[1]}", "gone": "${args.nope?}", "text": "${result}"}
    where = {"to": {"equals": "boss"}, "args.subject": {"regex": "^h.llo$"}, "args.list[*]": {"exists": True}, "cc": {"exists": False}}
    world.register(action("values", {**DELIVER, "args": args, "as": "system"}, where=where))
    with agent(world.live) as client:
        client.call("send", {"to": "nobody", "subject": "hello", "list": [1, {"a": 2}]})
        client.call("send", {"to": "boss", "subject": "hello", "list": [1, {"a": 2}]})
    world.fired("values")
    sent = world.deliveries()[-1]
    assert sent["arguments"] == {"to": "boss", "note": "re: hello", "all": {"a": 2}, "text": "s.send"}
    assert set(sent["_meta"]) == {"agentenv.io/role", "agentenv.io/idempotencyKey"}
    assert sent["_meta"]["agentenv.io/role"] == "system"
    assert (world.trigger("values")["status"], world.trigger("values")["fire_count"]) == ("fired", 1)
    assert world.kinds("values") == ["added", "detected", "action_ok", "fired"]
    events = [event for event in world.live.trajectory() if event.get("trigger_id") == "values"]
    assert [event["event_type"] for event in events] == ["trigger_fired", "internal_tool_call"]
    assert events[1]["arguments"]["note"] == {"redacted": {"type": "str", "len": 9}}


def test_a_repeating_trigger_fires_once_a_call_and_queues_meanwhile(world: World) -> None:
    world.register(action("r", repeat=True))
    world.server.behave(call={"slow": 0.2})
    with agent(world.live) as client:
        for _ in range(3):
            client.call("send")
    world.fired("r", 3)
    assert world.trigger("r")["status"] == "armed"


def test_a_failed_call_of_an_agent_sets_nothing_off_and_one_of_another_role_neither(world: World) -> None:
    world.register(action("t"), action("named", roles=["eve"]), watch_roles=["bob"])
    for role in ("default", "eve", "bob"):
        with agent(world.live, role) as client:
            client.call("send")
    world.fired("t")
    world.fired("named")
    detected = [(event["trigger_id"], event["provoking"]["role"]) for event in world.state()["events"] if event["kind"] == "detected"]
    assert sorted(detected) == [("named", "eve"), ("t", "bob")]


def test_a_failed_fire_is_told_and_the_trigger_armed_again(world: World) -> None:
    world.register(action("t", {**DELIVER, "args": {"x": "${args.needed}"}}))
    with agent(world.live) as client:
        client.call("send", {})
        eventually(lambda: world.trigger("t")["failure_count"] == 1)
        assert world.trigger("t")["status"] == "armed"
        client.call("send", {"needed": 1})
    world.fired("t")
    assert "unresolved placeholder ${args.needed}" in json.dumps(world.state()["events"])


def test_a_result_that_nests_without_end_ends_the_fire_as_any_other(world: World) -> None:
    world.register(action("t"))
    world.server.behave(call={"raw": f'{{"content":[],"deep":{"[" * 100_000}{"]" * 100_000}}}'})
    with agent(world.live) as client:
        deep = f'{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"send","arguments":{{"a":{"[" * 300}{"]" * 300}}}}}}}'
        client.send(deep)
        world.fired("t")
    called = [event for event in world.live.trajectory() if "[[[" in json.dumps(event)]  # every line can be read, and holds it as text
    assert {event["event_type"] for event in called} >= {"tool_call", "tool_call_result"}
    assert json.loads(next(each["tool_call"]["arguments"] for each in called if each["event_type"] == "tool_call")["text"])["a"]


@pytest.mark.parametrize(
    ("body", "said"),
    [("[" * 100_000, "no JSON object"), ("x" * 2000, "longer than 1000 bytes"), ('{"error":{"code":1}}', "refused message/send")],
    ids=["deep", "long", "refused"],
)
def test_an_executor_that_answers_nonsense_failed_and_no_more(body: str, said: str) -> None:
    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode())
        await writer.drain()
        writer.close()

    async def taken(_task: str) -> None:
        raise AssertionError("it has none")

    async def play() -> None:
        async with await asyncio.start_server(answers, "127.0.0.1", 0) as server:
            executor = Executor(a2a_url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", role="boss")
            limits = GatewayLimits(answer_bytes=1000 if said.startswith("longer") else 1 << 20)
            with pytest.raises(ExecutorError, match=said):
                await carry_out(executor, Instruction("Do.", "c", "m"), taken, limits)

    asyncio.run(play())


def test_permissions_change_as_an_action(world: World) -> None:
    world.register(action("p", {"type": "permission", "action": "enable", "role": "default", "tools": ["hidden"]}))
    with agent(world.live) as client:
        assert "hidden" not in client.names()
        client.call("send")
        world.fired("p")
        assert "hidden" in client.names()
    world.live.post("/tools/disable", {"role": "default", "tools": ["hidden"]})


def test_a_state_is_looked_at_after_what_may_have_changed_it(world: World) -> None:
    again = {"tool": "look", "args": {"again": "${seen}"}, "predicate": {"regex": "look"}}
    check = {"steps": [{"tool": "look", "args": {"q": 1}, "bind": "seen"}, again]}
    world.register({"id": "s", "when": {"type": "state", "check": check}, "actions": [DELIVER]})
    with agent(world.live) as client:
        client.call("look")
        assert world.kinds("s") == ["added"]
        client.call("send")
    world.fired("s")


def test_a_check_extracts_the_item_that_matches(world: World) -> None:
    extract = {"path": "items", "match": {"id": {"equals": 7}}, "take": "state"}
    verify = {"tool": "look", "extract": extract, "predicate": {"equals": "open"}}
    world.register(action("v", {**DELIVER, "verify": verify}))
    with agent(world.live) as client:
        client.call("send")
    eventually(lambda: world.trigger("v")["failure_count"] == 1)
    assert world.kinds("v") == ["added", "detected", "verify_failed", "action_failed", "failed"]


def timed(trigger_id: str, **when: Any) -> dict[str, Any]:
    return {"id": trigger_id, "when": {"type": "time", **when}, "actions": [DELIVER]}


def test_time_triggers_fire_at_their_marks_and_follow_the_clock(world: World) -> None:
    world.register(
        timed("at", at="PT1H"),
        timed("moment", at="2030-01-01T02:00:00Z"),
        timed("every", every="PT30M", count=3),
        timed("until", every="PT30M", until="PT1H"),
        timed("drawn", every={"dist": "exp", "mean": "PT10M"}, seed=4, count=5),
        timed("after", after="at", offset="PT5M"),
    )
    world.clock("2030-01-01T00:00:00Z")
    eventually(lambda: world.trigger("every")["next_mark"] == "2030-01-01T00:30:00Z")
    world.clock("2029-12-31T23:00:00Z", rate=86400)
    for name, count in [("at", 1), ("moment", 1), ("every", 3), ("until", 2), ("drawn", 5), ("after", 1)]:
        world.fired(name, count)
        eventually(lambda name=name: world.trigger(name)["status"] == "fired")
        assert world.trigger(name)["fire_count"] == count
    assert "reanchored" in world.kinds("every")
    assert "anchored" in world.kinds("after")
    marks = [event["mark"] for event in world.state()["events"] if event["kind"] == "fired" and event["trigger_id"] == "every"]
    assert marks == ["2029-12-31T23:30:00Z", "2030-01-01T00:00:00Z", "2030-01-01T00:30:00Z"]


def test_the_call_that_a_deadline_waits_for_cancels_it_and_what_follows_it(world: World) -> None:
    unless = {"tool": "send", "where": {"report": {"exists": True}}}
    world.register(timed("deadline", at="PT1H", unless=unless), timed("then", after="deadline", offset="PT1M"))
    world.clock("2030-01-01T00:00:00Z")
    with agent(world.live) as client:
        client.call("send", {"report": ""})
        assert world.trigger("deadline")["status"] == "armed"
        client.call("send", {"report": "done"})
    eventually(lambda: world.trigger("deadline")["status"] == "cancelled")
    assert world.trigger("then")["status"] == "cancelled"


def test_a_delay_runs_in_virtual_time_and_jumps_with_it(world: World) -> None:
    world.clock("2030-01-01T00:00:00Z")
    world.register(action("d", {**DELIVER, "delay": "PT20M"}))
    with agent(world.live) as client:
        client.call("send")
    eventually(lambda: world.trigger("d")["waiting"])
    world.clock("2030-01-01T00:19:00Z")
    assert world.trigger("d")["waiting"] is True
    world.clock("2030-01-01T00:20:01Z")
    world.fired("d")


def test_a_barrier_holds_the_provoking_answer_until_the_fire_ends_or_time_runs_out(world: World) -> None:
    world.register({**action("b", repeat=True), "barrier": {"at": "provoking_call"}})
    with agent(world.live) as client:
        for count in (1, 2, 3):
            client.call("send")
            assert world.trigger("b")["fire_count"] == count
    world.live.post("/triggers/clear")
    world.register({**action("late"), "barrier": {"at": "provoking_call", "timeout_seconds": 0.2}})
    world.server.behave(call={"hold_on": "deliver"})
    with agent(world.live) as client:
        client.call("send")
        assert world.trigger("late")["status"] == "firing"
    world.server.behave(call=None)
    assert "trigger_barrier_timeout" in [event["event_type"] for event in world.live.trajectory()]
    world.fired("late")


def test_requests_to_a_website_set_triggers_off(world: World) -> None:
    when = {
        "type": "website",
        "app": "site",
        "method": "post",
        "path": {"regex": "^/order"},
        "where": {"qty": {"equals": 2}},
        "repeat": True,
    }
    world.register({"id": "w", "when": when, "actions": [{**DELIVER, "args": {"n": "${args.qty}"}}], "barrier": {"at": "provoking_call"}})
    token = world.live.token()
    base = f"{world.live.agent}/as/{token}/website/site"
    HTTP.post(f"{base}/order/1", json={"qty": 1})
    HTTP.get(f"{base}/order/1")
    HTTP.post(f"{base}/other", json={"qty": 2})
    assert world.trigger("w")["fire_count"] == 0
    assert HTTP.post(f"{base}/order/1", json={"qty": 2}).json()["method"] == "POST"
    assert world.trigger("w")["fire_count"] == 1
    HTTP.post(f"{base}/order/2?qty=2", data={"qty": "3"})
    assert world.trigger("w")["fire_count"] == 1
    assert world.deliveries()[-1]["arguments"] == {"n": 2}


@dataclass
class Boss:
    """An agent that takes instructions over A2A."""

    port: int = 0
    asked: list[str] = field(default_factory=list)
    messages: list[dict[str, Any]] = field(default_factory=list)
    """As they came, each with the headers that it came with."""
    state: str = "completed"
    acts: Any = None
    hears: threading.Event = field(default_factory=threading.Event)
    """Unset, it takes an instruction without an answer."""
    forgets: str = ""
    """A task that it knows nothing of."""


@contextmanager
def boss() -> Iterator[Boss]:
    made = Boss()
    made.hears.set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            message = json.loads(self.rfile.read(int(self.headers["content-length"])))
            made.messages.append({**message, "headers": {name.lower(): value for name, value in self.headers.items()}})
            if message["method"] == "message/send":
                made.hears.wait(WITHIN)
                made.asked.append(message["params"]["message"]["parts"][0]["text"])
                if made.acts is not None:
                    made.acts()
                result = {"kind": "task", "id": f"task-{len(made.asked)}", "status": {"state": "working"}}
            else:
                result = {"kind": "task", "id": message["params"]["id"], "status": {"state": made.state}}
            answer = {"error": {"code": -32001, "message": "no such task"}} if message["params"].get("id") == made.forgets else {}
            body = json.dumps({"jsonrpc": "2.0", "id": message["id"], **(answer or {"result": result})}).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_an_instruction_is_carried_out_by_its_executor_whose_calls_are_attributed(world: World) -> None:
    with boss() as made:

        def act() -> None:
            with agent(world.live, "boss") as client:
                client.call("send", {"by": "boss"})

        made.acts = act
        executor = {"a2a_url": f"http://127.0.0.1:{made.port}/", "role": "boss", "headers": {"Authorization": "Bearer aet_of_the_boss"}}
        world.register(action("n", {"type": "nl", "instruction": "Reply."}), executor=executor)
        with agent(world.live) as client:
            client.call("send")
        world.fired("n")
        assert made.asked == ["Reply."]
        assert {message["headers"]["authorization"] for message in made.messages} == {"Bearer aet_of_the_boss"}
        assert "aet_of_the_boss" not in world.live.get("/triggers/state").text + world.live.get("/trajectory").text
        call = next(event for event in world.live.trajectory() if event.get("role") == "boss" and event["event_type"] == "tool_call")
        assert call["caused_by"] == [{"trigger_id": "n", "action_index": 0, "fire": 1}]


def test_an_instruction_that_did_not_hold_is_given_once_more_and_a_failed_executor_is_told(world: World) -> None:
    with boss() as made:
        executors = {"b": {"a2a_url": f"http://127.0.0.1:{made.port}", "role": "boss", "timeout_seconds": 20}}
        verify = {"tool": "look", "predicate": {"equals": "never"}}
        world.register(
            action("v", {"type": "nl", "instruction": "Do.", "executor": "b", "verify": verify}, repeat=True), executors=executors
        )
        with agent(world.live) as client:
            client.call("send")
            eventually(lambda: world.trigger("v")["failure_count"] == 1)
            assert len(made.asked) == 2
            assert made.asked[1].startswith("Do.\n\nYour previous attempt")
            made.state = "rejected"
            client.call("send")
        eventually(lambda: world.trigger("v")["failure_count"] == 2)
        assert "ended as rejected" in json.dumps(world.state()["events"])


def test_an_executor_works_in_its_hours(world: World) -> None:
    with boss() as made:
        hours = {"start": "09:00", "end": "17:00", "time_zone": "Europe/Oslo", "days": ["mon", "tue"]}
        world.clock("2030-01-05T12:00:00Z")  # a Saturday
        executor = {"a2a_url": f"http://127.0.0.1:{made.port}", "role": "boss", "hours": hours}
        world.register(action("h", {"type": "nl", "instruction": "Work."}), executor=executor)
        with agent(world.live) as client:
            client.call("send")
        eventually(lambda: "deferred" in world.kinds("h"))
        deferred = next(event for event in world.state()["events"] if event["kind"] == "deferred")
        assert deferred["until"] == "2030-01-07T08:00:00Z"
        assert not made.asked
        world.clock("2030-01-07T08:00:01Z")
        world.fired("h")


def test_a_pattern_that_would_search_forever_is_given_up_and_nobody_waits(world: World) -> None:
    world.register(action("slow", where={"x": {"regex": "^(a|aa)+$"}}), action("fine"))
    with agent(world.live) as client:
        began = time.monotonic()
        client.call("send", {"x": "a" * 60 + "b"})
        assert time.monotonic() - began < within(20)
    world.fired("fine")
    assert "eval_error" in world.kinds("slow")
    assert "still being searched for" in json.dumps(world.state()["events"])


T = {"id": "t", "when": {"type": "action", "tool": "send"}, "actions": [DELIVER]}
REFUSED: list[tuple[str, Any]] = [
    ("not a list", {"triggers": {}}),
    ("no object", {"triggers": [7]}),
    ("an empty id", {"triggers": [{**T, "id": ""}]}),
    ("twice", {"triggers": [T, T]}),
    ("no when", {"triggers": [{"id": "t", "actions": [DELIVER]}]}),
    ("an unknown kind", {"triggers": [{**T, "when": {"type": "moon"}}]}),
    ("an unknown tool", {"triggers": [{**T, "when": {"type": "action", "tool": "nope"}}]}),
    ("an unknown tool of an action", {"triggers": [{**T, "actions": [{"type": "tool", "tool": "nope"}]}]}),
    ("no actions", {"triggers": [{**T, "actions": []}]}),
    ("two predicates", {"triggers": [action("t", where={"x": {"regex": "a", "exists": True}})]}),
    ("a broken pattern", {"triggers": [action("t", where={"x": {"regex": "("}})]}),
    ("a broken path", {"triggers": [action("t", where={"args.a[": {"exists": True}})]}),
    ("an inert placeholder", {"triggers": [action("t", {**DELIVER, "args": {"x": "${args .y}"}})]}),
    ("a placeholder without a call", {"triggers": [{**timed("t", at="PT1H"), "actions": [{**DELIVER, "args": {"x": "${args.y}"}}]}]}),
    ("as default", {"triggers": [action("t", {**DELIVER, "as": "default"})]}),
    ("an instruction without an executor", {"triggers": [action("t", {"type": "nl", "instruction": "x"})]}),
    ("an instruction that reaches for the call", {"triggers": [action("t", {"type": "nl", "instruction": "${args.x}"})]}),
    ("a duration with months", {"triggers": [timed("t", at="P1M")]}),
    ("at and after", {"triggers": [timed("t", at="PT1H", after="x", offset="PT1M")]}),
    ("after without offset", {"triggers": [timed("t", after="x")]}),
    ("a drawn gap without a seed", {"triggers": [timed("t", every={"dist": "exp", "mean": "PT1M"})]}),
    ("count without every", {"triggers": [timed("t", at="PT1H", count=2)]}),
    ("unless with every", {"triggers": [timed("t", every="PT1H", unless={"tool": "send"})]}),
    ("an unknown website", {"triggers": [{**T, "when": {"type": "website", "app": "nope"}}]}),
    ("a website's result", {"triggers": [{**T, "when": {"type": "website", "app": "site", "where": {"result.x": {"exists": True}}}}]}),
    ("a barrier on a clock", {"triggers": [{**timed("t", at="PT1H"), "barrier": {"at": "provoking_call"}}]}),
    ("a barrier with a delay", {"triggers": [{**action("t", {**DELIVER, "delay": "PT1M"}), "barrier": {"at": "provoking_call"}}]}),
    ("an unknown barrier", {"triggers": [{**T, "barrier": {"at": "provoking_call", "x": 1}}]}),
    ("an executor without a role", {"triggers": [], "executor": {"a2a_url": "http://x"}}),
    ("a watched executor", {"triggers": [], "executor": {"a2a_url": "http://x", "role": "default"}}),
    ("a header that none can carry", {"triggers": [], "executor": {"a2a_url": "http://x", "role": "b", "headers": {"a": "x\ny"}}}),
    (
        "hours that never open",
        {"triggers": [], "executor": {"a2a_url": "http://x", "role": "b", "hours": {"start": "09:00", "end": "09:00"}}},
    ),
    ("no roles", {"triggers": [], "watch_roles": [""]}),
]


@pytest.mark.parametrize("body", [each[1] for each in REFUSED], ids=[each[0] for each in REFUSED])
def test_what_can_t_be_registered_is_refused_and_nothing_of_it_holds(world: World, body: Any) -> None:
    also = {**T, "id": "also"}
    if isinstance(body["triggers"], list):
        body = {**body, "triggers": [also, *body["triggers"]]}
    answer = world.live.post("/triggers/register", body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["ok"] is False
    assert answer.json()["error"]
    assert world.state()["triggers"] == []


def test_registering_adds_again_is_nothing_and_differs_is_refused(world: World) -> None:
    assert world.register(T) == {"ok": True, "added": ["t"], "all": ["t"]}
    assert world.register(T, {**T, "id": None})["added"][0] == "t"
    assert world.live.post("/triggers/register", {"triggers": [{**T, "actions": [DELIVER, DELIVER]}]}).status_code == 400
    assert world.live.post("/triggers/register", {"triggers": [], "watch_roles": ["other"]}).status_code == 400
    assert world.live.post("/triggers/remove", {"ids": ["t", "nope"]}).json() == {"ok": True, "removed": ["t"]}
    assert world.live.post("/triggers/remove", {"ids": "t"}).status_code == 400
