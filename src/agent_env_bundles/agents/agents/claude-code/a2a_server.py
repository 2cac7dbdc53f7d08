"""Claude Code as an agent: `claude -p`, once a turn."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent_env_sdk.agent import agent, serve
from agent_env_sdk.agent.programs import Launch, ProgramAgent, ProgramConfig, Turn

PROGRAM = next(Path("/opt/kit/node_modules/@anthropic-ai").glob("claude-code-linux-*/claude"), Path("claude"))
_MODELS = ("MODEL", "SMALL_FAST_MODEL", "DEFAULT_OPUS_MODEL", "DEFAULT_SONNET_MODEL", "DEFAULT_HAIKU_MODEL")
_QUIET = ("DISABLE_AUTOUPDATER", "DISABLE_TELEMETRY", "DISABLE_ERROR_REPORTING", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "IS_SANDBOX")


class ClaudeConfig(ProgramConfig):
    """What Claude Code takes."""

    max_turns: int | None = None
    max_thinking_tokens: int | None = None


@agent(
    "claude-code",
    description="Claude Code, Anthropic's coding agent.",
    version="2.1.328",
    input_modes=("text", "image/png", "image/jpeg", "application/pdf"),
)
class ClaudeCode(ProgramAgent):
    """The agent."""

    program = "claude"
    config = ClaudeConfig
    trajectory_format = "claude-code-stream-json/1"
    skill_places = (".claude/skills",)

    def launch(self, turn: Turn) -> Launch:
        """Claude Code in the workspace; what may be long or secret is in files."""
        config = turn.config
        options = ["-p", "--output-format", "stream-json", "--verbose", "--dangerously-skip-permissions", "--setting-sources", "user"]
        options += ["--model", config.model, "--strict-mcp-config", "--mcp-config", str(turn.write(".mcp.json", _servers(turn)))]
        if turn.session:
            options += ["--resume", turn.session]
        if config.system_prompt:
            options += ["--system-prompt-file", str(turn.write(".system-prompt.md", config.system_prompt))]
        if config.output_format:
            options += ["--json-schema", json.dumps(config.output_format.get("schema") or config.output_format)]
        for option, value in (("--effort", config.effort), ("--max-turns", config.max_turns)):
            options += [option, str(value)] if value else []
        return Launch([str(PROGRAM), *options], _environment(turn), turn.prompt)

    def notice(self, turn: Turn, event: Mapping[str, Any]) -> None:
        """The conversation's id, and the value that was asked for."""
        if isinstance(event.get("session_id"), str):
            turn.found["session"] = event["session_id"]
        if event.get("type") == "result" and event.get("structured_output") is not None:
            turn.found["structured"] = event["structured_output"]


def _environment(turn: Turn) -> dict[str, str]:
    models = turn.models
    env = {f"ANTHROPIC_{name}": turn.config.model for name in _MODELS} | dict.fromkeys(_QUIET, "1")
    env |= {"ANTHROPIC_BASE_URL": models.base_url, "ANTHROPIC_AUTH_TOKEN": models.key, "ANTHROPIC_API_KEY": ""}
    env |= {"CLAUDE_CODE_SUBAGENT_MODEL": turn.config.model, "CLAUDE_CODE_ATTRIBUTION_HEADER": "0", "ENABLE_TOOL_SEARCH": "false"}
    env |= {"CLAUDE_CODE_MAX_RETRIES": "2", "MCP_TOOL_TIMEOUT": "600000"}
    if models.headers:
        env["ANTHROPIC_CUSTOM_HEADERS"] = "\n".join(f"{name}: {value}" for name, value in models.headers.items())
    if turn.config.max_thinking_tokens is not None:
        env["MAX_THINKING_TOKENS"] = str(turn.config.max_thinking_tokens)
    return env


def _servers(turn: Turn) -> str:
    servers = {name: {"type": "http", "url": each.url, "headers": dict(each.headers)} for name, each in turn.request.mcp_servers.items()}
    return json.dumps({"mcpServers": servers})


if __name__ == "__main__":
    serve(ClaudeCode())
