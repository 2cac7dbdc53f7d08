"""What a served environment answers: card, tools, extensions, rules; over HTTP, as deployed clients ask."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest
from agent_env_sdk.environment import AgentEnvError
from agent_env_sdk.testing import McpError, McpSession, serve_here
from agent_env_sdk.wire.card import find_extension, operations
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sdk.environments import Guarded, Paged, Stock

PROXIED = "agentenv.io/role"
TRICKY = ['{"a": 1}', "[1,2]", "null", "true", "1e400", "\u2028", "\x85", "\ufeff", '"quoted"', "\\u0000", "\u0000", "\ud83d"]
NAMES = ["_x", "__x", "model_config", "schema", "arguments", "name", "ctx", "_meta", "ü", "a b", "$ref", "class"]


async def test_the_card_says_what_is_served() -> None:
    async with serve_here(Stock()) as stock:
        raw = (await stock.http.get(f"{stock.base}/.well-known/agent-env.json")).json()
        card = await stock.card()
    assert raw["children_environments"] is None
    assert raw["additionalInterfaces"] == [{"url": "/mcp", "transport": "mcp"}]
    assert operations(card) == ("data/reset", "data/add", "data/get")
    tool = next(tool for tool in raw["capabilities"]["tools"] if tool["name"] == "stock_take")
    assert tool["inputSchema"] == {
        "type": "object",
        "properties": {
            "sku": {"type": "string", "description": "Stock keeping unit."},
            "qty": {"type": "integer", "description": "Units to remove."},
        },
        "required": ["sku", "qty"],
    }
    assert {extension["uri"] for extension in raw["capabilities"]["extensions"]} == {
        f"urn:agentenv:{name}/v1"
        for name in (
            "intake set-errors coerce shelf fail clock data-objects load-jobs get-interfaces disable-tool enable-tool".split()  # noqa: SIM905
        )
    }
    shelf = find_extension(card, "urn:agentenv:shelf/v1")
    assert shelf is not None
    assert shelf.params == {
        "features": ["wide"],
        "methods": {
            "get": {"method": "GET", "endpoint": "/agentenv/ext/shelf/get", "request": {"type": "object", "properties": {}}},
            "put": {
                "method": "POST",
                "endpoint": "/agentenv/ext/shelf/put",
                "request": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
            },
        },
    }


async def test_the_deployments_name_takes_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENVIRONMENT_NAME", "store-7")
    async with serve_here(Stock()) as stock:
        assert (await stock.card()).name == "store-7"
        assert "store-7_count" in await stock.tools()
    monkeypatch.delenv("ENVIRONMENT_NAME")
    async with serve_here(Guarded()) as guarded:
        assert (await guarded.card()).name == "Guarded"


async def test_i06_a_context_is_in_no_schema() -> None:
    async with serve_here(Stock()) as stock:
        tools = await stock.tools()
        card = await stock.card()
    for schema in (
        tools["stock_take"]["inputSchema"],
        tools["whoami"]["inputSchema"],
        *(t.input_schema for t in card.capabilities.tools or []),
    ):
        assert not {"who", "context"} & set(schema["properties"])


async def test_tools_are_listed_with_all_that_is_said_of_them() -> None:
    async with serve_here(Stock()) as stock, stock.session("auditor") as session:
        await stock.invoke("urn:agentenv:enable-tool/v1", {"role": "auditor", "tools": ["audit"]})
        tools = {tool["name"]: tool for tool in await session.tools()}
        assert session.server["serverInfo"]["name"] == "stock"
        assert session.server["capabilities"]["tools"]["listChanged"] is True
    count = tools["stock_count"]
    assert (count["title"], count["description"], count["annotations"], count["_meta"]) == (
        "Count",
        "Units on hand.",
        {"readOnlyHint": True},
        {"x.test/kind": "read"},
    )
    assert count["outputSchema"] == {"type": "object", "properties": {"result": {"type": "integer"}}, "required": ["result"]}
    assert tools["audit"]["_meta"] == {"agentenv.io/hiddenByDefault": True}
    assert tools["item"]["outputSchema"]["properties"]["qty"] == {"type": "integer"}
    assert "outputSchema" not in tools["picture"]
    assert "outputSchema" not in tools["echo"]


async def test_tools_come_in_pages_and_a_strange_cursor_is_refused() -> None:
    async with serve_here(Paged()) as paged, paged.session() as session:
        assert [tool["name"] for tool in await session.tools()] == ["a", "b", "c", "d", "e"]
        page, _ = await session.request("tools/list", {})
        assert (len(page["tools"]), page["nextCursor"]) == (2, "2")
        for cursor in ("x", "-1", "99"):
            with pytest.raises(McpError) as refused:
                await session.request("tools/list", {"cursor": cursor})
            assert refused.value.code == -32602


async def test_results_carry_text_structure_and_pictures() -> None:
    async with serve_here(Stock()) as stock, stock.session() as session:
        await stock.add({"items": [{"sku": "a", "qty": 3}]})
        counted = await session.call("stock_count", {"sku": "a"})
        assert (counted.text, counted.structured, counted.is_error) == ("3", {"result": 3}, False)
        item = await session.call("item", {"item": {"sku": "a", "qty": 1}, "tags": ["x"]})
        assert item.structured == {"sku": "a/x", "qty": 1}
        assert json.loads(item.text) == item.structured
        assert json.loads((await session.call("whoami")).text)["tool"] == "whoami"
        picture = await session.call("picture")
        assert picture.content == [{"type": "image", "data": "iVBORw==", "mimeType": "image/png"}, {"type": "text", "text": "a picture"}]


async def test_an_error_on_purpose_is_a_result_with_its_fields_and_an_accident_is_told() -> None:
    async with serve_here(Stock()) as stock, stock.session("clerk") as session:
        refused = await session.call("stock_take", {"sku": "a", "qty": 9})
        assert (refused.is_error, refused.text) == (True, "insufficient: clerk can't take 9 of a")
        assert refused.structured == {
            "code": "insufficient",
            "message": "clerk can't take 9 of a",
            "retryable": False,
            "applied": "no",
            "hint": "count first",
        }
        crashed = await session.call("crash")
        assert (crashed.is_error, crashed.text, crashed.structured) == (True, "Error executing tool crash: boom", None)
        unfit = await session.call("stock_take", {"qty": "many"})
        assert unfit.is_error
        assert unfit.text.startswith("Error executing tool stock_take: ")
        assert all(name in unfit.text for name in ("sku", "qty"))
        unknown = await session.call("nothing")
        assert (unknown.is_error, unknown.text) == (True, "Unknown tool: nothing")


@pytest.mark.parametrize(
    "arguments",
    [
        {"_x": '{"a":1}', "model_config": "[1,2]", "self_": "null"},
        {"_x": "null", "other": {"deep": [[{"x": "1e5"}]]}, "ü": "\u2028 \U0001f600"},
        {"_x": 10**20, "model_config": -0.5, "empty": ""},
    ],
)
async def test_i13_arguments_arrive_as_they_were_sent(arguments: dict[str, Any]) -> None:
    async with serve_here(Stock()) as stock:
        assert (await stock.call("echo", arguments)).structured == arguments


JSON = st.recursive(
    st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False) | st.text() | st.sampled_from(TRICKY),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner | st.none(), max_size=4),
    max_leaves=12,
)


@pytest.fixture(scope="module")
def echo() -> Iterator[Callable[[dict[str, Any]], Any]]:
    """Calls the tool `echo` of one served stock-room, in one session."""
    with asyncio.Runner() as runner:
        held = AsyncExitStack()

        async def opened() -> McpSession:
            stock = await held.enter_async_context(serve_here(Stock()))
            return await held.enter_async_context(stock.session())

        session = runner.run(opened())
        yield lambda arguments: runner.run(session.call("echo", arguments)).structured
        runner.run(held.aclose())


@settings(max_examples=200, deadline=None)
@given(arguments=st.dictionaries(st.sampled_from(NAMES) | st.text(min_size=1), JSON, max_size=5))
def test_i13_whatever_is_sent_arrives_unchanged(echo: Callable[[dict[str, Any]], Any], arguments: dict[str, Any]) -> None:
    arguments.pop("self", None)  # Python's own name for the object
    assert echo(arguments) == arguments


async def test_a_list_that_came_as_text_is_read_but_a_text_stays_one() -> None:
    async with serve_here(Stock()) as stock, stock.session() as session:
        read = await session.call("item", {"item": '{"sku": "[1]", "qty": 1}', "tags": '["x"]'})
        assert read.structured == {"sku": "[1]/x", "qty": 1}
        assert (await session.call("item", {"item": "x", "tags": []})).is_error


@pytest.mark.parametrize(
    ("meta", "role", "session", "seen"),
    [
        (None, None, True, (None, True)),
        (None, "analyst", True, ("analyst", True)),
        (None, "default", True, (None, True)),
        ({PROXIED: "boss", "agentenv.io/session": "s1"}, "analyst", True, ("boss", "s1")),
        ({PROXIED: "default", "agentenv.io/session": "s1"}, "analyst", True, (None, "s1")),
        ({PROXIED: None}, "analyst", True, (None, None)),
        ({"agentenv.io/session": "forged"}, "analyst", True, ("analyst", True)),
    ],
    ids=["nobody", "header", "default", "meta beats header", "default in meta", "any value marks a proxy", "session alone is not believed"],
)
async def test_i05_who_calls(meta: dict[str, Any] | None, role: str | None, session: bool, seen: tuple) -> None:
    async with serve_here(Stock()) as stock, stock.session(role) as opened:
        told = (await opened.call("whoami", meta=meta)).structured
        own = opened._headers["Mcp-Session-Id"]
    assert told == {"role": seen[0], "session": own if seen[1] is True else seen[1], "same": True, "tool": "whoami", "call": True}


async def test_i07_a_hidden_tool_is_neither_listed_nor_called_until_a_rule_names_it() -> None:
    async with serve_here(Stock()) as stock:
        assert "audit" not in await stock.tools()
        refused = await stock.call("audit")
        assert (refused.is_error, refused.text) == (True, "permission_denied: Tool 'audit' is disabled for role 'default'")
        await stock.invoke("urn:agentenv:enable-tool/v1", {"role": "*", "tools": "*"})
        assert "audit" not in await stock.tools("auditor")
        await stock.invoke("urn:agentenv:enable-tool/v1", {"role": "auditor", "tools": ["audit"]})
        assert (await stock.call("audit", role="auditor")).text == "audited"
        assert (await stock.call("audit", role="clerk")).is_error


async def test_a_rule_takes_a_tool_from_a_role_and_gives_it_back() -> None:
    async with serve_here(Stock()) as stock:
        answer = await stock.invoke("urn:agentenv:disable-tool/v1", {"role": "clerk", "tools": ["stock_take"]})
        assert answer == {"role": "clerk", "disabled": ["stock_take"], "allowed": []}
        assert "stock_take" not in await stock.tools("clerk")
        assert "stock_take" in await stock.tools("boss")
        refused = await stock.call("stock_take", {"sku": "a", "qty": 1}, role="clerk")
        assert refused.structured == {
            "code": "permission_denied",
            "message": "Tool 'stock_take' is disabled for role 'clerk'",
            "retryable": False,
            "applied": "no",
        }
        await stock.invoke("urn:agentenv:enable-tool/v1", {"role": "clerk", "tools": "*"})
        assert "stock_take" in await stock.tools("clerk")
        with pytest.raises(AgentEnvError) as unusable:
            await stock.invoke("urn:agentenv:disable-tool/v1", {"role": "", "tools": []})
        assert (unusable.value.code, unusable.value.status) == ("invalid_params", 400)


async def test_i04_a_querys_texts_become_what_the_handler_asks_for() -> None:
    sent = {
        "flag": "On",
        "count": "7",
        "share": "0.25",
        "price": "1.10",
        "moment": "2026-05-01T10:00:00+00:00",
        "day": "2026-05-01",
        "hour": "10:30",
        "ident": "12345678123456781234567812345678",
        "colour": "blue",
        "mode": "fixed",
        "level": "2",
        "tags": ["a", "b"],
        "free": "5",
    }
    async with serve_here(Stock()) as stock:
        told = await stock.invoke("urn:agentenv:coerce/v1", sent, role="boss")
    assert told == {
        "flag": "bool:True",
        "count": "int:7",
        "share": "float:0.25",
        "price": "Decimal:1.10",
        "moment": "datetime:2026-05-01 10:00:00+00:00",
        "day": "date:2026-05-01",
        "hour": "time:10:30:00",
        "ident": "UUID:12345678-1234-5678-1234-567812345678",
        "colour": "Colour:Colour.BLUE",
        "mode": "str:fixed",
        "level": "int:2",
        "tags": "list:['a', 'b']",
        "free": "str:5",
        "role": "boss",
    }


@pytest.mark.parametrize(
    "query",
    [
        "flag=maybe",
        "count=x",
        "share=x",
        "price=x",
        "moment=x",
        "day=2026-13-01",
        "hour=25:00",
        "ident=x",
        "colour=green",
        "mode=off",
        "level=3",
        "unknown=1",
        "context=x",
    ],
)
async def test_i04_what_cannot_become_it_is_refused(query: str) -> None:
    async with serve_here(Stock()) as stock:
        response = await stock.http.get(f"{stock.base}/agentenv/ext/coerce?{query}")
    assert (response.status_code, response.json()["ok"], response.json()["error"]["code"]) == (400, False, "invalid_params")
    assert response.json()["error"]["applied"] == "no"


async def test_i04_bodies_errors_and_empty_answers() -> None:
    async with serve_here(Stock()) as stock:

        async def post(path: str, content: bytes) -> tuple[int, Any]:
            response = await stock.http.post(f"{stock.base}/agentenv/ext/{path}", content=content)
            return response.status_code, response.json()

        assert await post("set_errors", b'{"tool_name": "t"}') == (200, {"tool_name": "t", "rate": 0.5})
        assert await post("set_errors", b'{"tool_name": "t", "rate": "0.75"}') == (200, {"tool_name": "t", "rate": 0.75})
        for content in (b"", b"{", b"[]", b'"x"', b"{}", b'{"tool_name": "t", "more": 1}'):
            status, body = await post("set_errors", content)
            assert (status, body["error"]["code"]) == (400, "invalid_params"), content
        assert await post("fail/purpose", b"") == (
            409,
            {"ok": False, "error": {"code": "busy", "message": "later", "retryable": True, "applied": "no"}},
        )
        assert await post("fail/accident", b"") == (
            500,
            {"ok": False, "error": {"code": "extension_failed", "message": "'oops'", "retryable": False, "applied": "unknown"}},
        )
        assert await post("shelf/put", b'{"name": "s"}') == (200, {"name": "s", "at": "2026-05-01"})
        assert await stock.invoke("urn:agentenv:shelf/v1", method="get") == {}


async def test_hooks_choose_what_is_served_and_answer_calls_first() -> None:
    async with serve_here(Guarded()) as guarded:
        tools = await guarded.tools()
        assert {name: tool["description"] for name, tool in tools.items()} == {"open": "Open any door."}
        assert (await guarded.call("open", {"door": "front"})).text == "front is open"
        secret = await guarded.call("open", {"door": "secret"})
        assert (secret.is_error, secret.text) == (True, "no such door")
        assert (await guarded.call("close")).text == "Unknown tool: close"
        assert operations(await guarded.card()) == ("data/get",)


async def test_a_changed_description_is_seen_at_once_and_clients_are_told() -> None:
    stock = Stock()
    with pytest.raises(RuntimeError, match="not served yet"):
        await stock.update_tool("stock_count", description="x")
    async with serve_here(stock) as client, client.session() as session:
        await session.tools()
        listening = asyncio.Event()
        told = asyncio.create_task(first_message(client.http, session, listening))
        await asyncio.wait_for(listening.wait(), 30)
        await stock.update_tool("stock_count", description="Counts anew.")
        assert (await asyncio.wait_for(told, 30))["method"] == "notifications/tools/list_changed"
        assert {t["name"]: t["description"] for t in await session.tools()}["stock_count"] == "Counts anew."
        assert {t.name: t.description for t in (await client.card()).capabilities.tools or []}["stock_count"] == "Counts anew."
        assert stock.mounted_card() == await client.card()
        with pytest.raises(LookupError, match="no tool 'none'"):
            await stock.update_tool("none", description="x")


async def first_message(http: httpx.AsyncClient, session: Any, listening: asyncio.Event) -> dict[str, Any]:
    """The first message of the server's own stream."""
    async with http.stream("GET", session._url, headers={**session._headers, "Accept": "text/event-stream"}) as response:
        listening.set()
        async for line in response.aiter_lines():
            if line.startswith("data:") and line[5:].strip():
                found: dict[str, Any] = json.loads(line[5:])
                return found
    raise AssertionError("the stream ended")


