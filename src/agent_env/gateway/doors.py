"""Two doors. The agent door takes a token, which is a role, and has only what that role may use; every other path is as unknown as one
that never existed. The control door has everything, and is bound where only who deployed the gateway reaches it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote

from agent_env_sdk.wire.names import CARD_PATH, DEFAULT_ROLE, MCP_PATH, ROLE_HEADER

from agent_env.errors import StorageError
from agent_env.gateway.asgi import Incoming, Receive, Scope, Send, is_known_host
from agent_env.gateway.cards import agent_card
from agent_env.gateway.control import Control, refuse_storage
from agent_env.gateway.tokens import PREFIX, read_token

if TYPE_CHECKING:
    from agent_env.gateway.core import Gateway

_ROLE = ROLE_HEADER.lower().encode()
_STEP = ("POST", "/step")
_PREFIX = b"/as/"
_MCP = frozenset({MCP_PATH, f"{MCP_PATH}/"})


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


class ControlDoor:
    """The ASGI application of the control doors."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._control = Control(gateway)
        self._routes = self._control.routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        if scope["type"] != "http":
            await _lifespan(receive, send)
            return
        request = Incoming(scope, receive, send)
        if not is_known_host(request.header(b"host"), self._gateway.config.hosts):
            await request.json(421, {"error": "Invalid Host header: not a name of this gateway"})
            return
        role = (request.header(_ROLE) or "").strip() or DEFAULT_ROLE
        try:
            if request.path in _MCP:
                await self._gateway.mcp.serve(request, role, fixed=False)
            elif (route := self._routes.get((request.method, request.path))) is not None:
                await route(request)
            elif (request.method, request.path) == _STEP:
                await self._control.step(request, role)
            elif not await self._gateway.proxy.serve(request, request.raw_path, role, agent=False):
                await not_found(request, [method for method, path in self._routes if path == request.path])
        except StorageError as error:
            await refuse_storage(request, error)


class AgentDoor:
    """The ASGI application of the agent doors."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._control = Control(gateway)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        if scope["type"] != "http":
            await _lifespan(receive, send)
            return
        request = Incoming(scope, receive, send)
        token, raw_path = _shown_token(request)
        path = unquote(raw_path.decode("latin-1"))
        if request.method == "GET" and path == "/clock/time":
            await self._control.time(request)
            return
        role = self._role(token)
        if role is None:
            headers = [("www-authenticate", 'Bearer realm="environment"')]
            await request.json(401, {"error": "a token of this environment is needed: Authorization: Bearer …"}, headers)
            return
        if token is None and not is_known_host(request.header(b"host"), self._gateway.config.hosts):
            await request.json(421, {"error": "Invalid Host header: not a name of this gateway"})
            return
        if path in _MCP:
            await self._gateway.mcp.serve(request, role, fixed=True)
        elif (request.method, path) == ("GET", CARD_PATH):
            await self._gateway.catalogue.settle(self._gateway.limits.discovery_seconds)
            card = agent_card(self._gateway.config.name, role, self._gateway.catalogue, self._gateway.ruling.access)
            await request.json(200, card)
        elif (request.method, path) == _STEP:
            await self._control.step(request, role)
        elif not await self._gateway.proxy.serve(request, raw_path, role, agent=True):
            await not_found(request, [])

    def _role(self, token: str | None) -> str | None:
        if token is None:
            return self._gateway.config.unauthenticated_role
        read = read_token(self._gateway.settings.key, token)
        return read.role if read is not None and not self._gateway.ruling.is_revoked(read) else None


def _shown_token(request: Incoming) -> tuple[str | None, bytes]:
    """The token, from the path's beginning or the header, and the path without it. A token that is wrong is not the same as none."""
    if request.raw_path.startswith(_PREFIX):
        token, slash, rest = request.raw_path[len(_PREFIX) :].partition(b"/")
        return unquote(token.decode("latin-1")), slash + rest or b"/"
    scheme, _, text = (request.header(b"authorization") or "").partition(" ")
    ours = scheme.lower() == "bearer" and text.strip().startswith(PREFIX)  # another one is a website's own
    return (text.strip() if ours else None), request.raw_path


async def not_found(request: Incoming, methods: list[str]) -> None:
    """What an unknown path gets, or a known one with another method."""
    if methods:
        await request.json(405, {"error": "method not allowed"}, [("allow", ", ".join(methods))])
    else:
        await request.json(404, {"error": "not found"})
