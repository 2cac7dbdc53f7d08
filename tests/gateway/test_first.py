"""What any client sees first: the card, the tools, an answer."""

from __future__ import annotations

import httpx

from tests.gateway.conftest import Pair
from tests.gateway.parts import agent, control, text_of


def test_a_tool_of_each_server_is_listed_and_called_over_both_doors(pair: Pair) -> None:
    for door in (agent(pair.live), control(pair.live)):
        with door as client:
            assert client.names() == ["a_read", "a_write", "b_one"]
            assert text_of(client.call("a_write", {"x": 1})) == "a.a_write"
            assert text_of(client.call("b_one")) == "b.b_one"


def test_the_agent_door_wants_a_token_and_the_control_door_has_the_whole_card(pair: Pair) -> None:
    assert httpx.get(f"{pair.live.agent}/.well-known/agent-env.json").status_code == 401
    card = pair.live.get("/.well-known/agent-env.json").json()
    assert card["additionalInterfaces"] == [{"url": "/mcp", "transport": "mcp"}]
    assert set(card["capabilities"]) == {"extensions"}


def test_a_token_in_the_path_is_as_good_as_one_in_the_header(pair: Pair) -> None:
    token = pair.live.token("reader")
    answer = httpx.get(f"{pair.live.agent}/as/{token}/.well-known/agent-env.json")
    assert answer.status_code == 200
    assert [child["name"] for child in answer.json()["children_environments"]] == ["a", "b"]
