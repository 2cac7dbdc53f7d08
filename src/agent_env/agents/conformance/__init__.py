"""The conformance kit of agents, for anybody's: over A2A and its extensions, against one that runs anywhere.

Checks are named as sentences and grouped into gates; the verdict is what the required gates come to. Graders are deterministic: what needs
a model's goodwill is told, and counts only where it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_env.lazy import names_of

if TYPE_CHECKING:
    from agent_env.agents.conformance.check import Check as Check
    from agent_env.agents.conformance.check import Gate as Gate
    from agent_env.agents.conformance.check import Subject as Subject
    from agent_env.agents.conformance.check import Verdict as Verdict
    from agent_env.agents.conformance.kit import CHECKS as CHECKS
    from agent_env.agents.conformance.kit import REQUIRED as REQUIRED
    from agent_env.agents.conformance.kit import Report as Report
    from agent_env.agents.conformance.kit import run_checks as run_checks

__getattr__, __dir__ = names_of(
    __name__,
    {"check": ["Check", "Gate", "Subject", "Verdict"], "kit": ["CHECKS", "REQUIRED", "Report", "run_checks"]},
)
