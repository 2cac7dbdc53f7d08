"""The HTTP routes of an agent: card, health, JSON-RPC, extensions; and the token in front of all but the first two."""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from agent_env_sdk.hosting import JsonAnswer, whole_body
from agent_env_sdk.wire.a2a import A2A_PATH, CARD_PATHS, HEALTH_PATH, VERSION_HEADER
from agent_env_sdk.wire.agent_bodies import Body, McpAdd, McpRemove, McpUpsert, PeersSet
from agent_env_sdk.wire.agent_extensions import (
    AGENT_CONFIG,
    ATTRIBUTION_PROBE,
    MCP_CONFIG,
    PEER_AGENTS,
    SKILL_CONFIG,
    SNAPSHOT,
    TRAJECTORY,
    TRIGGERS,
    operation,
)
from agent_env_sdk.wire.errors import AgentEnvError

from .registrations import InvalidFieldsError

if TYPE_CHECKING:
    from .application import Application

ALIVE_SECONDS: Final = 15.0
"""How often a quiet stream says that it lives, so that nothing between takes it for dead."""
_ALIVE: Final = b": alive\n\n"

B = TypeVar("B", bound=Body)
Endpoint = Callable[[Request], Awaitable[Response]]
Operation = Callable[[Mapping[str, Any]], Awaitable[dict[str, Any]]]


def routes(application: Application) -> Iterator[BaseRoute]:
    """Everything that is served."""
    current, older = CARD_PATHS
    yield Route(current, _card(application, absolute=True), methods=["GET"])
    yield Route(older, _card(application, absolute=False), methods=["GET"])
    yield Route(HEALTH_PATH, _health, methods=["GET"])
    yield Route(A2A_PATH, _guarded(application, _rpc(application)), methods=["POST"])
    for (uri, name), answer in _operations(application).items():
        known = operation(uri, name)
        yield Route(known.path, _guarded(application, _answering(application, answer)), methods=[known.verb])
    yield from application.peers.routes()
    yield from application.staging.routes()
    yield from application.agent.routes()


def _operations(application: Application) -> Mapping[tuple[str, str], Operation]:
    """By extension and operation: what answers it."""
    registered, skills, snapshots, triggers = application.registered, application.skills, application.snapshots, application.triggers
    changelog = application.changelog
    found: dict[tuple[str, str], Operation] = {
        (AGENT_CONFIG, "set"): _plain(registered.set_config),
        (AGENT_CONFIG, "get"): _plain(lambda _: registered.shown_config()),
        (MCP_CONFIG, "add"): _typed(McpAdd, registered.add_mcp),
        (MCP_CONFIG, "list"): _plain(lambda _: registered.shown_mcp()),
        (MCP_CONFIG, "upsert"): _typed(McpUpsert, registered.upsert_mcp),
        (MCP_CONFIG, "remove"): _typed(McpRemove, lambda body: registered.remove_mcp(body.name)),
        (TRAJECTORY, "get"): application.trajectories.get,
        (PEER_AGENTS, "set"): _typed(PeersSet, registered.set_peers),
        (PEER_AGENTS, "list"): _plain(lambda _: registered.shown_peers()),
    }
    if skills is not None:
        found |= {(SKILL_CONFIG, "add"): _moving(application, skills.add), (SKILL_CONFIG, "list"): _plain(lambda _: skills.listed())}
    if snapshots is not None:
        found |= {(SNAPSHOT, "save"): _moving(application, snapshots.save), (SNAPSHOT, "load"): _moving(application, snapshots.load)}
    if changelog is not None:
        found |= {
            (SNAPSHOT, "enable-changelog"): changelog.enable,
            (SNAPSHOT, "apply-changelog"): _moving(application, changelog.apply),
        }
    if application.told:
        found[ATTRIBUTION_PROBE, "probe"] = _plain(lambda _: application.attribution())
    if triggers is not None:
        found |= {
            (TRIGGERS, "register"): _plain(triggers.register),
            (TRIGGERS, "decide"): triggers.decide,
            (TRIGGERS, "state"): _plain(lambda _: triggers.state()),
        }
    return found


