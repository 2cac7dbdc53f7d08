"""Speaks with an environment's server: its card, data plane, extensions and manifests; tools are `mcp_client`'s."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
from agent_env_sdk.wire.card import EnvironmentCard, ExtensionMethod, find_method, join, mcp_path, operations
from agent_env_sdk.wire.errors import read_error
from agent_env_sdk.wire.names import (
    ADD,
    CARD_PATH,
    DATA_OBJECTS,
    GET,
    GET_INTERFACES,
    LOAD_JOBS,
    MANIFEST_PATH,
    RESET,
    ROLE_HEADER,
    RPC_PATH,
)
from agent_env_sdk.wire.rpc import RpcError, read_answer, request
from pydantic import ValidationError

from agent_env.defaults import DEFAULT_LIMITS, Limits
from agent_env.environments.faults import EnvironmentFailedError, NotAdvertisedError
from agent_env.environments.http import answered, read_json
from agent_env.environments.jobs import Report, run_job
from agent_env.environments.mcp_client import McpSession
from agent_env.waiting import back_off

Json = Any
JsonPart = Mapping[str, Json]
"""A part of the data plane as the wire has it; `agent_env_sdk.wire.parts` makes and reads them."""
_ATTEMPTS = 3
"""Of an extension's call that the server says was not applied, and may be repeated."""
_GIGABYTE = 10**9


