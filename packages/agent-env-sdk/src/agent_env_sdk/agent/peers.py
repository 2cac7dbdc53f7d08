"""The tools by which an agent speaks to its peers: an MCP server on the agent's own loopback, named `peer_agents`."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from agent_env_sdk.hosting import JsonAnswer, whole_body
from agent_env_sdk.wire import a2a_v1
from agent_env_sdk.wire.a2a import CARD_PATHS, VERSION_HEADER, AgentCard, Method, Task, interfaces, read_ending, read_update, rpc_address
from agent_env_sdk.wire.agent_bodies import Peer
from agent_env_sdk.wire.errors import AgentEnvError
from agent_env_sdk.wire.names import MCP_PROTOCOL_VERSION
from agent_env_sdk.wire.rpc import METHOD_NOT_FOUND, PARSE_ERROR, RpcError, read_answer, request

from .registrations import Registrations

if TYPE_CHECKING:
    import httpx

PEERS_SERVER: Final = "peer_agents"
PEERS_PATH: Final = "/ext/peer-agents/mcp"
LONGEST_CALL_SECONDS: Final = 50.0
"""How long a tool may wait for a peer's answer: clients of MCP give up after a minute."""
USUAL_CALL_SECONDS: Final = 45.0
REQUEST_SECONDS: Final = 30.0
FIRST_PAUSE_SECONDS: Final = 0.1
LONGEST_PAUSE_SECONDS: Final = 5.0
_VERSIONS: Final = (MCP_PROTOCOL_VERSION, "2025-06-18", "2025-03-26", "2024-11-05")
_LOOPBACK: Final = ("127.", "::1", "::ffff:127.")
_MAX_REQUEST: Final = 64 * 1024 * 1024

_NAME: Final = {"name": {"type": "string", "description": "The peer's name."}}
_TASK: Final = {"task_id": {"type": "string", "description": "The task, as peer_start_task or peer_send_message told it."}}
_SAID: Final = {
    "prompt": {"type": "string", "description": "What is said."},
    "parts": {"type": "array", "items": {"type": "object"}, "description": "A2A parts, in place of a prompt."},
    "context_id": {"type": "string", "description": "The conversation that goes on; a new one when it is left out."},
}
_WAIT: Final = {"timeout_seconds": {"type": "number", "description": "How long to wait for the answer: 45 when left out, 50 at most."}}
_TOOLS: Final[tuple[tuple[str, str, Mapping[str, Any], tuple[str, ...]], ...]] = (
    ("peer_list", "Lists the agents that you may speak to.", {}, ()),
    ("peer_get_card", "Tells what a peer says of itself.", _NAME, ("name",)),
    ("peer_send_message", "Says something to a peer and waits for its answer.", {**_NAME, **_SAID, **_WAIT}, ("name",)),
    ("peer_start_task", "Gives a peer a task without waiting for it.", {**_NAME, **_SAID}, ("name",)),
    ("peer_get_task", "Tells how a peer's task stands.", {**_NAME, **_TASK}, ("name", "task_id")),
    ("peer_cancel_task", "Ends a peer's task.", {**_NAME, **_TASK}, ("name", "task_id")),
)


_LISTED: Final[dict[str, Any]] = {
    "tools": [
        {"name": name, "description": said, "inputSchema": {"type": "object", "properties": dict(fields), "required": list(needed)}}
        for name, said, fields, needed in _TOOLS
    ]
}


class PeerError(Exception):
    """A tool can't do what it was asked; the message says why."""


