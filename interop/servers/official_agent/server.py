"""An agent as the official SDK's second generation has people write it (A2A 1.x, and 0.3 beside it where asked).

Usage: server.py PORT [both]
"""

from __future__ import annotations

import asyncio
import sys

import uvicorn
from a2a.helpers import proto_helpers as made
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers.default_request_handler_v2 import DefaultRequestHandlerV2
from a2a.server.routes.agent_card_routes import create_agent_card_routes
from a2a.server.routes.jsonrpc_routes import create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentInterface, AgentSkill
from starlette.applications import Starlette


class Echo(AgentExecutor):
    """Says it again; `fail`, `reject`, `ask` and `wait` do so."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """One turn."""
        assert context.message is not None
        task = context.current_task or made.new_task_from_user_message(context.message)
        if context.current_task is None:
            await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        text = context.get_user_input()
        word, _, rest = text.partition(" ")
        await updater.start_work(updater.new_agent_message([made.new_text_part("working")]))
        answer = updater.new_agent_message([made.new_text_part(rest or text)])
        match word:
            case "fail":
                await updater.failed(answer)
            case "reject":
                await updater.reject(answer)
            case "ask":
                await updater.requires_input(answer)
            case "artifact":
                await updater.add_artifact([made.new_text_part(rest)], name="answer")
                await updater.complete()
            case "wait":
                await asyncio.sleep(float(rest))
                await updater.complete(answer)
            case _:
                await updater.complete(updater.new_agent_message([made.new_text_part(text)]))

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Ends a task."""
        assert context.task_id is not None
        assert context.context_id is not None
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


def main(port: int, both: bool) -> None:
    """Serves until a signal."""
    url = f"http://127.0.0.1:{port}/rpc"
    card = AgentCard(
        name="official-echo", description="Says it again.", version="1", default_input_modes=["text"], default_output_modes=["text"],
        capabilities=AgentCapabilities(streaming=True),
        supported_interfaces=[AgentInterface(url=url, protocol_binding="JSONRPC", protocol_version=version)
                              for version in (("1.0", "0.3") if both else ("1.0",))],
        skills=[AgentSkill(id="echo", name="echo", description="Says it again.", tags=["echo"])],
    )  # fmt: skip
    handler = DefaultRequestHandlerV2(agent_executor=Echo(), task_store=InMemoryTaskStore(), agent_card=card)
    routes = [*create_agent_card_routes(card), *create_jsonrpc_routes(handler, "/rpc", enable_v0_3_compat=both)]
    uvicorn.run(Starlette(routes=routes), host="127.0.0.1", port=port, log_level="warning")


main(int(sys.argv[1]), "both" in sys.argv[2:])
