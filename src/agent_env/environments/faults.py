"""What can go wrong between us and an environment, as errors of the one tree. None of it is ever held against an agent."""

from __future__ import annotations

from agent_env_sdk.wire.errors import Applied

from agent_env.errors import InfrastructureError, UnsupportedError, UserError


class EnvironmentUnreachableError(InfrastructureError):
    """An environment's server does not answer, or broke off its answer."""

    code = "environment_unreachable"

    def __init__(self, message: str, *, concerns: str | None = None, hint: str | None = None, applied: Applied = "unknown") -> None:
        super().__init__(message, concerns=concerns, hint=hint)
        self.applied: Applied = applied
        """`no` where the request certainly never arrived."""


class EnvironmentFailedError(InfrastructureError):
    """A server answered that it failed, or answered what can't be read."""

    code = "environment_failed"

    def __init__(
        self,
        message: str,
        *,
        concerns: str | None = None,
        hint: str | None = None,
        reason: str = "",
        status: int = 200,
        retryable: bool = False,
        applied: Applied = "unknown",
        data: object = None,
    ) -> None:
        super().__init__(message, concerns=concerns, hint=hint)
        self.reason = reason
        """The server's own word for it: an error code such as `add_failed`, a JSON-RPC number as text, or `http_<status>`."""
        self.status = status
        """Of the HTTP answer."""
        self.retryable = retryable
        self.applied: Applied = applied
        self.data = data


class SessionLostError(EnvironmentFailedError):
    """An MCP server no longer knows the session; a new one has to be opened."""

    code = "mcp_session_lost"


class ToolNameClashError(UserError):
    """Several servers of an environment have a tool of the same name, so no provider could serve them."""

    code = "tool_name_clash"


class NotAdvertisedError(UnsupportedError):
    """The environment's card does not offer what is asked for."""

    code = "not_advertised"