class EnvironmentClient:
    """One server of an environment, or an environment as a whole.

    Args:
        base_url: What every path of its card joins onto.
        http: How it is reached; closed with this client.
        name: What messages call it.
        role: Whose calls these are, for servers that keep roles apart; None is nobody's.
        card: Its card, where it is known already.
        mcp_url: Where it speaks MCP, for one without a card.
        limits: Deadlines and sizes.
    """

    def __init__(
        self,
        base_url: str,
        *,
        http: httpx.AsyncClient,
        name: str,
        role: str | None = None,
        card: Mapping[str, Json] | None = None,
        mcp_url: str | None = None,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self.name = name
        self.role = role
        self.limits = limits
        self._http = http
        self._mcp_url = mcp_url
        self._raw = dict(card) if card is not None else None
        self._card: EnvironmentCard | None = None

    # the card

    async def card(self, *, refresh: bool = False) -> EnvironmentCard:
        """Its card, read once.

        Raises:
            NotAdvertisedError: It has none: a server from before cards.
            EnvironmentFailedError: What it answers is no card.
        """
        if self._card is None or refresh:
            raw = await self.raw_card(refresh=refresh)
            try:
                self._card = EnvironmentCard.model_validate(raw)
            except ValidationError as error:
                where = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors(include_url=False))
                raise EnvironmentFailedError(
                    f"the card of {self.name} can't be used: {where}", concerns=self.name, reason="bad_card"
                ) from error
        return self._card

    async def raw_card(self, *, refresh: bool = False) -> dict[str, Json]:
        """Its card as it was sent, fields that nobody knows included. Raises as `card`."""
        if self._raw is None or refresh:
            what = f"reading the card of {self.name}"
            seconds = self.limits.environment_card_seconds
            async with self.request("GET", CARD_PATH, what=what, seconds=seconds) as answer:
                if answer.status_code == httpx.codes.NOT_FOUND:
                    raise NotAdvertisedError(f"{self.name} has no environment card", concerns=self.name)
                if answer.status_code != httpx.codes.OK:
                    raise self._refused(what, answer.status_code)
                raw = await read_json(answer, what, limit_bytes=self.limits.environment_answer_bytes)
            if not isinstance(raw, dict) or not isinstance(raw.get("name"), str) or not raw["name"]:
                raise EnvironmentFailedError(
                    f"the card of {self.name} is no object with a name", concerns=self.name, reason="bad_card", status=answer.status_code
                )
            self._raw = raw
        return self._raw

    def _refused(self, what: str, status: int) -> EnvironmentFailedError:
        message = f"{what}: it answered with status {status}"
        return EnvironmentFailedError(message, concerns=self.name, reason=f"http_{status}", status=status)

    # the data plane

    async def operations(self) -> tuple[str, ...]:
        """Operations of the data plane that it serves; none for a server without a card."""
        try:
            return operations(await self.card())
        except NotAdvertisedError:
            return ()

    async def reset(self, *, timeout_seconds: float | None = None) -> None:
        """Empties it, in one request.

        Raises:
            NotAdvertisedError: It serves no such operation.
            EnvironmentFailedError: It failed; `reason` is the server's code.
        """
        await self._rpc(RESET, {}, timeout_seconds or self.limits.environment_call_seconds)

    async def add(self, parts: Sequence[JsonPart], *, timeout_seconds: float | None = None) -> None:
        """Adds data, in one request. Raises as `reset`."""
        await self._rpc(ADD, {"parts": list(parts)}, timeout_seconds or self.limits.environment_add_seconds)

    async def get(
        self, *, write_namespace: Mapping[str, Json] | None = None, timeout_seconds: float | None = None
    ) -> list[dict[str, Json]]:
        """What it holds, as parts. Raises as `reset`.

        Args:
            write_namespace: A grant to upload under; only sent to a server that advertises it.
            timeout_seconds: The limit; None is `environment_call_seconds`.
        """
        takes = write_namespace is not None and await self.advertises(DATA_OBJECTS)
        params = {"write_namespace": dict(write_namespace or {})} if takes else {}
        result = await self._rpc(GET, params, timeout_seconds or self.limits.environment_call_seconds)
        parts = result.get("parts") if isinstance(result, dict) else None
        if not isinstance(parts, list) or not all(isinstance(part, dict) and isinstance(part.get("kind"), str) for part in parts):
            raise EnvironmentFailedError(f"{self.name} answered {GET} without a list of parts", concerns=self.name, reason="bad_parts")
        return parts

    async def load(self, parts: Sequence[JsonPart], *, size_bytes: int | None = None, report: Report | None = None) -> None:
        """Replaces what it holds: as one job that tells how far it is where the server offers that, else by reset and add.

        Args:
            parts: The data.
            size_bytes: How much it is, which the deadline is derived from; None is unknown.
            report: Told of progress.

        Raises:
            EnvironmentFailedError: The server failed; what it holds then is not known.
            DeadlineError: It took too long; a job was cancelled.
        """
        seconds = load_seconds(size_bytes, self.limits)
        if await self.advertises(LOAD_JOBS):
            await run_job(self, parts, seconds=seconds, size_bytes=size_bytes, report=report)
            return
        await self.reset(timeout_seconds=seconds)
        await self.add(parts, timeout_seconds=seconds)

    async def _rpc(self, method: str, params: Mapping[str, Json], seconds: float) -> Json:
        if method not in await self.operations():
            raise NotAdvertisedError(f"{self.name} does not serve {method}", concerns=self.name)
        what = f"{method} of {self.name}"
        async with self.request("POST", RPC_PATH, what=what, seconds=seconds, body=request(method, params)) as answer:
            said = await read_json(answer, what, limit_bytes=self.limits.environment_answer_bytes)
        try:
            return read_answer(said)
        except RpcError as error:
            raise self._failed(what, error) from error
        except ValueError as error:
            raise self._refused(what, answer.status_code) from error

    def _failed(self, what: str, error: RpcError) -> EnvironmentFailedError:
        data = error.data if isinstance(error.data, dict) else {}
        detail = f" ({data['detail']})" if isinstance(data.get("detail"), str) else ""
        reason = data.get("code") if isinstance(data.get("code"), str) else str(error.code)
        return EnvironmentFailedError(f"{what} failed: {error.message}{detail}", concerns=self.name, reason=str(reason), data=error.data)

    # extensions

    async def advertises(self, uri: str, method: str | None = None) -> bool:
        """Whether its card offers an extension (and that method of it)."""
        try:
            card = await self.card()
        except NotAdvertisedError:
            return False
        extension = next((each for each in card.capabilities.extensions or () if each.uri == uri), None)
        if extension is None or method is None:
            return extension is not None
        return method in ((extension.params or {}).get("methods") or {})

    async def method(self, uri: str, method: str | None = None) -> ExtensionMethod:
        """The method of an extension as its card gives it.

        Raises:
            NotAdvertisedError: The card does not offer it.
        """
        try:
            return find_method(await self.card(), uri, method)
        except LookupError as error:
            raise NotAdvertisedError(str(error), concerns=self.name) from error

    async def invoke(
        self, uri: str, params: Mapping[str, Json] | None = None, *, method: str | None = None, timeout_seconds: float | None = None
    ) -> Json:
        """Calls an extension. It is repeated only where the server says that nothing happened and that a repetition may help.

        Args:
            uri: The extension's URN.
            params: Its arguments.
            method: Which of its methods; None is the first that the card lists.
            timeout_seconds: For each attempt; None is `environment_call_seconds`.

        Raises:
            NotAdvertisedError: The card does not offer it.
            EnvironmentFailedError: It answered with an error: `reason`, `status`, `retryable`, `applied`.
        """
        found = await self.method(uri, method)
        attempt = 1
        while True:
            try:
                return await self._invoked(uri, found, dict(params or {}), timeout_seconds or self.limits.environment_call_seconds)
            except EnvironmentFailedError as error:
                if not (error.retryable and error.applied == "no") or attempt >= _ATTEMPTS:
                    raise
            attempt += 1
            await back_off(attempt, limits=self.limits)

    async def _invoked(self, uri: str, found: ExtensionMethod, params: dict[str, Json], seconds: float) -> Json:
        what = f"{found.name or uri} of {self.name}"
        query, body = (_query(params), None) if found.verb == "GET" else (None, params)
        async with self.request(found.verb, found.endpoint, what=what, seconds=seconds, params=query, body=body) as answer:
            said = await read_json(answer, what, limit_bytes=self.limits.environment_answer_bytes)
        if answer.status_code >= httpx.codes.BAD_REQUEST:
            error = read_error(said, answer.status_code)
            raise EnvironmentFailedError(
                f"{what} failed: {error.message}",
                concerns=self.name,
                hint=error.hint,
                reason=error.code,
                status=answer.status_code,
                retryable=error.retryable,
                applied=error.applied,
                data=said,
            )
        return said

    # manifests

    async def interfaces(self) -> list[str]:
        """Names of the interfaces that it has manifests of; none where it has opted out."""
        what = f"reading the interfaces of {self.name}"
        async with self.request("GET", await self._manifests(), what=what, seconds=self.limits.environment_call_seconds) as answer:
            if answer.status_code == httpx.codes.NOT_FOUND:
                return []
            said = await read_json(answer, what, limit_bytes=self.limits.environment_answer_bytes)
        return [str(name) for name in said] if isinstance(said, list) else []

    async def manifest(self, interface: str) -> Json:
        """The manifest of one interface.

        Raises:
            NotAdvertisedError: There is none of that name.
        """
        what = f"reading the manifest {interface} of {self.name}"
        path = f"{(await self._manifests()).rstrip('/')}/{interface}"
        async with self.request("GET", path, what=what, seconds=self.limits.environment_call_seconds) as answer:
            if answer.status_code == httpx.codes.NOT_FOUND:
                raise NotAdvertisedError(f"{self.name} has no interface {interface!r}", concerns=self.name)
            return await read_json(answer, what, limit_bytes=self.limits.environment_answer_bytes)

    async def _manifests(self) -> str:
        card = await self.card()
        declared = next((each for each in card.capabilities.extensions or () if each.uri == GET_INTERFACES), None)
        return str(((declared.params if declared else None) or {}).get("endpoint") or MANIFEST_PATH)

    # tools, and whatever else it serves

    async def mcp_url(self) -> str:
        """Where it speaks MCP, as its card says; `/mcp` without a card."""
        if self._mcp_url is not None:
            return self._mcp_url
        try:
            return join(self.base_url, mcp_path(await self.card()))
        except NotAdvertisedError:
            return join(self.base_url, "/mcp")

    @asynccontextmanager
    async def mcp(self, *, headers: Mapping[str, str] | None = None) -> AsyncIterator[McpSession]:
        """A session with its MCP endpoint, ended with the block.

        Args:
            headers: Sent with each request, such as an agent's own.
        """
        session = McpSession(
            await self.mcp_url(), self._http, name=self.name, headers={**self._headers(), **(headers or {})}, limits=self.limits
        )
        await session.open()
        try:
            yield session
        finally:
            await session.aclose()

    async def tools(self) -> list[dict[str, Json]]:
        """All its tools, over a session of their own."""
        async with self.mcp() as session:
            return await session.tools()

    async def call(self, tool: str, arguments: Mapping[str, Json] | None = None) -> dict[str, Json]:
        """Calls one tool, over a session of its own. See `McpSession.call`."""
        async with self.mcp() as session:
            return await session.call(tool, arguments or {})

    @asynccontextmanager
    async def request(
        self,
        method: str,
        path: str,
        *,
        what: str | None = None,
        seconds: float | None = None,
        headers: Mapping[str, str] | None = None,
        params: Mapping[str, Any] | None = None,
        body: Json | None = None,
        content: bytes | AsyncIterator[bytes] | None = None,
    ) -> AsyncIterator[httpx.Response]:
        """An answer of any path, whose body is still to be read. Redirects are not followed.

        Raises:
            EnvironmentUnreachableError: Nobody answered, or the answer broke off.
            DeadlineError: It took too long.
        """
        async with answered(
            self._http,
            method,
            join(self.base_url, path),
            seconds=seconds or self.limits.environment_call_seconds,
            what=what or f"{method} {path} of {self.name}",
            limits=self.limits,
            headers={**self._headers(), **(headers or {})},
            params=params,
            body=body,
            content=content,
        ) as answer:
            yield answer

    def _headers(self) -> dict[str, str]:
        return {ROLE_HEADER: self.role} if self.role else {}

    async def aclose(self) -> None:
        """Ends its connections."""
        await self._http.aclose()


def load_seconds(size_bytes: int | None, limits: Limits) -> float:
    """How long a load may take (reference: a floor, so much for each gigabyte, a ceiling; the floor where the size is unknown)."""
    more = 0.0 if size_bytes is None else math.ceil(size_bytes / _GIGABYTE * limits.environment_load_gigabyte_seconds)
    return min(limits.environment_load_seconds + more, limits.environment_load_most_seconds)


def _query(params: Mapping[str, Json]) -> dict[str, Any]:
    return {
        name: ("true" if value else "false") if isinstance(value, bool) else value for name, value in params.items() if value is not None
    }
