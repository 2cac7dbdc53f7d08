"""A small client for tests: an environment's card, data, extensions and tools, as an author thinks of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx

from agent_env_sdk.mcp_session import CallResult, McpSession
from agent_env_sdk.wire.card import EnvironmentCard, find_method, join, mcp_path
from agent_env_sdk.wire.errors import read_error
from agent_env_sdk.wire.names import (
    ADD,
    CARD_PATH,
    GET,
    RESET,
    ROLE_HEADER,
    RPC_PATH,
)
from agent_env_sdk.wire.parts import DataPart, FilePart, TextPart, dump_parts, parts_adapter
from agent_env_sdk.wire.rpc import read_answer, request

Part = TextPart | DataPart | FilePart
CALL_SECONDS: Final = 600.0


class Client:
    """An environment that is served somewhere.

    Args:
        base: Its address.
        http: The client to send with.
    """

    def __init__(self, base: str, http: httpx.AsyncClient) -> None:
        self.base = base.rstrip("/")
        self.http = http

    async def card(self) -> EnvironmentCard:
        """Its card."""
        response = await self.http.get(join(self.base, CARD_PATH))
        return EnvironmentCard.model_validate(response.raise_for_status().json())

    async def reset(self) -> None:
        """`data/reset`.

        Raises:
            RpcError: The server answered with an error.
        """
        await self.rpc(RESET, {})

    async def add(self, *data: Mapping[str, Any] | Part) -> None:
        """`data/add`, of objects and parts.

        Raises:
            RpcError: The server answered with an error.
        """
        parts = [each if isinstance(each, TextPart | DataPart | FilePart) else DataPart(data=dict(each)) for each in data]
        await self.rpc(ADD, {"parts": dump_parts(parts)})

    async def get(self, write_namespace: Mapping[str, Any] | None = None) -> Sequence[Part]:
        """`data/get`.

        Raises:
            RpcError: The server answered with an error.
        """
        params = {} if write_namespace is None else {"write_namespace": dict(write_namespace)}
        return parts_adapter.validate_python((await self.rpc(GET, params))["parts"])

    async def data(self) -> dict[str, Any]:
        """`data/get` of an environment that gives one object.

        Raises:
            ValueError: It gave something else.
        """
        match await self.get():
            case [DataPart(data=data)]:
                return data
            case other:
                raise ValueError(f"data/get gave {len(other)} parts, not one object")

    async def rpc(self, method: str, params: Mapping[str, Any]) -> Any:
        """Any call of the data plane.

        Raises:
            RpcError: The server answered with an error.
        """
        response = await self.http.post(join(self.base, RPC_PATH), json=request(method, params))
        return read_answer(response.raise_for_status().json())

    async def invoke(self, uri: str, params: Mapping[str, Any] | None = None, *, method: str | None = None, role: str | None = None) -> Any:
        """Calls an extension as the card says.

        Raises:
            LookupError: The card has no such extension or method.
            AgentEnvError: The server answered with an error.
        """
        found = find_method(await self.card(), uri, method)
        headers = {ROLE_HEADER: role} if role else {}
        body: dict[str, Any] = {"params": params} if found.verb == "GET" else {"json": dict(params or {})}
        response = await self.http.request(found.verb, join(self.base, found.endpoint), headers=headers, **body)
        if response.is_error:
            raise read_error(_json(response), response.status_code)
        return response.json()

    @asynccontextmanager
    async def session(self, role: str | None = None) -> AsyncIterator[McpSession]:
        """An MCP session, as an agent in that role."""
        url = join(self.base, mcp_path(await self.card()))
        session = McpSession(self.http, url, {ROLE_HEADER: role} if role else {})
        await session.open()
        try:
            yield session
        finally:
            await session.close()

    async def tools(self, role: str | None = None) -> dict[str, dict[str, Any]]:
        """The tools that a role sees, by name."""
        async with self.session(role) as session:
            return {tool["name"]: tool for tool in await session.tools()}

    async def call(self, tool: str, arguments: Mapping[str, Any] | None = None, *, role: str | None = None) -> CallResult:
        """Calls a tool in a session of its own."""
        async with self.session(role) as session:
            return await session.call(tool, arguments)


def _json(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        return None
