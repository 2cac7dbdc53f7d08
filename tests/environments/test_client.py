"""The client against a real server of another making, over real sockets."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from agent_env_sdk.wire.card import mcp_path
from agent_env_sdk.wire.encoding import json_bytes
from hypothesis import given
from hypothesis import strategies as st

from agent_env.defaults import DEFAULT_LIMITS
from agent_env.environments.client import EnvironmentClient, load_seconds
from agent_env.environments.faults import EnvironmentFailedError, EnvironmentUnreachableError, NotAdvertisedError, SessionLostError
from agent_env.environments.http import new_client
from agent_env.environments.mcp_client import events
from agent_env.environments.transfers import save_part
from agent_env.errors import DeadlineError
from tests.environments.bench import HERE, held, items, run
from tests.ports import free_port

LIMITS = replace(DEFAULT_LIMITS, retry_backoff_seconds=0.01)


@pytest.fixture(scope="module")
def stock() -> Iterator[str]:
    """The stock-room server as a process of its own."""
    port = free_port()
    environ = {**os.environ, "MCP_PORT": str(port), "ENVIRONMENT_NAME": "tickets", "STOCK_MCP_PATH": "/v2/mcp"}
    process = subprocess.Popen([sys.executable, HERE / "server/server.py"], env=environ, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def client(url: str, **changes: object) -> EnvironmentClient:
    return EnvironmentClient(url, http=new_client(None, LIMITS), name="tickets", **{"limits": LIMITS, **changes})  # type: ignore[arg-type]


@asynccontextmanager
async def answering(*answers: bytes, status: str = "200 OK", kind: str = "application/json") -> AsyncIterator[str]:
    """A server that gives each caller the next of these answers, and then the last one again."""
    left = list(answers)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next((int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")), 0)
        await reader.readexactly(length)
        body = left.pop(0) if len(left) > 1 else left[0]
        if body:
            writer.write(f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n".encode())
            writer.write(body)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def test_a_card_is_read_once_with_fields_that_nobody_knows(stock: str) -> None:
    async def body() -> None:
        speaking = client(f"{stock}/")
        card = await speaking.card()
        assert card.name == "tickets"
        assert mcp_path(card) == "/v2/mcp"
        assert (await speaking.raw_card())["x-unknown"] == {"kept": True}
        assert await speaking.mcp_url() == f"{stock}/v2/mcp"
        await speaking.aclose()

    run(body())


@pytest.mark.parametrize(
    ("answer", "status", "error"),
    [
        (b"[]", "200 OK", EnvironmentFailedError),
        (b'{"name": ""}', "200 OK", EnvironmentFailedError),
        (b"<html>", "200 OK", EnvironmentFailedError),
        (b"{}", "404 Not Found", NotAdvertisedError),
        (b"{}", "500 Oops", EnvironmentFailedError),
        (b'{"name": "x", "capabilities": 3}', "200 OK", EnvironmentFailedError),
    ],
)
def test_what_is_no_card_is_told_as_what_it_is(answer: bytes, status: str, error: type[Exception]) -> None:
    async def body() -> None:
        async with answering(answer, status=status) as url:
            with pytest.raises(error):
                await client(url).card()

    run(body())


@pytest.mark.parametrize(
    "file",
    [
        {"bytes": "é"},
        {"uri": "http://[::1/x"},
        {"uri": "/a\x00b"},
        {"name": "x"},
        {"bytes": "!", "metadata": [1]},
    ],
    ids=["no ASCII", "no address", "no path", "nothing", "no base64"],
)
def test_an_export_that_can_t_be_read_is_the_servers_fault(file: dict[str, Any], tmp_path: Path) -> None:
    async def body() -> None:
        part = {"kind": "file", "file": file, "metadata": file.get("metadata")}
        with pytest.raises(EnvironmentFailedError):
            await save_part(client("http://127.0.0.1:9"), part, tmp_path, name="export")

    run(body())


@pytest.mark.parametrize("said", ["..", "a/..", "\x00", "\ud800", "x" * 300, 7, ["x"]], ids=ascii)
def test_an_export_whose_name_no_file_can_have_is_named_by_us(said: object, tmp_path: Path) -> None:
    async def body() -> None:
        part = {"kind": "file", "file": {"bytes": "eA==", "name": said, "mimeType": "text/plain"}}
        saved = await save_part(client("http://127.0.0.1:9"), part, tmp_path, name="export")
        assert (saved.name, saved.path.read_bytes()) == ("export.txt", b"x")

    run(body())


def test_half_a_character_comes_back_as_it_was(tmp_path: Path) -> None:
    async def body() -> None:
        half = {"note": "cut \ud83d", "whole": "é"}
        saved = await save_part(client("http://127.0.0.1:9"), {"kind": "data", "data": half}, tmp_path, name="export")
        assert json.loads(saved.path.read_bytes()) == half
        assert json_bytes(half) == '{"note":"cut \\ud83d","whole":"é"}'.encode()

    run(body())


def test_a_card_whose_paths_are_none_is_the_servers_fault() -> None:
    async def body() -> None:
        card = b'{"name":"x","additionalInterfaces":[{"transport":"mcp","url":"/a\\u0000b"}]}'
        async with answering(card) as url:
            with pytest.raises(EnvironmentFailedError, match="no address"):
                await client(url).tools()

    run(body())


def test_data_goes_in_and_out(stock: str) -> None:
    async def body() -> None:
        speaking = client(stock)
        await speaking.load(items(a=3, b=4))
        await speaking.add(items(c=5))
        assert held(await speaking.get()) == {"a": 3, "b": 4, "c": 5}
        await speaking.load(items(d=1))
        assert held(await speaking.get()) == {"d": 1}
        await speaking.reset()
        assert held(await speaking.get()) == {}

    run(body())


def test_a_handler_that_fails_is_told_with_the_servers_own_code(stock: str) -> None:
    async def body() -> None:
        speaking = client(stock)
        assert await speaking.invoke("urn:agentenv:set-failures/v1", {"add": 1}) == {"add": 1}
        with pytest.raises(EnvironmentFailedError, match="the shelf broke") as told:
            await speaking.add(items(a=1))
        assert told.value.reason == "add_failed"
        assert await speaking.invoke("urn:agentenv:set-failures/v1", method="get") == {"add": 0}

    run(body())


def test_an_extensions_error_keeps_what_the_server_said_of_it(stock: str) -> None:
    async def body() -> None:
        with pytest.raises(EnvironmentFailedError) as told:
            await client(stock).invoke("urn:agentenv:set-failures/v1", {"add": "many"})
        assert (told.value.reason, told.value.status, told.value.applied, told.value.hint) == ("invalid_params", 400, "no", "give add")
        with pytest.raises(NotAdvertisedError, match="does not advertise"):
            await client(stock).invoke("urn:agentenv:clock/v1")
        with pytest.raises(NotAdvertisedError, match="it has set, get"):
            await client(stock).invoke("urn:agentenv:set-failures/v1", method="put")

    run(body())


def test_a_call_is_repeated_only_where_the_server_says_that_nothing_happened() -> None:
    card = {"name": "x", "capabilities": {"extensions": [{"uri": "urn:x", "params": {"endpoint": "/x"}}]}}

    def refusal(applied: str) -> bytes:
        return json.dumps({"ok": False, "error": {"code": "busy", "message": "busy", "retryable": True, "applied": applied}}).encode()

    async def answered(applied: str) -> int:
        async with answering(refusal(applied), refusal(applied), b"{}", status="503 Busy") as url:
            with pytest.raises(EnvironmentFailedError) as told:
                await client(url, card=card).invoke("urn:x")
        return told.value.status if told.value.reason == "busy" else 0

    assert run(answered("unknown")) == 503
    assert run(answered("no")) == 0  # the third answer was reached


def test_nobody_there_is_told_as_nothing_having_happened() -> None:
    async def body() -> None:
        with pytest.raises(EnvironmentUnreachableError) as told:
            await client(f"http://127.0.0.1:{free_port()}").card()
        assert told.value.applied == "no"

    run(body())


def test_an_answer_that_breaks_off_after_the_request_arrived_is_never_repeated() -> None:
    card = {"name": "x", "capabilities": {"operations": ["data/add"]}}

    async def body() -> None:
        async with answering(b"", b'{"jsonrpc":"2.0","id":1,"result":{}}') as url:
            with pytest.raises(EnvironmentUnreachableError) as told:
                await client(url, card=card).add(items(a=1))
        assert told.value.applied == "unknown"

    run(body())


def test_a_server_that_never_answers_costs_no_more_than_its_time() -> None:
    async def body() -> None:
        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()

        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(DeadlineError):
            await client(url, limits=replace(LIMITS, environment_card_seconds=0.2)).card()
        server.close()

    run(body())


def test_an_operation_that_the_card_does_not_list_is_refused_without_asking(stock: str) -> None:
    async def body() -> None:
        speaking = client(stock, card={"name": "tickets", "capabilities": {"operations": ["data/get"]}})
        with pytest.raises(NotAdvertisedError, match="does not serve data/reset"):
            await speaking.reset()
        assert await client(stock, card={"name": "tickets"}).operations() == ("data/reset", "data/add", "data/get")

    run(body())


def test_tools_of_every_page_come_as_the_server_describes_them(stock: str) -> None:
    async def body() -> None:
        async with client(stock).mcp() as session:
            tools = await session.tools()
            assert [tool["name"] for tool in tools] == [f"tickets_{name}" for name in ("count", "take", "echo", "who", "die")]
            assert tools[0]["annotations"] == {"readOnlyHint": True}
            assert session.server["protocolVersion"] == "2025-06-18"

    run(body())


def test_arguments_and_results_arrive_as_they_are(stock: str) -> None:
    odd = {"text": '{"a": 1}', "null": None, "deep": [[[{"ü": "\u2028\x85"}]]], "_x": "null", "model_config": 1.5}

    async def body() -> None:
        async with client(stock).mcp() as session:
            result = await session.call("tickets_echo", odd)
            assert json.loads(result["content"][0]["text"]) == odd
            assert (await session.call("tickets_take", {"sku": "none", "qty": 1}))["isError"] is True
            with pytest.raises(EnvironmentFailedError, match="unknown tool"):
                await session.call("nothing", {})

    run(body())


def test_the_role_of_a_direct_caller_goes_along(stock: str) -> None:
    async def body() -> None:
        result = await client(stock, role="boss").call("tickets_who")
        assert json.loads(result["content"][0]["text"]) == "boss"

    run(body())


def test_a_forgotten_session_is_told_as_lost(stock: str) -> None:
    async def body() -> None:
        speaking = client(stock)
        async with speaking.mcp() as session:
            async with speaking.request("DELETE", "/v2/mcp", headers={"mcp-session-id": str(session._session)}):
                pass
            with pytest.raises(SessionLostError):
                await session.call("tickets_who", {})

    run(body())


messages = st.lists(st.dictionaries(st.text(max_size=5), st.text(max_size=20), max_size=3), max_size=5)


@given(messages, st.sampled_from([b"\n", b"\r\n"]), st.integers(1, 64))
def test_an_event_stream_is_read_the_same_however_it_is_cut(sent: list[dict[str, str]], line_end: bytes, size: int) -> None:
    whole = b"".join(
        b"event: message" + line_end + b"data: " + json.dumps(each, ensure_ascii=False).encode() + line_end + line_end for each in sent
    )

    async def body() -> list[object]:
        async def pieces() -> AsyncIterator[bytes]:
            for at in range(0, len(whole), size):
                yield whole[at : at + size]

        return [message async for message in events(httpx.Response(200, content=pieces()), 1 << 20)]

    assert asyncio.run(body()) == sent


GIVEN_UP = """
import asyncio, sys
from contextlib import AsyncExitStack, asynccontextmanager
import httpx
from agent_env_sdk.mcp_session import McpSession as SdkSession
from agent_env.environments.mcp_client import McpSession

