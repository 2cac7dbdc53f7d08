"""`aggregate_verifiers`: one score from the rows of several verifiers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import model_validator

from agent_env.documents.spelling import near
from agent_env.documents.updates import Json, SetMetadata, Update
from agent_env.errors import NotFoundError
from agent_env.steps.contract import EntityRef, OnResume, Run, Step, StepResult
from agent_env.steps.fields import Texts, default_to_id
from agent_env.verifiers.scoring import Aggregator, aggregate


@dataclass(frozen=True, slots=True)
class Aggregated(StepResult):
    """The score of several verifiers together."""

    verifier_id: str
    score: float | None
    sources: tuple[str, ...]

    def updates(self) -> tuple[Update, ...]:
        """The score and where it comes from; rows stay with their verifiers."""
        return (SetMetadata(("verifications", self.verifier_id), {"score": self.score, "source_verifier_ids": list(self.sources)}),)

    def scores(self) -> dict[str, float | None]:
        """Its own score."""
        return {self.verifier_id: self.score}

    def summary(self) -> str:
        """The score."""
        return "unscored" if self.score is None else f"{self.score:g}"


class AggregateVerifiers(Step, type="aggregate_verifiers"):
    """Aggregate the rows of earlier verifiers into one score. Unscored sources are left out; when all are, so is the aggregate."""

    on_resume: ClassVar[OnResume] = OnResume.REPEAT
    entity_refs: ClassVar[tuple[EntityRef, ...] | None] = ()

    verifier_ids: Texts = ()
    """The verifiers whose rows are taken together. One that kept no rows counts as a single row with its score."""
    score_aggregator: Aggregator = Aggregator.WEIGHTED_AVERAGE
    """How rows become the score: `all_pass`, `any_pass`, `weighted_average`."""
    verifier_id: str = ""
    """The score's name; the step's id by default."""

    @model_validator(mode="before")
    @classmethod
    def _settle(cls, data: Any) -> Any:
        return default_to_id(data, "verifier_id")

    async def execute(self, run: Run) -> Aggregated:
        """Adds up what the context has.

        Raises:
            NotFoundError: A verifier has recorded nothing.
        """
        recorded = run.metadata.get("verifications") or {}
        rows = [row for name in self.verifier_ids for row in _rows(_entry(recorded, name))]
        return Aggregated(self.verifier_id, aggregate(rows, self.score_aggregator), tuple(self.verifier_ids))


def _entry(recorded: Mapping[str, Json], name: str) -> Mapping[str, Json]:
    entry = recorded.get(name)
    if isinstance(entry, Mapping):
        return entry
    meant = near(name, recorded)
    hint = f"did you mean {meant!r}?" if meant else f"recorded: {', '.join(sorted(recorded)) or 'none'}"
    raise NotFoundError(f"verifier {name!r} has recorded nothing", concerns=name, hint=hint)


def _rows(entry: Mapping[str, Json]) -> Iterator[Mapping[str, Json]]:
    rows, score = entry.get("results"), entry.get("score")
    if isinstance(rows, list | tuple):
        yield from (row for row in rows if isinstance(row, Mapping))
    elif isinstance(score, int | float):
        yield {"score": score, "result": score >= 1}
