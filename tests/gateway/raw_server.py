"""An MCP server without any SDK, and every way to misbehave: `python -m tests.gateway.raw_server '{json}'`.

What it saw is at GET /seen; POST /behave changes how it answers from then on.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from dataclasses import dataclass, field
from typing import Any

import uvicorn

VERSION = "2025-06-18"
OTHERS = ("prompts/get", "resources/read", "resources/subscribe", "resources/unsubscribe", "completion/complete", "logging/setLevel")


@dataclass
class State:
    name: str = "raw"
    path: str = "/mcp"
    tools: list[dict[str, Any]] = field(default_factory=list)
    prompts: list[dict[str, Any]] = field(default_factory=list)
    resources: list[dict[str, Any]] = field(default_factory=list)
    templates: list[dict[str, Any]] = field(default_factory=list)
    offers: list[str] = field(default_factory=list)
    """Further capabilities."""
    released: asyncio.Event = field(default_factory=asyncio.Event)
    """Calls that are held may go on."""
    asked: dict[str, asyncio.Future[dict[str, Any]]] = field(default_factory=dict)
    behaviour: dict[str, Any] = field(default_factory=dict)
    card: dict[str, Any] | None = None
    sessions: set[str] = field(default_factory=set)
    seen: list[dict[str, Any]] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    cancelled: dict[Any, asyncio.Event] = field(default_factory=dict)
    streams: set[asyncio.Queue[dict[str, Any] | str]] = field(default_factory=set)
    page: int = 100

    def capabilities(self) -> dict[str, Any]:
        said: dict[str, Any] = {name: {} for name in self.offers}
        said["tools"] = {"listChanged": True}
        if self.prompts:
            said["prompts"] = {"listChanged": True}
        if self.resources or self.templates:
            said["resources"] = {"listChanged": True, "subscribe": True}
        return said


LISTS = {
    "tools": ("tools/list", "tools"),
    "prompts": ("prompts/list", "prompts"),
    "resources": ("resources/list", "resources"),
    "templates": ("resources/templates/list", "resourceTemplates"),
}


def prompt(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "description": f"Speaks of {name}.", "arguments": [{"name": "topic"}], **more}


def resource(uri: str, **more: Any) -> dict[str, Any]:
    return {"uri": uri, "name": uri, "mimeType": "text/plain", **more}


def template(uri: str, **more: Any) -> dict[str, Any]:
    return {"uriTemplate": uri, "name": uri, **more}


def tool(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "description": f"Does {name}.", "inputSchema": {"type": "object", "properties": {}}, **more}


class Server:
    def __init__(self, state: State) -> None:
        self.state = state

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        headers = {k.decode(): v.decode("latin-1") for k, v in scope["headers"]}
        method, path = scope["method"], scope["path"]
        state = self.state
        if path == "/seen":
            streams = len(state.streams)
            await answer(send, 200, {"seen": state.seen, "counts": state.counts, "sessions": len(state.sessions), "streams": streams})
        elif path == "/behave":
            change = json.loads(body)
            state.released.clear() if "hold" in str(change.get("call", "hold")) else state.released.set()
            for kind in set(LISTS) & set(change):
                setattr(state, kind, change.pop(kind))
            if change.pop("forget_sessions", False):
                state.sessions.clear()
            for note in change.pop("tell", []):
                for stream in state.streams:
                    stream.put_nowait(note)
            state.behaviour.update(change)
            await answer(send, 200, {})
        elif path.endswith("/.well-known/agent-env.json"):
            await (answer(send, 200, state.card) if state.card else answer(send, 404, {}))
        elif path == state.path:
            await self.mcp(method, headers, body, receive, send)
        elif path.endswith("/endless"):
            await self.endless(receive, send)
        else:
            await self.rest(scope, headers, body, send)

    async def endless(self, receive: Any, send: Any) -> None:
        counts = self.state.counts
        counts["endless"] = counts.get("endless", 0) + 1
        gone = asyncio.ensure_future(gone_from(receive))
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})
        await gone
        counts["endless"] -= 1

    async def rest(self, scope: Any, headers: dict[str, str], body: bytes, send: Any) -> None:
        seen = {
            "method": scope["method"],
            "raw_path": scope["raw_path"].decode("latin-1"),
            "query": scope["query_string"].decode("latin-1"),
            "headers": [[k.decode("latin-1"), v.decode("latin-1")] for k, v in scope["headers"]],
            "body": body.decode("latin-1"),
        }
        self.state.seen.append({"rest": seen})
        fields = [(b"content-type", b"application/json"), (b"set-cookie", b"a=1"), (b"set-cookie", b"b=2"), (b"x-own", b"yes")]
        await send({"type": "http.response.start", "status": 200, "headers": fields})
        await send({"type": "http.response.body", "body": json.dumps(seen).encode()})

    async def mcp(self, method: str, headers: dict[str, str], body: bytes, receive: Any, send: Any) -> None:
        state, how = self.state, self.state.behaviour
        session = headers.get("mcp-session-id")
        if method == "GET":
            await self.stream(session, receive, send)
            return
        if method == "DELETE":
            state.sessions.discard(session or "")
            await answer(send, 200, {})
            return
        text = body.decode()
        message = json.loads(text)
        kind = message.get("method", "")
        state.counts[kind] = state.counts.get(kind, 0) + 1
        state.seen.append({"raw": text, "headers": headers} if how.get("keep_raw", True) else {"method": kind})
        del state.seen[:-2000]
        if kind == "initialize":
            if how.get("hang_initialize"):
                await asyncio.Event().wait()
            made = f"s{len(state.sessions)}-{os.getpid()}-{state.counts[kind]}"
            state.sessions.add(made)
            result = {
                "protocolVersion": VERSION,
                "capabilities": state.capabilities(),
                "serverInfo": {"name": state.name, "version": "1"},
            }
            extra = [] if how.get("stateless") else [(b"mcp-session-id", made.encode())]
            await self.reply(send, message, json.dumps(result), extra)
            for note in how.get("after_initialize", []):
                for stream in state.streams:
                    stream.put_nowait(note)
            return
        if not how.get("stateless") and session not in state.sessions:
            await answer(
                send, how.get("lost_status", 404), {"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": "no session"}}
            )
            return
        if "method" not in message:
            state.asked.pop(str(message["id"])).set_result(message)
        if "id" not in message or "method" not in message:
            if kind == "notifications/cancelled":
                state.cancelled.setdefault(message["params"]["requestId"], asyncio.Event()).set()
            await send({"type": "http.response.start", "status": 202, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        if kind in how.get("refuses", []):
            await answer(send, 200, {"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32601, "message": "no"}})
            return
        listing = next((name for name, (listed, _) in LISTS.items() if listed == kind), None)
        if listing is not None:
            items = getattr(state, listing)
            start = int((message.get("params") or {}).get("cursor") or 0)
            after = start + state.page
            result = {LISTS[listing][1]: items[start:after], **({"nextCursor": str(after)} if after < len(items) else {})}
            await self.reply(send, message, json.dumps(result, ensure_ascii=False))
        elif kind in OTHERS:
            await self.offer(send, message)
        elif kind == "tools/call":
            await self.call(send, text, message)
        else:
            await self.reply(send, message, "{}")

    async def offer(self, send: Any, message: dict[str, Any]) -> None:
        """What is no tool: it says who serves it, and what it was asked."""
        state, params = self.state, message.get("params") or {}
        match message["method"]:
            case "prompts/get":
                said = {"type": "text", "text": json.dumps([state.name, params["name"], params.get("arguments")])}
                result: dict[str, Any] = {"messages": [{"role": "user", "content": said}]}
            case "resources/read":
                known = {item["uri"] for item in state.resources} | set(state.behaviour.get("unlisted", []))
                if not known & {params["uri"]} and not state.templates:
                    error = {"code": -32002, "message": "Resource not found", "data": {"uri": params["uri"]}}
                    await answer(send, 200, {"jsonrpc": "2.0", "id": message["id"], "error": error})
                    return
                result = {"contents": [{"uri": params["uri"], "text": f"{state.name}:{params['uri']}"}]}
            case "completion/complete":
                result = {"completion": {"values": [state.name, json.dumps(params["ref"])]}}
            case _:
                result = {}
        await self.reply(send, message, json.dumps(result))

    async def ask(self, send: Any, question: dict[str, Any], *, aside: bool) -> dict[str, Any]:
        """Asks the client, in the answer to its own request or on the server's stream, and gives what it answered."""
        state = self.state
        number = f"q{len(state.seen)}-{os.getpid()}"
        state.asked[number] = waiting = asyncio.get_running_loop().create_future()
        message = {"jsonrpc": "2.0", "id": number, **question}
        if aside:
            for stream in state.streams:
                stream.put_nowait(message)
        else:
            await send({"type": "http.response.body", "body": event(json.dumps(message)), "more_body": True})
        return await waiting

    async def stream(self, session: str | None, receive: Any, send: Any) -> None:
        state = self.state
        if state.behaviour.get("no_stream"):
            await answer(send, 405, {})
            return
        if session not in state.sessions and not state.behaviour.get("stateless"):
            await answer(send, 404, {})
            return
        queue: asyncio.Queue[dict[str, Any] | str] = asyncio.Queue()
        state.streams.add(queue)
        gone = asyncio.ensure_future(gone_from(receive))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
            await send({"type": "http.response.body", "body": b": here\n\n", "more_body": True})
            while True:
                item = asyncio.ensure_future(queue.get())
                await asyncio.wait([item, gone], return_when=asyncio.FIRST_COMPLETED)
                if gone.done():
                    item.cancel()
                    return
                told = item.result()
                text = told if isinstance(told, str) else json.dumps(told)
                await send({"type": "http.response.body", "body": event(text), "more_body": True})
        finally:
            state.streams.discard(queue)

    async def call(self, send: Any, text: str, message: dict[str, Any]) -> None:
        state, how = self.state, self.state.behaviour
        state.counts["executed"] = state.counts.get("executed", 0) + 1
        name = message["params"]["name"]
        arguments = message["params"].get("arguments")
        match how.get("call"):
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "hang":
                await state.cancelled.setdefault(message["id"], asyncio.Event()).wait()
                return
            case "html":
                await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/html")]})
                await send({"type": "http.response.body", "body": b"<h1>It works</h1>"})
                return
            case "error":
                await answer(
                    send, 200, {"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32042, "message": "own", "data": {"x": [1]}}}
                )
                return
            case "http_error":
                await answer(send, 500, {"detail": "broken"})
                return
            case "cut":
                await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
                await send({"type": "http.response.body", "body": b": begun\n\n", "more_body": True})
                raise ConnectionError("cut on purpose")
            case "huge":
                await self.reply(send, message, json.dumps({"content": [{"type": "text", "text": "x" * int(how["size"])}]}))
                return
            case {"slow": seconds}:
                await asyncio.sleep(seconds)
            case "hold":
                await state.released.wait()
            case {"hold_on": held} if held == name:
                await state.released.wait()
            case {"hang_on": hanging} if hanging == name:
                await asyncio.Event().wait()
            case {"ask": question, **more}:
                head = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}
                await send(head)
                answered = await self.ask(send, question, aside=bool(more.get("aside")))
                said = {"type": "text", "text": json.dumps({key: answered.get(key) for key in ("result", "error")})}
                done = {"jsonrpc": "2.0", "id": message["id"], "result": {"content": [said]}}
                await send({"type": "http.response.body", "body": event(json.dumps(done)), "more_body": False})
                return
            case {"raw": raw}:
                await self.reply(send, message, raw)
                return
            case {"result": result}:
                await self.reply(send, message, json.dumps(result))
                return
        raw = raw_arguments(text) if how.get("echo") == "raw" else json.dumps(arguments)
        result = json.dumps({"content": [{"type": "text", "text": f"{state.name}.{name}"}], "structuredContent": {"pid": os.getpid()}})
        if how.get("echo") == "raw":
            result = f'{{"content":[],"structuredContent":{{"raw":{json.dumps(raw)},"value":{raw}}},"isError":false}}'
        await self.reply(send, message, result)

    async def reply(self, send: Any, message: dict[str, Any], result: str, extra: Any = ()) -> None:
        how = self.state.behaviour
        text = f'{{"jsonrpc":"2.0","id":{json.dumps(message["id"])},"result":{result}}}'
        if not how.get("sse") or (message["method"] == "initialize" and how.get("sse") != "all"):
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json"), *extra]})
            await send({"type": "http.response.body", "body": text.encode()})
            return
        await send(
            {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream; charset=utf-8"), *extra]}
        )
        for line in how.get("stray", []):
            await send({"type": "http.response.body", "body": event(line), "more_body": True})
        if message["method"] == "tools/call":
            token = (message["params"].get("_meta") or {}).get("progressToken")
            for step in range(how.get("progress", 0)):
                params = {"progressToken": token, "progress": step}
                note = {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}
                await send({"type": "http.response.body", "body": event(json.dumps(note)), "more_body": True})
            for note in how.get("during", []):
                await send({"type": "http.response.body", "body": event(json.dumps(note)), "more_body": True})
        await send({"type": "http.response.body", "body": event(text), "more_body": False})


async def gone_from(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue


def raw_arguments(text: str) -> str:
    """The arguments exactly as they arrived: cut out by position, by a parser that is not the gateway's."""
    decoder = json.JSONDecoder()
    place = text.index('"params"')
    start = text.index('"arguments"', place)
    begin = text.index("{", start)
    _, end = decoder.raw_decode(text, begin)
    return text[begin:end]


def event(text: str) -> bytes:
    return b"event: message\r\n" + b"".join(b"data: " + line.encode() + b"\r\n" for line in text.splitlines() or [""]) + b"\r\n"


async def answer(send: Any, status: int, value: Any) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": json.dumps(value).encode()})


def main() -> None:
    given = json.loads(sys.argv[1])
    port = given.pop("port", 0)
    state = State(**given)
    config = uvicorn.Config(Server(state), host="127.0.0.1", port=port, log_level="critical", lifespan="off", ws="none", loop="asyncio")
    server = uvicorn.Server(config)
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", port))
    sock.listen(2048)
    print(json.dumps({"port": sock.getsockname()[1]}), flush=True)
    asyncio.run(server.serve(sockets=[sock]))


if __name__ == "__main__":
    main()