@asynccontextmanager
async def session(kind, url):
    async with httpx.AsyncClient(timeout=60, trust_env=False) as http:
        made = McpSession(url, http, name="s") if kind is McpSession else SdkSession(http, url, {})
        await made.open()
        try:
            yield made
        finally:
            await (made.aclose() if kind is McpSession else made.close())

async def main(stock, closed):
    begun = asyncio.Event()
    async def hang(reader, writer):
        begun.set()
        await reader.read(-1)
        writer.close()
    hanging = await asyncio.start_server(hang, "127.0.0.1", 0)
    url = "http://127.0.0.1:%d/mcp" % hanging.sockets[0].getsockname()[1]
    for kind in (McpSession, SdkSession):
        stack = AsyncExitStack()
        opened = await asyncio.create_task(stack.enter_async_context(session(kind, stock)))
        print(len(await opened.tools()))
        await asyncio.create_task(stack.aclose())
        try:
            async with session(kind, closed):
                pass
        except Exception as error:
            print(type(error).__name__, "Connection refused" in str(error))
        begun.clear()
        opening = asyncio.create_task(AsyncExitStack().enter_async_context(session(kind, url)))
        await begun.wait()
        opening.cancel()
        try:
            await opening
        except BaseException as error:
            print(type(error).__name__)
    hanging.close()

