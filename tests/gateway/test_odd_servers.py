"""Servers that send what none should: nobody waits for them, nobody else is harmed, and once they are well they are found again."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from agent_env.gateway import sse
from agent_env.gateway.backend import Backend
from agent_env.gateway.child import Child
from agent_env.gateway.config import ServerConfig
from agent_env.gateway.defaults import GatewayLimits
from agent_env.gateway.hearing import Hearing
from agent_env.gateway.nursery import nursery
from agent_env.gateway.session import Session
from tests.agents.servers import until
from tests.busy import within
from tests.gateway.raw_server import tool

Message = dict[str, Any]
How = Callable[[Message], bytes]
LIMITS = GatewayLimits(reopen_first_seconds=0.01, reopen_max_seconds=0.05, resume_seconds=0.01, list_pages=50)
DEEP = "[" * 100_000 + "]" * 100_000


def answer(body: str, *, status: str = "200 OK", kind: str = "application/json", more: bytes = b"") -> bytes:
    data = body.encode()
    return f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}\r\n".encode() + more + b"\r\n" + data


def result(message: Message, value: object, **how: Any) -> bytes:
    return answer(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": value}), **how)


def initialized(message: Message, version: str = "2025-06-18", session: bytes = b"s") -> bytes:
    value = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": {"name": "odd", "version": "1"}}
    return result(message, value, more=b"Mcp-Session-Id: " + session + b"\r\n")


WELL: dict[str, How] = {
    "card": lambda _: answer("", status="404 Not Found"),
    "GET": lambda _: answer("", status="405 Method Not Allowed"),
    "DELETE": lambda _: answer(""),
    "initialize": initialized,
    "tools/list": lambda message: result(message, {"tools": [tool("t")]}),
    "ping": lambda message: result(message, {}),
}


class Odd:
    """A server that answers by table."""

    def __init__(self, **how: How) -> None:
        self.how: dict[str, How] = {**WELL, **how}
        self.seen: Counter[str] = Counter()
        self.url = ""

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
                length = next((line.partition(":")[2] for line in head.splitlines() if line.startswith("content-length:")), "0")
                body = await reader.readexactly(int(length))
                message: Message = json.loads(body) if body else {}
                verb = head.partition(" ")[0].upper()
                kind = "card" if "well-known" in head else message.get("method", verb)
                self.seen[kind] += 1
                writer.write(self.how[kind](message) if kind in self.how else answer("", status="202 Accepted"))
        except (asyncio.IncompleteReadError, OSError):
            return
        finally:
            writer.close()


@asynccontextmanager
async def behind(odd: Odd) -> AsyncIterator[Child]:
    listening = await asyncio.start_server(odd.connected, "127.0.0.1", 0)
    odd.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    async with listening, nursery() as tasks:
        child = Child(Backend(ServerConfig(name="odd", url=odd.url), LIMITS), LIMITS, tasks, lambda: None)
        tasks.soon(child.run(), "keeping in touch")
        try:
            yield child
        finally:
            await child.close()


def declaring(url: str) -> How:
    interfaces = [{"url": url, "transport": "mcp"}]
    return lambda _: answer(json.dumps({"name": "odd", "additionalInterfaces": interfaces}))


def leading(to: str) -> How:
    return lambda _: answer("", status="307 Temporary Redirect", more=f"Location: {to}\r\n".encode())


def pausing(digits: int) -> How:
    def listed(message: Message) -> bytes:
        listing = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": {"tools": [tool("t")]}})
        return answer(f"retry: {'9' * digits}\n\ndata: {listing}\n\n", kind="text/event-stream")

    return listed


ODD: dict[str, tuple[dict[str, How], str]] = {
    "a card that nests without end": ({"card": lambda _: answer(f'{{"name":"odd","x":{DEEP}}}')}, ""),
    "a card that names no address": ({"card": declaring("http://[::1/mcp")}, ""),
    "a card that names what no path is": ({"card": declaring("/\ud800")}, "not a request that HTTP can carry"),
    "a version that no header takes": ({"initialize": lambda message: initialized(message, "€")}, "not a request that HTTP can carry"),
    "a session that no header takes": ({"initialize": lambda message: initialized(message, session=b"\xff")}, "HTTP can carry"),
    "a redirect to no address": ({"initialize": leading("http://[::1/mcp")}, "redirects to what is no address"),
    "a pause of 400 digits": ({"tools/list": pausing(400)}, ""),
    "a pause of 5000 digits": ({"tools/list": pausing(5000)}, ""),
    "pages in a circle": ({"tools/list": lambda message: result(message, {"tools": [], "nextCursor": "same"})}, "in a circle"),
    "no list": ({"tools/list": lambda message: result(message, {"tools": 7})}, "gave no list of tools"),
}


@pytest.mark.parametrize("what", ODD)
def test_a_server_that_sends_what_it_should_not_is_told_of_and_found_again(what: str) -> None:
    async def play() -> None:
        how, said = ODD[what]
        odd = Odd(**how)
        async with behind(odd) as child:
            async with asyncio.timeout(within(20)):
                await child.settled.wait()
            if said:
                assert not child.ready
                assert said in (child.error or "")
            odd.how = WELL
            await child.backend.card(fresh=True)
            child.look_again()
            await until(lambda: child.ready and [each.name for each in child.tools] == ["t"])

    asyncio.run(play())


def test_a_server_with_sessions_and_no_stream_of_its_own_keeps_its_session_whatever_it_says_of_the_stream() -> None:
    async def play() -> None:
        odd = Odd(GET=lambda _: answer("no such page", status="404 Not Found"))
        async with behind(odd) as child:
            await until(lambda: odd.seen["GET"] and odd.seen["tools/list"] >= 2)
            assert (await child.request("ping", None, seconds=within(20))).result == "{}"
            assert child.opened == odd.seen["initialize"] == odd.seen["GET"] == 1

    asyncio.run(play())


def test_a_storm_of_questions_is_answered_as_far_as_answers_can_go_out() -> None:
    async def play() -> None:
        told: list[str] = []
        free = asyncio.Event()

        async def tell(_session: Session, message: str) -> None:
            told.append(message)
            await free.wait()

        async with nursery() as tasks:
            hearing = Hearing("odd", tasks, most=3, tell=tell, changed=lambda _: None, updated=lambda _: None)
            session: Any = None

            def ask(numbers: range) -> None:
                for number in numbers:
                    hearing.heard(session, json.dumps({"jsonrpc": "2.0", "id": number, "method": "ping"}), None)

            ask(range(100))
            await until(lambda: len(told) == 3)
            free.set()
            await until(lambda: not len(tasks))
            ask(range(100, 101))
            await until(lambda: len(told) == 4)
            assert [json.loads(message)["id"] for message in told] == [0, 1, 2, 100]

    asyncio.run(play())


def test_a_pause_that_nobody_means_is_none() -> None:
    events = [*sse.EventReader(1 << 20).feed(b"retry: 15\ndata: 1\n\nretry: " + b"9" * 5000 + b"\ndata: 2\n\n")]
    assert [(event.data, event.retry_milliseconds) for event in events] == [("1", 15), ("2", None)]
