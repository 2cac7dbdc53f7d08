"""Gemini CLI as an agent: `gemini`, once a turn."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent_env_sdk.agent import agent, serve
from agent_env_sdk.agent.programs import Launch, ProgramAgent, ProgramConfig, Turn

MODULES = Path("/opt/kit/node_modules")
NODE = next(MODULES.glob("node-linux-*/bin/node"), Path("node"))
PROGRAM = MODULES / "@google/gemini-cli/bundle/gemini.js"


class GeminiConfig(ProgramConfig):
    """What Gemini CLI takes."""

    max_turns: int | None = None


@agent("gemini", description="Gemini CLI, Google's coding agent.", version="0.61.0", input_modes=("text", "image/png", "image/jpeg"))
class Gemini(ProgramAgent):
    """The agent."""

    program = "gemini"
    config = GeminiConfig
    trajectory_format = "gemini-stream-json/1"
    skill_places = (".gemini/skills",)

    def launch(self, turn: Turn) -> Launch:
        """Gemini CLI in the workspace, with settings of this turn's own."""
        turn.write(".gemini/settings.json", json.dumps(_settings(turn)))
        asked = [turn.config.system_prompt] if turn.config.system_prompt else []
        if turn.config.output_format:
            schema = json.dumps(turn.config.output_format.get("schema") or turn.config.output_format)
            asked.append(f"Your last message must be nothing but JSON that follows this schema:\n{schema}")
        turn.write(".gemini/GEMINI.md", "\n\n".join(asked))
        resumed = ["--resume", turn.session] if turn.session else []
        env = {
            "GEMINI_API_KEY": turn.models.key,
            "GOOGLE_GEMINI_BASE_URL": f"{turn.models.base_url}/gemini",
            "GEMINI_CLI_TRUST_WORKSPACE": "true",
            "GEMINI_CLI_CUSTOM_HEADERS": ", ".join(f"{name}: {value}" for name, value in turn.models.headers.items()),
        }
        options = ["--output-format", "stream-json", "--approval-mode", "yolo", "--model", turn.config.model]
        return Launch([str(NODE), str(PROGRAM), *options, *resumed], {name: value for name, value in env.items() if value}, turn.prompt)

    def notice(self, turn: Turn, event: Mapping[str, Any]) -> None:
        """The conversation's id."""
        if isinstance(event.get("session_id"), str):
            turn.found["session"] = event["session_id"]


def _settings(turn: Turn) -> dict[str, Any]:
    # Trusted: a server of tools that asks whether it may be called would wait for nobody.
    servers = {name: {"httpUrl": each.url, "headers": dict(each.headers), "trust": True} for name, each in turn.request.mcp_servers.items()}
    return {
        "mcpServers": servers,
        "security": {"auth": {"selectedType": "gemini-api-key"}},
        "telemetry": {"enabled": False},
        "privacy": {"usageStatisticsEnabled": False},
        "general": {"enableAutoUpdate": False, "disableAutoUpdate": True},
        "model": {"maxSessionTurns": turn.config.max_turns} if turn.config.max_turns else {},
    }


if __name__ == "__main__":
    serve(Gemini())
