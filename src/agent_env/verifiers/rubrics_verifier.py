"""`rubrics_verifier`: a model judges an answer by criteria that no program can check.

A judge is a measuring instrument: it is asked several times where that is wanted, it is checked against labels and controls, and when it
can't be trusted nothing is scored. What the agent wrote is evidence and never speaks to it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_serializer, model_validator

from agent_env.defaults import DEFAULT_LIMITS
from agent_env.documents.updates import Json, SetMetadata, Update
from agent_env.errors import Problem
from agent_env.steps.contract import EntityRef, OnResume, Plan, Run, Step, StepResult
from agent_env.steps.fields import Number, OptionalName, Seconds, Texts, Whole, default_to_id
from agent_env.verifiers.answers import answer_to, failed_answer
from agent_env.verifiers.judging.agreement import Labelled
from agent_env.verifiers.judging.asking import Judge, JudgeFaultError, Question
from agent_env.verifiers.judging.evidence import Asked, evidence_of
from agent_env.verifiers.judging.judges import AgentJudge, ModelJudge
from agent_env.verifiers.judging.material import Material, Shown, material
from agent_env.verifiers.judging.oracle import OracleCase, OracleReport, oracle_problems, pairs, varied
from agent_env.verifiers.judging.panel import Judged, Panel
from agent_env.verifiers.judging.rubric import Format, RubricCriterion, rubric_problems
from agent_env.verifiers.scoring import Aggregator, aggregate

_MOST_SAMPLES = 101
_IMAGES = "this version shows a judge text alone, and no screenshots"


class TrajectoryFilter(BaseModel):
    """What of a trajectory the judge sees."""

    model_config = ConfigDict(frozen=True, extra="allow", defer_build=True)

    include_tool_calls: bool = True
    """The agent's calls of tools."""
    include_tool_call_results: bool = True
    """What they came to, each cut to `limits.judge_result_characters`."""
    include_response: bool = True
    """What the agent said."""
    include_thinking: bool = False
    """What it thought."""
    compaction_type: Literal["default", "screenshot"] = "default"
    """`screenshot` is refused: judges are shown text alone."""


