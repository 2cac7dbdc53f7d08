"""Records anew what a kit's program prints: `python -m tests.kits.recording KIT IMAGE`, for an image of the kit that was built.

The image runs on this machine's own network, against the scripted model server and the SDK's test environment: two turns of one
conversation. Look at what changed, and commit it.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from agent_env_sdk.testing import serve_here
from agent_env_sdk.testing.agents import AgentClient
from agent_env_sdk.testing.models import Call, Scenario, Step, serve_models
from agent_env_sdk.wire.agent_extensions import MCP_CONFIG, TRAJECTORY
from agent_env_sdk.wire.native import normalised
from agent_env_sdk.wire.trajectory import dump_event

from agent_env.waiting import poll
from tests.kits.test_streams import FORMAT, RECORDED
from tests.ports import free_port
from tests.sdk.environments import Stock

MCP_COMMAND = 'python3 -m agent_env_sdk.agent.mcp_command call stock stock_count \'{"sku": "a"}\''


def scenario(kit: str) -> Scenario:
    """The same of every program, as far as it can: pi has no MCP, and calls a command."""
    count = Call("shell", {"command": MCP_COMMAND}) if kit == "pi" else Call("mcp:stock.stock_count", {"sku": "a"})
    look = Call("shell", {"command": "pwd; id -u; ls missing"})
    steps = (Step("Let me look.", (look,)), Step(calls=(count,)), Step("There are 5."), Step("Still 5.", last_contains="again"))
    return Scenario(steps, auxiliary="A title")


@asynccontextmanager
async def running(image: str, **variables: str) -> AsyncIterator[AgentClient]:
    """The kit's agent, on this machine's own network."""
    port = free_port()
    given = {**variables, "A2A_HOST": "127.0.0.1", "A2A_PORT": str(port)}.items()
    words = [word for name, value in given for word in ("-e", f"{name}={value}")]
    process = await asyncio.create_subprocess_exec("docker", "run", "--rm", "--init", "--network", "host", *words, image)
    try:
        async with httpx.AsyncClient(timeout=300) as http:
            client = AgentClient(f"http://127.0.0.1:{port}", http)

            async def ready() -> bool | None:
                assert process.returncode is None, "the container ended"
                try:
                    return bool(await client.card())
                except httpx.TransportError:
                    return None

            await poll(ready, within_seconds=60, what="the agent's card")
            yield client
    finally:
        process.terminate()
        await process.wait()


async def record(kit: str, image: str) -> None:
    """Two turns, each into a file of its own, and what they come to beside it."""
    async with serve_models({"s": scenario(kit)}) as models, serve_here(Stock()) as stock:
        await stock.add({"items": [{"sku": "a", "qty": 5}]})
        async with running(image, LITELLM_BASE_URL=models.base, LITELLM_API_KEY=models.key("s")) as client:
            await client.invoke(MCP_CONFIG, "add", {"url": f"{stock.base}/mcp", "name": "stock"})
            for number, text in enumerate(("Count what is there.", "again"), 1):
                model = "gemini-2.5-flash" if kit == "gemini" else "m"
                task = await client.prompt(text, context_id="c", config={"model": model})
                keep(f"{kit}-{number}", (await client.invoke(TRAJECTORY, "get", {"task_id": task.id}))["trajectory"], FORMAT[kit])
        assert models.problems == [], models.problems


def keep(name: str, native: list[dict[str, Any]], format: str) -> None:
    """Writes a stream and what it comes to."""
    (RECORDED / f"{name}.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in native))
    events = [dump_event(event) for event in normalised(format, native, ["stock"]) or []]
    (RECORDED / f"{name}.events.json").write_text(json.dumps(events, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    asyncio.run(record(*sys.argv[1:]))
