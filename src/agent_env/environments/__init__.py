"""Environments: deployed, found again, spoken with and loaded. `contract` says what one is; providers make them.

Knows sandboxes, containers and images; nothing of steps or runs, which come in through `contract.Making`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_env.lazy import names_of

if TYPE_CHECKING:
    from agent_env.environments.by_url import UrlEnvironment as UrlEnvironment
    from agent_env.environments.client import EnvironmentClient as EnvironmentClient
    from agent_env.environments.contract import AgentAccess as AgentAccess
    from agent_env.environments.contract import ContainerWanted as ContainerWanted
    from agent_env.environments.contract import DeployOptions as DeployOptions
    from agent_env.environments.contract import DeployPlan as DeployPlan
    from agent_env.environments.contract import EnvironmentProvider as EnvironmentProvider
    from agent_env.environments.contract import Held as Held
    from agent_env.environments.contract import LiveEnvironment as LiveEnvironment
    from agent_env.environments.contract import Lookup as Lookup
    from agent_env.environments.contract import Making as Making
    from agent_env.environments.contract import Part as Part
    from agent_env.environments.contract import SandboxWanted as SandboxWanted
    from agent_env.environments.contract import ServerPlan as ServerPlan
    from agent_env.environments.contract import WebsitePlan as WebsitePlan
    from agent_env.environments.load import LoadReport as LoadReport
    from agent_env.environments.load import load_seeds as load_seeds
    from agent_env.environments.mcp_client import McpSession as McpSession
    from agent_env.environments.readiness import card_of as card_of
    from agent_env.environments.transfers import Seed as Seed

__getattr__, __dir__ = names_of(
    __name__,
    {
        "by_url": ["UrlEnvironment"],
        "client": ["EnvironmentClient"],
        "contract": [
            "AgentAccess",
            "ContainerWanted",
            "DeployOptions",
            "DeployPlan",
            "EnvironmentProvider",
            "Held",
            "LiveEnvironment",
            "Lookup",
            "Making",
            "Part",
            "SandboxWanted",
            "ServerPlan",
            "WebsitePlan",
        ],
        "load": ["LoadReport", "load_seeds"],
        "mcp_client": ["McpSession"],
        "readiness": ["card_of"],
        "transfers": ["Seed"],
    },
)
