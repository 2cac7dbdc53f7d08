"""OpenHands as an agent: its SDK's conversation, in a process of its own once a turn."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent_env_sdk.agent import agent, serve
from agent_env_sdk.agent.programs import Launch, ProgramAgent, ProgramConfig, Turn

TURN = Path(__file__).with_name("turn.py")
_QUIET = {"OPENHANDS_SUPPRESS_BANNER": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}


class OpenHandsConfig(ProgramConfig):
    """What OpenHands takes."""

    max_turns: int | None = None


@agent("openhands", description="OpenHands, a coding agent.", version="1.58.2")
class OpenHands(ProgramAgent):
    """The agent."""

    program = "openhands"
    config = OpenHandsConfig
    trajectory_format = "openhands-events/v1"
    skill_places = (".openhands/skills",)

    def launch(self, turn: Turn) -> Launch:
        """A turn in the workspace; all that it is to know is on its standard input, the key as well."""
        config, models = turn.config, turn.models
        turn.write(".inputrc", "set enable-bracketed-paste off\n")  # else a shell's answers have its control sequences in them
        asked = {
            "prompt": turn.prompt,
            "session": turn.session,
            "model": config.model,
            "base_url": f"{models.base_url}/v1",
            "key": models.key,
            "headers": dict(models.headers),
            "effort": config.effort,
            "max_turns": config.max_turns,
            "system_prompt": config.system_prompt,
            "instructions": _instructions(turn),
            "servers": {name: {"url": each.url, "headers": dict(each.headers)} for name, each in turn.request.mcp_servers.items()},
        }
        return Launch([sys.executable, str(TURN)], _QUIET, json.dumps(asked))

    def recorded(self, event: Mapping[str, Any]) -> bool:
        """All but the prompt of the system and the schemas of its tools, which are the same every time."""
        return event.get("kind") != "SystemPromptEvent"

    def notice(self, turn: Turn, event: Mapping[str, Any]) -> None:
        """The conversation's id."""
        if event.get("kind") == "Begun":
            turn.found["session"] = event["session"]


def _instructions(turn: Turn) -> str:
    if not turn.config.output_format:
        return ""
    schema = json.dumps(turn.config.output_format.get("schema") or turn.config.output_format)
    return f"Your last message must be nothing but JSON that follows this schema:\n{schema}"


if __name__ == "__main__":
    serve(OpenHands())
