"""Listing and calling tools, as JSON: what MCP says of them, whichever generation of it carries the words."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agent_env_sdk.wire.access import denial
from agent_env_sdk.wire.errors import AgentEnvError
from agent_env_sdk.wire.names import DEFAULT_ROLE

from .answers import ToolResult, answer, crash, refusal
from .calling import Raised
from .context import Caller, Report, ToolContext, bound, frozen
from .surface import ServedTool

if TYPE_CHECKING:
    from .application import Application

logger = logging.getLogger("agent_env_sdk")


class CursorError(ValueError):
    """A cursor that no page of tools has."""


async def list_tools(application: Application, caller: Caller, cursor: str | None) -> dict[str, Any]:
    """A page of the tools that the caller may use.

    Raises:
        CursorError: `cursor` is none of ours.
    """
    size = application.environment.tools_page_size
    tools = [tool.listed() for tool in application.surface.tools.values() if allowed(application, caller, tool)]
    start = int(cursor) if cursor and cursor.isdecimal() else 0
    if (cursor and not cursor.isdecimal()) or start > len(tools):
        raise CursorError(f"no page of tools starts at {cursor!r}")
    if size is None:
        return {"tools": tools[start:]}
    more = {"nextCursor": str(start + size)} if start + size < len(tools) else {}
    return {"tools": tools[start : start + size], **more}


async def call_tool(
    application: Application, name: str, arguments: Mapping[str, Any], caller: Caller, report: Report | None
) -> dict[str, Any]:
    """The result of a call; errors are results too."""
    tool = application.surface.tools.get(name)
    if tool is None:
        return ToolResult(f"Unknown tool: {name}", is_error=True).to_json()
    context = ToolContext(caller, name, frozen(arguments), uuid.uuid4().hex, report)
    if not allowed(application, caller, tool):
        return refusal(denial(name, caller.role or DEFAULT_ROLE))
    with bound(context):
        await application.clock_refreshed()
        return await _called(application, tool, context)


def allowed(application: Application, caller: Caller, tool: ServedTool) -> bool:
    """Whether the server's own rules, if it keeps any, let the caller use a tool."""
    if not application.environment.tool_access:
        return True
    return application.access.allowed(caller.role or DEFAULT_ROLE, tool.name, tool.mark.hidden_by_default)


async def _called(application: Application, tool: ServedTool, context: ToolContext) -> dict[str, Any]:
    outcome = await application.invoker.attempt(_answered, application, tool, context)
    match outcome:
        case Raised(error=AgentEnvError() as error):
            return refusal(error)
        case Raised(error=error):
            logger.warning("the tool %s failed: %r", tool.name, error)
            return crash(tool.name, error)
    result: dict[str, Any] = outcome
    return result


async def _answered(application: Application, tool: ServedTool, context: ToolContext) -> dict[str, Any]:
    invoker = application.invoker
    early = await invoker.run(application.environment.on_tool_call, context) if application.asks_first else None
    if early is not None:
        return answer(early, None)
    arguments = tool.parameters.bind(context.arguments)
    if tool.parameters.context is not None:
        arguments[tool.parameters.context] = context
    return answer(await invoker.run(tool.handler, **arguments), tool.output)
