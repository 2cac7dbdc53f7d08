"""The gateway of an environment: one process between agents and the environment's servers.

`python -m agent_env.gateway` runs it, in an image of its own. It knows nothing of sandboxes, runs or steps; whoever deploys it writes its
configuration, holds its control key, and makes tokens with `agent_token`.
"""

from agent_env.lazy import names_of

__getattr__, __dir__ = names_of(
    __name__,
    {
        "config": ("CONFIG_VARIABLE", "DATABASE_VARIABLE", "KEY_VARIABLE", "GatewayConfig", "ServerConfig"),
        "tokens": ("agent_token",),
    },
)
