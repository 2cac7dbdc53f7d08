"""Pi as an agent: `pi --mode json`, once a turn. Pi itself knows no MCP: servers of tools are commands for its shell."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent_env_sdk.agent import agent, serve
from agent_env_sdk.agent.programs import Launch, ProgramAgent, ProgramConfig, Turn

MODULES = Path("/opt/kit/node_modules")
NODE = next(MODULES.glob("node-linux-*/bin/node"), Path("node"))
PROGRAM = MODULES / "@mariozechner/pi-coding-agent/dist/cli.js"
_LEFT_OUT = frozenset({"message_update", "tool_execution_update"})
"""Pieces of what the following events tell whole."""


@agent("pi", description="Pi, a small coding agent.", version="0.73.1", input_modes=("text", "image/png", "image/jpeg"))
class Pi(ProgramAgent):
    """The agent."""

    program = "pi"
    config = ProgramConfig
    trajectory_format = "pi-json-events/v1"
    skill_places = (".pi/agent/skills",)

    def launch(self, turn: Turn) -> Launch:
        """Pi in the workspace, with models of this turn's own."""
        config, home = turn.config, turn.home / ".pi/agent"
        turn.write(".pi/agent/models.json", json.dumps({"providers": {"agentenv": _provider(turn)}}))
        options = ["--mode", "json", "--session-dir", str(home / "sessions"), "--provider", "agentenv", "--model", config.model, "-p"]
        options += ["--session", turn.session] if turn.session else []
        options += ["--thinking", config.effort] if config.effort else []
        if asked := _asked(turn):
            options += ["--append-system-prompt", str(turn.write(".pi/instructions.md", asked))]
        env = {"PI_CODING_AGENT_DIR": str(home), "PI_OFFLINE": "1", "PI_TELEMETRY": "0", "LITELLM_API_KEY": turn.models.key}
        servers = {name: {"url": each.url, "headers": dict(each.headers)} for name, each in turn.request.mcp_servers.items()}
        env["AGENTENV_MCP"] = str(turn.write(".mcp.json", json.dumps(servers)))
        return Launch([str(NODE), str(PROGRAM), *options], env, turn.prompt)

    def recorded(self, event: Mapping[str, Any]) -> bool:
        """Whole events alone."""
        return event.get("type") not in _LEFT_OUT

    def notice(self, turn: Turn, event: Mapping[str, Any]) -> None:
        """The conversation's id."""
        if event.get("type") == "session":
            turn.found["session"] = event["id"]


def _asked(turn: Turn) -> str:
    said = [turn.config.system_prompt] if turn.config.system_prompt else []
    if turn.config.output_format:
        schema = json.dumps(turn.config.output_format.get("schema") or turn.config.output_format)
        said.append(f"Your last message must be nothing but JSON that follows this schema:\n{schema}")
    if turn.request.mcp_servers:
        names, command = ", ".join(turn.request.mcp_servers), f"{sys.executable} -m agent_env_sdk.agent.mcp_command"
        said.append(
            f"There are MCP servers: {names}. Use their tools from the shell: `{command} list` shows all with their arguments, "
            f"and `{command} call SERVER TOOL '{{\"argument\": ...}}'` calls one."
        )
    return "\n\n".join(said)


def _provider(turn: Turn) -> dict[str, Any]:
    free = {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0}  # unknown here; whoever gives the key counts
    model = {"id": turn.config.model, "name": turn.config.model, "reasoning": bool(turn.config.effort), "input": ["text", "image"]}
    return {
        "baseUrl": f"{turn.models.base_url}/v1",
        "api": "openai-completions",
        "apiKey": "LITELLM_API_KEY",
        "headers": dict(turn.models.headers),
        "models": [{**model, "contextWindow": 200_000, "maxTokens": 32_000, "cost": free}],
    }


if __name__ == "__main__":
    serve(Pi())
