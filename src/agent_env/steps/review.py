"""`review`: waits until a person lets the run go on."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, ClassVar

from agent_env.defaults import DEFAULT_LIMITS
from agent_env.documents.updates import Json, SetMetadata, Update
from agent_env.errors import ReviewAbortedError
from agent_env.steps.contract import Decision, EntityRef, OnResume, Run, Step, StepResult
from agent_env.steps.fields import Seconds
from agent_env.steps.limited import LimitDefault

STRUCTURED_CHARACTERS = 16000
RESPONSE_CHARACTERS = 4000
"""How much of what came before is shown to the reviewer (reference)."""


@dataclass(frozen=True, slots=True)
class Reviewed(StepResult):
    """A person's decision to go on."""

    step_id: str
    decision: Decision

    def updates(self) -> tuple[Update, ...]:
        """Records the decision under the step."""
        decided = {"decision": self.decision.decision, "decided_by": self.decision.decided_by}
        return (SetMetadata(("review_decisions", self.step_id), decided),)

    def summary(self) -> str:
        """Who decided what."""
        return f"{self.decision.decision}, decided by {self.decision.decided_by}"


class Review(Step, type="review"):
    """Wait for a person's decision (`agent-env runs review`): go on, or abort the run. A resumed run waits for the same question."""

    on_resume: ClassVar[OnResume] = OnResume.REATTACH
    entity_refs: ClassVar[tuple[EntityRef, ...] | None] = ()

    label: str | None = None
    """What the reviewer is asked."""
    timeout_seconds: Annotated[Seconds, LimitDefault("review_seconds")] = DEFAULT_LIMITS.review_seconds
    """How long to wait for a decision."""
    poll_interval_seconds: Seconds = 5
    """Accepted for existing tasks; a decision made on this machine arrives at once."""

    @property
    def deadline_seconds(self) -> float | None:
        """None: the wait itself holds the deadline, and says what nobody decided."""
        return None

    async def execute(self, run: Run) -> Reviewed:
        """Publishes the question and waits.

        Raises:
            ReviewAbortedError: The reviewer decided to abort.
        """
        decision = await run.review(label=self.label, upstream=upstream(run.context), timeout_seconds=self.timeout_seconds)
        if decision.decision == "abort":
            raise ReviewAbortedError(f"review {self.id!r} was decided by {decision.decided_by}: abort", concerns=self.id)
        return Reviewed(self.id, decision)


def upstream(context: Json) -> str | None:
    """What the reviewer looks at: the last structured output, else the last response, cut to a readable length."""
    for response in reversed(context.get("prompt_responses") or ()):
        structured = response.get("structured_output")
        if structured is not None:
            text = structured if isinstance(structured, str) else json.dumps(structured, ensure_ascii=False)
            return str(text[:STRUCTURED_CHARACTERS])
        if isinstance(response.get("response"), str):
            return str(response["response"][:RESPONSE_CHARACTERS])
    return None
