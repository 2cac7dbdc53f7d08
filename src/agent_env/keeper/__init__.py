"""The keeper: the one process of an installation that lives while no command does, and carries what places may reach.

It holds an allow-list of hosts against a place that has no network of its own, resolves the names, and relays between a place's loopback
and this machine's. What it carries is written down in the state folder by whoever wants it; the keeper itself remembers nothing, so it
can be killed at any moment and replaced. It must not know of runs, steps or providers.
"""

from typing import TYPE_CHECKING

from agent_env.lazy import names_of

if TYPE_CHECKING:
    from agent_env.keeper.client import KeeperStatus, Watch, carry, carry_egress, drop, installed_status, recorded_owner, stale_records
    from agent_env.keeper.policy import cidr_problems, policy_problems, private_entries
    from agent_env.keeper.reaching import at_socket, in_container
    from agent_env.keeper.records import MODELS, Carried, Egress, FromHost, ToHost
    from agent_env.keeper.wiring import EGRESS_PORT, called_beside, egress_of, proxy_environment, relay_token

__all__ = [
    "EGRESS_PORT",
    "MODELS",
    "Carried",
    "Egress",
    "FromHost",
    "KeeperStatus",
    "ToHost",
    "Watch",
    "at_socket",
    "called_beside",
    "carry",
    "carry_egress",
    "cidr_problems",
    "drop",
    "egress_of",
    "in_container",
    "installed_status",
    "policy_problems",
    "private_entries",
    "proxy_environment",
    "recorded_owner",
    "relay_token",
    "stale_records",
]

__getattr__, __dir__ = names_of(
    __name__,
    {
        "client": ("KeeperStatus", "Watch", "carry", "carry_egress", "drop", "installed_status", "recorded_owner", "stale_records"),
        "policy": ("cidr_problems", "policy_problems", "private_entries"),
        "reaching": ("at_socket", "in_container"),
        "records": ("MODELS", "Carried", "Egress", "FromHost", "ToHost"),
        "wiring": ("EGRESS_PORT", "called_beside", "egress_of", "proxy_environment", "relay_token"),
    },
)
