"""The class that authors derive from: marked methods say what is served, and a few hooks say what of it, and how."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar

from agent_env_sdk.wire.card import EnvironmentCard, Extension, Tool
from agent_env_sdk.wire.names import MCP_PATH

from .context import ToolContext

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

    from agent_env_sdk.wire.manifest import CliManifest, InterfaceManifest

    from .application import Application


class Environment:
    """A server of tools and data.

    Handlers may be `async` or plain. Plain ones run one at a time on a thread of their own, so that they need no locks among
    themselves and never hold up the server; `threads` allows more at once. A database connection that is opened elsewhere must
    allow being used from that thread (for `sqlite3`: `check_same_thread=False`).
    """

    tool_access: ClassVar[bool] = False
    """Whether the server itself keeps rules about which role may use which tool, for use without a gateway."""
    follows_clock: ClassVar[bool] = False
    """Whether `now()` follows a virtual clock once a step has said where it is read (`urn:agentenv:clock/v1`)."""
    mcp_path: ClassVar[str] = MCP_PATH
    """Where MCP is served; the card says so."""
    threads: ClassVar[int] = 1
    """Plain handlers that run at once."""
    tools_page_size: ClassVar[int | None] = None
    """Tools in one answer of `tools/list`; None for all."""
    max_request_bytes: ClassVar[int] = 256 * 1024 * 1024
    """The longest body that is read, in bytes: inline seeds travel in one."""
    mounted: Application | None = None
    """What serves this object, once it is served."""

    async def startup(self) -> None:
        """Runs before the first request."""

    async def shutdown(self) -> None:
        """Runs after the last request."""

    def ready(self) -> bool:
        """Whether `/ready` answers 200; 503 otherwise."""
        return True

    def now(self) -> datetime:
        """The time, UTC: virtual while a clock is followed and armed, else real."""
        clock = self.mounted.clock if self.mounted is not None else None
        return clock.now() if clock is not None else datetime.now(UTC)

    async def sync_time(self, env_get_time_url: str) -> dict[str, Any]:
        """What `urn:agentenv:clock/v1` calls where `follows_clock` says so: `now()` follows the clock at that address.

        Raises:
            AgentEnvError: It can't be read.
        """
        clock = self._served().clock
        return await clock.sync(env_get_time_url) if clock is not None else {"synced": False}

    def extension_params(self, uri: str) -> Mapping[str, Any]:
        """What the card says of an extension served with `op`, beside its methods."""
        del uri  # authors decide by it
        return {}

    def declared_extensions(self) -> Sequence[Extension]:
        """Extensions that only declare something, such as `IntakeDeclaration(...).extension()`."""
        return []

    def served_extensions(self, extensions: Sequence[Extension]) -> Sequence[Extension]:
        """Which extensions are served: one left out isn't, and of one with methods only those still listed."""
        return extensions

    def served_operations(self, operations: Sequence[str]) -> Sequence[str]:
        """Which operations of the data plane are served."""
        return operations

    def served_tools(self, tools: Sequence[Tool]) -> Sequence[Tool]:
        """Which tools are served, in which order, and with which descriptions."""
        return tools

    def manifests(self) -> Mapping[str, InterfaceManifest | CliManifest]:
        """Interface manifests by the interface's name, such as `cli`."""
        return {}

    def routes(self) -> Sequence[BaseRoute]:
        """Further Starlette routes."""
        return []

    def on_tool_call(self, context: ToolContext) -> Any | Awaitable[Any]:
        """Runs before each call of a tool: None lets it pass, a `ToolResult` answers it. May be `async`."""
        del context  # authors decide by it
        return None

    def mounted_card(self) -> EnvironmentCard:
        """The card as it is served.

        Raises:
            RuntimeError: The environment isn't served yet.
        """
        return self._served().surface.card

    async def update_tool(self, name: str, *, description: str) -> None:
        """Changes a served tool's description, on the card and in `tools/list`, and tells connected clients.

        Raises:
            RuntimeError: The environment isn't served yet.
            LookupError: It serves no such tool.
        """
        await self._served().describe(name, description)

    def serve(self, host: str | None = None, port: int | None = None) -> None:
        """Serves until a signal ends the process; see `serving.serve`."""
        from .serving import serve

        serve(self, host, port)

    def _served(self) -> Application:
        if self.mounted is None:
            raise RuntimeError(f"{type(self).__name__} is not served yet")
        return self.mounted
