"""An environment while it is served: its surface, its rules, its loads, and the ASGI application in front of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
from starlette.applications import Starlette
from starlette.routing import Route

import agent_env_sdk
from agent_env_sdk.wire.access import ToolAccess

from . import tools
from .author import Environment
from .calling import Invoker
from .clock_sync import BETWEEN_SECONDS, FollowedClock
from .context import Caller, Report
from .data_plane import DataPlane
from .jobs import Loads
from .mcp import McpEndpoint
from .routes import routes
from .surface import AssemblyError, assemble


class Application:
    """What serves one environment, once.

    Args:
        environment: What is served.

    Raises:
        AssemblyError: It can't be served as it stands, or is served already.
    """

    def __init__(self, environment: Environment) -> None:
        if environment.mounted is not None:
            raise AssemblyError(f"this {type(environment).__name__} is served already; make another object")
        self.environment = environment
        self.clock = FollowedClock() if environment.follows_clock else None
        self.surface = assemble(environment)
        self.access = ToolAccess()
        self.invoker = Invoker(self.surface.card.name, environment.threads)
        self.plane = DataPlane(self.surface.operations, self.invoker)
        self.asks_first = type(environment).on_tool_call is not Environment.on_tool_call
        self._mcp = McpEndpoint(
            self.surface.card.name, agent_env_sdk.__version__, self._list_tools, self._call_tool, environment.max_request_bytes
        )
        self._loads: Loads | None = None
        environment.mounted = self

    def starlette(self) -> Starlette:
        """The ASGI application."""
        mcp = Route(self.environment.mcp_path, endpoint=self._mcp)
        return Starlette(routes=[mcp, *routes(self)], lifespan=self._lifespan)

    def loads(self) -> Loads:
        """The loads; there are some while the server runs."""
        if self._loads is None:
            raise RuntimeError("the server does not run")
        return self._loads

    async def describe(self, name: str, description: str) -> None:
        """Changes a tool's description and tells connected clients.

        Raises:
            LookupError: No such tool is served.
        """
        self.surface = self.surface.described(name, description)
        await self.tools_changed()

    async def tools_changed(self) -> None:
        """Tells connected clients that the list of tools has changed."""
        await self._mcp.tools_changed()

    def stop(self) -> None:
        """Ends the streams on which clients listen."""
        self._mcp.stop()

    async def clock_refreshed(self) -> None:
        """Reads the clock that is followed, if one is."""
        if self.clock is not None:
            await self.invoker.attempt(self.clock.refresh)

    async def _list_tools(self, caller: Caller, cursor: str | None) -> dict[str, Any]:
        return await tools.list_tools(self, caller, cursor)

    async def _call_tool(self, name: str, arguments: Mapping[str, Any], caller: Caller, report: Report | None) -> dict[str, Any]:
        return await tools.call_tool(self, name, arguments, caller, report)

    async def _follow(self) -> None:
        """Reads the clock each second, for whoever asks for the time outside of a call."""
        while True:
            await anyio.sleep(BETWEEN_SECONDS)
            await self.clock_refreshed()

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        async with AsyncExitStack() as held:
            held.callback(self.invoker.close)
            if self.clock is not None:
                held.push_async_callback(self.clock.close)
            await self.invoker.run(self.environment.startup)
            held.push_async_callback(self.invoker.run, self.environment.shutdown)
            owner = await held.enter_async_context(anyio.create_task_group())
            held.callback(owner.cancel_scope.cancel)
            if self.clock is not None:
                owner.start_soon(self._follow)
            self._loads = Loads(self.plane, owner)
            await held.enter_async_context(self._mcp.running())
            yield


def asgi(environment: Environment) -> Starlette:
    """The environment as an ASGI application, for any server that runs the lifespan.

    Raises:
        AssemblyError: It can't be served as it stands, or is served already.
    """
    return Application(environment).starlette()
