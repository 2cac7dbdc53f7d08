"""A rubric as one sample asks for it: in which order, under which names, and how a judge is noticed that somebody else tells what to say.

Criteria are shuffled anew for each sample, under names of that sample (`c1` …), and two controls stand among them whose answers are
known: one holds and one does not. A judge that does what the graded answer tells it gives itself away there.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from agent_env.documents.reading import last_object
from agent_env.verifiers.judging.asking import GROUND_RULES, Cost, Judge, answered
from agent_env.verifiers.judging.citing import BAD, RULES, STATUSES, Status, citations, citing_problems, places_of
from agent_env.verifiers.judging.rubric import Format, RubricCriterion, read_score
from agent_env.verifiers.judging.screenshots import Gallery, Screenshot

Json = Any

_RUBRIC_RULES: Final = """\
- "criteria" is what you answer. Judge each one by itself; their order and their names mean nothing.
- A criterion holds only where the evidence shows it. Where the evidence does not tell, the criterion does not hold.

For each criterion first write a justification of one or two sentences that points at the evidence, and then the score."""
_SCORES: Final = {
    Format.BINARY: "The score is 1 where the criterion holds, and 0 where it does not.",
    Format.PARTIAL: 'The score says how far the criterion holds: from 0 to 1, or within its "outcomes" where it has some.',
    Format.EVIDENCE: f"The score is 1 where the criterion holds, and 0 where it does not. {RULES}",
}
_FIELDS: Final = {
    Format.BINARY: '"justification": "…", "score": …',
    Format.PARTIAL: '"justification": "…", "score": …',
    Format.EVIDENCE: '"justification": "…", "evidence": ["step 3", …], "evidence_status": "…", "score": …',
}
_HOLDS, _HOLDS_NOT = "+", "-"
"""Names of the controls."""
_BULK_LEAST, _BULK_SHARE = 5, 0.25
"""From how many equal justifications on, and from what share of all, they are no judgements (reference)."""
_SHORT_CHARACTERS, _SHORT_SHARE = 20, 0.5
"""What justification is a short one, and from what share of short ones on a batch was not judged one by one (reference)."""
_SNAPS_AT: Final = 0.5


@dataclass(frozen=True, slots=True)
class Question:
    """A case with its criteria."""

    task: Json
    """What the agent was asked to do."""
    evidence: Mapping[str, Json]
    criteria: Sequence[RubricCriterion]
    format: Format
    policy: str | None = None
    """The author's own words on how to grade."""
    controls: bool = True
    gallery: Gallery = field(default_factory=Gallery)
    """Screenshots, of which each judgement is shown some."""

    batched: bool = False
    """Its criteria are some of several batches."""

    def shown(self) -> Sequence[Screenshot]:
        """The screenshots for these criteria."""
        return self.gallery.chosen([json.dumps(each.shown(), ensure_ascii=False) for each in self.criteria])

    def seed(self, number: int) -> str:
        """The same for the same case in every run, so that what was recorded can be replayed; another one for each sample."""
        facts = [self.task, self.evidence, [each.as_written() for each in self.criteria], number]
        return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Verdict:
    """A judge's word on one criterion."""

    score: float
    """From 0 to 1."""
    said: float
    """As it said it."""
    justification: str
    position: float
    """Where the criterion stood: 0 is first, 1 is last."""
    evidence: Sequence[str] = ()
    """Which places of the evidence it points at, where it is asked for them."""
    status: Status | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """One judgement of all criteria."""

    verdicts: Mapping[str, Verdict]
    """By the criterion's id."""
    cost: Cost
    corrections: int
    """How often the judge had to be asked again because its answer could not be read."""
    compromised: bool
    """It got a control wrong: what else it says is worth nothing."""
    exchange: Mapping[str, Json] = field(repr=False)
    """What was asked and answered, for the record."""
    model: str | None = None
    """Which model answered."""


