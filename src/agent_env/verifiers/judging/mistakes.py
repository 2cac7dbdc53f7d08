"""`trajectory_mistakes`: a judge lists what an agent did wrong, how bad that was, and what the task asked for that it concerns.

Rows, and what a severity takes off, are the reference's. A mistake that can't be pointed at is none: the places that are named have to
exist. Two statements about the document stand beside the question whose answers are known, as in a rubric.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from agent_env.documents.reading import last_object
from agent_env.verifiers.judging.asking import GROUND_RULES, Cost, Judge, answered
from agent_env.verifiers.judging.citing import citations, places_of, strangers
from agent_env.verifiers.judging.rubric import RubricCriterion
from agent_env.verifiers.judging.screenshots import Screenshot
from agent_env.verifiers.judging.sheet import Question, case_numbers, case_title, closed, document, instructions

Json = Any
PENALTIES: Final = {"low": 0.02, "medium": 0.08, "high": 0.25, "critical": 1.0}
"""What a mistake of that severity takes off, when it concerns none of the criteria (reference)."""
_RULES: Final = """\
- You look for mistakes: steps that were wrong, harmful, needless at a cost to others, or that claim what was not done. Another way to a \
good end is no mistake, and neither is what the agent noticed and put right before it mattered.
- Each mistake is listed once, with the places that show it. What no place shows is no mistake.
- "criteria" says what the task asks for. With each mistake name those that it concerns; it may concern none."""
_SEVERITIES: Final = (
    'The severity is "low" where nobody is worse off, "medium" where the result is worse, "high" where part of the task fails or harm is '
    'done that can be undone, and "critical" where the task fails through it or harm is done that can\'t be. "botched" is true where the '
    'task as a whole came to nothing through mistakes. "evidence" lists places: "step N" for a step of the trajectory or of the actions, '
    'the name of a screenshot, or the name of another part of the document ("answer" …). In "checks" say of each statement of "checks" '
    "whether it holds."
)
_FORM: Final = (
    'Answer with one JSON object: {"reasoning": "…", "mistakes": [{"what": "…", "evidence": ["step 3", …], "criteria": ["c1", …], '
    '"severity": "…"}, …], "botched": …, "summary": "…", "checks": [{"id": "k1", "holds": …}, …]}.'
)


@dataclass(frozen=True, slots=True)
class Mistake:
    """Something that an agent did wrong."""

    what: str
    severity: str
    evidence: Sequence[str]
    criteria: frozenset[str]
    """Own ids of those that it concerns."""


@dataclass(frozen=True, slots=True)
class Found:
    """A judge's list."""

    mistakes: Sequence[Mistake] = ()
    botched: bool = False
    summary: str = ""
    reasoning: str = ""
    checks: Mapping[str, bool] = field(default_factory=dict)
    """By the statement's name on the sheet."""


@dataclass(frozen=True, slots=True)
class MistakesSample:
    """One list of mistakes."""

    found: Found
    criteria: int
    """How many there are."""
    cost: Cost
    corrections: int
    compromised: bool
    """It got a statement wrong whose answer is known."""
    exchange: Mapping[str, Json] = field(repr=False)
    model: str | None = None

    def coverage(self, mistake: Mistake) -> float:
        """The share of the criteria that a mistake concerns."""
        return len(mistake.criteria) / self.criteria

    def penalty_of(self, mistake: Mistake) -> float:
        """What a mistake takes off: twice as much when it concerns everything that was asked for (reference)."""
        return PENALTIES[mistake.severity] * (1 + self.coverage(mistake))

    @property
    def penalty(self) -> float:
        """What all of them take off."""
        return sum(self.penalty_of(each) for each in self.found.mistakes)

    def touches(self, criterion_id: str) -> bool:
        """Whether a mistake concerns a criterion."""
        return any(criterion_id in each.criteria for each in self.found.mistakes)

    def rows(self, criteria: Sequence[RubricCriterion]) -> list[dict[str, Json]]:
        """As the context keeps them: a summary, whether the whole was botched, each mistake, and how far each criterion is concerned.

        By `weighted_average` the score is 1, or 0 of what was botched, less what the mistakes take off.
        """
        found = self.found
        summary = _row("summary", 1.0, 0, found.summary, mistakes=len(found.mistakes), penalty=round(self.penalty, 4))
        botched = _row("botched", float(not found.botched), 1, found.reasoning, botched=found.botched)
        mistakes = [
            _row(
                f"mistake_{number}",
                0.0,
                -self.penalty_of(each),
                each.what,
                severity=each.severity,
                coverage=round(self.coverage(each), 4),
                criteria=sorted(each.criteria),
                evidence=list(each.evidence),
            )
            for number, each in enumerate(found.mistakes, 1)
        ]
        return [summary, botched, *mistakes, *(self._touched(each.id) for each in criteria)]

    def _touched(self, criterion_id: str) -> dict[str, Json]:
        named = [f"mistake_{number}" for number, each in enumerate(self.found.mistakes, 1) if criterion_id in each.criteria]
        return _row(f"coverage_{criterion_id}", float(not named), 0, ", ".join(named) or "no mistake concerns it", mistakes=named)


