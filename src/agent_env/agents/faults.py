"""What can go wrong between us and an agent, as errors of the one tree.

Only `AgentTaskFailedError` may be held against an agent: it says itself that it failed at what it was asked.
"""

from __future__ import annotations

from agent_env.errors import InfrastructureError, StepTimeoutError, TaskError, UnsupportedError


class AgentUnreachableError(InfrastructureError):
    """An agent does not answer, or broke off its answer."""

    code = "agent_unreachable"

    def __init__(self, message: str, *, concerns: str | None = None, hint: str | None = None, sent: bool = True) -> None:
        super().__init__(message, concerns=concerns, hint=hint)
        self.sent = sent
        """False where the request certainly never arrived."""


class AgentFailedError(InfrastructureError):
    """An agent answered that it can't, or answered what can't be read."""

    code = "agent_failed"

    def __init__(self, message: str, *, concerns: str | None = None, hint: str | None = None, reason: str = "", status: int = 200) -> None:
        super().__init__(message, concerns=concerns, hint=hint)
        self.reason = reason
        """The agent's own code, a JSON-RPC number as text, or `http_<status>`."""
        self.status = status


class AgentNotAdvertisedError(UnsupportedError):
    """The agent's card does not offer what is asked for."""

    code = "agent_not_advertised"


class AgentTaskFailedError(TaskError):
    """The agent ended its turn as failed or rejected, by its own doing."""

    code = "agent_task_failed"


class AgentBrokeError(InfrastructureError):
    """The agent's turn ended by a fault around the agent, as the agent says itself, or as its crash shows."""

    code = "agent_broke"


class AgentTurnTimeoutError(StepTimeoutError):
    """The agent's turn outlived the time that the task gives it."""

    code = "agent_turn_timeout"


class AgentCanceledError(InfrastructureError):
    """The agent's turn was canceled by somebody else than its run."""

    code = "agent_canceled"


class PromptUncertainError(InfrastructureError):
    """Whether an earlier process's prompt arrived can't be found out, and it must not be sent twice."""

    code = "prompt_uncertain"