async def sample(judge: Judge, question: Question, *, number: int, attempts: int) -> Sample:
    """Asks once.

    Args:
        judge: Is asked.
        question: About what.
        number: Of the sample: each has an order of its own, the same in every run of the same case.
        attempts: How often an answer that can't be read is asked for again.

    Raises:
        JudgeFaultError: None of its answers could be read.
        InfrastructureError: It can't be asked.
    """
    sheet = _Sheet.of(question, number)
    got = await answered(judge, sheet, number=number, attempts=attempts)
    return Sample(sheet.verdicts(got.found), got.cost, got.corrections, sheet.compromised(got.found), got.exchange, got.model)


@dataclass(frozen=True, slots=True)
class _Answer:
    said: float
    justification: str
    evidence: Sequence[str] = ()
    status: Status | None = None


_Answers = Mapping[str, _Answer]


class _Sheet:
    """The criteria as one sample asks for them."""

    def __init__(self, question: Question, names: Mapping[str, str], entries: Sequence[Mapping[str, Json]], case: int) -> None:
        self._question = question
        self._names = names
        self._entries = entries
        self._case = case
        self._criteria = {each.id: each for each in question.criteria}
        self._screenshots = question.shown()
        self._places = places_of(question.evidence, self._screenshots)

    @classmethod
    def of(cls, question: Question, number: int) -> _Sheet:
        """The sheet of a sample."""
        order = random.Random(question.seed(number))
        case, other = case_numbers(order)
        asked: list[tuple[str, Mapping[str, Json]]] = [(f"={each.id}", each.shown()) for each in question.criteria]
        if question.controls:
            asked += [(name, {"title": case_title(each)}) for name, each in ((_HOLDS, case), (_HOLDS_NOT, other))]
        order.shuffle(asked)
        names = {f"c{position}": name for position, (name, _) in enumerate(asked, 1)}
        entries = [{"id": f"c{position}", **shown} for position, (_, shown) in enumerate(asked, 1)]
        return cls(question, names, entries, case)

    def instructions(self) -> str:
        """What the judge is told once."""
        return instructions(f"{GROUND_RULES}\n{_RUBRIC_RULES}", _SCORES[self._question.format], self.form(), policy=self._question.policy)

    def document(self) -> str:
        """What is graded."""
        return document(self._question, self._screenshots, self._case, {"criteria": self._entries})

    def pictures(self) -> Sequence[Screenshot]:
        """The screenshots."""
        return self._screenshots

    def form(self) -> str:
        """An answer in words."""
        fields = _FIELDS[self._question.format]
        return f'Answer with one JSON object: {{"results": [{{"id": "c1", {fields}}}, …]}}, one result a criterion.'

    def schema(self) -> dict[str, Json]:
        """What an answer looks like."""
        partial = self._question.format is Format.PARTIAL
        properties: dict[str, Json] = {
            "id": {"type": "string", "enum": list(self._names)},
            "justification": {"type": "string"},
        }
        if self._question.format is Format.EVIDENCE:
            properties["evidence"] = {"type": "array", "items": {"type": "string"}}
            properties["evidence_status"] = {"type": "string", "enum": list(STATUSES)}
        properties["score"] = {"type": "number"} if partial else {"type": "integer", "enum": [0, 1]}
        return closed({"results": {"type": "array", "items": closed(properties)}})

    def read(self, text: str) -> tuple[dict[str, _Answer], list[str]]:
        """The answers by the criteria's names on the sheet, and what is wrong with them."""
        found = last_object(text)
        results = found.get("results") if found else None
        if not isinstance(results, list):
            return {}, ['it is no JSON object with a list "results"']
        answers: dict[str, _Answer] = {}
        complaints: list[str] = []
        for result in results:
            name = str(result.get("id")) if isinstance(result, Mapping) else ""
            if name not in self._names or name in answers:
                complaints.append(f"{name!r} is listed twice" if name in answers else f"there is no criterion {name!r}")
                continue
            answer, wrong = self._answer(name, result)
            complaints += wrong
            if answer is not None:
                answers[name] = answer
        missing = [name for name in self._names if name not in answers]
        if missing and not complaints:
            complaints.append(f"nothing is said of {', '.join(missing)}")
        return answers, complaints or _bulk(answers, batched=self._question.batched)

    def _answer(self, name: str, result: Mapping[str, Json]) -> tuple[_Answer | None, list[str]]:
        score, format = read_score(result.get("score")), self._question.format
        if score is None or (format is Format.BINARY and score not in {0.0, 1.0}):
            return None, [f"{name} has the score {result.get('score')!r}"]
        justification = str(result.get("justification") or "")
        if format is not Format.EVIDENCE:
            return _Answer(score, justification), []
        score = float(score >= _SNAPS_AT)
        wrong = [f"{name} {problem}" for problem in citing_problems(result, self._places, holds=score == 1.0)]
        if wrong:
            return None, wrong
        return _Answer(score, justification, citations(result), Status(result["evidence_status"])), []

    def verdicts(self, answers: _Answers) -> dict[str, Verdict]:
        """By the criteria's own ids."""
        last = max(len(self._names) - 1, 1)
        placed = {name: position / last for position, name in enumerate(self._names)}
        made = {}
        for name, answer in answers.items():
            own = self._names[name]
            if own.startswith("="):
                score = 0.0 if answer.status in BAD else self._criteria[own[1:]].normal(answer.said, self._question.format)
                made[own[1:]] = Verdict(score, answer.said, answer.justification, placed[name], answer.evidence, answer.status)
        return made

    def compromised(self, answers: _Answers) -> bool:
        """Whether a control was answered wrong."""
        said = {own: answers[name].said for name, own in self._names.items() if own in {_HOLDS, _HOLDS_NOT}}
        return bool(said) and not (said[_HOLDS] >= 0.5 > said[_HOLDS_NOT])


