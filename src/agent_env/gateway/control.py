"""The routes of the control door: the reference's, byte for byte in what they take and answer, and ours under `/control`."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from agent_env_sdk.wire import AgentEnvError, ClockError, rpc
from agent_env_sdk.wire.access import Action, denial
from agent_env_sdk.wire.names import CARD_PATH, DISABLE_PATH, ENABLE_PATH, OPERATIONS, RPC_PATH

from agent_env.errors import StorageError
from agent_env.gateway import jsontext
from agent_env.gateway.asgi import Incoming, RequestTooLargeError
from agent_env.gateway.calls import failed_result
from agent_env.gateway.cards import control_card
from agent_env.gateway.catalogue import Entry, summary
from agent_env.gateway.changelog import ChangelogError
from agent_env.gateway.exchange import ExchangeError, TooLargeError
from agent_env.gateway.marking import Caller
from agent_env.gateway.session import Fault
from agent_env.gateway.tokens import agent_token, is_role, read_token

if TYPE_CHECKING:
    from agent_env.gateway.core import Gateway

Route = Callable[[Incoming], Awaitable[None]]
GET_TIME = "get_time"


class Control:
    """See the module.

    Args:
        gateway: What is controlled.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.routes: Mapping[tuple[str, str], Route] = {
            ("GET", CARD_PATH): self._card,
            ("POST", RPC_PATH): self._data_plane,
            ("GET", "/state"): self._state,
            ("POST", DISABLE_PATH): self._disable,
            ("POST", ENABLE_PATH): self._enable,
            ("POST", "/triggers/register"): self._register_triggers,
            ("POST", "/triggers/remove"): self._remove_triggers,
            ("POST", "/triggers/clear"): self._clear_triggers,
            ("GET", "/triggers/state"): self._triggers_state,
            ("PUT", "/clock/set-time"): self._set_time,
            ("POST", "/clock/clear"): self._clear_clock,
            ("GET", "/clock/time"): self.time,
            ("GET", "/clock/state"): self._clock_state,
            ("GET", "/trajectory"): self._trajectory,
            ("GET", "/changes"): self._changes,
            ("GET", "/control/health"): self._health,
            ("GET", "/control/children"): self._children,
            ("POST", "/control/children/refresh"): self._refresh,
            ("GET", "/control/journal"): self._journal,
            ("POST", "/control/tokens"): self._token,
            ("POST", "/control/tokens/revoke"): self._revoke,
            ("POST", "/control/drain"): self._drain,
        }

    # the environment as a whole

    async def _card(self, request: Incoming) -> None:
        await request.json(200, await control_card(self._gateway.config.name, self._gateway.backends))

    async def _state(self, request: Incoming) -> None:
        gateway = self._gateway
        await gateway.catalogue.settle(gateway.limits.discovery_seconds)
        entries = gateway.catalogue.entries()
        servers = [
            {"name": child.name, "tools": [summary(entry) for entry in entries if entry.child is child]}
            for child in gateway.catalogue.children
        ]
        await request.json(
            200,
            {
                "mcp_servers": servers,
                "changelog_id": await gateway.calls.position(),
                "roles": gateway.ruling.access.roles(),
                "tool_name_clashes": {name: list(sources) for name, sources in gateway.catalogue.clashes.items()},
            },
        )

    async def _data_plane(self, request: Incoming) -> None:
        gateway = self._gateway
        try:
            body = await request.body(gateway.limits.answer_bytes)
            asked = rpc.read_request(body)
        except RequestTooLargeError as error:
            await request.json(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, {"error": str(error)})
            return
        except rpc.RpcError as error:
            await request.json(200, rpc.failure(error.request_id, error))
            return
        backends = gateway.backends
        if asked.method not in OPERATIONS:
            await request.json(200, rpc.failure(asked.id, rpc.method_not_found(asked.method)))
            return
        if len(backends) != 1:
            message = f"env-level {asked.method} requires exactly one backing server, found {len(backends)}"
            await request.json(200, rpc.failure(asked.id, rpc.RpcError(rpc.SERVER_ERROR, message)))
            return
        try:
            async with (
                asyncio.timeout(gateway.limits.data_seconds),
                backends[0].exchange.request("POST", RPC_PATH, {"Content-Type": "application/json"}, body) as response,
            ):
                answer = await response.read(gateway.limits.answer_bytes)
            json.loads(answer)
        except (ExchangeError, TooLargeError, TimeoutError, ValueError, RecursionError) as error:
            message = f"forwarding {asked.method} to '{backends[0].server.name}' failed: {error or 'it did not answer in time'}"
            await request.json(200, rpc.failure(asked.id, rpc.RpcError(rpc.SERVER_ERROR, message)))
            return
        await request.answer(200, answer, [("content-type", "application/json")])

    # tools, one request each

    async def step(self, request: Incoming, role: str) -> None:
        """`POST /step`, also on the agent door."""
        gateway = self._gateway
        try:
            text = jsontext.decode_utf8(await request.body(gateway.limits.request_bytes))
            members = jsontext.whole_object(text, exact=("action", "tool_name", "arguments"))
        except RequestTooLargeError as error:
            await request.json(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, {"error": str(error)})
            return
        except jsontext.JsonTextError as error:
            await request.json(400, {"error": f"invalid JSON: {error}"})
            return
        match jsontext.string_value(text, members.get("action")):
            case "list_tools":
                await gateway.catalogue.settle(gateway.limits.discovery_seconds)
                tools = [summary(entry) for entry in gateway.catalogue.visible(role, gateway.ruling.access)]
                await request.json(200, {"tools": tools})
            case "call_tool":
                await self._step_call(request, role, text, members)
            case action:
                await request.json(400, {"error": f"unknown action: {action!r}; there are list_tools and call_tool"})

    async def _step_call(self, request: Incoming, role: str, text: str, members: Mapping[str, jsontext.Member]) -> None:
        gateway = self._gateway
        name = jsontext.string_value(text, members.get("tool_name"))
        arguments = jsontext.raw(text, members.get("arguments"))
        if not name:
            await request.json(400, {"error": "missing or invalid 'tool_name'"})
            return
        if arguments in (None, "null"):
            arguments = "{}"
        if arguments[:1] != "{":
            await request.json(400, {"error": "'arguments' must be an object"})
            return
        await gateway.catalogue.settle(gateway.limits.discovery_seconds)
        entry = gateway.catalogue.get(name)
        refusal = self._step_refusal(role, name, entry)
        if refusal is not None or entry is None:
            status, message = refusal or (404, f"Unknown tool: {name}")
            await request.json(status, {"error": message})
            return
        params = f'{{"name":{json.dumps(name)},"arguments":{arguments}}}'
        answer = await gateway.calls.call(Caller(role), entry, params, source="step_api")
        if answer.fault is not None:
            await request.json(504 if answer.fault.fault is Fault.TIMEOUT else 500, {"error": str(answer.fault)})
            return
        result = answer.result or failed_result(f"Error executing tool {name}: {jsontext.value_of(answer.error or 'null')}")
        fields = jsontext.whole_object(result) if result[:1] == "{" else {}
        kept = [result[each.key_start : each.end] for key, each in fields.items() if key not in ("_meta", "changelog_id")]
        if "isError" not in fields:
            kept.append('"isError":false')
        body = "{" + ",".join([*kept, f'"changelog_id":{json.dumps(answer.position)}']) + "}"
        await request.answer(200, body.encode("utf-8", "surrogatepass"), [("content-type", "application/json")])

    def _step_refusal(self, role: str, name: str, entry: Entry | None) -> tuple[int, str] | None:
        gateway = self._gateway
        if gateway.mcp.draining or gateway.calls.in_progress >= gateway.limits.calls:
            return 503, "the gateway is stopping or has too many calls in progress; the call was not made"
        if entry is None and name in gateway.catalogue.clashes:
            return 503, f"tool name clash: '{name}' is served by {', '.join(gateway.catalogue.clashes[name])}"
        if entry is None:
            away = [child.name for child in gateway.catalogue.children if not child.ready]
            return (503, f"Unknown tool: {name}; not discovered: {', '.join(away)}") if away else (404, f"Unknown tool: {name}")
        if not entry.allowed(role, gateway.ruling.access):
            gateway.calls.refused(Caller(role), name)
            return 403, denial(name, role).message
        return None

    # rules

    async def _disable(self, request: Incoming) -> None:
        await self._change_access(request, "disable")

    async def _enable(self, request: Incoming) -> None:
        await self._change_access(request, "enable")

    async def _change_access(self, request: Incoming, action: Action) -> None:
        try:
            body = await request.object_body(self._gateway.limits.request_bytes)
            await request.json(200, await self._gateway.ruling.change_access(action, body))
        except (ValueError, RequestTooLargeError) as error:
            await request.json(400, {"error": str(error)})
        except AgentEnvError as error:
            await request.json(400, {"error": error.message})

    # clock

    async def time(self, request: Incoming) -> None:
        """`GET /clock/time`, also on the agent door: servers ask it."""
        now = self._gateway.ruling.virtual_time()
        await (request.json(200, now) if now else request.json(404, {"ok": False, "error": "clock not armed"}))

    async def _clock_state(self, request: Incoming) -> None:
        await request.json(200, self._clock())

    def _clock(self) -> dict[str, Any]:
        ruling = self._gateway.ruling
        if ruling.clock is None:
            return {"armed": False}
        return {**ruling.clock.state(ruling.real()), "env_get_time_url": self._gateway.config.clock_url}

    async def _set_time(self, request: Incoming) -> None:
        gateway = self._gateway
        serving = [child.name for child in gateway.catalogue.children if any(tool.name == GET_TIME for tool in child.tools)]
        if serving:
            await request.json(409, {"ok": False, "error": f"server '{serving[0]}' serves a tool '{GET_TIME}' of its own"})
            return
        try:
            body = await request.object_body(gateway.limits.request_bytes)
            await gateway.ruling.arm(body.get("virtual_time"), body.get("virtual_seconds_per_real_second"))
        except (ClockError, ValueError, RequestTooLargeError) as error:
            await request.json(400, {"ok": False, "error": str(error)})
            return
        await request.json(200, self._clock())

    async def _clear_clock(self, request: Incoming) -> None:
        await self._gateway.ruling.disarm()
        await request.json(200, {"ok": True, "armed": False})

    # triggers

    async def _register_triggers(self, request: Incoming) -> None:
        await self._triggers(request, self._gateway.triggers.engine().register)

    async def _remove_triggers(self, request: Incoming) -> None:
        await self._triggers(request, self._gateway.triggers.engine().remove)

    async def _clear_triggers(self, request: Incoming) -> None:
        await self._gateway.triggers.engine().clear()
        await request.json(200, {"ok": True})

    async def _triggers_state(self, request: Incoming) -> None:
        await request.json(200, self._gateway.triggers.engine().state())

    async def _triggers(self, request: Incoming, work: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]) -> None:
        try:
            answer = await work(await request.object_body(self._gateway.limits.request_bytes))
        except (ValueError, RequestTooLargeError) as error:
            await request.json(400, {"ok": False, "error": str(error)})
            return
        await request.json(200, answer)

    # what happened

    async def _trajectory(self, request: Incoming) -> None:
        trajectory = self._gateway.trajectory
        await trajectory.flush()
        size, chunks = await asyncio.to_thread(trajectory.parts)
        fields = {"content-type": "application/x-ndjson", "content-length": str(size), "x-trajectory-total-bytes": str(size)}
        await request.start(200, [(key.encode(), value.encode()) for key, value in fields.items()])
        while chunk := await asyncio.to_thread(next, chunks, b""):
            await request.more(chunk)
        await request.more(b"", last=True)

    async def _changes(self, request: Incoming) -> None:
        gateway, limits = self._gateway, self._gateway.limits
        query = parse_qs(request.query.decode("latin-1"), keep_blank_values=True)
        try:
            after = _whole(query, "after_id", 0, 0, None)
            limit = _whole(query, "limit", limits.changes_page, 1, limits.changes_page_max)
        except ValueError as error:
            await request.json(400, {"error": str(error)})
            return
        if gateway.calls.changelog is None:
            await request.json(404, {"error": "this env keeps no changelog"})
            return
        try:
            rows, more = await gateway.calls.changelog.changes(after, limit)
        except ChangelogError as error:
            await request.json(503, {"error": str(error)})
            return
        actors = gateway.calls.windows.actors(rows[0]["id"], rows[-1]["id"]) if rows else {}
        changes = [{**row, "actors": [dict(actor) for actor in actors.get(row["id"], [])]} for row in rows]
        await request.json(200, {"changes": changes, "has_more": more})

    # ours

    async def _health(self, request: Incoming) -> None:
        health = self._gateway.health()
        await request.json(200 if health["status"] in ("ready", "degraded") else 503, health)

    async def _children(self, request: Incoming) -> None:
        await request.json(200, {"children": self._gateway.health()["children"]})

    async def _refresh(self, request: Incoming) -> None:
        for child in self._gateway.catalogue.children:
            child.look_again()
        await asyncio.gather(*(backend.card(fresh=True) for backend in self._gateway.backends))
        await request.json(200, {"children": self._gateway.health()["children"]})

    async def _journal(self, request: Incoming) -> None:
        await request.json(200, {"position": self._gateway.journal.position})

    async def _token(self, request: Incoming) -> None:
        body: dict[str, Any] = {}
        with suppress(ValueError, RequestTooLargeError):
            body = await request.object_body(self._gateway.limits.request_bytes)
        wanted = body.get("role")
        if not is_role(wanted):
            await request.json(400, {"error": "missing or invalid 'role'"})
            return
        await request.json(200, {"role": wanted, "token": agent_token(self._gateway.settings.key, str(wanted))})

    async def _revoke(self, request: Incoming) -> None:
        body: dict[str, Any] = {}
        with suppress(ValueError, RequestTooLargeError):
            body = await request.object_body(self._gateway.limits.request_bytes)
        token = read_token(self._gateway.settings.key, str(body.get("token", "")))
        if token is not None:
            await self._gateway.ruling.revoke(token)
        elif isinstance(body.get("role"), str) and body["role"]:
            await self._gateway.ruling.revoke_role(body["role"])
        else:
            await request.json(400, {"error": "give a 'token' of this gateway, or a 'role'"})
            return
        await request.json(200, {"ok": True})

    async def _drain(self, request: Incoming) -> None:
        await request.json(200, {"ok": await self._gateway.drain(), "in_progress": self._gateway.calls.in_progress, "pid": os.getpid()})


def _whole(query: Mapping[str, list[str]], name: str, otherwise: int, least: int, most: int | None) -> int:
    text = query.get(name, [str(otherwise)])[0]
    if not text.isascii() or not text.isdigit() or int(text) < least or (most is not None and int(text) > most):
        upper = f" to {most}" if most is not None else " up"
        raise ValueError(f"{name} must be a whole number from {least}{upper}, not {text!r}")
    return int(text)


async def refuse_storage(request: Incoming, error: StorageError) -> None:
    """Answers where a decision holds but could not be made durable."""
    await request.json(500, {"error": f"the change holds until a restart, but could not be kept: {error}"})
