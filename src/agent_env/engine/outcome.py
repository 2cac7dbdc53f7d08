"""How a run ended, in the words that every face of agent-env uses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from agent_env.clock import timestamp
from agent_env.documents.outcomes import OUTCOMES, Kind, Status, kind_of
from agent_env.documents.scoring import counts, score_of
from agent_env.documents.updates import Json
from agent_env.engine.teardown import TeardownReport
from agent_env.errors import AgentEnvError, ProblemsError, SandboxUnavailableError, SupersededError, TransportLostError

if TYPE_CHECKING:
    from agent_env.steps.contract import Step

Word = Literal["passed", "scored below 1", "unscored", "failed", "cancelled"]


@dataclass(frozen=True)
class RunOutcome:
    """A run that has ended, or that nobody works on any more."""

    run_id: str
    instance_id: str
    task_id: str
    task_version: int | None
    status: Status
    kind: Kind
    scores: Mapping[str, float | None]
    """Verifier → 0 to 1; None is unscored, which is not 0."""
    duration_seconds: float
    error: Mapping[str, Json] | None
    """`code`, `message`, `step_id` (and `hint`) of what ended it."""
    context: Mapping[str, Json] = field(repr=False, default_factory=dict)
    teardown: TeardownReport | None = None
    """What was removed afterwards; None when the places were kept."""

    @property
    def word(self) -> Word:
        """The run in one word or two."""
        return word_of(self.status, self.scores)

    @property
    def passed(self) -> bool:
        """Every score is 1, and there is one."""
        return self.word == "passed"

    @property
    def counts(self) -> bool:
        """Whether this ending may enter statistics."""
        return counts(self)

    @property
    def score(self) -> float | None:
        """What it enters statistics with; see `documents.scoring`."""
        return score_of(self)


def not_run(run_id: str, task_id: str, version: int | None, error: AgentEnvError) -> RunOutcome:
    """Of a run that could not even be started or gone on with, or that this process lost."""
    return RunOutcome(
        run_id=run_id,
        instance_id="",
        task_id=task_id,
        task_version=version,
        status="cancelled" if isinstance(error, SupersededError) else "failed",
        kind=kind_of(error),
        scores={},
        duration_seconds=0.0,
        error=described(error, None),
    )


def scores_at_end(kind: Kind, steps: Iterable[Step], found: Mapping[str, float | None]) -> dict[str, float | None]:
    """The scores of a run that has ended.

    Args:
        kind: How it ended. One that failed in a way that counts names, without a score, the verifiers that were not reached.
        steps: What was to be done.
        found: What was scored.
    """
    scores = dict(found)
    if kind is not Kind.COMPLETED and OUTCOMES[kind].counts:
        for step in steps:
            verifier = getattr(step, "verifier_id", None)
            if isinstance(verifier, str) and verifier:
                scores.setdefault(verifier, None)
    return scores


def word_of(status: Status, scores: Mapping[str, float | None]) -> Word:
    """The word for a status and its scores."""
    if status != "completed":
        return "cancelled" if status == "cancelled" else "failed"
    numbers = [score for score in scores.values() if score is not None]
    if not numbers:
        return "unscored"
    return "passed" if all(score >= 1 for score in numbers) else "scored below 1"


def described(error: BaseException, step_id: str | None) -> dict[str, Json]:
    """An error as records keep it."""
    entry: dict[str, Json] = {
        "code": error.code if isinstance(error, AgentEnvError) else str(kind_of(error)),
        "message": _said(error) or type(error).__name__,
        "step_id": step_id,
        "error_type": type(error).__name__,
    }
    if isinstance(error, AgentEnvError):
        entry.update({name: value for name, value in (("hint", error.hint), ("concerns", error.concerns)) if value})
    return entry


def expiry_hint(error: BaseException, context: Mapping[str, Json], now: datetime) -> str | None:
    """What to do about a sandbox that is gone because its time was up: the place itself is no longer there to say so.

    Args:
        error: What a step ended in.
        context: The run's, with the records of its sandboxes and environments.
        now: By the clock that their `expires_at_utc` is of.
    """
    if not isinstance(error, SandboxUnavailableError | TransportLostError):
        return None
    records = [*(context.get("deployed_sandboxes") or ()), *(context.get("deployed_envs") or ())]
    late = timestamp(now)
    ended = [record for record in records if str(record.get("expires_at_utc") or late) < late]
    if not ended:
        return None
    names = ", ".join(f"{record.get('sandbox_name') or record.get('env_id')!s} at {record['expires_at_utc']}" for record in ended)
    return f"its ttl_seconds were over: {names}; deploy it with more"


def _said(error: BaseException) -> str:
    """One line; of many problems all, as their number alone helps nobody."""
    if isinstance(error, ProblemsError) and error.problems:
        return "; ".join(map(str, error.problems))
    return error.message if isinstance(error, AgentEnvError) else str(error)
