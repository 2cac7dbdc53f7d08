"""An echo agent as people write it with the published package's SDK for agents (A2A 0.3)."""

from __future__ import annotations

import asyncio
from typing import Any

from agentenv_protocol.a2a_agent import (
    MCP_CONFIG_V1,
    TRAJECTORY_V1,
    AgentConfig,
    AgentEnvAgent,
    AgentIdentity,
    TaskRequest,
    TaskResult,
    TextPart,
    Usage,
    a2a_agent,
    enable,
)


class EchoConfig(AgentConfig):  # type: ignore[misc]
    """What can be set."""

    model: str | None = None
    system_prompt: str | None = None


@a2a_agent(
    identity=AgentIdentity(name="published-echo", description="Says it again.", version="1"),
    config=EchoConfig,
    extensions=(MCP_CONFIG_V1, enable(TRAJECTORY_V1, live=True)),
)
class Echo(AgentEnvAgent):  # type: ignore[misc]
    """Says what it was told; `fail` and `wait` do so, and a file is written by `write NAME`."""

    async def run(self, request: TaskRequest[EchoConfig]) -> TaskResult:
        """One turn."""
        text = "\n".join(part.text for part in request.parts if isinstance(part, TextPart))
        request.trajectory.set_format("published-echo/1")
        request.trajectory.append({"heard": text})
        word, _, rest = text.partition(" ")
        if word == "fail":
            return TaskResult.failure("echo.unable", rest)
        if word == "wait":
            await asyncio.sleep(float(rest))
        told: dict[str, Any] = {"heard": text, "prompted_by": request.config.system_prompt}
        return TaskResult.builder().succeeded().add_text(text).add_structured_output(told).usage(Usage(tool_call_count=0)).build()


app = Echo().create_app()
AGENT_CARD = app.state.agentenv_a2a.card

if __name__ == "__main__":
    Echo().serve()
