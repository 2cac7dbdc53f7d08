"""What an agent is given once it answers: its environments' tools, who it is, its system prompt and its skills."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent_env_sdk.wire.agent_extensions import MCP_CONFIG, SKILL_CONFIG, card_request_accepts, method_of, supported_config

from agent_env.agents.contract import LiveAgent, McpServer
from agent_env.errors import UserError

Json = Any


@dataclass(frozen=True, slots=True)
class InlineSkill:
    """A skill whose whole text is given."""

    name: str
    description: str
    text: str


@dataclass(frozen=True, slots=True)
class Outfit:
    """All of it."""

    servers: Sequence[McpServer] = ()
    name: str | None = None
    description: str | None = None
    role: str | None = None
    system_prompt: str | None = None
    skills: Sequence[InlineSkill] = field(default_factory=tuple)


async def give(agent: LiveAgent, outfit: Outfit) -> Sequence[str]:
    """Gives an agent its outfit.

    Returns:
        What it does not take, for people.

    Raises:
        UserError: A role was set that the agent can't be given, so that it would act under another one.
        AgentFailedError: It refused something.
        AgentUnreachableError: It does not answer.
    """
    card = await agent.card()
    config, adding = supported_config(card), method_of(card, MCP_CONFIG, "add") or method_of(card, MCP_CONFIG, "upsert")
    request = (adding or {}).get("request") or {}
    headers = adding is not None and (not request or card_request_accepts(request, {"url", "headers"}) or "headers" in str(request))
    if outfit.role and not headers and "role" not in config:
        raise UserError(
            f"agent {agent.record.agent_name!r} takes neither headers of its MCP servers nor a role, so it can't act as {outfit.role!r}",
            concerns=agent.record.agent_name,
            hint="leave the role out, or use an agent that takes one",
        )
    left_out = []
    if outfit.servers and adding is None:
        left_out.append("MCP servers")
    await agent.wire(outfit.servers)
    left_out += await _skills(agent, outfit.skills, takes=method_of(card, SKILL_CONFIG, "add") is not None)
    if outfit.system_prompt and "system_prompt" not in config:
        left_out.append("a system prompt")
    await agent.configure(_identity(outfit))
    return left_out


def _identity(outfit: Outfit) -> Mapping[str, Json]:
    return {
        "system_prompt": outfit.system_prompt or None,
        "name": outfit.name or None,
        "description": outfit.description or None,
        "role": outfit.role or None,
    }


async def _skills(agent: LiveAgent, skills: Sequence[InlineSkill], *, takes: bool) -> Sequence[str]:
    """One after another: agents write them into one folder."""
    if skills and not takes:
        return ["skills"]
    for skill in skills:
        body = {"name": skill.name, "description": skill.description, "skill_md": skill.text}
        await agent.invoke(SKILL_CONFIG, "add", body)
    return []
