"""MCP as the SDK's servers speak it: sessions and their end, what comes as events, cancellation, a client that goes or comes again."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from agent_env_sdk.environment import Environment, ToolContext, environment, tool
from agent_env_sdk.testing import McpError, McpSession, serve_here

from tests.busy import within

ROOT = Path(__file__).parents[2]
BOTH = {"Accept": "application/json, text/event-stream"}


@environment(name="waiting")
class Waiting(Environment):
    """One tool that waits until it is let go, or cancelled."""

    max_request_bytes = 4000

    def __init__(self) -> None:
        self.entered, self.go_on, self.left = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.ended = ""

    @tool()
    async def wait(self, context: ToolContext) -> str:
        """Waits."""
        self.entered.set()
        try:
            await self.go_on.wait()
            await context.progress(1)
            self.ended = "by itself"
        except asyncio.CancelledError:
            self.ended = "cancelled"
            raise
        finally:
            self.left.set()
        return "waited"

    @tool()
    def odd(self) -> dict[str, Any]:
        """Gives what JSON has no word for."""
        return {"far": float("inf"), "line": "\u2028"}


def message(method: str, id: int | None = None, **params: Any) -> dict[str, Any]:
    """A request, or a notification."""
    return {"jsonrpc": "2.0", "method": method, "params": params, **({} if id is None else {"id": id})}


async def posted(session: McpSession, body: Any, **headers: str) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await session._http.post(session._url, content=content, headers={**session._headers, **headers})


async def soon(event: asyncio.Event) -> None:
    await asyncio.wait_for(event.wait(), within(10))


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, -32700),
        (b"[" * 3000, 400, -32700),
        ([message("ping", 1)], 400, -32600),
        ({"jsonrpc": "2.0", "id": 1}, 400, -32600),
        ({"jsonrpc": "2.0", "id": True, "method": "ping"}, 400, -32600),
        ({"jsonrpc": "2.0", "id": 1, "method": 7}, 400, -32600),
        (message("resources/list", 1), 200, -32601),
        (message("tools/call", 1, arguments={}), 200, -32602),
        (message("tools/call", 1, name="odd", arguments=[]), 200, -32602),
        (b" " * 5000, 413, -32000),
    ],
    ids=[
        "no JSON",
        "too deep",
        "a batch",
        "no method",
        "a strange id",
        "a strange method",
        "not served",
        "no name",
        "no object",
        "too long",
    ],
)
async def test_what_is_no_request_is_answered_with_its_error(body: Any, status: int, code: int) -> None:
    async with serve_here(Waiting()) as waiting, waiting.session() as session:
        refused = await posted(session, body)
    assert (refused.status_code, refused.json()["error"]["code"]) == (status, code)


async def test_a_session_is_begun_spoken_in_a_known_revision_and_ended() -> None:
    async with serve_here(Waiting()) as waiting, waiting.session() as session:
        asked = {"2025-06-18": "2025-06-18", "2026-07-28": "2025-11-25", "1": "2025-11-25"}
        for version, answered in asked.items():
            begun = await posted(session, message("initialize", 0, protocolVersion=version))
            assert begun.json()["result"]["protocolVersion"] == answered
        assert (await posted(session, message("ping", 3))).json() == {"jsonrpc": "2.0", "id": 3, "result": {}}
        later = await posted(session, message("ping", 4), **{"MCP-Protocol-Version": "2026-07-28"})
        assert (later.status_code, later.json()["error"]["code"]) == (400, -32022)  # by which clients of later revisions know to fall back
        assert "2025-11-25" in later.json()["error"]["data"]["supported"]
        assert (await waiting.http.put(session._url)).status_code == 405
        assert (await waiting.http.post(session._url, json=message("ping", 5), headers=BOTH)).status_code == 400
        await session.close()
        assert [(await posted(session, message(name, id))).status_code for name, id in (("ping", 6), ("notifications/x", None))] == [
            404,
            404,
        ]
        await session.open()


async def test_an_answer_is_json_where_nothing_is_told_before_it_or_events_are_not_taken() -> None:
    stock = Waiting()
    stock.go_on.set()
    async with serve_here(stock) as waiting, waiting.session() as session:
        call = message("tools/call", 1, name="wait", _meta={"progressToken": 5})
        watched = await posted(session, call)
        plain = await posted(session, message("tools/call", 2, name="wait"))
        alone = await posted(session, call, Accept="application/json")
        assert [answer.headers["content-type"].partition(";")[0] for answer in (watched, plain, alone)] == [
            "text/event-stream",
            "application/json",
            "application/json",
        ]
        told = [json.loads(line[6:]) for line in watched.text.splitlines() if line.startswith("data: ")]
        assert told[0]["params"] == {"progressToken": 5, "progress": 1}
        assert (told[1]["id"], told[1]["result"]) == (1, plain.json()["result"])
        odd = await session.call("odd")
        assert odd.structured == {"far": None, "line": "\u2028"}


async def test_a_call_is_cancelled_where_its_client_says_so_and_not_where_it_merely_goes() -> None:
    stock = Waiting()
    async with serve_here(stock) as waiting, waiting.session() as session:
        asked = asyncio.create_task(session.request("tools/call", {"name": "wait"}))
        await soon(stock.entered)
        id = next(session._ids) - 1
        await posted(session, message("notifications/cancelled", requestId=id))
        with pytest.raises(McpError, match="cancelled"):
            await asked
        assert stock.ended == "cancelled"
        stock.entered.clear()
        stock.left.clear()
        asked = asyncio.create_task(session.request("tools/call", {"name": "wait"}))
        await soon(stock.entered)
        asked.cancel()
        await asyncio.wait([asked])
        stock.go_on.set()
        await soon(stock.left)
        assert stock.ended == "by itself"


async def test_a_client_that_listens_again_takes_the_stream_over_and_the_end_of_its_session_ends_it() -> None:
    stock = Waiting()
    async with serve_here(stock) as waiting, waiting.session() as session, AsyncExitStack() as held:

        async def listening() -> Any:
            headers = {**session._headers, **BOTH}
            lines = (await held.enter_async_context(waiting.http.stream("GET", session._url, headers=headers))).aiter_lines()
            assert (await anext(lines)).startswith(":")
            return lines

        first, second = await listening(), await listening()
        assert [line async for line in first] == [""]
        await stock.update_tool("odd", description="Once.")
        await stock.update_tool("odd", description="Twice.")
        heard = [json.loads(line[6:])["method"] async for line in _until_data(second)]
        assert heard == ["notifications/tools/list_changed"]
        await session.close()
        assert [line async for line in second if line.startswith("data: ")] in (
            [],
            ['data: {"jsonrpc":"2.0","method":"notifications/tools/list_changed"}'],
        )
        await session.open()


async def _until_data(lines: Any) -> Any:
    async for line in lines:
        if line.startswith("data: "):
            yield line
            return


def test_a_server_starts_without_what_it_may_never_need_and_ends_though_a_client_listens() -> None:
    costly = ("mcp", "httpx", "rich", "websockets")
    unloaded = f"import sys; import agent_env_sdk.environment.serving; print([name for name in {costly} if name in sys.modules])"
    said = subprocess.run([sys.executable, "-c", unloaded], capture_output=True, text=True, check=True, timeout=within(20))
    assert said.stdout.strip() == "[]"
    variables = {**os.environ, "MCP_HOST": "127.0.0.1", "MCP_PORT": "0", "PYTHONPATH": str(ROOT)}
    serve = [sys.executable, "-c", "from tests.sdk.test_mcp import Waiting; Waiting().serve()"]
    with subprocess.Popen(serve, env=variables, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        base = f"http://127.0.0.1:{process.stderr.readline().split()[-1]}"
        with httpx.Client(timeout=within(20)) as http:
            begun = http.post(f"{base}/mcp", json=message("initialize", 1, protocolVersion="2025-11-25"), headers=BOTH)
            headers = {"Mcp-Session-Id": begun.headers["mcp-session-id"], "Accept": "text/event-stream"}
            with http.stream("GET", f"{base}/mcp", headers=headers) as stream:
                lines = stream.iter_lines()
                assert next(lines).startswith(":")
                process.send_signal(signal.SIGTERM)
                assert not [line for line in lines if line]  # it ends as streams do, and is not cut
        _, rest = process.communicate(timeout=within(20))
    assert (process.returncode, rest) == (-signal.SIGTERM, "")
