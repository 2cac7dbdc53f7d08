"""What the SDK's servers have in common beside their sockets: how uvicorn runs them, and how a body is read."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from typing import Any, Final

import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse

from agent_env_sdk.wire.errors import AgentEnvError

GRACE_SECONDS: Final = 3
"""How long open answers may take to end after a signal."""
KEEP_ALIVE_SECONDS: Final = 75
"""How long an idle connection stays, so that a client or a gateway can reuse it."""


def configuration(application: Starlette) -> uvicorn.Config:
    """How uvicorn serves an environment, an agent, or a model server of tests.

    What it would look for at its start and nobody needs (other loops, WebSockets, handlers of logs) is left out: it costs time.
    """
    return uvicorn.Config(
        application,
        loop="asyncio",
        ws="none",
        log_config=None,
        log_level="warning",
        access_log=False,
        lifespan="on",
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
    )


class JsonAnswer(JSONResponse):
    """An answer in JSON, in ASCII: what somebody sent may hold half a character, and can be told all the same."""

    def render(self, content: Any) -> bytes:
        """The body."""
        return json.dumps(content, separators=(",", ":"), allow_nan=False).encode()


class Server(uvicorn.Server):
    """Ends what would stay open for good, before it waits for open answers to end.

    Args:
        config: How it serves.
        on_stop: Called once it stops.
    """

    def __init__(self, config: uvicorn.Config, on_stop: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_stop = on_stop

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stops."""
        self._on_stop()
        await super().shutdown(sockets)


async def whole_body(request: Request, limit_bytes: int, *, hint: str | None = None) -> bytes:
    """The request's body, which is not read past the limit.

    Args:
        request: The request.
        limit_bytes: The most that is taken.
        hint: What to do instead of sending more.

    Raises:
        AgentEnvError: `too_large` (413), or `disconnected`.
    """
    pieces: list[bytes] = []
    length = 0
    try:
        async for piece in request.stream():
            length += len(piece)
            if length > limit_bytes:
                raise AgentEnvError("too_large", f"the request is longer than {limit_bytes} bytes", status=413, hint=hint)
            pieces.append(piece)
    except ClientDisconnect:
        raise AgentEnvError("disconnected", "the request broke off") from None
    return b"".join(pieces)
