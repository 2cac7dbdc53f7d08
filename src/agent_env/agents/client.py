"""Speaks A2A with an agent, 0.3 or 1.x as its card says, and calls its extensions. Knows of conversations nothing: see `conversation`.

An agent is reached under the address that it was found at. Of the addresses in its card only the paths count: in a container or behind a
tunnel an agent can't know its own.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import httpx
from agent_env_sdk.wire import a2a_v1
from agent_env_sdk.wire.a2a import (
    CARD_PATHS,
    VERSION_HEADER,
    AgentCard,
    Interface,
    Message,
    Method,
    Task,
    Update,
    interfaces,
    read_update,
    rpc_address,
)
from agent_env_sdk.wire.agent_extensions import endpoint_of, method_of, operation
from agent_env_sdk.wire.encoding import json_bytes
from agent_env_sdk.wire.errors import read_error
from agent_env_sdk.wire.rpc import RpcError, read_answer, request
from pydantic import ValidationError

from agent_env.agents.events import objects, whole
from agent_env.agents.faults import AgentFailedError, AgentNotAdvertisedError, AgentUnreachableError
from agent_env.defaults import DEFAULT_LIMITS, KIB, Limits
from agent_env.errors import DeadlineError
from agent_env.waiting import deadline

Json = Any
_PIECE_BYTES = 256 * KIB
_READING, _WRITING, _REMOVING = "reading an object", "writing an object", "removing an object"
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.LocalProtocolError, httpx.UnsupportedProtocol)
_MISSING = frozenset({httpx.codes.NOT_FOUND, httpx.codes.METHOD_NOT_ALLOWED, httpx.codes.GONE})


class AgentClient:
    """Speaks with one agent.

    Args:
        base: The address under which it was found, without a path of its protocol.
        http: Speaks HTTP; closed with this.
        name: What messages call it.
        token: Its bearer token; None for an agent that has none.
        limits: Deadlines and sizes.
    """

    def __init__(self, base: str, http: httpx.AsyncClient, *, name: str, token: str | None = None, limits: Limits = DEFAULT_LIMITS) -> None:
        self.base = base.rstrip("/")
        self.name = name
        self.limits = limits
        self._http = http
        self._headers = {"authorization": f"Bearer {token}"} if token else {}
        self._card: AgentCard | None = None
        self.raw_card: Mapping[str, Json] | None = None
        """The card as it was served."""

    # the card

    async def card(self, *, refresh: bool = False) -> AgentCard:
        """Its card, read once.

        Raises:
            AgentUnreachableError: It does not answer.
            AgentFailedError: It has none, under any of the paths.
        """
        if self._card is None or refresh:
            self._card = await self._read_card()
        return self._card

    async def _read_card(self) -> AgentCard:
        tried = []
        for path in CARD_PATHS:
            async with self._answered("GET", path, what="the card", seconds=self.limits.agent_call_seconds) as answer:
                if answer.status_code in _MISSING:
                    tried.append(f"{path} ({answer.status_code})")
                    continue
                data = await whole(answer, limit_bytes=self.limits.agent_answer_bytes)
                if answer.is_error:
                    raise self._refused(answer.status_code, data, f"the card at {path}")
            return self._accepted(path, data)
        raise AgentFailedError(
            f"agent {self.name!r} has no card; tried {', '.join(tried)}",
            concerns=self.name,
            reason="no_card",
            hint="an A2A server serves one of these",
        )

    def _accepted(self, path: str, data: bytes) -> AgentCard:
        try:
            value = json.loads(data)
            card = AgentCard.model_validate(value)
            for each in interfaces(card):
                rpc_address(self.base, each.url)
        except (ValueError, RecursionError, ValidationError) as error:
            raise AgentFailedError(f"the card of agent {self.name!r} at {path} can't be read: {error}", reason="bad_card") from error
        self.raw_card = value
        return card

    # A2A

    async def call(self, method: Method, params: Mapping[str, Json], *, seconds: float) -> Update:
        """One request with one answer.

        Raises:
            RpcError: The agent answered with an error.
            AgentFailedError: What it answered can't be read.
            AgentUnreachableError: It does not answer.
        """
        async with aclosing(self.stream(method, params, seconds=seconds)) as updates:
            async for update in updates:
                if update is not None:
                    return update
        raise AgentUnreachableError(f"agent {self.name!r} ended its answer to {method.value} before it said anything", concerns=self.name)

    async def stream(
        self, method: Method, params: Mapping[str, Json], *, seconds: float | None = None
    ) -> AsyncGenerator[Update | None, None]:
        """Each item of the answer as it comes; None is a sign of life. Raises as `call`.

        Args:
            method: What is asked for.
            params: As 0.3 spells them.
            seconds: Of the whole; None where the caller holds a deadline.
        """
        at = await self._interface()
        version = {VERSION_HEADER: at.version} if at.is_v1 else {}
        body = request(a2a_v1.NAMES[method] if at.is_v1 else method.value, _params(method, params, at))
        headers = {"accept": "application/json, text/event-stream", **version}
        path = rpc_address(self.base, at.url).removeprefix(self.base)
        answering = self._answered("POST", path, what=method.value, seconds=seconds, body=body, headers=headers)
        async with answering as answer:
            if answer.is_error:
                data = await whole(answer, limit_bytes=self.limits.agent_answer_bytes)
                _raise_if_rpc(data)
                raise self._refused(answer.status_code, data, method.value)
            async with aclosing(objects(answer, limit_bytes=self.limits.agent_answer_bytes)) as found:
                async for value in found:
                    yield None if value is None else self._update(value, at)

    def _update(self, value: dict[str, Json], at: Interface) -> Update:
        try:
            result = read_answer(value)
            return a2a_v1.read(result) if at.is_v1 else read_update(result)
        except (ValueError, TypeError, KeyError) as error:
            raise AgentFailedError(
                f"agent {self.name!r} answered what A2A {at.version} does not have: {error}", reason="bad_answer"
            ) from error

    async def task(self, task_id: str) -> Task:
        """A task as it stands. Raises as `call`."""
        found = await self.call(Method.GET, {"id": task_id}, seconds=self.limits.agent_call_seconds)
        return self._task(found, Method.GET)

    async def cancel(self, task_id: str) -> Task:
        """Ends a task. Raises as `call`."""
        found = await self.call(Method.CANCEL, {"id": task_id}, seconds=self.limits.agent_cancel_seconds)
        return self._task(found, Method.CANCEL)

    def _task(self, found: Update, method: Method) -> Task:
        if not isinstance(found, Task):
            raise AgentFailedError(f"agent {self.name!r} answered {method.value} with something that is no task", reason="bad_answer")
        return found

    async def _interface(self) -> Interface:
        return interfaces(await self.card())[0]

    # extensions

    async def supports(self, uri: str, name: str) -> bool:
        """Whether its card advertises an operation."""
        return method_of(await self.card(), uri, name) is not None

    async def invoke(self, uri: str, name: str, body: Mapping[str, Json] | None = None, *, seconds: float | None = None) -> Json:
        """Calls an operation of an extension where the card says.

        Raises:
            AgentNotAdvertisedError: The card does not have it.
            AgentFailedError: It was refused.
            AgentUnreachableError: The agent does not answer.
        """
        card = await self.card()
        if method_of(card, uri, name) is None:
            raise AgentNotAdvertisedError(f"agent {self.name!r} does not offer {name!r} of {uri}", concerns=self.name)
        what = f"{uri.rpartition(':')[2]} {name}"
        limit = self.limits.agent_call_seconds if seconds is None else seconds
        verb, path = operation(uri, name).verb, endpoint_of(card, uri, name)
        sent = None if body is None else dict(body)
        async with self._answered(verb, path, what=what, seconds=limit, body=sent) as answer:
            data = await whole(answer, limit_bytes=self.limits.agent_answer_bytes)
            if answer.is_error:
                raise self._refused(answer.status_code, data, what)
        try:
            return json.loads(data) if data else None
        except (ValueError, RecursionError) as error:
            raise AgentFailedError(f"{what}: agent {self.name!r} answered no JSON", reason="bad_answer") from error

    async def probe(
        self,
        verb: str,
        path: str,
        *,
        body: Json = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        authorized: bool = True,
    ) -> tuple[int, Json]:
        """What it answers to any request: the status, and the JSON of the answer, or its text where it is none. For checks.

        Raises:
            AgentUnreachableError: It does not answer.
        """
        sent = {**({} if authorized else {"authorization": ""}), **(headers or {})}
        async with self._answered(
            verb, path, what=f"{verb} {path}", seconds=self.limits.agent_call_seconds, body=body, headers=sent, content=content
        ) as answer:
            data = await whole(answer, limit_bytes=self.limits.agent_answer_bytes)
        try:
            return answer.status_code, json.loads(data)
        except (ValueError, RecursionError):
            return answer.status_code, data.decode(errors="replace")

    # files on its own store

    async def get_file(self, path: str, to: Path, *, limit_bytes: int, seconds: float) -> str:
        """Reads what the agent serves under a path into a file. Returns its sha256, in hexadecimal.

        Raises:
            AgentFailedError: It is not there, or longer than the limit.
            AgentUnreachableError: The agent does not answer.
        """
        digest, size = hashlib.sha256(), 0
        async with self._answered("GET", path, what=_READING, seconds=seconds) as answer:
            await self._check(answer, _READING)
            with to.open("wb") as file:
                async for piece in answer.aiter_bytes():
                    size += len(piece)
                    if size > limit_bytes:
                        raise AgentFailedError(f"agent {self.name!r} has an object of more than {limit_bytes} bytes", reason="too_large")
                    digest.update(piece)
                    await asyncio.to_thread(file.write, piece)
        return digest.hexdigest()

    async def put_file(self, path: str, source: Path, *, media_type: str, seconds: float) -> None:
        """Writes a file to a path that the agent serves. Raises as `get_file`."""
        size = (await asyncio.to_thread(source.stat)).st_size
        headers = {"content-type": media_type, "content-length": str(size)}
        async with self._answered("PUT", path, what=_WRITING, seconds=seconds, headers=headers, content=_pieces(source)) as answer:
            await self._check(answer, _WRITING)

    async def delete(self, path: str) -> None:
        """Removes what is under a path. What is not there is no error. Raises as `get_file`."""
        async with self._answered("DELETE", path, what=_REMOVING, seconds=self.limits.agent_call_seconds) as answer:
            if answer.status_code not in _MISSING:
                await self._check(answer, _REMOVING)

    async def _check(self, answer: httpx.Response, what: str) -> None:
        if answer.is_error:
            raise self._refused(answer.status_code, await whole(answer, limit_bytes=self.limits.agent_answer_bytes), what)

    # HTTP

    @asynccontextmanager
    async def _answered(
        self,
        verb: str,
        path: str,
        *,
        what: str,
        seconds: float | None,
        body: Json = None,
        headers: Mapping[str, str] | None = None,
        content: bytes | AsyncIterator[bytes] | None = None,
    ) -> AsyncIterator[httpx.Response]:
        """An answer whose body is still to be read, inside of the deadline."""
        sent = {**self._headers, **(headers or {})}
        if body is not None:
            content, sent["content-type"] = json_bytes(body), "application/json"
        asked = self._asked(verb, path, sent, content)
        try:
            async with deadline(seconds, f"{what} of agent {self.name!r}"):
                answer = await self._http.send(asked, stream=True)
                try:
                    yield answer
                finally:
                    await answer.aclose()
        except httpx.HTTPError as error:
            raise self._unreachable(what, error, sent=not isinstance(error, _NOT_SENT)) from error
        except DeadlineError as error:
            raise self._unreachable(what, error, sent=True) from error

    def _asked(self, verb: str, path: str, headers: Mapping[str, str], content: bytes | AsyncIterator[bytes] | None) -> httpx.Request:
        """A request to this agent and nobody else, whatever host an address in its card names."""
        try:
            parts = urlsplit(path)
            below = urlunsplit(("", "", parts.path.lstrip("/"), parts.query, ""))
            return self._http.build_request(verb, f"{self.base}/{below}", headers=headers, content=content)
        except (ValueError, httpx.InvalidURL) as error:
            raise AgentFailedError(f"what agent {self.name!r} names as an address is none: {path!r}", reason="bad_address") from error

    def _unreachable(self, what: str, error: Exception, *, sent: bool) -> AgentUnreachableError:
        why = str(error) or type(error).__name__
        return AgentUnreachableError(f"agent {self.name!r} does not answer ({what}): {why}", concerns=self.name, sent=sent)

    def _refused(self, status: int, data: bytes, what: str) -> AgentFailedError:
        """What was sent may be repeated in an answer, and hold a secret: of it only a code and the status are told."""
        try:
            code = read_error(json.loads(data), status).code
        except (ValueError, RecursionError, TypeError, KeyError, AttributeError):
            code = f"http_{status}"
        hint = "its token was not accepted" if status in {httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN} else None
        said = f"status {status}" if code == f"http_{status}" else f"{code}, status {status}"
        return AgentFailedError(f"agent {self.name!r} refused {what} ({said})", concerns=self.name, reason=code, status=status, hint=hint)

    async def aclose(self) -> None:
        """Ends its connections."""
        await self._http.aclose()


async def _pieces(file: Path) -> AsyncIterator[bytes]:
    with file.open("rb") as source:
        while piece := await asyncio.to_thread(source.read, _PIECE_BYTES):
            yield piece


def _params(method: Method, params: Mapping[str, Json], at: Interface) -> dict[str, Json]:
    """Parameters as the interface's version spells them."""
    if not at.is_v1 or method not in {Method.SEND, Method.STREAM}:
        return dict(params)
    message = a2a_v1.dump_message(Message.model_validate(params["message"]))
    return {"message": message, "configuration": {"returnImmediately": True}}


def _raise_if_rpc(data: bytes) -> None:
    """Some servers put JSON-RPC errors under a status that is an error too."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return
    if isinstance(value, dict) and isinstance(value.get("error"), dict) and "jsonrpc" in value:
        read_answer(value)


__all__ = ["AgentClient", "RpcError"]
