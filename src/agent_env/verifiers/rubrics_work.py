"""One judgement of `rubrics_verifier`: who judges, what it is shown, how it is checked, and what comes of it."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from agent_env.verifiers.judging.agreement import Labelled, agreement
from agent_env.verifiers.judging.asking import JudgeFaultError
from agent_env.verifiers.judging.evidence import Asked, evidence_of
from agent_env.verifiers.judging.filtering import TrajectoryFilter
from agent_env.verifiers.judging.judges import judge_of
from agent_env.verifiers.judging.material import Material, material
from agent_env.verifiers.judging.oracle import OracleReport, pairs, varied
from agent_env.verifiers.judging.panel import Asked as AskedOnce
from agent_env.verifiers.judging.panel import Judged, MistakesJudged, Panel, cost_of
from agent_env.verifiers.judging.rubric import Format, Output, RubricCriterion
from agent_env.verifiers.judging.screenshots import Gallery
from agent_env.verifiers.judging.sheet import Question
from agent_env.verifiers.rubrics_verifier import Judgement
from agent_env.verifiers.scoring import Aggregator, aggregate

if TYPE_CHECKING:
    from agent_env.documents.records import PromptResponse
    from agent_env.steps.contract import Run
    from agent_env.verifiers.rubrics_verifier import RubricsVerifier

Json = Any
_MISTAKES_SUFFIX = "-trajectory-mistakes"
"""Under which name the mistakes are kept beside a rubric (reference)."""


@dataclass(frozen=True)
class Work:
    """One judgement, with what this run says otherwise than the step."""

    step: RubricsVerifier
    run: Run
    criteria: Sequence[RubricCriterion]
    up_to_turn: int | None
    model: str | None
    panel: Panel

    @classmethod
    @asynccontextmanager
    async def of(cls, step: RubricsVerifier, run: Run) -> AsyncIterator[Work]:
        """From the step's fields, and the run's overrides over them. A judge that had to be deployed is gone afterwards."""
        own, overrides = run.overrides(), run.run_overrides()
        criteria = [RubricCriterion.model_validate(each) for each in own["criteria"]] if own.get("criteria") else step.criteria
        model = overrides.get("judge_model") or own.get("default_model") or step.default_model
        async with judge_of(step, run, model) as judge:
            panel = Panel(
                judge,
                samples=step.samples,
                attempts=run.limits.judge_attempts,
                concurrency=overrides.get("judge_batch_concurrency") or step.judge_batch_concurrency or run.limits.judge_concurrency,
                batch_size=overrides.get("judge_batch_size") or step.judge_batch_size,
                on_answer=lambda done, total: run.progress("judgements", done=done, total=total),
            )
            yield cls(step, run, criteria, own.get("grade_up_to_turn") or step.grade_up_to_turn, model, panel)

    async def judgement(self, answer: PromptResponse) -> Judgement:
        """Checks the judge, and has it judge.

        Raises:
            NotFoundError: What the judge was to be shown was not recorded.
            JudgeFaultError: Its words can't be used or trusted.
            InfrastructureError: It can't be asked.
        """
        step, format = self.step, self.step.output_format.rubric
        task, evidence, gallery = await asyncio.to_thread(evidence_of, self.run, answer, self._asked(), concerns=step.id)
        shown = await asyncio.to_thread(material, task, evidence, self.run.limits, withhold=step.withhold_addressed_text)
        if shown.passages:
            self.run.progress(f"the evidence speaks to the judge: {shown.passages[0].text[:80]!r}")
        pictures = await asyncio.to_thread(self._stored, gallery)
        judged = mistakes = None
        if format is not None:
            judged = await self._judged(self._question(shown, gallery, format), shown, pictures)
        if step.output_format.mistakes:
            mistakes = await self._mistakes(self._question(shown, gallery, Format.EVIDENCE), shown, pictures, beside=judged is not None)
        found = judged or mistakes
        assert found is not None
        return replace(found, step_id=step.id, beside=mistakes if judged is not None else None)

    def _asked(self) -> Asked:
        step = self.step
        whole = self.run.run_overrides().get("apply_trajectory_filter") is False
        chosen = TrajectoryFilter(include_thinking=True) if whole else step.trajectory_filter or TrajectoryFilter()
        context = step.run_context_for_judge or ()
        return Asked(
            trajectory=chosen.shown if step.use_trajectory else None,
            facts=step.context_facts_for_judge or {},
            up_to_turn=self.up_to_turn,
            conversation="conversation" in context,
            trigger_log="trigger_log" in context,
            numbered=step.output_format.points_at_evidence or chosen.pictures is not None,
            pictures=chosen.pictures,
            actions=chosen.actions,
        )

    def _question(self, shown: Material, gallery: Gallery, format: Format) -> Question:
        step = self.step
        return Question(shown.task, shown.evidence, self.criteria, format, step.grading_policy_prompt, step.controls, gallery)

    async def _judged(self, question: Question, shown: Material, pictures: Mapping[str, str]) -> Judgement:
        step = self.step
        report, checking = await self._checked(question) if step.oracle else (None, [])
        judged = await self.panel.judged(question)
        rows = tuple(judged.rows())
        facts = await self._facts(judged, shown, pictures, [each for labelled in checking for each in labelled.all])
        if report is not None:
            facts["oracle"] = report.to_json()
        return Judgement(step.verifier_id, aggregate(rows, step.score_aggregator), rows, facts)

    async def _mistakes(self, question: Question, shown: Material, pictures: Mapping[str, str], *, beside: bool) -> Judgement:
        """The list of mistakes: the verification itself, or one beside it."""
        step = self.step
        judged = await self.panel.mistakes(question)
        rows = tuple(judged.rows())
        facts = await self._facts(judged, shown, pictures, ())
        if not beside:
            return Judgement(step.verifier_id, aggregate(rows, step.score_aggregator), rows, facts)
        facts |= {"format": Output.MISTAKES.value, "source_verifier_id": step.verifier_id}
        return Judgement(f"{step.verifier_id}{_MISTAKES_SUFFIX}", aggregate(rows, Aggregator.WEIGHTED_AVERAGE), rows, facts)

    async def _facts(
        self, judged: Judged | MistakesJudged, shown: Material, pictures: Mapping[str, str], checking: Sequence[AskedOnce]
    ) -> dict[str, Json]:
        asked = judged.all
        facts: dict[str, Json] = {
            "format": self.step.output_format.value,
            "judge_model": asked[0].model or self.model,
            "judge_usage": cost_of([*asked, *checking]).to_json(),
            "judge_output_retries": sum(each.corrections for each in asked),
            "agreement": judged.agreement().to_json(),
        }
        thrown = sum(each.compromised for each in asked)
        if thrown:
            facts["judgements_thrown_away"] = thrown
        if pictures:
            facts["screenshot_object_urls"] = dict(pictures)
        if self.up_to_turn is not None:
            facts["graded_up_to_turn"] = self.up_to_turn
        return {**facts, **shown.to_json(), **await self._kept(shown, [*asked, *checking])}

    async def _checked(self, question: Question) -> tuple[OracleReport, list[Judged]]:
        """The judge against the labels, asked as often as about the answer itself, and what it said of them.

        Raises:
            JudgeFaultError: It is not good enough.
        """
        found: dict[Any, list[tuple[float, float]]] = {}
        all_judged: list[Judged] = []
        for case in self.step.oracle:
            for variant, response in varied(case):
                made = material(question.task, {"answer": response}, self.run.limits, withhold=self.step.withhold_addressed_text)
                try:
                    judged = await self.panel.judged(self._question(made, Gallery(), question.format))
                except JudgeFaultError:
                    found.setdefault(variant, []).extend((1 - label, label) for label in case.expected.values())
                    continue
                all_judged.append(judged)
                found.setdefault(variant, []).extend(pairs(case, {each.id: judged.score(each.id) for each in self.criteria}))
        units = [[each.score for each in judged.verdicts(criterion.id)] for judged in all_judged for criterion in self.criteria]
        steady = agreement(units, (), binary=question.format is not Format.PARTIAL)
        labelled = {variant: Labelled.of(each) for variant, each in found.items()}
        report = OracleReport(labelled, self.step.oracle_accuracy, self.step.samples, steady.pairwise)
        if not report.passed:
            raise JudgeFaultError(
                f"the judge is right about {report.accuracy:.0%} of the labelled answers, and {report.threshold:.0%} are asked for:"
                f" {json.dumps(report.to_json()['variants'])}",
                concerns=self.step.id,
                hint="another model, plainer criteria, or a lower oracle_accuracy",
            )
        return report, all_judged

    def _stored(self, gallery: Gallery) -> dict[str, str]:
        """The pictures that may be shown, as objects."""
        shown = gallery.screenshots if gallery.choice is not None else ()
        return {each.name: self.run.objects.put(base64.b64decode(each.data), media_type=each.media_type).url for each in shown}

    async def _kept(self, shown: Material, asked: Sequence[AskedOnce]) -> dict[str, Json]:
        """What the judge was shown and what it said, as objects."""
        seen = json.dumps({"task": shown.task, "evidence": shown.evidence}, ensure_ascii=False, indent=1)
        exchanges = json.dumps([each.exchange for each in asked], ensure_ascii=False, indent=1)
        urls: dict[str, Json] = {}
        for name, text in {"compact_trajectory": seen, "judge_trajectory": exchanges}.items():
            ref = await asyncio.to_thread(self.run.objects.put, text.encode("utf-8", "replace"), media_type="application/json")
            urls |= {f"{name}_object_url": ref.url, f"{name}_s3_uri": ref.url}
        return urls
