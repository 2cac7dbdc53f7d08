"""The scripted model server beside a test that runs commands."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from agent_env_sdk.testing.models import Call, ModelServer, Scenario, Step, serve_models

from tests.busy import within

MCP_COMMAND = "python3 -m agent_env_sdk.agent.mcp_command call"


def errand(agent: str) -> Scenario:
    """What a model would do of the errand. It goes on only where the agent runs as the kits' user without privileges."""

    def office(tool: str, arguments: dict[str, str]) -> Call:
        if agent == "pi":  # it has no MCP, and calls servers' tools with a command
            return Call("shell", {"command": f"{MCP_COMMAND} office {tool} '{json.dumps(arguments)}'"})
        return Call(f"mcp:office.{tool}", arguments)

    mail = {"to": "accounts@northwind.example", "subject": "Paid", "body": "Invoice 2041 is paid."}
    return Scenario(
        (
            Step("I look for the invoice.", (office("search_emails", {"query": "invoice"}),)),
            Step(calls=(Call("shell", {"command": "printf '1180.00\\n' > /workspace/amount.txt; id -u"}),), last_contains="1,180.00"),
            Step(calls=(office("send_email", mail),), last_contains="10001"),
            Step("The invoice is paid.", last_contains="sent m-4"),
        ),
        auxiliary="An errand",
    )


@contextmanager
def models(scenarios: Mapping[str, Scenario]) -> Iterator[ModelServer]:
    """Serves while the block runs, on a thread of its own."""
    started, stop = threading.Event(), threading.Event()
    held: list[ModelServer] = []

    async def serve() -> None:
        async with serve_models(scenarios) as server:
            held.append(server)
            started.set()
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    try:
        assert started.wait(within(30)), "the model server did not start"
        yield held[0]
    finally:
        stop.set()
        thread.join(within(30))