# what sheets of every kind share


def case_numbers(order: random.Random) -> tuple[int, int]:
    """The number that the document shows, and another one."""
    case, other = order.sample(range(10_000, 100_000), 2)
    return case, other


def case_title(number: int) -> str:
    """What a control says."""
    return f"The case number of this document is {number}."


def instructions(*parts: str, policy: str | None) -> str:
    """What a judge is told once, with the author's own words at the end."""
    own = [f"How to grade, in the words of the task's author:\n{policy}"] if policy else []
    return "\n\n".join((*parts, *own))


def document(question: Question, screenshots: Sequence[Screenshot], case: int, asked: Mapping[str, Json]) -> str:
    """What is graded, as JSON, so that nothing in it can end it."""
    pictures = {"screenshots": [each.shown() for each in screenshots]} if screenshots else {}
    whole = {"task": question.task, "evidence": {**question.evidence, **pictures}, "case_number": case, **asked}
    return json.dumps(whole, ensure_ascii=False, indent=1)


def closed(properties: Mapping[str, Json]) -> dict[str, Json]:
    """The schema of an object with exactly these properties."""
    return {"type": "object", "properties": dict(properties), "required": list(properties), "additionalProperties": False}


def _bulk(answers: _Answers, *, batched: bool) -> list[str]:
    """Justifications that were written once for many criteria, and of a batch those that say next to nothing (reference)."""
    said = Counter(answer.justification.strip().casefold() for answer in answers.values())
    most = max(said.values(), default=0)
    if most >= max(_BULK_LEAST, _BULK_SHARE * len(answers)):
        return [f"{most} criteria have the same justification"]
    short = sum(len(answer.justification.strip()) < _SHORT_CHARACTERS for answer in answers.values())
    if batched and short >= _SHORT_SHARE * len(answers):
        return [f"{short} justifications are shorter than {_SHORT_CHARACTERS} characters"]
    return []