async def test_progress_comes_before_the_result_when_it_is_asked_for() -> None:
    async with serve_here(Stock()) as stock, stock.session() as session:
        watched = await session.call("steps", meta={"progressToken": "p1"})
        assert [(note["params"]["progress"], note["params"]["message"]) for note in watched.notifications] == [(1, "step 1"), (2, "step 2")]
        assert {note["params"]["progressToken"] for note in watched.notifications} == {"p1"}
        assert (await session.call("steps")).notifications == []


async def test_a_plain_handler_that_blocks_holds_up_nothing_else() -> None:
    stock = Stock()
    async with serve_here(stock) as client, client.session() as held, client.session() as other:
        blocked = asyncio.create_task(held.call("hold"))
        assert await asyncio.to_thread(stock.entered.wait, 30)
        assert (await client.http.get(f"{client.base}/ready")).json() == {"ready": True}
        assert len(await other.tools()) > 5
        assert (await other.call("steps")).text == "done"
        assert not blocked.done()
        stock.go_on.set()
        assert (await blocked).text == "held"


async def test_a_lost_session_is_told_by_404_and_any_host_name_is_taken() -> None:
    async with serve_here(Stock()) as stock:
        headers = {"Accept": "application/json, text/event-stream", "Mcp-Session-Id": "gone", "Host": "stock:18765"}
        listing = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        assert (await stock.http.post(f"{stock.base}/mcp", json=listing, headers=headers)).status_code == 404
        assert (await stock.http.get(f"{stock.base}/mcp")).status_code < 500
        assert (await stock.http.get(f"{stock.base}/ready", headers={"Host": "anything:1"})).status_code == 200
        assert [(await stock.http.get(f"{stock.base}{path}")).status_code for path in ("/health", "/")] == [404, 404]


async def test_manifests_are_indexed_and_served() -> None:
    async with serve_here(Stock()) as stock:
        endpoint = f"{stock.base}/agentenv/interface-manifest"
        assert (await stock.http.get(endpoint)).json() == ["cli", "core"]
        assert (await stock.http.get(f"{endpoint}/cli")).json()["entities"][0]["commands"]["get"]["tool"] == "stock_count"
        assert (await stock.http.get(f"{endpoint}/gui")).status_code == 404
    async with serve_here(Paged()) as paged:
        assert (await paged.http.get(f"{paged.base}/agentenv/interface-manifest")).status_code == 404
