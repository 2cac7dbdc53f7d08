"""The checks in order, and what they come to."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from agent_env.clock import Clock
from agent_env.conformance import Findings, run_each
from agent_env.environments.conformance.check import Check, Gate, Subject, Verdict
from agent_env.environments.conformance.data import CORE, ROUND_TRIP
from agent_env.environments.conformance.serving import CARD, REACHABILITY
from agent_env.environments.conformance.tools import EXTENSIONS, SPEC, TOOL_SCHEMA

CHECKS: tuple[Check, ...] = tuple(
    check for area in (REACHABILITY, CARD, CORE, TOOL_SCHEMA, EXTENSIONS, SPEC, ROUND_TRIP) for check in area.checks
)
REQUIRED = (Gate.REACHABILITY, Gate.CARD, Gate.CORE, Gate.TOOL_SCHEMA, Gate.ROUND_TRIP)
"""Gates that count, unless others are asked for."""


@dataclass(frozen=True, slots=True)
class Report(Findings):
    """What the checks of a server came to."""

    required: Sequence[StrEnum] = REQUIRED

    @property
    def passed(self) -> bool:
        """No required gate failed; one that could not be checked does not fail (reference)."""
        return not self.failed

    def to_json(self) -> dict[str, object]:
        """The gate in the reference's shape, and every check."""
        gate = {
            "passed": self.passed,
            "required_gates": [str(gate) for gate in self.required],
            "failed_gates": [str(gate) for gate in self.failed],
            "missing_gates": [],
            "skipped_gates": [str(gate) for gate in self.skipped],
        }
        return {"passed": self.passed, "validation_gate": gate, "checks": [verdict.to_json() for verdict in self.verdicts]}


async def run_checks(subject: Subject, checks: Sequence[Check] = CHECKS, *, clock: Clock | None = None) -> AsyncIterator[Verdict]:
    """Runs checks one after the other; each has its own deadline (`conformance_case_seconds`)."""
    seconds = subject.client.limits.conformance_case_seconds
    async for verdict in run_each(subject, checks, seconds=seconds, clock=clock):
        yield verdict
