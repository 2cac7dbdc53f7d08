"""`agent_prompt_response_verifier`: scores the text of an agent's answer by what it contains. No model is asked."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Discriminator, Field, Tag, field_serializer, model_validator

from agent_env.documents.spelling import near
from agent_env.documents.updates import Json
from agent_env.errors import Problem
from agent_env.steps.contract import EntityRef, OnResume, Plan, Run, Step
from agent_env.steps.fields import Texts, default_to_id
from agent_env.verifiers.answers import answer_to, failed_answer
from agent_env.verifiers.criterion import CriterionFields, Verdict, problems_of, row
from agent_env.verifiers.matching import Search, search
from agent_env.verifiers.scoring import Aggregator, aggregate
from agent_env.verifiers.verify_sandbox import SHOWN_CHARACTERS, Verification

FLAGS: Final = ("ASCII", "DOTALL", "IGNORECASE", "MULTILINE", "VERBOSE", "A", "I", "M", "S", "X")
"""Names of `re` that a criterion may give."""
KINDS: Final = ("response_contains", "response_regex_present")


class ResponseContains(CriterionFields):
    """The answer contains every one of some texts, letter for letter."""

    type: Literal["response_contains"]
    needles: Annotated[Texts, Field(min_length=1)]
    """The texts."""

    def problems(self) -> Iterator[Problem]:
        """An empty text is in every answer."""
        if not all(self.needles):
            yield Problem("holds an empty text, which every answer contains", path=".needles")


class ResponseRegexPresent(CriterionFields):
    """The answer holds a match of a regular expression (Python's, searched)."""

    type: Literal["response_regex_present"]
    pattern: str = Field(min_length=1)
    """The expression."""
    flags: Texts = ("DOTALL",)
    """Names of Python's flags, such as `IGNORECASE`."""

    def problems(self) -> Iterator[Problem]:
        """The expression must be one, and flags must be known."""
        unknown = [name for name in self.flags if name not in FLAGS]
        for name in unknown:
            meant = near(name, FLAGS)
            yield Problem(
                f"unknown flag {name!r}", path=".flags", hint=f"did you mean {meant!r}?" if meant else f"known: {', '.join(FLAGS)}"
            )
        if unknown:
            return
        try:
            re.compile(self.pattern, self.combined)
        except (re.error, OverflowError, RecursionError, ValueError) as error:
            yield Problem(f"is no regular expression: {error}", path=".pattern", hint=f"for literal text: {re.escape(self.pattern)!r}")

    @property
    def combined(self) -> int:
        """The flags as `re` takes them."""
        return int(sum({getattr(re, name) for name in self.flags}, re.RegexFlag(0)))


class UnknownCriterion(CriterionFields):
    """A kind that is not there: an answer is not graded by what nobody understands."""

    def problems(self) -> Iterator[Problem]:
        """It is one."""
        meant = near(self.type, KINDS)
        hint = f"did you mean {meant!r}?" if meant else f"known: {', '.join(KINDS)}"
        yield Problem(f"unknown criterion type {self.type!r}", path=".type", hint=hint)


def _kind(value: Any) -> str:
    name = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return name if name in KINDS else "unknown"


AnswerCriterion = Annotated[
    Annotated[ResponseContains, Tag("response_contains")]
    | Annotated[ResponseRegexPresent, Tag("response_regex_present")]
    | Annotated[UnknownCriterion, Tag("unknown")],
    Discriminator(_kind),
]


class AgentPromptResponseVerifier(Step, type="agent_prompt_response_verifier"):
    """Score the text of an agent's answer by what it contains.

    An answer that the agent failed to give scores 0; one that was lost to a fault of the world is not scored.
    """

    on_resume: ClassVar[OnResume] = OnResume.REPEAT
    entity_refs: ClassVar[tuple[EntityRef, ...] | None] = ()

    prompt_id: str = Field(min_length=1)
    """Whose answer."""
    criteria: tuple[AnswerCriterion, ...] = ()
    """Checked in order. Kinds: `response_contains` (`needles`), `response_regex_present` (`pattern`, `flags`)."""
    score_aggregator: Aggregator = Aggregator.ALL_PASS
    """How rows become the score: `all_pass`, `any_pass`, `weighted_average`."""
    verifier_id: str = ""
    """The score's name; the step's id by default."""

    @model_validator(mode="before")
    @classmethod
    def _settle(cls, data: Any) -> Any:
        return default_to_id(data, "verifier_id")

    @field_serializer("criteria")
    def _as_written(self, criteria: tuple[CriterionFields, ...]) -> list[dict[str, Json]]:
        return [each.as_written() for each in criteria]

    def problems(self, plan: Plan) -> Iterator[Problem]:
        """Kinds, texts, expressions and flags."""
        del plan
        return problems_of(self.criteria)

    async def execute(self, run: Run) -> Verification:
        """Looks at the answer.

        Raises:
            NotFoundError: There is no answer to that prompt.
        """
        answer = answer_to(run, self.prompt_id, concerns=self.id)
        failed = failed_answer(answer)
        rows = (failed,) if failed is not None else await self._rows(run, answer.response or "")
        return Verification(self.verifier_id, aggregate(rows, self.score_aggregator), tuple(rows))

    async def _rows(self, run: Run, text: str) -> Sequence[dict[str, Json]]:
        file = run.scratch() / "answer.txt"
        file.write_bytes(text.encode("utf-8", "replace"))
        wanted = [(index, each) for index, each in enumerate(self.criteria) if isinstance(each, ResponseRegexPresent)]
        searches = [Search(each.pattern, file, each.combined) for _, each in wanted]
        seconds = run.limits.verify_shell_seconds
        found = dict(zip((index for index, _ in wanted), await search(searches, timeout_seconds=seconds), strict=True))
        verdicts = []
        for index, each in enumerate(self.criteria):
            match each:
                case ResponseContains(needles=needles):
                    missing = [needle for needle in needles if needle not in text]
                    said = f"Missing: {[needle[:SHOWN_CHARACTERS] for needle in missing]}" if missing else "contains every text"
                    verdicts.append(Verdict(not missing, said))
                case ResponseRegexPresent(pattern=pattern):
                    answer, shown = found[index], repr(pattern[:SHOWN_CHARACTERS])
                    said = f"timed out after {seconds:g}s" if answer.timed_out else "matches" if answer.matched else "does not match"
                    verdicts.append(Verdict(answer.matched, f"{said} {shown}"))
                case _:
                    verdicts.append(Verdict(None, f"criteria of type {each.type!r} are not scored here"))
        return [row(each, index, verdict) for index, (each, verdict) in enumerate(zip(self.criteria, verdicts, strict=True))]
