"""The HTTP routes beside MCP: the card, the data plane, extensions, tool access, manifests, readiness."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from agent_env_sdk.hosting import whole_body
from agent_env_sdk.wire.access import Action
from agent_env_sdk.wire.errors import AgentEnvError, error_body
from agent_env_sdk.wire.names import ADD, CARD_PATH, DISABLE_PATH, ENABLE_PATH, MANIFEST_PATH, READY_PATH, RPC_PATH

from . import jobs
from .answers import plain
from .calling import Raised
from .context import Caller, ToolContext, bound, frozen
from .surface import ServedExtension

if TYPE_CHECKING:
    from .application import Application

logger = logging.getLogger("agent_env_sdk")
Endpoint = Callable[[Request], Awaitable[Response]]
_INSTEAD = "send a file's address"
"""Of a request that is too long."""


def routes(application: Application) -> Iterator[BaseRoute]:
    """Everything but MCP."""
    yield Route(CARD_PATH, _card(application), methods=["GET"])
    yield Route(RPC_PATH, _data_plane(application), methods=["POST"])
    yield Route(READY_PATH, _ready(application), methods=["GET"])
    for served in application.surface.extensions:
        yield Route(served.mark.path, _answering(_extension(application, served)), methods=[served.mark.verb])
    if ADD in application.surface.operations:
        for verb, op in (("POST", "start"), ("GET", "status"), ("POST", "cancel")):
            yield Route(f"{jobs.PATH}/{op}", _answering(_load(application, op)), methods=[verb])
    if application.environment.tool_access:
        yield Route(ENABLE_PATH, _answering(_access(application, "enable")), methods=["POST"])
        yield Route(DISABLE_PATH, _answering(_access(application, "disable")), methods=["POST"])
    if application.environment.manifests():
        yield Route(MANIFEST_PATH, _manifests(application), methods=["GET"])
        yield Route(f"{MANIFEST_PATH}/{{interface}}", _manifest(application), methods=["GET"])
    yield from application.environment.routes()


def json_answer(value: Any, status: int = 200) -> Response:
    """A JSON answer; what JSON has no word for is spelled by `str`, and infinities become null."""
    return Response(json.dumps(plain(value)), status_code=status, media_type="application/json")


def _card(application: Application) -> Endpoint:
    async def card(_: Request) -> Response:
        return json_answer(application.surface.card.to_json())

    return card


def _ready(application: Application) -> Endpoint:
    async def ready(_: Request) -> Response:
        is_ready = application.environment.ready()
        return json_answer({"ready": is_ready}, 200 if is_ready else 503)

    return ready


def _data_plane(application: Application) -> Endpoint:
    async def data_plane(request: Request) -> Response:
        try:
            body = await whole_body(request, application.environment.max_request_bytes, hint=_INSTEAD)
        except AgentEnvError as error:
            return json_answer(error.body(), error.status)
        return json_answer(await application.plane.answer(body))

    return data_plane


def _extension(application: Application, served: ServedExtension) -> Callable[[Request], Awaitable[Any]]:
    async def invoke(request: Request) -> Any:
        sent = await _arguments(request, served, application.environment.max_request_bytes)
        try:
            arguments = served.coercion.bind(sent)
        except ValueError as error:
            raise AgentEnvError("invalid_params", str(error)) from error
        context = ToolContext(Caller.of(None, request.headers), served.name, frozen(sent))
        if served.coercion.context is not None:
            arguments[served.coercion.context] = context
        with bound(context):
            outcome = await application.invoker.attempt(served.handler, **arguments)
        if isinstance(outcome, Raised) and not isinstance(outcome.error, AgentEnvError):
            logger.warning("the extension %s failed: %r", served.name, outcome.error)
            raise AgentEnvError("extension_failed", str(outcome.error), status=500, applied="unknown") from outcome.error
        if isinstance(outcome, Raised):
            raise outcome.error
        return {} if outcome is None else outcome

    return invoke


async def _arguments(request: Request, served: ServedExtension, limit_bytes: int) -> dict[str, Any]:
    if served.mark.verb == "GET":
        return served.coercion.query(request.query_params.multi_items())
    return await _object(request, limit_bytes)


def _load(application: Application, op: str) -> Callable[[Request], Awaitable[Any]]:
    async def invoke(request: Request) -> Any:
        loads = application.loads()
        if op == "start":
            return await loads.start(await _object(request, application.environment.max_request_bytes))
        if op == "cancel":
            return await loads.cancel(str((await _object(request, application.environment.max_request_bytes)).get("operation")))
        query = request.query_params
        try:
            seen = int(query["seen"]) if "seen" in query else None
            wait = float(query.get("wait", "0"))
        except ValueError as error:
            raise AgentEnvError("invalid_params", str(error)) from error
        return await loads.status(query.get("operation", ""), seen, wait)

    return invoke


def _access(application: Application, action: Action) -> Callable[[Request], Awaitable[Any]]:
    async def change(request: Request) -> Any:
        raw = await whole_body(request, application.environment.max_request_bytes, hint=_INSTEAD)
        application.access, answer = application.access.change(action, _json(raw, None))
        await application.tools_changed()
        return answer

    return change


def _manifests(application: Application) -> Endpoint:
    async def index(_: Request) -> Response:
        return json_answer(sorted(application.environment.manifests()))

    return index


def _manifest(application: Application) -> Endpoint:
    async def one(request: Request) -> Response:
        manifest = application.environment.manifests().get(request.path_params["interface"])
        if manifest is None:
            return json_answer(error_body("not_found", "there is no manifest for this interface"), 404)
        return Response(manifest.to_json(), media_type="application/json")

    return one


def _answering(handler: Callable[[Request], Awaitable[Any]]) -> Endpoint:
    async def answer(request: Request) -> Response:
        try:
            return json_answer(await handler(request))
        except AgentEnvError as error:
            return json_answer(error.body(), error.status)

    return answer


async def _object(request: Request, limit_bytes: int) -> dict[str, Any]:
    value = _json(await whole_body(request, limit_bytes, hint=_INSTEAD), {})
    if not isinstance(value, dict):
        raise AgentEnvError("invalid_params", "request body must be a JSON object")
    return value


def _json(raw: bytes, empty: Any) -> Any:
    try:
        return json.loads(raw) if raw else empty
    except (ValueError, RecursionError):
        raise AgentEnvError("invalid_params", "request body must be JSON") from None