class Peers:
    """The tools of one agent's peers.

    Args:
        registered: Where the peers are.
    """

    def __init__(self, registered: Registrations) -> None:
        self._registered = registered
        self._tools: Mapping[str, Callable[[Mapping[str, Any]], Awaitable[Any]]] = {
            "peer_list": self._list, "peer_get_card": self._card, "peer_send_message": self._send, "peer_start_task": self._start,
            "peer_get_task": self._get, "peer_cancel_task": self._cancel,
        }  # fmt: skip

    def routes(self) -> tuple[BaseRoute, ...]:
        """Where the tools are served."""
        return (Route(PEERS_PATH, _Mcp(self._called).__call__, methods=["POST", "DELETE"]),)

    async def _called(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        import httpx

        tool = self._tools.get(name)
        try:
            if tool is None:
                raise PeerError(f"there is no tool {name!r}")
            text, failed = json.dumps(await tool(arguments), ensure_ascii=False), False
        except (PeerError, RpcError, ValidationError, httpx.HTTPError) as error:
            told = str(error) if isinstance(error, PeerError | RpcError) else f"the peer can't be reached: {type(error).__name__}"
            text, failed = json.dumps({"error": told}), True
        return {"content": [{"type": "text", "text": text}], "isError": failed}

    async def _list(self, _: Mapping[str, Any]) -> Any:
        return {"peers": [{"name": each.name, "description": each.description} for each in self._registered.peers]}

    async def _card(self, arguments: Mapping[str, Any]) -> Any:
        peer = self._peer(arguments)
        async with _http(peer) as http:
            return peer.card or (await http.get(f"{peer.url.rstrip('/')}{CARD_PATHS[1]}")).raise_for_status().json()

    async def _start(self, arguments: Mapping[str, Any]) -> Any:
        peer = self._peer(arguments)
        async with _http(peer) as http:
            return _told(await _Wire(peer, http).send(arguments))

    async def _send(self, arguments: Mapping[str, Any]) -> Any:
        peer, asked = self._peer(arguments), arguments.get("timeout_seconds", USUAL_CALL_SECONDS)
        if not isinstance(asked, int | float) or not asked > 0:
            raise PeerError("timeout_seconds must be a number above 0")
        until, pause = time.monotonic() + min(float(asked), LONGEST_CALL_SECONDS), FIRST_PAUSE_SECONDS
        async with _http(peer) as http:
            wire = _Wire(peer, http)
            task = await wire.send(arguments)
            while not task.status.state.settled and (left := until - time.monotonic()) > 0:
                await asyncio.sleep(min(pause, left))  # the peer may know no stream
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
                task = await wire.ask(Method.GET, {"id": task.id})
        return _told(task)

    async def _get(self, arguments: Mapping[str, Any]) -> Any:
        return await self._of_task(Method.GET, arguments)

    async def _cancel(self, arguments: Mapping[str, Any]) -> Any:
        return await self._of_task(Method.CANCEL, arguments)

    async def _of_task(self, method: Method, arguments: Mapping[str, Any]) -> Any:
        peer, task_id = self._peer(arguments), arguments.get("task_id")
        if not isinstance(task_id, str) or not task_id:
            raise PeerError("task_id must name a task")
        async with _http(peer) as http:
            return _told(await _Wire(peer, http).ask(method, {"id": task_id}))

    def _peer(self, arguments: Mapping[str, Any]) -> Peer:
        found = next((each for each in self._registered.peers if each.name == arguments.get("name")), None)
        if found is None:
            names = ", ".join(each.name for each in self._registered.peers) or "none"
            raise PeerError(f"there is no peer {arguments.get('name')!r}; there are: {names}")
        return found


class _Wire:
    """Speaks to a peer in a version that both know, the older one first, since more agents speak it."""

    def __init__(self, peer: Peer, http: httpx.AsyncClient) -> None:
        self._peer, self._http = peer, http

    async def send(self, arguments: Mapping[str, Any]) -> Task:
        prompt, parts = arguments.get("prompt"), arguments.get("parts")
        if (prompt is None) == (parts is None) or not isinstance(prompt or "", str) or not isinstance(parts or [], list):
            raise PeerError("say either prompt, a text, or parts, a list")
        message: dict[str, Any] = {"messageId": str(uuid.uuid4()), "role": "user", "parts": parts or [{"kind": "text", "text": prompt}]}
        if arguments.get("context_id"):
            message["contextId"] = arguments["context_id"]
        return await self.ask(Method.SEND, {"message": {"kind": "message", **message}, "configuration": {"blocking": False}})

    async def ask(self, method: Method, params: Mapping[str, Any]) -> Task:
        base = self._peer.url.rstrip("/")
        raw = self._peer.card or (await self._http.get(f"{base}{CARD_PATHS[1]}")).raise_for_status().json()
        offered = interfaces(AgentCard.model_validate(raw))
        interface = next((each for each in offered if not each.is_v1), offered[0])
        name: str = a2a_v1.NAMES[method] if interface.is_v1 else method.value
        headers = {"content-type": "application/json", **({VERSION_HEADER: "1.0"} if interface.is_v1 else {})}
        sent = _as_v1(params) if interface.is_v1 else params
        body = json.dumps(request(name, sent)).encode()
        answer = await self._http.post(rpc_address(base, interface.url), content=body, headers=headers)
        result = read_answer(answer.raise_for_status().json())
        update = a2a_v1.read(result) if interface.is_v1 else read_update(result)
        if not isinstance(update, Task):
            raise PeerError("the peer answered with no task")
        return update


def _as_v1(params: Mapping[str, Any]) -> dict[str, Any]:
    if "message" not in params:
        return dict(params)
    from agent_env_sdk.wire.a2a import Message

    message = a2a_v1.dump_message(Message.model_validate(params["message"]))
    return {"message": message, "configuration": {"returnImmediately": True}}


def _http(peer: Peer) -> httpx.AsyncClient:
    import httpx

    return httpx.AsyncClient(timeout=REQUEST_SECONDS, headers=dict(peer.headers or {}))


def _told(task: Task) -> dict[str, Any]:
    """What a model is told of a task."""
    parts = task.status.message.parts if task.status.message else [part for each in task.artifacts or [] for part in each.parts]
    end = read_ending(parts)
    told = {
        "task_id": task.id,
        "context_id": task.context_id,
        "state": task.status.state.value,
        "settled": task.status.state.settled,
        "text": end.text,
        "structured_output": end.structured_output,
        "error": end.error_message,
    }
    return {name: value for name, value in told.items() if value is not None}


class _Mcp:
    """MCP over streamable HTTP without sessions, as JSON; for this machine's own programs alone."""

    def __init__(self, call: Callable[[str, Mapping[str, Any]], Awaitable[dict[str, Any]]]) -> None:
        self._call = call

    async def __call__(self, request: Request) -> Response:
        if request.client is None or not request.client.host.startswith(_LOOPBACK):
            return JsonAnswer({"error": {"code": "forbidden", "message": "for the agent itself alone"}}, 403)
        if request.method == "DELETE":
            return Response(status_code=200)
        asked: Any = None
        try:
            asked = json.loads(await whole_body(request, _MAX_REQUEST))
            if asked.get("id") is None:
                return Response(status_code=202)
            answer = {"result": await self._answer(str(asked.get("method")), asked.get("params") or {})}
        except (ValueError, AttributeError, AgentEnvError):
            answer, asked = {"error": {"code": PARSE_ERROR, "message": "Parse error"}}, {}
        except LookupError as error:
            answer = {"error": {"code": METHOD_NOT_FOUND, "message": f"Method not found: {error}"}}
        return JsonAnswer({"jsonrpc": "2.0", "id": asked.get("id"), **answer})

    async def _answer(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        match method:
            case "initialize":
                asked = params.get("protocolVersion")
                return {
                    "protocolVersion": asked if asked in _VERSIONS else MCP_PROTOCOL_VERSION,
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": PEERS_SERVER, "version": "1"},
                }
            case "ping":
                return {}
            case "tools/list":
                return _LISTED
            case "tools/call":
                return await self._call(str(params.get("name")), params.get("arguments") or {})
            case _:
                raise LookupError(method)
