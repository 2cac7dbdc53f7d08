"""Codex as an agent: `codex exec`, once a turn."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from agent_env_sdk.agent import agent, serve
from agent_env_sdk.agent.programs import Launch, ProgramAgent, ProgramConfig, Turn
from agent_env_sdk.wire.native.codex import Codex as Reading

PROGRAM = next(Path("/opt/kit/node_modules").glob("@openai/codex-linux-*/vendor/*/bin/codex"), Path("codex"))
SPENT = ".spent.json"
"""The conversation's tokens up to now: codex tells them all again in every turn."""


@agent("codex", description="Codex, OpenAI's coding agent.", version="0.169.0", input_modes=("text", "image/png", "image/jpeg"))
class Codex(ProgramAgent):
    """The agent."""

    program = "codex"
    config = ProgramConfig
    trajectory_format = "codex-exec-json/1"
    skill_places = (".codex/skills",)

    def launch(self, turn: Turn) -> Launch:
        """Codex in the workspace, with a configuration of this turn's own."""
        turn.write(".codex/config.toml", "\n".join(_settings(turn)) + "\n")
        options = ["--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "--cd", str(turn.workspace)]
        if turn.config.output_format:
            schema = turn.config.output_format.get("schema") or turn.config.output_format
            options += ["--output-schema", str(turn.write(".codex/answer.json", json.dumps(schema)))]
        resumed = ["resume", turn.session, "-"] if turn.session else ["-"]
        env = {"CODEX_HOME": str(turn.home / ".codex"), "LITELLM_API_KEY": turn.models.key}
        return Launch([str(PROGRAM), "exec", *options, *resumed], env, turn.prompt)

    def translating(self, turn: Turn) -> Reading:
        """With what earlier turns took."""
        return Reading(_spent(turn))

    def notice(self, turn: Turn, event: Mapping[str, Any]) -> None:
        """The conversation's id, and what it took."""
        if event.get("type") == "thread.started":
            turn.found["session"] = event["thread_id"]
        if event.get("type") == "turn.completed" and isinstance(usage := event.get("usage"), dict):
            turn.write(SPENT, json.dumps([usage.get("input_tokens", 0), usage.get("output_tokens", 0)]))


def _spent(turn: Turn) -> tuple[int, int]:
    path = turn.home / SPENT
    read, written = json.loads(path.read_text()) if path.exists() and turn.session else (0, 0)
    return int(read), int(written)


def _settings(turn: Turn) -> Iterator[str]:
    """TOML: JSON's texts are texts of TOML too."""
    text, models, config = json.dumps, turn.models, turn.config
    yield f"model = {text(config.model)}"
    yield 'model_provider = "agentenv"'
    yield "check_for_update_on_startup = false"
    if config.effort:
        yield f"model_reasoning_effort = {text(config.effort)}"
    if config.system_prompt:
        yield f"developer_instructions = {text(config.system_prompt)}"
    yield "[analytics]\nenabled = false"
    yield "[model_providers.agentenv]"
    yield f'name = "agentenv"\nbase_url = {text(models.base_url + "/openai/v1")}\nenv_key = "LITELLM_API_KEY"\nwire_api = "responses"'
    yield "request_max_retries = 2\nstream_max_retries = 2"
    if models.headers:
        yield f"http_headers = {_table(models.headers)}"
    for name, server in turn.request.mcp_servers.items():
        yield f"[mcp_servers.{text(name)}]\nurl = {text(server.url)}\ntool_timeout_sec = 600"
        if server.headers:
            yield f"http_headers = {_table(server.headers)}"


def _table(values: Mapping[str, str]) -> str:
    return "{ " + ", ".join(f"{json.dumps(name)} = {json.dumps(value)}" for name, value in values.items()) + " }"


if __name__ == "__main__":
    serve(Codex())
