"""A step's target, parsed once from the fields that name it: exactly one, or none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agent_env.steps.contract import UnreadableError
from agent_env.steps.fields import blank_is_unset

DEFAULT_AGENT = "default-agent"
"""The agent that a step means when it names no target (reference)."""


@dataclass(frozen=True, slots=True)
class SandboxTarget:
    """A `deploy_sandbox`, or one container that this run started on it."""

    sandbox_name: str
    container_name: str | None = None


@dataclass(frozen=True, slots=True)
class AgentTarget:
    """A deployed agent."""

    agent_name: str


@dataclass(frozen=True, slots=True)
class EnvironmentTarget:
    """A deployed environment; `server` names one of its servers where the deed is about files."""

    env_id: str
    step_id: str | None = None
    server: str | None = None


Target = SandboxTarget | AgentTarget | EnvironmentTarget


class TargetError(UnreadableError, ValueError):
    """What a step says names no single target, so what depends on its target is not known."""


def choose_target(
    *,
    sandbox_name: str | None = None,
    container_name: str | None = None,
    agent_name: str | None = None,
    env_id: str | None = None,
    default_agent: bool = True,
) -> Target:
    """The one target.

    A stored task may carry the default agent's name beside another target; that is tolerated.

    Args:
        sandbox_name: Blank counts as unset, as for the others.
        container_name: Needs a sandbox.
        agent_name: The deployed agent.
        env_id: The deployed environment.
        default_agent: With no target at all, the default agent is meant.

    Raises:
        TargetError: Two explicit targets (names both), a container without a sandbox, or none.
    """
    named = {
        name: value
        for name, value in (("env_id", env_id), ("sandbox_name", sandbox_name), ("agent_name", agent_name))
        if value and value.strip()
    }
    if len(named) > 1 and named.get("agent_name") == DEFAULT_AGENT:
        del named["agent_name"]
    if len(named) > 1:
        raise TargetError(f"set at most one of {' and '.join(f'{name} ({value!r})' for name, value in named.items())}")
    if container_name and "sandbox_name" not in named:
        raise TargetError("container_name needs the sandbox_name that it runs on")
    if "env_id" in named:
        return EnvironmentTarget(named["env_id"])
    if "sandbox_name" in named:
        return SandboxTarget(named["sandbox_name"], container_name or None)
    if "agent_name" in named:
        return AgentTarget(named["agent_name"])
    if default_agent:
        return AgentTarget(DEFAULT_AGENT)
    raise TargetError("names no target; set sandbox_name, agent_name or env_id")


def settle_target(data: Any, *others: str, default_agent: bool = True) -> Any:
    """Tidies the target fields of a step as it was written, before its fields are read.

    With no target at all the default agent is meant; the default agent's name beside another target, which stored tasks carry, is
    dropped.

    Args:
        data: The step as written; anything but an object comes back unchanged.
        others: The target fields beside `agent_name`.
        default_agent: Whether a step without any target means the default agent.
    """
    if not isinstance(data, Mapping):
        return data
    given = {name for name in others if blank_is_unset(data.get(name))}
    agent = blank_is_unset(data.get("agent_name"))
    if given and agent == DEFAULT_AGENT:
        return {**data, "agent_name": None}
    if not given and agent is None and default_agent:
        return {**data, "agent_name": DEFAULT_AGENT}
    return data