@dataclass(frozen=True, slots=True)
class Judgement(StepResult):
    """The rows of a rubric, the score that they make, and how far to trust them."""

    verifier_id: str
    score: float | None
    rows: tuple[dict[str, Json], ...]
    facts: Mapping[str, Json] = field(default_factory=dict)

    def updates(self) -> tuple[Update, ...]:
        """Puts the verification under its id."""
        return (SetMetadata(("verifications", self.verifier_id), {"results": list(self.rows), "score": self.score, **self.facts}),)

    def scores(self) -> dict[str, float | None]:
        """Its own score."""
        return {self.verifier_id: self.score}

    def summary(self) -> str:
        """The score, how many criteria passed, and what the judge cost."""
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
    """Without `agent_name` a model judges in either case: it is shown the trajectory itself, so no agent is deployed to read it."""
    use_trajectory: bool = True
    """Show the judge what the agent did, and not only what it answered."""
    judge_a2a_agent_id: OptionalName = None
    """Kept; a judging agent is one that a step deployed (`agent_name`)."""
    judge_sandbox_type: OptionalName = None
    """Kept, without effect."""
    judge_timeout_seconds: Seconds = DEFAULT_LIMITS.judge_seconds
    """Limit of one answer of the judge."""
    output_format: str = Format.BINARY.value
    """`rubric_binary` (met or not) or `rubric_partial` (how far)."""
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
    to the judge."""
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

    @property
    def format(self) -> Format:
        """What the judge says of each criterion."""
        return Format(self.output_format)

    def problems(self, plan: Plan) -> Iterator[Problem]:
        """Criteria, labels, and what this version does not do."""
        if self.output_format not in set(Format):
            why = f"{_IMAGES}; it knows {' and '.join(Format)}"
            yield Problem(f"output_format {self.output_format!r} is not there: {why}", path=".output_format")
            return
        yield from rubric_problems(self.criteria, self.format)
        yield from oracle_problems(self.oracle, self.criteria)
        if self.trajectory_filter is not None and self.trajectory_filter.compaction_type == "screenshot":
            yield Problem(_IMAGES, path=".trajectory_filter.compaction_type", hint='"default"')
        if self.default_model_api_base is not None:
            hint = "[model] base_url of the configuration, with its own key"
            yield Problem("a task can't send the judge's key elsewhere", path=".default_model_api_base", hint=hint)
        for name in self.run_context_for_judge or ():
            if name not in {"conversation", "trigger_log"}:
                yield Problem(f"{name!r} is neither conversation nor trigger_log", path=".run_context_for_judge")
        if self.agent_name is not None:
            graded = {getattr(step, "agent_name", None) for step in plan.deployers(self.id, "prompt_agent", prompt_id=self.prompt_id)}
            if self.agent_name in graded:
                yield Problem(f"agent {self.agent_name!r} would judge its own answer", path=".agent_name")

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
            return Judgement(self.verifier_id, aggregate([failed], self.score_aggregator), (failed,), {"format": self.format.value})
        work = _Work.of(self, run)
        asked = Asked(
            trajectory=self._shown if self.use_trajectory else None,
            facts=self.context_facts_for_judge or {},
            up_to_turn=work.up_to_turn,
            conversation="conversation" in (self.run_context_for_judge or ()),
            trigger_log="trigger_log" in (self.run_context_for_judge or ()),
        )
        task, evidence = await asyncio.to_thread(evidence_of, run, answer, asked, concerns=self.id)
        shown = await asyncio.to_thread(material, task, evidence, run.limits, withhold=self.withhold_addressed_text)
        return await work.judgement(shown)

    @property
    def _shown(self) -> Shown:
        chosen = self.trajectory_filter or TrajectoryFilter()
        return Shown(
            tool_calls=chosen.include_tool_calls,
            tool_call_results=chosen.include_tool_call_results,
            response=chosen.include_response,
            thinking=chosen.include_thinking,
        )


@dataclass(frozen=True)
class _Work:
    """One judgement, with what this run says otherwise than the step."""

    step: RubricsVerifier
    run: Run
    criteria: Sequence[RubricCriterion]
    up_to_turn: int | None
    model: str | None
    panel: Panel

    @classmethod
    def of(cls, step: RubricsVerifier, run: Run) -> _Work:
        """From the step's fields, and the run's overrides over them."""
        own, overrides = run.overrides(), run.run_overrides()
        criteria = [RubricCriterion.model_validate(each) for each in own["criteria"]] if own.get("criteria") else step.criteria
        model = overrides.get("judge_model") or step.default_model
        effort, thinking = (
            overrides.get("judge_effort") or step.effort,
            overrides.get("judge_max_thinking_tokens") or step.max_thinking_tokens,
        )
        judge: Judge
        if step.agent_name is not None:
            config = {"model": model, "effort": effort, "max_thinking_tokens": thinking}
            given = {name: value for name, value in config.items() if value is not None}
            judge = AgentJudge(run, step.id, step.agent_name, given, step.judge_timeout_seconds)
        else:
            params = {**({"reasoning_effort": effort} if effort else {}), **step.judge_params}
            judge = ModelJudge(run, step.id, model, params, step.judge_timeout_seconds)
        panel = Panel(
            judge,
            samples=step.samples,
            attempts=run.limits.judge_attempts,
            concurrency=overrides.get("judge_batch_concurrency") or step.judge_batch_concurrency or run.limits.judge_concurrency,
            batch_size=overrides.get("judge_batch_size") or step.judge_batch_size,
            on_answer=lambda done, total: run.progress("judgements", done=done, total=total),
        )
        return cls(step, run, criteria, own.get("grade_up_to_turn") or step.grade_up_to_turn, model, panel)

    async def judgement(self, shown: Material) -> Judgement:
        """Checks the judge, and has it judge."""
        step = self.step
        if shown.passages:
            self.run.progress(f"the evidence speaks to the judge: {shown.passages[0].text[:80]!r}")
        report, checking = await self._checked(shown) if step.oracle else (None, [])
        judged = await self.panel.judged(self._question(shown))
        rows = tuple(judged.rows())
        cost = sum((each.cost for each in checking), judged.cost)
        facts: dict[str, Json] = {
            "format": step.format.value,
            "judge_model": judged.samples[0].model or self.model,
            "judge_usage": cost.to_json(),
            "judge_output_retries": judged.corrections,
            **self._trust(judged, report),
            **shown.to_json(),
            **await self._kept(shown, judged, checking),
        }
        if self.up_to_turn is not None:
            facts["graded_up_to_turn"] = self.up_to_turn
        return Judgement(step.verifier_id, aggregate(rows, step.score_aggregator), rows, facts)

    def _question(self, shown: Material) -> Question:
        step = self.step
        return Question(shown.task, shown.evidence, self.criteria, step.format, step.grading_policy_prompt, step.controls)

    async def _checked(self, shown: Material) -> tuple[OracleReport, list[Judged]]:
        """The judge against the labels, and what it said of them.

        Raises:
            JudgeFaultError: It is not good enough.
        """
        found: dict[Any, list[tuple[float, float]]] = {}
        all_judged: list[Judged] = []
        panel = replace(self.panel, samples=1)
        for case in self.step.oracle:
            for variant, response in varied(case):
                made = material(shown.task, {"answer": response}, self.run.limits, withhold=self.step.withhold_addressed_text)
                try:
                    judged = await panel.judged(self._question(made))
                except JudgeFaultError:
                    found.setdefault(variant, []).extend((1 - label, label) for label in case.expected.values())
                    continue
                all_judged.append(judged)
                found.setdefault(variant, []).extend(pairs(case, {each.id: judged.score(each.id) for each in self.criteria}))
        report = OracleReport({variant: Labelled.of(each) for variant, each in found.items()}, self.step.oracle_accuracy)
        if not report.passed:
            raise JudgeFaultError(
                f"the judge is right about {report.accuracy:.0%} of the labelled answers, and {report.threshold:.0%} are asked for:"
                f" {json.dumps(report.to_json()['variants'])}",
                concerns=self.step.id,
                hint="another model, plainer criteria, or a lower oracle_accuracy",
            )
        return report, all_judged

    def _trust(self, judged: Judged, report: OracleReport | None) -> dict[str, Json]:
        said: dict[str, Json] = {"agreement": judged.agreement().to_json()}
        if judged.compromised:
            said["judgements_thrown_away"] = judged.compromised
        if report is not None:
            said["oracle"] = report.to_json()
        return said

    async def _kept(self, shown: Material, judged: Judged, checking: Sequence[Judged]) -> dict[str, Json]:
        """What the judge was shown and what it said, as objects."""
        seen = json.dumps({"task": shown.task, "evidence": shown.evidence}, ensure_ascii=False, indent=1)
        exchanges = [exchange for each in (judged, *checking) for exchange in each.exchanges()]
        objects = {"compact_trajectory": seen, "judge_trajectory": json.dumps(exchanges, ensure_ascii=False, indent=1)}
        urls: dict[str, Json] = {}
        for name, text in objects.items():
            ref = await asyncio.to_thread(self.run.objects.put, text.encode("utf-8", "replace"), media_type="application/json")
            urls |= {f"{name}_object_url": ref.url, f"{name}_s3_uri": ref.url}
        return urls