asyncio.run(main(*sys.argv[1:]))
"""


def test_gw15_a_session_that_fails_or_is_given_up_tells_its_cause_alone_and_may_be_ended_by_another_task(stock: str) -> None:
    given = [f"{stock}/v2/mcp", f"http://127.0.0.1:{free_port()}/mcp"]
    done = subprocess.run([sys.executable, "-c", GIVEN_UP, *given], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        *("5", "EnvironmentUnreachableError True", "CancelledError"),
        *("5", "ConnectError False", "CancelledError"),  # of the SDK's: the library's own
    ]


def test_an_event_that_is_too_large_ends_the_reading() -> None:
    async def body() -> None:
        answer = httpx.Response(200, content=b"data: " + b"x" * 5000 + b"\n\n")
        with pytest.raises(EnvironmentFailedError, match="more than 1000 bytes"):
            _ = [message async for message in events(answer, 1000)]

    run(body())


@pytest.mark.parametrize(("size", "seconds"), [(None, 900), (0, 900), (10**9, 2100), (10**8, 1020), (10**10, 3600)])
def test_a_load_may_take_as_long_as_the_reference_lets_it(size: int | None, seconds: float) -> None:
    assert load_seconds(size, DEFAULT_LIMITS) == seconds


def test_the_stock_room_is_of_the_standard_library_alone() -> None:
    text = Path(HERE / "server/server.py").read_text()
    assert not [line for line in text.splitlines() if line.startswith(("import agent", "from agent", "import mcp", "from mcp"))]