def _row(id: str, score: float, weight: float, justification: str, **more: Json) -> dict[str, Json]:
    return {
        "id": id,
        "weight": weight,
        "score": score,
        "result": score == 1.0,
        "justification": justification,
        "skipped": False,
        **more,
    }


async def mistakes_sample(judge: Judge, question: Question, *, number: int, attempts: int) -> MistakesSample:
    """Asks once. Arguments and errors are those of `sheet.sample`."""
    sheet = _MistakesSheet(question, number)
    got = await answered(judge, sheet, number=number, attempts=attempts)
    compromised = sheet.compromised(got.found)
    return MistakesSample(got.found, len(question.criteria), got.cost, got.corrections, compromised, got.exchange, got.model)


class _MistakesSheet:
    """The question as one sample asks it."""

    def __init__(self, question: Question, number: int) -> None:
        order = random.Random(question.seed(number))
        self._question = question
        self._case, other = case_numbers(order)
        criteria = order.sample(list(question.criteria), len(question.criteria))
        self._names = {f"c{position}": each.id for position, each in enumerate(criteria, 1)}
        self._entries = [{"id": f"c{position}", **each.shown()} for position, each in enumerate(criteria, 1)]
        stated = order.sample([self._case, other], 2) if question.controls else []
        self._checks = {f"k{position}": each for position, each in enumerate(stated, 1)}
        self._screenshots = question.shown()
        self._places = places_of(question.evidence, self._screenshots)

    def instructions(self) -> str:
        return instructions(f"{GROUND_RULES}\n{_RULES}", _SEVERITIES, _FORM, policy=self._question.policy)

    def document(self) -> str:
        checks = [{"id": name, "title": case_title(each)} for name, each in self._checks.items()]
        return document(self._question, self._screenshots, self._case, {"criteria": self._entries, "checks": checks})

    def pictures(self) -> Sequence[Screenshot]:
        return self._screenshots

    def form(self) -> str:
        return _FORM

    def schema(self) -> dict[str, Json]:
        text, texts = {"type": "string"}, {"type": "array", "items": {"type": "string"}}
        mistake = closed({"what": text, "evidence": texts, "criteria": texts, "severity": {"type": "string", "enum": list(PENALTIES)}})
        check = closed({"id": text, "holds": {"type": "boolean"}})
        return closed(
            {
                "reasoning": text,
                "mistakes": {"type": "array", "items": mistake},
                "botched": {"type": "boolean"},
                "summary": text,
                "checks": {"type": "array", "items": check},
            }
        )

    def read(self, text: str) -> tuple[Found, list[str]]:
        said = last_object(text)
        if said is None or not isinstance(said.get("mistakes"), list) or not isinstance(said.get("botched"), bool):
            return Found(), ['it is no JSON object with a list "mistakes" and with "botched", true or false']
        mistakes, complaints = [], []
        for number, each in enumerate(said["mistakes"], 1):
            wrong = self._wrong(each)
            complaints += [f"mistake {number} {problem}" for problem in wrong]
            if not wrong:
                concerned = frozenset(self._names[str(name)] for name in each.get("criteria") or ())
                mistakes.append(Mistake(str(each["what"]), str(each["severity"]), citations(each), concerned))
        checks = {
            str(each.get("id")): each["holds"]
            for each in said.get("checks") or ()
            if isinstance(each, Mapping) and isinstance(each.get("holds"), bool)
        }
        missing = [name for name in self._checks if name not in checks]
        if missing:
            complaints.append(f"nothing is said of {', '.join(missing)}")
        found = Found(mistakes, said["botched"], str(said.get("summary") or ""), str(said.get("reasoning") or ""), checks)
        return found, complaints

    def _wrong(self, said: Json) -> list[str]:
        if not isinstance(said, Mapping):
            return ["is no JSON object"]
        criteria = said.get("criteria") or []
        unknown = [str(name) for name in criteria if str(name) not in self._names] if isinstance(criteria, list) else ["?"]
        return [
            *([] if said.get("what") else ["does not say what was wrong"]),
            *([] if said.get("severity") in PENALTIES else [f"has the severity {said.get('severity')!r}"]),
            *([] if citations(said) else ["points at nothing"]),
            *strangers(said, self._places),
            *(f"names the criterion {name!r}, which is not there" for name in unknown),
        ]

    def compromised(self, found: Found) -> bool:
        """Whether a statement was answered wrong."""
        return any(found.checks.get(name) is not (stated == self._case) for name, stated in self._checks.items())
