"""Several judgements of one case: samples that each see the criteria in another order, batches of criteria, and what they come to."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Protocol, TypeVar

from agent_env.verifiers.judging.agreement import Agreement, agreement, settled
from agent_env.verifiers.judging.asking import Cost, Judge, JudgeFaultError
from agent_env.verifiers.judging.mistakes import MistakesSample, mistakes_sample
from agent_env.verifiers.judging.rubric import Format, verdict_row
from agent_env.verifiers.judging.sheet import Question, Sample, Verdict, sample
from agent_env.waiting import together

Json = Any


class Asked(Protocol):
    """One judgement, of whatever kind."""

    @property
    def cost(self) -> Cost: ...
    @property
    def corrections(self) -> int: ...
    @property
    def compromised(self) -> bool: ...
    @property
    def exchange(self) -> Mapping[str, Json]: ...
    @property
    def model(self) -> str | None: ...


One = TypeVar("One", bound=Asked)
Ask = Callable[[Judge, Question, int, int], Awaitable[One]]
"""Of a judge, a question, the sample's number and the most attempts."""


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
        """Asks for all samples of all batches of criteria.

        Raises:
            JudgeFaultError: Half of a batch's samples or more can't be used: the judge did as the evidence told it.
            InfrastructureError: The judge can't be asked.
        """
        kept, spoilt = await self._asked(list(_batches(question, self.batch_size)), _rubric)
        return Judged(question, kept, spoilt)

    async def mistakes(self, question: Question) -> MistakesJudged:
        """Asks for all samples of the mistakes that were made. Raises as `judged`."""
        kept, spoilt = await self._asked([question], _mistakes)
        return MistakesJudged(question, kept, spoilt)

    async def _asked(self, batches: Sequence[Question], ask: Ask[One]) -> tuple[tuple[One, ...], tuple[One, ...]]:
        """The samples in their order, and those that were asked for again because a control was wrong."""
        asked = [(batch, number) for batch in range(len(batches)) for number in range(self.samples)]
        samples: dict[tuple[int, int], One] = {}
        spoilt: list[One] = []
        gate = asyncio.Semaphore(self.concurrency)

        async def one(batch: int, number: int) -> None:
            async with gate:
                samples[batch, number] = await self._sample(batches[batch], number, spoilt, ask)
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
        return tuple(samples[key] for key in sorted(samples)), tuple(spoilt)

    async def _sample(self, question: Question, number: int, spoilt: list[One], ask: Ask[One]) -> One:
        """One that can be trusted, if the second try gives one."""
        found = await ask(self.judge, question, number, self.attempts)
        if not found.compromised:
            return found
        spoilt.append(found)
        return await ask(self.judge, question, number + self.samples, self.attempts)


async def _rubric(judge: Judge, question: Question, number: int, attempts: int) -> Sample:
    return await sample(judge, question, number=number, attempts=attempts)


async def _mistakes(judge: Judge, question: Question, number: int, attempts: int) -> MistakesSample:
    return await mistakes_sample(judge, question, number=number, attempts=attempts)


def cost_of(judgements: Sequence[Asked]) -> Cost:
    """Of all of them."""
    return sum((each.cost for each in judgements), Cost())


@dataclass(frozen=True, slots=True)
class Judged:
    """All judgements of one case by a rubric."""

    question: Question
    samples: tuple[Sample, ...]
    spoilt: tuple[Sample, ...] = ()
    """Judgements that were asked for again because a control was wrong."""

    @property
    def all(self) -> Sequence[Asked]:
        """Everything that was asked."""
        return (*self.samples, *self.spoilt)

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
            if criterion.outcomes is not None or (nearest.status is not None and nearest.said != nearest.score):
                more["raw_score"] = nearest.said
            if nearest.status is not None:
                more |= {"evidence_status": nearest.status.value, "evidence": list(nearest.evidence)}
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

    @property
    def _binary(self) -> bool:
        return self.question.format is not Format.PARTIAL


@dataclass(frozen=True, slots=True)
class MistakesJudged:
    """All lists of mistakes of one case."""

    question: Question
    samples: tuple[MistakesSample, ...]
    spoilt: tuple[MistakesSample, ...] = ()

    @property
    def all(self) -> Sequence[Asked]:
        """Everything that was asked."""
        return (*self.samples, *self.spoilt)

    @property
    def _good(self) -> list[MistakesSample]:
        """The lists that can be trusted, the mildest first."""
        return sorted((each for each in self.samples if not each.compromised), key=lambda each: (each.found.botched, each.penalty))

    def rows(self) -> list[dict[str, Json]]:
        """Those of the list in the middle: lists of different mistakes can't be averaged."""
        good = self._good
        rows = good[len(good) // 2].rows(self.question.criteria)
        if len(good) > 1:
            rows[0]["samples"] = [round(each.penalty, 4) for each in good]
        return rows

    def agreement(self) -> Agreement:
        """How far the lists agree on whether it was botched, and on which criteria are touched."""
        good = self._good
        touched = [[float(each.touches(criterion.id)) for each in good] for criterion in self.question.criteria]
        return agreement([[float(each.found.botched) for each in good], *touched], (), binary=True)


def _batches(question: Question, size: int | None) -> Iterator[Question]:
    criteria: Sequence[Any] = question.criteria
    step = size or len(criteria)
    for start in range(0, len(criteria), step):
        yield replace(question, criteria=criteria[start : start + step], batched=size is not None)
