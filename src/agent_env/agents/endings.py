"""What a turn's ending means for the step that asked for it: the error that it becomes, and whose fault it is."""

from __future__ import annotations

from agent_env.agents.contract import End, Turn
from agent_env.agents.faults import (
    AgentBrokeError,
    AgentCanceledError,
    AgentTaskFailedError,
    AgentTurnTimeoutError,
    AgentUnreachableError,
)
from agent_env.errors import AgentEnvError

MODEL_HINT = (
    "configure a model on this machine: LITELLM_BASE_URL, LITELLM_API_KEY and AGENT_ENV_MODEL, or [model] (`agent-env model check` asks it)"
)
_WITHOUT_MODEL = frozenset({"no_endpoint", "no_model"})
"""What agents of our SDK say, behind their own name, where nobody gave them a model."""
AGENT, INFRASTRUCTURE = "agent_error", "infra_error"
_MOST_SHOWN = 2000
"""Of what an agent says of its failure (reference)."""
_ENDED_SO = {
    End.FAILED: "failed",
    End.REJECTED: "refused the task",
    End.CANCELED: "was canceled, and not by this run",
    End.TIMED_OUT: "took too long",
    End.LOST: "was lost",
    End.INPUT_REQUIRED: "waits for an answer that nobody gives",
}


def whose(turn: Turn) -> str | None:
    """Whose fault an ending is: None where there is none. What isn't recognised is never held against the agent."""
    match turn.end:
        case End.COMPLETED | End.INPUT_REQUIRED:
            return None
        case End.REJECTED | End.TIMED_OUT:
            return turn.error_type or AGENT
        case End.CANCELED | End.LOST:
            return INFRASTRUCTURE
        case End.FAILED:
            return AGENT if turn.error_type == AGENT else INFRASTRUCTURE


def message_of(turn: Turn, log: str = "") -> str:
    """What is known of a failure: the agent's own words, else the end of its log."""
    return (turn.error_message or turn.text or log or "")[:_MOST_SHOWN]


def failure_of(turn: Turn, agent_name: str, *, log: str = "") -> AgentEnvError | None:
    """The error that an ending becomes; None for a turn that completed.

    Args:
        turn: The turn.
        agent_name: The agent.
        log: The end of its container's log, for an ending that says little itself.
    """
    if turn.end in {End.COMPLETED, End.INPUT_REQUIRED}:
        return None
    facts = {"error_type": whose(turn), "error_code": turn.error_code, "task_id": turn.task_id}
    known = ", ".join(f"{name}={value}" for name, value in facts.items() if value)
    said = message_of(turn, log)
    message = f"the turn of agent {agent_name!r} {_ENDED_SO[turn.end]} ({known})" + (f": {said}" if said else "")
    match turn.end:
        case End.TIMED_OUT:
            return AgentTurnTimeoutError(message, concerns=agent_name, hint="raise the prompt's timeout_seconds")
        case End.LOST:
            return AgentUnreachableError(message, concerns=agent_name)
        case End.CANCELED:
            return AgentCanceledError(message, concerns=agent_name)
    kind = AgentTaskFailedError if whose(turn) == AGENT else AgentBrokeError
    return kind(message, concerns=agent_name, hint=hint_of(turn))


def hint_of(turn: Turn) -> str | None:
    """What whoever runs the agent can do about a failure that it tells from within; its own words are about its container."""
    return MODEL_HINT if str(turn.error_code).rpartition(".")[2] in _WITHOUT_MODEL else None
