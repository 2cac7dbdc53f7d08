"""Agents: deployed, found again, spoken with. `contract` says what one is.

Knows sandboxes, containers, images and environments; nothing of steps or runs, which come in through `contract.Making`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_env.lazy import names_of

if TYPE_CHECKING:
    from agent_env.agents.contract import A2A_PORT as A2A_PORT
    from agent_env.agents.contract import Accepted as Accepted
    from agent_env.agents.contract import AgentPlan as AgentPlan
    from agent_env.agents.contract import End as End
    from agent_env.agents.contract import Ended as Ended
    from agent_env.agents.contract import LiveAgent as LiveAgent
    from agent_env.agents.contract import Making as Making
    from agent_env.agents.contract import McpServer as McpServer
    from agent_env.agents.contract import Outgoing as Outgoing
    from agent_env.agents.contract import Progress as Progress
    from agent_env.agents.contract import Trajectory as Trajectory
    from agent_env.agents.contract import Turn as Turn
    from agent_env.agents.contract import Update as Update

__getattr__, __dir__ = names_of(
    __name__,
    {
        "contract": [
            "A2A_PORT",
            "Accepted",
            "AgentPlan",
            "End",
            "Ended",
            "LiveAgent",
            "Making",
            "McpServer",
            "Outgoing",
            "Progress",
            "Trajectory",
            "Turn",
            "Update",
        ]
    },
)
