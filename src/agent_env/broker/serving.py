"""HTTP for the broker: one connection of an agent after the other's request. h11 parses and frames; what carries the bytes is a pipe.

An agent that goes away ends its call, and with it the request to the model.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Protocol

import h11

from agent_env.broker.answers import Answer, Request
from agent_env.defaults import Limits
from agent_env.errors import InfrastructureError
from agent_env.waiting import deadline

_HEAD_BYTES: Final = 64 << 10
_READ_BYTES: Final = 64 << 10


class Pipe(Protocol):
    """A connection of an agent."""

    async def receive(self) -> bytes:
        """The next bytes; none when the agent sends no more."""
        ...

    async def send(self, data: bytes) -> None:
        """Sends bytes, as far as the agent takes them."""
        ...


class Answers(Protocol):
    """A broker."""

    def answering(self, request: Request) -> AbstractAsyncContextManager[Answer]:
        """Answers one request."""
        ...


class StreamPipe:
    """A connection of this machine as a pipe."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def receive(self) -> bytes:
        """The next bytes; none at the end."""
        return await self._reader.read(_READ_BYTES)

    async def send(self, data: bytes) -> None:
        """Sends bytes."""
        self._writer.write(data)
        await self._writer.drain()


class _Agent:
    """The agent's side of one connection, as HTTP."""

    def __init__(self, pipe: Pipe) -> None:
        self.http = h11.Connection(h11.SERVER, max_incomplete_event_size=_HEAD_BYTES)
        self._pipe = pipe
        self._reading: asyncio.Future[bytes] | None = None

    def reading(self) -> asyncio.Future[bytes]:
        """What it sends next; the same until somebody took it."""
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._pipe.receive())
        return self._reading

    async def event(self) -> h11.Event | type[h11.PAUSED]:
        while (event := self.http.next_event()) is h11.NEED_DATA:
            if self.http.they_are_waiting_for_100_continue:
                await self.send(h11.InformationalResponse(status_code=100, headers=[]))
            read = self.reading()
            data = await asyncio.shield(read)
            self._reading = None
            self.http.receive_data(data)
        assert not isinstance(event, type) or event is h11.PAUSED
        return event

    async def send(self, event: h11.Event) -> None:
        if data := self.http.send(event):
            await self._pipe.send(data)

    async def say(self, status: int, text: str) -> None:
        """A whole answer of our own, after which the connection ends."""
        body = f'{{"error": {{"message": "{text}", "type": "invalid_request_error"}}}}'.encode()
        headers = [("content-type", "application/json"), ("content-length", str(len(body))), ("connection", "close")]
        await self.send(h11.Response(status_code=status, headers=headers))
        await self.send(h11.Data(data=body))
        await self.send(h11.EndOfMessage())

    async def aclose(self) -> None:
        """Ends what it waits for."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)


async def serve(pipe: Pipe, broker: Answers, limits: Limits) -> None:
    """Serves one connection to its end. The pipe is its holder's."""
    agent = _Agent(pipe)
    try:
        while await _serve_one(agent, broker, limits):
            agent.http.start_next_cycle()
    except h11.RemoteProtocolError as error:
        if agent.http.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            with contextlib.suppress(OSError, InfrastructureError, h11.LocalProtocolError):
                await agent.say(error.error_status_hint, "that is no HTTP request")
    except (OSError, EOFError, InfrastructureError, h11.LocalProtocolError):
        return  # the agent went, is too slow to be waited for, or the model's answer broke off, and the connection with it
    finally:
        await agent.aclose()


async def _serve_one(agent: _Agent, broker: Answers, limits: Limits) -> bool:
    """Serves one request. Returns whether another one may follow.

    Raises:
        DeadlineError: None came for a long time.
    """
    async with deadline(limits.keeper_idle_stream_seconds, "the next request"):
        head = await agent.event()
        if not isinstance(head, h11.Request):
            return False
        body = await _body(agent, limits.model_request_bytes)
    return await _answer(agent, broker, head, body)


async def _body(agent: _Agent, most: int) -> bytes | None:
    """The request's body; None where it is too long."""
    body = bytearray()
    while isinstance(event := await agent.event(), h11.Data):
        body += event.data
        if len(body) > most:
            return None
    return bytes(body)


async def _answer(agent: _Agent, broker: Answers, head: h11.Request, body: bytes | None) -> bool:
    headers = [(bytes(name), bytes(value)) for name, value in head.headers]
    encoded = next((value for name, value in headers if name == b"content-encoding"), b"identity")
    if body is None or encoded.lower() != b"identity":
        why = "the request is too long" if body is None else "the request's body is compressed"
        await agent.say(413 if body is None else 415, why)
        return False
    request = Request(head.method.decode("latin-1"), head.target.decode("latin-1"), headers, body)
    if not await _unless_gone(agent, _send(agent, broker, request)):
        return False
    return agent.http.our_state is h11.DONE and agent.http.their_state is h11.DONE


async def _unless_gone(agent: _Agent, work: asyncio.Future[None]) -> bool:
    """Waits for the answer to be sent, and drops it when the agent goes away meanwhile. Returns whether it was sent."""
    try:
        while not work.done():
            gone = agent.reading()
            both: set[asyncio.Future[Any]] = {work, gone}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                break
            if gone.done():
                if gone.exception() is not None or not gone.result():
                    return False
                await asyncio.wait({work})  # it has sent its next request already, and will read this answer first
        work.result()
        return True
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)


def _send(agent: _Agent, broker: Answers, request: Request) -> asyncio.Future[None]:
    async def send() -> None:
        async with broker.answering(request) as answer:
            await agent.send(h11.Response(status_code=answer.status, headers=_told(answer.headers)))
            async for piece in answer.pieces:
                await agent.send(h11.Data(data=piece))
        await agent.send(h11.EndOfMessage())

    return asyncio.ensure_future(send())


def _told(headers: Sequence[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1", "replace"), value.encode("latin-1", "replace")) for name, value in headers]
