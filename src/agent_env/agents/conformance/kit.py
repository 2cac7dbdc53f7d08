"""The checks in order, and what they come to."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from agent_env.agents.conformance.abilities import CHANGES, FILES, PLACES, SEEING, WHOSE
from agent_env.agents.conformance.check import Check, Gate, Subject, Verdict
from agent_env.agents.conformance.extensions import CONFIG, MCP, MODEL, PEERS, RULES, SKILLS, STATE, STORE, TRAJECTORIES
from agent_env.agents.conformance.speaking import ACCESS, CARD, CORE
from agent_env.clock import Clock
from agent_env.conformance import Findings, run_each

_AREAS = (
    *(CARD, CORE, ACCESS, CONFIG, MCP, SKILLS, TRAJECTORIES, PEERS, RULES, STORE, STATE),
    *(FILES, CHANGES, PLACES, WHOSE, MODEL, SEEING),
)
CHECKS: tuple[Check, ...] = tuple(check for area in _AREAS for check in area.checks)
REQUIRED = tuple(gate for gate in Gate if gate not in {Gate.MODEL, Gate.ACCESS})
"""Gates that count, unless others are asked for. Agents from before tokens are open to everybody; a model can have a bad day."""


@dataclass(frozen=True, slots=True)
class Report(Findings):
    """What the checks of an agent came to."""

    required: Sequence[StrEnum] = REQUIRED

    @property
    def passed(self) -> bool:
        """No required gate failed. What an agent does not advertise is skipped, and does not fail; that it speaks is always asked."""
        return not self.failed and Gate.CORE not in self.skipped

    def to_json(self) -> dict[str, object]:
        """The verdict, the gates and every check."""
        return {
            "passed": self.passed,
            "required_gates": [str(gate) for gate in self.required],
            "failed_gates": [str(gate) for gate in self.failed],
            "skipped_gates": [str(gate) for gate in self.skipped],
            "checks": [verdict.to_json() for verdict in self.verdicts],
        }


async def run_checks(subject: Subject, checks: Sequence[Check] = CHECKS, *, clock: Clock | None = None) -> AsyncIterator[Verdict]:
    """Runs checks one after the other; each has its own deadline: that of a few prompts, and of deploying agents of its own."""
    seconds = 4 * subject.prompt_seconds + subject.agent.client.limits.conformance_case_seconds
    async for verdict in run_each(subject, checks, seconds=seconds, clock=clock):
        yield verdict
