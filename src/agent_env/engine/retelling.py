"""What a container was told in confidence, found again when somebody has started it again: by references, which alone are recorded.

A value that this installation made itself is derived once more, by what it was made from; any other is where its own reference leads.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from agent_env.engine.installation import Installation
from agent_env.errors import AgentEnvError
from agent_env.stores.secrets import Secrets

if TYPE_CHECKING:
    from agent_env.broker.contract import Role

_AGENT, _MODELS = "derived:agent:", "derived:models:"
"""No reference of a document begins so, and `Secrets.resolve` knows neither: a task can't name another agent's token."""


def agent_reference(instance_id: str) -> str:
    """Leads to the bearer token of a deployment of an agent."""
    return _AGENT + instance_id


def agent_token(installation: Installation, run_id: str, instance_id: str) -> str:
    """The bearer token of a deployment of an agent.

    Args:
        installation: Whose key it is derived from.
        run_id: The run that made the agent's sandbox.
        instance_id: The deployment's.
    """
    return installation.token(run_id, f"agent:{instance_id}")


def models_reference(holder: str, role: Role) -> str:
    """Leads to what the broker lets a holder in by."""
    return _MODELS + json.dumps([holder, role])


def models_token(installation: Installation, run_id: str, holder: str, role: Role) -> tuple[str, str]:
    """The id of a holder's grant, and what the broker lets it in by."""
    from agent_env.broker.broker import proof_of
    from agent_env.broker.contract import grant_id, spelled_token

    named = grant_id(run_id, holder, role)
    return named, spelled_token(named, proof_of(installation.key, run_id, named))


def values_of(references: Mapping[str, str], *, installation: Installation, run_id: str, secrets: Secrets | None) -> dict[str, str]:
    """What references lead to now. One without a value is left out: whether it is needed shows when a container was started again.

    Args:
        references: Variable → reference.
        installation: Derives what it made.
        run_id: The run that made the sandbox.
        secrets: Resolves everything else.
    """
    found: dict[str, str] = {}
    for name, reference in references.items():
        if reference.startswith(_AGENT):
            found[name] = agent_token(installation, run_id, reference.removeprefix(_AGENT))
        elif reference.startswith(_MODELS):
            holder, role = json.loads(reference.removeprefix(_MODELS))
            found[name] = models_token(installation, run_id, holder, role)[1]
        elif secrets is not None:
            with suppress(AgentEnvError):
                found[name] = secrets.resolve(reference).reveal()
    return found
