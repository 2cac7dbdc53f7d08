"""Fires that a kill of the gateway cut go on: what is done is not done again, and what may be done is asked for by the same key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.gateway.parts import agent, eventually, gateway, raw_server
from tests.gateway.raw_server import tool
from tests.gateway.test_triggers import DELIVER, LIMITS, READS, World, action, boss, timed

TOOLS = [tool("send"), tool("deliver"), tool("second"), tool("look", **READS)]
KEY = "agentenv.io/idempotencyKey"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with raw_server("s", tools=TOOLS) as server, gateway(tmp_path_factory.mktemp("resumed"), server, limits=LIMITS) as live:
        yield World(live, server, server)


@pytest.fixture
def world(shared: World) -> World:
    shared.server.behave(call=None)
    shared.live.post("/triggers/clear").raise_for_status()
    shared.live.post("/clock/clear")
    return shared


def killed(world: World) -> None:
    before = world.live.kill_server()
    eventually(lambda: world.live.pid() not in (None, before))


def calls(world: World, name: str, since: int) -> list[dict[str, Any]]:
    return [params for params in world.called()[since:] if params["name"] == name]


def test_a_delay_goes_on_over_a_kill_and_each_queued_call_has_its_fire_once(world: World) -> None:
    since = len(world.called())
    world.clock("2030-01-01T00:00:00Z")
    world.register(action("d", {**DELIVER, "delay": "PT20M", "args": {"n": "${args.n}"}}, repeat=True))
    with agent(world.live) as client:
        for number in (1, 2, 3):
            client.call("send", {"n": number})
    eventually(lambda: world.trigger("d")["waiting"])
    world.clock("2030-01-01T00:10:00Z")
    killed(world)
    eventually(lambda: world.trigger("d")["waiting"])
    assert (world.trigger("d")["status"], world.trigger("d")["pending"]) == ("queued", 2)
    world.clock("2030-01-01T00:19:00Z")
    assert calls(world, "deliver", since) == []
    world.clock("2030-01-01T00:20:01Z")
    world.fired("d", 3)
    killed(world)
    assert [each["arguments"] for each in calls(world, "deliver", since)] == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert (world.trigger("d")["status"], world.trigger("d")["fire_count"]) == ("armed", 3)


def test_an_action_that_was_done_is_not_repeated_and_one_that_may_be_is_asked_for_by_its_key(world: World) -> None:
    since = len(world.called())
    world.server.behave(call={"hang_on": "second"})
    world.register(action("a", DELIVER, {"type": "tool", "tool": "second", "args": {"x": "${args.x}"}}))
    with agent(world.live) as client:
        client.call("send", {"x": [1]})
    eventually(lambda: calls(world, "second", since))
    world.server.behave(call=None)
    killed(world)
    world.fired("a")
    assert len(calls(world, "deliver", since)) == 1
    first, again = calls(world, "second", since)
    assert first["arguments"] == again["arguments"] == {"x": [1]}
    assert first["_meta"][KEY] == again["_meta"][KEY] != calls(world, "deliver", since)[0]["_meta"][KEY]
    assert "resumed" in world.kinds("a")


def test_an_action_whose_verification_holds_after_the_kill_is_not_repeated(world: World) -> None:
    since = len(world.called())
    world.server.behave(call={"hang_on": "deliver"})
    world.register(action("v", {**DELIVER, "verify": {"tool": "look", "predicate": {"regex": "look"}}}))
    with agent(world.live) as client:
        client.call("send")
    eventually(lambda: calls(world, "deliver", since))
    world.server.behave(call=None)
    killed(world)
    world.fired("v")
    assert len(calls(world, "deliver", since)) == 1


@pytest.mark.parametrize("known", ["its task", "nothing of its task", "no answer"])
def test_an_executor_that_has_its_instruction_does_not_hear_it_again_and_another_hears_it_by_its_key(world: World, known: str) -> None:
    with boss() as made:
        if known == "no answer":
            made.hears.clear()
        made.state = "working"
        executor = {"a2a_url": f"http://127.0.0.1:{made.port}", "role": "boss", "headers": {"X-Key": "k"}}
        world.register(action("n", {"type": "nl", "instruction": "Go."}), executor=executor)
        with agent(world.live) as client:
            client.call("send")
        wanted = "message/send" if known == "no answer" else "tasks/get"
        eventually(lambda: wanted in [message["method"] for message in made.messages])
        killed(world)
        made.forgets = "task-1" if known == "nothing of its task" else ""
        made.hears.set()
        if made.forgets:
            eventually(lambda: len(made.asked) == 2)
        made.state = "completed"
        world.fired("n")
        sent = [message["params"]["message"]["messageId"] for message in made.messages if message["method"] == "message/send"]
        assert (len(sent), len(set(sent))) == (1 if known == "its task" else 2, 1)
        assert {message["headers"]["x-key"] for message in made.messages} == {"k"}


def test_marks_of_the_clock_that_were_due_have_their_fire_once(world: World) -> None:
    since = len(world.called())
    world.clock("2030-01-01T00:00:00Z")
    every = timed("e", every="PT30M", count=3)
    world.register({**every, "actions": [{**DELIVER, "delay": "PT2H"}]}, timed("then", after="e", offset="PT1M"))
    world.clock("2029-12-31T22:00:00Z", rate=0)
    eventually(lambda: world.trigger("e")["next_mark"] == "2029-12-31T22:30:00Z")
    world.live.put("/clock/set-time", {"virtual_time": "2029-12-31T22:00:00Z", "virtual_seconds_per_real_second": 86400})
    eventually(lambda: world.trigger("e")["waiting"] or world.trigger("e")["fire_count"])
    killed(world)
    world.fired("e", 3)
    world.fired("then")
    assert len(calls(world, "deliver", since)) == 4
    assert (world.trigger("e")["status"], world.trigger("e")["fire_count"]) == ("fired", 3)


def test_a_state_whose_check_was_cut_is_looked_at_again(world: World) -> None:
    since = len(world.called())
    world.server.behave(call={"hang_on": "look"})
    check = {"tool": "look", "predicate": {"regex": "look"}}
    world.register({"id": "s", "when": {"type": "state", "check": check}, "actions": [DELIVER]})
    with agent(world.live) as client:
        client.call("send")
    eventually(lambda: calls(world, "look", since))
    world.server.behave(call=None)
    killed(world)
    world.fired("s")
    assert len(calls(world, "deliver", since)) == 1


def test_what_is_removed_while_it_fires_is_not_taken_up_again(world: World) -> None:
    world.register(action("r", {**DELIVER, "delay": "PT100H"}), action("stays", {**DELIVER, "delay": "PT100H"}))
    with agent(world.live) as client:
        client.call("send")
    eventually(lambda: world.trigger("r")["waiting"] and world.trigger("stays")["waiting"])
    assert world.live.post("/triggers/remove", {"ids": ["r"]}).json()["removed"] == ["r"]
    killed(world)
    eventually(lambda: world.trigger("stays")["waiting"])
    assert [each["id"] for each in world.state()["triggers"]] == ["stays"]
    world.register(action("r", {**DELIVER}))
    assert world.trigger("r")["status"] == "armed"


def test_a_gateway_that_is_stopped_goes_on_with_its_fires_when_it_is_started(tmp_path: Any) -> None:
    with raw_server("s", tools=TOOLS) as server:
        with gateway(tmp_path, server, limits=LIMITS) as live, agent(live) as client:
            world = World(live, server, server)
            world.clock("2030-01-01T00:00:00Z")
            world.register(action("d", {**DELIVER, "delay": "PT1H"}))
            client.call("send")
            eventually(lambda: world.trigger("d")["waiting"])
        with gateway(tmp_path, server, limits=LIMITS) as live:
            world = World(live, server, server)
            eventually(lambda: world.trigger("d")["waiting"])
            world.clock("2030-01-01T02:00:00Z")
            world.fired("d")
            assert [params["name"] for params in world.called()] == ["send", "deliver"]
