"""The cases, by area."""

from __future__ import annotations

from collections.abc import Sequence

from agent_env.sandboxes.conformance.case import Case
from agent_env.sandboxes.conformance.cases import commands, endings, files, life, limits, network, owners, ports, trees

CASES: Sequence[Case] = tuple(
    case for module in (life, owners, commands, endings, files, trees, ports, limits, network) for case in module.AREA.cases
)

__all__ = ["CASES"]
