"""HTTP to a port of a place's own loopback, through its helper: nothing has to be published, and nobody else can come that way."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import httpcore
import httpx

from agent_env.errors import AgentEnvError, UnsupportedError
from agent_env.waiting import deadline

if TYPE_CHECKING:
    from agent_env.places import Place
    from agent_env.places.helper.worker import TcpStream

GetPlace = Callable[[], Awaitable["Place"]]
"""The place that is to be reached; asked again whenever a connection is made, because a place may have been reopened meanwhile."""

_KEPT = 20
"""Connections that stay open for the next request."""
_IDLE = 4.0
"""How long: a second less than uvicorn's own, so that a request never meets one that the server is just closing."""
_CAUSES: tuple[tuple[type[Exception], type[httpx.TransportError]], ...] = (
    (httpcore.ConnectTimeout, httpx.ConnectTimeout),
    (httpcore.ReadTimeout, httpx.ReadTimeout),
    (httpcore.WriteTimeout, httpx.WriteTimeout),
    (httpcore.PoolTimeout, httpx.PoolTimeout),
    (httpcore.ConnectError, httpx.ConnectError),
    (httpcore.ReadError, httpx.ReadError),
    (httpcore.WriteError, httpx.WriteError),
    (httpcore.RemoteProtocolError, httpx.RemoteProtocolError),
    (httpcore.LocalProtocolError, httpx.LocalProtocolError),
    (httpcore.NetworkError, httpx.NetworkError),
)


@runtime_checkable
class Tunnels(Protocol):
    """A place that carries TCP."""

    async def open_tcp(self, port: int, *, wait_seconds: float = 0.0) -> TcpStream:
        """A connection to a port of its loopback, as soon as somebody listens there or the time is over."""
        ...


class PlaceTransport(httpx.AsyncBaseTransport):
    """A transport of httpx whose every connection goes to a place. The host of a URL says nothing; its port is that of the place.

    Args:
        place: Gives the place.
        connections: How many at once.
    """

    def __init__(self, place: GetPlace, *, connections: int = 100) -> None:
        self._pool = httpcore.AsyncConnectionPool(
            max_connections=connections, max_keepalive_connections=_KEPT, keepalive_expiry=_IDLE, network_backend=_Backend(place)
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Sends one request; see httpx."""
        assert isinstance(request.stream, httpx.AsyncByteStream)
        sent = httpcore.Request(
            method=request.method,
            url=httpcore.URL(scheme=request.url.raw_scheme, host=request.url.raw_host, port=request.url.port, target=request.url.raw_path),
            headers=request.headers.raw,
            content=request.stream,
            extensions=request.extensions,
        )
        with _told():
            answer = await self._pool.handle_async_request(sent)
        assert isinstance(answer.stream, _Closeable)
        return httpx.Response(status_code=answer.status, headers=answer.headers, stream=_Body(answer.stream), extensions=answer.extensions)

    async def aclose(self) -> None:
        """Ends its connections."""
        await self._pool.aclose()


@contextlib.contextmanager
def _told() -> Any:
    try:
        yield
    except tuple(known for known, _ in _CAUSES) as error:
        kind = next(kind for known, kind in _CAUSES if isinstance(error, known))
        raise kind(str(error)) from error


@runtime_checkable
class _Closeable(Protocol):
    def __aiter__(self) -> AsyncIterator[bytes]: ...

    async def aclose(self) -> None: ...


class _Body(httpx.AsyncByteStream):
    def __init__(self, stream: _Closeable) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _told():
            async for piece in self._stream:
                yield piece

    async def aclose(self) -> None:
        with _told():
            await self._stream.aclose()


class _Backend(httpcore.AsyncNetworkBackend):
    """Opens connections through a place's helper."""

    def __init__(self, place: GetPlace) -> None:
        self._place = place

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connects; the host is the place, whatever it is called."""
        del host, local_address, socket_options
        try:
            async with deadline(timeout, "a connection"):
                place = await self._place()
                if not isinstance(place, Tunnels):
                    raise UnsupportedError(f"nothing can be reached in {place.id}: it has no helper of ours")
                return _Stream(await place.open_tcp(port))
        except AgentEnvError as error:
            raise httpcore.ConnectError(error.message) from error


class _Stream(httpcore.AsyncNetworkStream):
    def __init__(self, stream: TcpStream) -> None:
        self._stream = stream
        self._rest = b""
        self._closed = False

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """The next bytes; none at the end."""
        if not self._rest:
            try:
                async with deadline(timeout, "an answer"):
                    self._rest = await self._stream.receive()
            except AgentEnvError as error:
                kind = httpcore.ReadTimeout if error.code == "deadline" else httpcore.ReadError
                raise kind(error.message) from error
        piece, self._rest = self._rest[:max_bytes], self._rest[max_bytes:]
        return piece

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Sends bytes."""
        try:
            async with deadline(timeout, "sending"):
                await self._stream.send(buffer)
        except AgentEnvError as error:
            kind = httpcore.WriteTimeout if error.code == "deadline" else httpcore.WriteError
            raise kind(error.message) from error

    async def aclose(self) -> None:
        """Ends the connection."""
        if not self._closed:
            self._closed = True
            with contextlib.suppress(AgentEnvError):  # the place may be gone, and the connection with it
                await self._stream.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.AsyncNetworkStream:
        """Loopback needs none.

        Raises:
            ConnectError: Always.
        """
        del ssl_context, server_hostname, timeout
        raise httpcore.ConnectError("a place's own loopback speaks plain HTTP")

    def get_extra_info(self, info: str) -> Any:
        """What httpcore asks of a socket: whether one that should be silent has something to say, which is its end."""
        return bool(self._rest) or self._stream.ready if info == "is_readable" else None
