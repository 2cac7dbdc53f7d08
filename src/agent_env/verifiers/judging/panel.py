"""Several judgements of one case: samples that each see the criteria in another order, batches of criteria, and what they come to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from agent_env.verifiers.judging.agreement import Agreement, agreement, settled
from agent_env.verifiers.judging.asking import Cost, Judge, JudgeFaultError, Question, Sample, Verdict, sample
from agent_env.verifiers.judging.rubric import Format, verdict_row
from agent_env.waiting import together

Json = Any


@dataclass(frozen=True, slots=True)
class Panel:
    """How often, and how, a judge is asked."""

    judge: Judge
    samples: int
    attempts: int
    concurrency: int
    batch_size: int | None = None
    """None: all criteria at once."""
    on_answer: Callable[[int, int], None] | None = None
    """Hears how many answers have come."""

    async def judged(self, question: Question) -> Judged:
        """Asks for all samples of all batches.

        Raises:
            JudgeFaultError: Half of a batch's samples or more can't be used: the judge did as the evidence told it.
            InfrastructureError: The judge can't be asked.
        """
        batches = list(_batches(question, self.batch_size))
        asked = [(batch, number) for batch in range(len(batches)) for number in range(self.samples)]
        samples: dict[tuple[int, int], Sample] = {}
        spoilt: list[Sample] = []
        gate = asyncio.Semaphore(self.concurrency)

        async def one(batch: int, number: int) -> None:
            async with gate:
                found = await self._sample(batches[batch], number, spoilt)
                samples[batch, number] = found
                if self.on_answer is not None:
                    self.on_answer(len(samples), len(asked))

        await together(one(batch, number) for batch, number in asked)
        for batch in range(len(batches)):
            good = [each for (other, _), each in samples.items() if other == batch and not each.compromised]
            if len(good) * 2 <= self.samples:
                raise JudgeFaultError(
                    f"{self.samples - len(good)} of {self.samples} judgements can't be trusted: the judge got controls wrong whose answers"
                    " are known, as one does that follows what the graded answer says",
                    hint="another model; the answer's passages that speak to the judge are in the step's log",
                )
        kept = [samples[key] for key in sorted(samples)]
        return Judged(question, tuple(kept), tuple(spoilt))

    async def _sample(self, question: Question, number: int, spoilt: list[Sample]) -> Sample:
        """One that can be trusted, if the second try gives one."""
        found = await sample(self.judge, question, number=number, attempts=self.attempts)
        if not found.compromised:
            return found
        spoilt.append(found)
        return await sample(self.judge, question, number=number + self.samples, attempts=self.attempts)


@dataclass(frozen=True, slots=True)
class Judged:
    """All judgements of one case."""

    question: Question
    samples: tuple[Sample, ...]
    spoilt: tuple[Sample, ...] = ()
    """Judgements that were asked for again because a control was wrong."""

    @property
    def cost(self) -> Cost:
        """Of all that was asked."""
        total = Cost()
        for each in (*self.samples, *self.spoilt):
            total += each.cost
        return total

    @property
    def corrections(self) -> int:
        """How often an answer could not be read."""
        return sum(each.corrections for each in (*self.samples, *self.spoilt))

    @property
    def compromised(self) -> int:
        """Judgements with a wrong control."""
        return len(self.spoilt) + sum(each.compromised for each in self.samples)

    def verdicts(self, criterion_id: str) -> list[Verdict]:
        """What was said of a criterion, in the order of the samples."""
        return [each.verdicts[criterion_id] for each in self.samples if not each.compromised and criterion_id in each.verdicts]

    def score(self, criterion_id: str) -> float:
        """What that comes to, from 0 to 1."""
        return settled([each.score for each in self.verdicts(criterion_id)], binary=self._binary)

    def rows(self) -> Iterator[dict[str, Json]]:
        """The criteria's rows, in their order."""
        for criterion in self.question.criteria:
            found, score = self.verdicts(criterion.id), self.score(criterion.id)
            nearest = min(found, key=lambda each, score=score: abs(each.score - score))  # type: ignore[misc]
            more: dict[str, Json] = {}
            if criterion.outcomes is not None:
                more["raw_score"] = nearest.said
            if len(found) > 1:
                more["samples"] = [each.score for each in found]
                more["agreement"] = round(fmean(float(each.score == score) for each in found), 4)
            yield verdict_row(criterion, score, self.question.format, justification=nearest.justification, more=more)

    def agreement(self) -> Agreement:
        """How far the samples agree, and whether the order of criteria decided."""
        units = [[each.score for each in self.verdicts(criterion.id)] for criterion in self.question.criteria]
        placed = []
        for criterion in self.question.criteria:
            found = self.verdicts(criterion.id)
            mean = fmean(each.score for each in found)
            placed += [(each.position, each.score - mean) for each in found]
        return agreement(units, placed, binary=self._binary)

    def exchanges(self) -> list[Mapping[str, Json]]:
        """All that was asked and answered."""
        return [exchange for each in (*self.samples, *self.spoilt) for exchange in each.exchanges]

    @property
    def _binary(self) -> bool:
        return self.question.format is Format.BINARY


def _batches(question: Question, size: int | None) -> Iterator[Question]:
    criteria: Sequence[Any] = question.criteria
    step = size or len(criteria)
    for start in range(0, len(criteria), step):
        yield replace(question, criteria=criteria[start : start + step])