def _card(application: Application, *, absolute: bool) -> Endpoint:
    async def card(request: Request) -> Response:
        # The current path is read by clients that post to a card's address as it stands; the older one's join it themselves.
        return JsonAnswer(application.card(str(request.base_url) if absolute else None))

    return card


async def _health(_: Request) -> Response:
    return JsonAnswer({"status": "ok"})


def _guarded(application: Application, endpoint: Endpoint) -> Endpoint:
    async def guarded(request: Request) -> Response:
        server = request.scope.get("server")
        application.port = int(server[1]) if server and server[1] else application.port
        if application.token is not None:
            scheme, _, token = request.headers.get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not hmac.compare_digest(token.strip().encode(), application.token.encode()):
                error = AgentEnvError("unauthorized", "this agent needs its bearer token", status=401)
                return JsonAnswer(error.body(), 401, {"www-authenticate": "Bearer"})
        return await endpoint(request)

    return guarded


def _moving(application: Application, answer: Operation) -> Operation:
    """What moves objects finds those of the agent's own store over loopback, at the port that is served."""

    async def moving(sent: Mapping[str, Any]) -> dict[str, Any]:
        # Imported where it is used: it brings the environment side with it, which an agent may do without.
        from agent_env_sdk.environment.transfers import serving_on

        with serving_on(application.port or 0):
            return await answer(sent)

    return moving


def _rpc(application: Application) -> Endpoint:
    async def rpc(request: Request) -> Response:
        try:
            body = await whole_body(request, application.agent.max_request_bytes)
        except AgentEnvError as error:
            return JsonAnswer(error.body(), error.status)
        answer = await application.rpc.answer(body, request.headers.get(VERSION_HEADER))
        if isinstance(answer, dict):
            return JsonAnswer(answer)
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        return StreamingResponse(_events(answer), media_type="text/event-stream", headers=headers)

    return rpc


async def _events(answer: AsyncIterator[dict[str, Any]]) -> AsyncIterator[bytes]:
    """The stream as server-sent events, with a sign of life where it is quiet."""
    coming: asyncio.Future[dict[str, Any]] | None = None
    try:
        while True:
            coming = coming or asyncio.ensure_future(anext(answer))
            done, _ = await asyncio.wait({coming}, timeout=ALIVE_SECONDS)
            if not done:
                yield _ALIVE
                continue
            try:
                value = coming.result()
            except StopAsyncIteration:
                return
            coming = None
            # In ASCII: many clients end a line at U+2028 and its like as well.
            yield f"data: {json.dumps(value)}\n\n".encode()
    finally:
        if coming is not None:
            coming.cancel()


def _answering(application: Application, answer: Operation) -> Endpoint:
    async def answering(request: Request) -> Response:
        try:
            return JsonAnswer(await answer(await _object(request, application.agent.max_request_bytes)))
        except AgentEnvError as error:
            return JsonAnswer(error.body(), error.status)

    return answering


def _plain(answer: Callable[[Mapping[str, Any]], dict[str, Any]]) -> Operation:
    async def plain(sent: Mapping[str, Any]) -> dict[str, Any]:
        return answer(sent)

    return plain


def _typed(model: type[B], answer: Callable[[B], dict[str, Any]]) -> Operation:
    async def typed(sent: Mapping[str, Any]) -> dict[str, Any]:
        try:
            body = model.model_validate(sent)
        except ValidationError as error:
            raise InvalidFieldsError(error) from None
        return answer(body)

    return typed


async def _object(request: Request, limit_bytes: int) -> dict[str, Any]:
    raw = await whole_body(request, limit_bytes)
    try:
        value = json.loads(raw) if raw else {}
    except (ValueError, RecursionError):
        raise AgentEnvError("invalid_params", "the body must be JSON") from None
    if not isinstance(value, dict):
        raise AgentEnvError("invalid_params", "the body must be a JSON object")
    return value
