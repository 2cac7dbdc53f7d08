"""What steps say about the entries of a network policy that open nothing unless a configuration helps."""

from __future__ import annotations

from collections.abc import Iterator

from agent_env.documents.network import NetworkMode, NetworkPolicy
from agent_env.errors import Problem

_HINT = (
    "only your own configuration opens such a range, with allow_private of its provider; what listens in the same sandbox needs no entry, "
    "and neither do the agent's environments and models"
)


def doubtful_entries(policy: NetworkPolicy | None, path: str = ".network_policy") -> Iterator[Problem]:
    """Entries of an allow-list for what is not of the public internet, as warnings.

    Args:
        policy: As the step has it; None is none.
        path: Where it stands in its step.
    """
    if policy is None or policy.mode is not NetworkMode.ALLOWLIST:
        return
    from agent_env.keeper import private_entries

    for field, index, why in private_entries(policy.allow_hosts, policy.allow_cidrs):
        entry = getattr(policy, field)[index]
        yield Problem(f"the entry {entry!r} opens nothing by itself: {why}", path=f"{path}.{field}[{index}]", hint=_HINT)
