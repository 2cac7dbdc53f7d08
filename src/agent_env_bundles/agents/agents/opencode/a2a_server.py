"""OpenCode as an agent: `opencode run`, once a turn."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent_env_sdk.agent import agent, serve
from agent_env_sdk.agent.programs import Launch, ProgramAgent, ProgramConfig, Turn

PROGRAM = next(Path("/opt/kit/node_modules").glob("opencode-linux-*/bin/opencode"), Path("opencode"))
_QUIET = ("AUTOUPDATE", "MODELS_FETCH", "LSP_DOWNLOAD", "DEFAULT_PLUGINS")


@agent("opencode", description="OpenCode, an open coding agent.", version="1.18.33", input_modes=("text", "image/png", "image/jpeg"))
class OpenCode(ProgramAgent):
    """The agent."""

    program = "opencode"
    config = ProgramConfig
    trajectory_format = "opencode-events/1"
    skill_places = (".claude/skills",)

    def launch(self, turn: Turn) -> Launch:
        """OpenCode in the workspace, with a configuration of this turn's own."""
        path = turn.write(".config/opencode/opencode.json", json.dumps(_settings(turn)))
        resumed = ["-s", turn.session] if turn.session else []
        env = {f"OPENCODE_DISABLE_{name}": "1" for name in _QUIET}
        env |= {"OPENCODE_CONFIG": str(path), "LITELLM_API_KEY": turn.models.key}
        return Launch([str(PROGRAM), "run", "--format", "json", "--dir", str(turn.workspace), *resumed], env, turn.prompt)

    def notice(self, turn: Turn, event: Mapping[str, Any]) -> None:
        """The conversation's id."""
        if isinstance(event.get("sessionID"), str):
            turn.found["session"] = event["sessionID"]


def _settings(turn: Turn) -> dict[str, Any]:
    config, models = turn.config, turn.models
    options = {"baseURL": f"{models.base_url}/v1", "apiKey": "{env:LITELLM_API_KEY}", "headers": dict(models.headers)}
    model = {"name": config.model, "options": {"reasoningEffort": config.effort} if config.effort else {}}
    asked = [config.system_prompt] if config.system_prompt else []
    if config.output_format:
        schema = json.dumps(config.output_format.get("schema") or config.output_format)
        asked.append(f"Your last message must be nothing but JSON that follows this schema:\n{schema}")
    return {
        "$schema": "https://opencode.ai/config.json",
        "autoupdate": False,
        "share": "disabled",
        "permission": "allow",
        "model": f"agentenv/{config.model}",
        "small_model": f"agentenv/{config.model}",
        "instructions": [str(turn.write(".instructions.md", "\n\n".join(asked)))] if asked else [],
        "provider": {
            "agentenv": {"npm": "@ai-sdk/openai-compatible", "name": "agentenv", "options": options, "models": {config.model: model}}
        },
        "mcp": {
            name: {"type": "remote", "url": each.url, "headers": dict(each.headers), "enabled": True, "oauth": False, "timeout": 600_000}
            for name, each in turn.request.mcp_servers.items()
        },
    }


if __name__ == "__main__":
    serve(OpenCode())
