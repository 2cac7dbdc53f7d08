"""HTTP/1.1 with one server, kept as small as a tool call needs: connections are reused, and a failure says whether the request could
have arrived. That last question decides whether a call may be sent again, and general clients don't answer it.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import cast
from urllib.parse import urlsplit

import h11

from agent_env.gateway.defaults import GatewayLimits

_READ_BYTES = 1 << 16
_HEAD_BYTES = 1 << 17


class ExchangeError(Exception):
    """The exchange failed. `sent` tells whether the server may have seen the request."""

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


class TooLargeError(Exception):
    """An answer is larger than its reader takes."""


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.wire = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEAD_BYTES)
        self.idle_since = 0.0

    async def next_event(self) -> h11.Event:
        while True:
            event = self.wire.next_event()
            if event is not h11.NEED_DATA:
                return cast("h11.Event", event)  # h11 types its sentinels loosely
            self.wire.receive_data(await self.reader.read(_READ_BYTES))

    def close(self) -> None:
        self.writer.close()


class Response:
    """An answer whose head has arrived. Its body is read once, as bytes or in chunks."""

    def __init__(self, connection: _Connection, head: h11.Response) -> None:
        self._connection = connection
        self.status = head.status_code
        self.headers: dict[str, str] = {bytes(k).decode("latin-1"): bytes(v).decode("latin-1") for k, v in head.headers}
        self.complete = False

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it arrives.

        Raises:
            ExchangeError: The connection ended before the body did.
        """
        while True:
            try:
                event = await self._connection.next_event()
            except (OSError, h11.RemoteProtocolError) as error:
                raise ExchangeError(f"the connection ended in the middle of the answer ({_cause(error)})", sent=True) from error
            if isinstance(event, h11.Data):
                yield bytes(event.data)
            else:
                self.complete = True
                return

    async def read(self, limit_bytes: int) -> bytes:
        """The whole body.

        Raises:
            TooLargeError: It is larger than `limit_bytes`.
            ExchangeError: See `chunks`.
        """
        declared = self.headers.get("content-length", "")
        if declared.isdigit() and int(declared) > limit_bytes:
            raise TooLargeError(f"the answer holds {declared} bytes, more than the limit of {limit_bytes}")
        parts, size = [], 0
        async for chunk in self.chunks():
            size += len(chunk)
            if size > limit_bytes:
                raise TooLargeError(f"the answer holds more than the limit of {limit_bytes} bytes")
            parts.append(chunk)
        return parts[0] if len(parts) == 1 else b"".join(parts)


class Exchange:
    """The connections to one server.

    Args:
        url: Its address; a path in it comes before that of every request.
        limits: How many connections, and how long an unused one is kept.
    """

    def __init__(self, url: str, limits: GatewayLimits) -> None:
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        self._prefix = parts.path.rstrip("/")
        self._limits = limits
        self._idle: list[_Connection] = []
        self._free = asyncio.Semaphore(limits.connections)
        self._authority = parts.netloc.rpartition("@")[2]

    @asynccontextmanager
    async def request(
        self, method: str, path: str, headers: Mapping[str, str] | Sequence[tuple[str, str]], body: bytes = b""
    ) -> AsyncIterator[Response]:
        """Sends a request and gives the answer's head. The connection is kept where the block read the body to its end.

        Raises:
            ExchangeError: No answer came.
        """
        async with self._free:
            connection = self._reusable() or await self._connect()
            response: Response | None = None
            try:
                response = Response(connection, await self._ask(connection, method, path, headers, body))
                yield response
            finally:
                if response is not None and response.complete:
                    self._keep(connection)
                else:
                    connection.close()

    def close(self) -> None:
        """Closes what is kept."""
        while self._idle:
            self._idle.pop().close()

    async def _connect(self) -> _Connection:
        try:
            async with asyncio.timeout(self._limits.connect_seconds):
                reader, writer = await asyncio.open_connection(self._host, self._port, ssl=self._tls, limit=_READ_BYTES)
        except TimeoutError as error:
            raise ExchangeError(f"no connection to {self._authority} within {self._limits.connect_seconds:g} s", sent=False) from error
        except (OSError, UnicodeError) as error:
            raise ExchangeError(f"no connection to {self._authority}: {_cause(error)}", sent=False) from error
        return _Connection(reader, writer)

    async def _ask(
        self,
        connection: _Connection,
        method: str,
        path: str,
        headers: Mapping[str, str] | Sequence[tuple[str, str]],
        body: bytes,
    ) -> h11.Response:
        pairs = [("Host", self._authority), *(headers.items() if isinstance(headers, Mapping) else headers)]
        if body or method == "POST":
            pairs.append(("Content-Length", str(len(body))))
        wire = connection.wire
        try:
            data = wire.send(h11.Request(method=method, target=self._prefix + path, headers=pairs)) or b""
            if body:
                data += wire.send(h11.Data(data=body)) or b""
            data += wire.send(h11.EndOfMessage()) or b""
            connection.writer.write(data)
            if len(data) > _READ_BYTES:
                await connection.writer.drain()
            while True:
                event = await connection.next_event()
                if isinstance(event, h11.Response):
                    return event
                if not isinstance(event, h11.InformationalResponse):
                    raise ExchangeError(f"{self._authority} closed the connection without an answer", sent=True)
        except (h11.LocalProtocolError, UnicodeError) as error:
            raise ExchangeError(f"not a request that HTTP can carry: {error}", sent=False) from error
        except (OSError, h11.RemoteProtocolError) as error:
            raise ExchangeError(f"{self._authority} ended the connection before it answered ({_cause(error)})", sent=True) from error

    def _reusable(self) -> _Connection | None:
        now = asyncio.get_running_loop().time()
        while self._idle:
            connection = self._idle.pop()
            fresh = now - connection.idle_since < self._limits.idle_connection_seconds
            if fresh and not connection.reader.at_eof() and not connection.writer.is_closing():
                return connection
            connection.close()
        return None

    def _keep(self, connection: _Connection) -> None:
        if connection.wire.our_state is not h11.DONE or connection.wire.their_state is not h11.DONE:
            connection.close()
            return
        try:
            connection.wire.start_next_cycle()
        except h11.ProtocolError:
            connection.close()
            return
        now = connection.idle_since = asyncio.get_running_loop().time()
        while self._idle and now - self._idle[0].idle_since >= self._limits.idle_connection_seconds:
            self._idle.pop(0).close()  # the latest are taken first: those of a busier time would stay for ever
        self._idle.append(connection)


def _cause(error: BaseException) -> str:
    if isinstance(error, OSError):
        if error.errno is not None and error.errno > 0:  # asyncio's own text says less; names that can't be found have numbers of their own
            return os.strerror(error.errno)
        return error.strerror or str(error) or type(error).__name__
    return str(error)
