"""The model broker: between agents and models. A token of the run in, the real key out; counted, limited, recorded, replayed.

It is served by the keeper on each place's own loopback, and asked without a socket by this process for its judges. It keeps nothing but
what it was told of endpoints, in memory; what was used is in the run database. It must not know of steps, sandboxes or engines.
"""

from typing import TYPE_CHECKING

from agent_env.lazy import names_of

if TYPE_CHECKING:
    from agent_env.broker.contract import (
        MODELS_PORT,
        Budget,
        ChatAnswer,
        Dialect,
        ModelAccess,
        Models,
        Price,
        Refusal,
        Role,
        Usage,
    )

__all__ = [
    "MODELS_PORT",
    "Budget",
    "ChatAnswer",
    "Dialect",
    "ModelAccess",
    "Models",
    "Price",
    "Refusal",
    "Role",
    "Usage",
]

__getattr__, __dir__ = names_of(__name__, {"contract": tuple(__all__)})
