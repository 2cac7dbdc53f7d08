"""`rubrics_verifier`: a model judges an answer by criteria that no program can check.

A judge is a measuring instrument: it is asked several times where that is wanted, it is checked against labels and controls, and when it
can't be trusted nothing is scored. What the agent wrote is evidence and never speaks to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, field_serializer, model_validator

from agent_env.defaults import DEFAULT_LIMITS
from agent_env.documents.updates import Json, SetMetadata, Update
from agent_env.errors import Problem
from agent_env.steps.contract import EntityRef, OnResume, Plan, Run, Step, StepResult, apart
from agent_env.steps.fields import Number, OptionalName, Seconds, Texts, Whole, default_to_id
from agent_env.steps.limited import LimitDefault
from agent_env.verifiers.answers import answer_to, failed_answer
from agent_env.verifiers.judging.filtering import TrajectoryFilter
from agent_env.verifiers.judging.oracle import OracleCase, oracle_problems
from agent_env.verifiers.judging.rubric import Output, RubricCriterion, rubric_problems
from agent_env.verifiers.scoring import Aggregator, aggregate

_MOST_SAMPLES = 101


@dataclass(frozen=True, slots=True)
class Judgement(StepResult):
    """The rows of a verification, the score that they make, and how far to trust them."""

    verifier_id: str
    score: float | None
    rows: tuple[dict[str, Json], ...]
    facts: Mapping[str, Json] = field(default_factory=dict)
    beside: Judgement | None = None
    """The mistakes, where a rubric was asked for as well."""
    step_id: str | None = None
    """Whose judge it was, where one was asked."""

    def updates(self) -> Iterator[Update]:
        """Puts the verification under its id, and that of mistakes under its own."""
        yield SetMetadata(("verifications", self.verifier_id), {"results": list(self.rows), "score": self.score, **self.facts})
        if self.step_id is not None:
            yield SetMetadata(("models", "judge", self.step_id), self.facts.get("judge_model"))
        if self.beside is not None:
            yield from self.beside.updates()

    def scores(self) -> dict[str, float | None]:
        """Its score; that of the mistakes as well."""
        return {self.verifier_id: self.score, **(self.beside.scores() if self.beside is not None else {})}

    def summary(self) -> str:
        """The score, how many rows passed, and what the judge cost."""
        passed = sum(row.get("result") is True for row in self.rows)
        cost = (self.facts.get("judge_usage") or {}).get("cost_usd")
        shown = "unscored" if self.score is None else f"{self.score:g}"
        return f"{shown} ({passed} of {len(self.rows)} passed{'' if cost is None else f', judged for ${cost:.4f}'})"


class RubricsVerifier(Step, type="rubrics_verifier"):
    """Have a model judge an answer by criteria, through the model broker and within the budget of judges.

    An answer that the agent failed to give scores 0. When the judge can't be asked, contradicts what is known, or follows what the answer
    says, nothing is scored.
    """

    on_resume: ClassVar[OnResume] = OnResume.REPEAT
    entity_refs: ClassVar[tuple[EntityRef, ...] | None] = (EntityRef("agent", "judge_a2a_agent_id"),)
    user_fields: ClassVar[frozenset[str]] = frozenset({"judge_a2a_agent_id", "judge_sandbox_type"})
    own_fields: ClassVar[frozenset[str]] = frozenset(
        {"samples", "oracle", "oracle_accuracy", "controls", "withhold_addressed_text", "judge_params"}
    )

    prompt_id: str = Field(min_length=1)
    """Whose answer."""
    criteria: tuple[RubricCriterion, ...] = ()
    """Objects with a unique `id`; whatever else they say (`title`, `description` …) is what the judge is asked."""
    default_model: str | None = None
    """The judge's model; absent: the configuration's for the role `judge`."""
    default_model_api_base: str | None = None
    """Refused: keys stay with the endpoint that they were configured for."""
    score_aggregator: Aggregator = Aggregator.ALL_PASS
    """How rows become the score: `all_pass`, `any_pass`, `weighted_average`."""
    verifier_id: str = ""
    """The score's name; the step's id by default."""
    agent_name: OptionalName = None
    """A deployed agent that judges, instead of a model. Never the one whose answer it is."""
    trajectory_filter: TrajectoryFilter | None = None
    """What of the trajectory the judge sees."""
    max_thinking_tokens: Annotated[Whole, Field(ge=0)] | None = None
    """Of a judging agent."""
    effort: str | None = None
    """Of a judging agent; of a model it is sent as `reasoning_effort`."""
    use_agent_judge: bool = True
    """False: a model judges in any case. True deploys no agent by itself: a model is shown the trajectory, so nothing has to read it."""
    use_trajectory: bool = True
    """Show the judge what the agent did, and not only what it answered."""
    judge_a2a_agent_id: OptionalName = None
    """An agent that is deployed to judge, and taken down afterwards; `agent_name` and `use_agent_judge: false` come before it."""
    judge_sandbox_type: OptionalName = None
    """The provider of its sandbox, or a comma-separated chain of them."""
    judge_timeout_seconds: Annotated[Seconds, LimitDefault("judge_seconds")] = DEFAULT_LIMITS.judge_seconds
    """Limit of one answer of the judge."""
    output_format: Output = Output.BINARY
    """`rubric_binary` (met or not), `rubric_partial` (how far), `rubric_evidence` (met or not, with the places that show it),
    `trajectory_mistakes` (what was done wrong, and how bad that was) or `rubric_evidence_with_mistakes` (both, as two verifications)."""
    grading_policy_prompt: str | None = None
    """The author's own words on how to grade, after ours."""
    context_facts_for_judge: dict[str, str] | None = None
    """Label → dotted path in the run's `metadata`: shown to the judge, each cut to 600 characters."""
    grade_up_to_turn: Annotated[Whole, Field(ge=1)] | None = None
    """Judge only the conversation's turns up to this one."""
    run_context_for_judge: Texts | None = None
    """Of `conversation` and `trigger_log`: also shown to the judge."""
    judge_batch_size: Annotated[Whole, Field(ge=1)] | None = None
    """How many criteria are asked at once; absent: all."""
    judge_batch_concurrency: Annotated[Whole, Field(ge=1)] | None = None
    """How many answers of the judge are waited for at once; absent: `limits.judge_concurrency`."""
    samples: Annotated[Whole, Field(ge=1, le=_MOST_SAMPLES)] = 1
    """How often the judge is asked, each time with the criteria in another order; an odd number. The majority decides, of partial scores
    the middle one; how far they agree is recorded."""
    oracle: tuple[OracleCase, ...] = ()
    """Labelled answers (`response`, `expected`: criterion's id → score) that the judge has to get right first, also padded and with a word
    to the judge; each is judged `samples` times, as the answer itself is."""
    oracle_accuracy: Annotated[Number, Field(ge=0, le=1)] = 0.8
    """The share of labels below which the judge scores nothing."""
    controls: bool = True
    """Mix two criteria among the others whose answers are known; a judgement that gets one wrong is thrown away."""
    withhold_addressed_text: bool = True
    """Leave out what speaks to the grader, of all that the judge is shown. It is recorded in any case."""
    judge_params: dict[str, Any] = Field(default_factory=dict)
    """Further fields of the request to the judge's model (`temperature` …)."""

    @model_validator(mode="before")
    @classmethod
    def _settle(cls, data: Any) -> Any:
        return default_to_id(data, "verifier_id")

    @model_validator(mode="after")
    def _odd(self) -> Self:
        if self.samples % 2 == 0:
            raise ValueError(f"samples is {self.samples}; an even number can't decide")
        return self

    @field_serializer("criteria")
    def _as_written(self, criteria: tuple[RubricCriterion, ...]) -> list[dict[str, Json]]:
        return [each.as_written() for each in criteria]

    def problems(self, plan: Plan) -> Iterator[Problem]:
        """Criteria, labels, and what does not go together."""
        return apart(
            self._criteria_problems(),
            self._oracle_problems(),
            self._evidence_shown(),
            self._without_effect(),
            self._filter_problems(),
            self._key_stays(),
            self._shown_of_the_run(),
            self._judged_by_another(plan),
        )

    def _criteria_problems(self) -> Iterator[Problem]:
        yield from rubric_problems(self.criteria, getattr(self, "output_format", None))

    def _oracle_problems(self) -> Iterator[Problem]:
        yield from oracle_problems(self.oracle, self.criteria)

    def _filter_problems(self) -> Iterator[Problem]:
        for found in self.trajectory_filter.problems() if self.trajectory_filter is not None else ():
            yield replace(found, path=f".trajectory_filter{found.path}")

    def _key_stays(self) -> Iterator[Problem]:
        if self.default_model_api_base is not None:
            hint = "[model] base_url of the configuration, with its own key"
            yield Problem("a task can't send the judge's key elsewhere", path=".default_model_api_base", hint=hint)

    def _shown_of_the_run(self) -> Iterator[Problem]:
        for name in self.run_context_for_judge or ():
            if name not in {"conversation", "trigger_log"}:
                yield Problem(f"{name!r} is neither conversation nor trigger_log", path=".run_context_for_judge")

    def _judged_by_another(self, plan: Plan) -> Iterator[Problem]:
        if self.agent_name is not None:
            graded = {getattr(step, "agent_name", None) for step in plan.deployers(self.id, "prompt_agent", prompt_id=self.prompt_id)}
            if self.agent_name in graded:
                yield Problem(f"agent {self.agent_name!r} would judge its own answer", path=".agent_name")

    def _evidence_shown(self) -> Iterator[Problem]:
        output = self.output_format
        if output.points_at_evidence and not self.use_trajectory:
            yield Problem(f"{output} points at what the agent did", path=".use_trajectory", hint="leave it true")

    def _without_effect(self) -> Iterator[Problem]:
        if self.output_format is Output.MISTAKES:
            for name in ("oracle", "judge_batch_size"):
                if getattr(self, name, None):
                    yield Problem(f"{self.output_format} scores no criteria, so this means nothing", path=f".{name}", hint="leave it out")

    async def execute(self, run: Run) -> Judgement:
        """Judges.

        Raises:
            NotFoundError: There is no answer to that prompt, or what the judge was to be shown was not recorded.
            JudgeFaultError: The judge's words can't be used or trusted.
            InfrastructureError: It can't be asked.
        """
        answer = answer_to(run, self.prompt_id, concerns=self.id)
        failed = failed_answer(answer)
        if failed is not None:
            return Judgement(self.verifier_id, aggregate([failed], self.score_aggregator), (failed,), {"format": self.output_format.value})
        from agent_env.verifiers.rubrics_work import Work

        async with Work.of(self, run) as work:
            return await work.judgement(answer)
