"""One turn of OpenHands: what is asked comes on the standard input, events go to the standard output, one JSON object a line.

The events are those of OpenHands' SDK, as it stores them. After each answer of the model stands what it took, as the SDK counts it
(`"kind": "TokenUsage"`), and last how the turn ended (`"kind": "Ended"`).
"""

from __future__ import annotations

import json
import os
import sys
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from openhands.sdk import LLM, Agent, AgentContext, Conversation, Event, Tool
from openhands.sdk.context.condenser import default_condenser
from openhands.sdk.conversation.exceptions import ConversationRunError
from openhands.sdk.mcp.config import MCPServer
from openhands.tools.file_editor import FileEditorTool
from openhands.tools.task_tracker import TaskTrackerTool
from openhands.tools.terminal import TerminalTool

TOOLS = (TerminalTool, FileEditorTool, TaskTrackerTool)


def main(asked: Mapping[str, Any], tell: Callable[[Mapping[str, Any]], None]) -> int:
    """Plays the turn; 0 where the agent said that it is done."""
    taken = 0

    def heard(event: Event) -> None:
        nonlocal taken
        tell(event.model_dump(mode="json", exclude_none=True))
        usages = conversation.conversation_stats.get_combined_metrics().token_usages
        for usage in usages[taken:]:
            tell({"kind": "TokenUsage", **usage.model_dump(mode="json")})
        taken = len(usages)

    session = uuid.UUID(asked["session"]) if asked["session"] else uuid.uuid4()
    conversation = Conversation(
        agent=agent(asked),
        workspace=Path.cwd(),
        persistence_dir=Path.home() / ".openhands/conversations",
        conversation_id=session,
        callbacks=[heard],
        max_iteration_per_run=asked["max_turns"] or 500,
        visualizer=None,
        delete_on_close=False,
    )
    taken = len(conversation.conversation_stats.get_combined_metrics().token_usages)  # an earlier turn's
    tell({"kind": "Begun", "session": str(session)})
    try:
        conversation.send_message(asked["prompt"])
        conversation.run()
    except ConversationRunError as error:
        sys.stderr.write(f"{error}\n")
    status = conversation.state.execution_status.value
    tell({"kind": "Ended", "status": status})
    conversation.close()
    return 0 if status == "finished" else 1


def agent(asked: Mapping[str, Any]) -> Agent:
    """The agent with OpenHands' usual tools, but for a browser, of which the image has none."""
    llm = LLM(
        usage_id="agent",
        model=f"litellm_proxy/{asked['model']}",
        base_url=asked["base_url"],
        api_key=asked["key"],
        extra_headers=asked["headers"] or None,
        reasoning_effort=asked["effort"],
        num_retries=2,
        retry_min_wait=1,
    )
    return Agent(
        llm=llm,
        tools=[Tool(name=TerminalTool.name, params={"terminal_type": "subprocess"}), *(Tool(name=each.name) for each in TOOLS[1:])],
        mcp_config={name: MCPServer(transport="http", **server) for name, server in asked["servers"].items()},
        agent_context=AgentContext(system_message_suffix=asked["instructions"] or None, load_user_skills=True),
        system_prompt=asked["system_prompt"],
        system_prompt_kwargs={"cli_mode": True},
        condenser=default_condenser(llm.model_copy(update={"usage_id": "condenser"})),
    )


if __name__ == "__main__":
    events = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the SDK and its tools print is no event

    def written(event: Mapping[str, Any]) -> None:
        """A line."""
        print(json.dumps(event), file=events, flush=True)

    sys.exit(main(json.load(sys.stdin), written))
