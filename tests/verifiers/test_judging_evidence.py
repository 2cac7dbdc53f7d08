"""Judges that point at what they saw, that list mistakes, and that are shown pictures."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agent_env.errors import TaskError
from agent_env.verifiers.judging.asking import JudgeFaultError
from agent_env.verifiers.judging.screenshots import Actions, Choice, Gallery, Screenshot, action_log, gallery_of, picture_of
from tests.verifiers.judging import PROMPT, Opinion, Says, honest, judged_by, shown_to

CRITERIA = [{"id": "sum", "title": "It names 42"}, {"id": "city", "title": "It names Paris"}]
PIXEL = "iVBORw0KGgo="
SHOT = {"type": "image", "data": PIXEL, "mimeType": "image/png"}
TRAJECTORY = [
    {"type": "message", "source": "user", "text": "Add it up"},
    *(
        event
        for number in range(1, 4)
        for event in (
            {"type": "tool_call", "call_id": str(number), "name": "click", "arguments": {"at": number}},
            {"type": "tool_result", "call_id": str(number), "content": [{"type": "text", "text": f"page {number}"}, SHOT]},
        )
    ),
    {"type": "message", "source": "agent", "text": "The sum is 42."},
]


def judge(tmp_path: Path, *answers: Opinion | str | Says, criteria: Any = CRITERIA, **fields: Any) -> dict[str, Any]:
    """All verifications that a trajectory comes to, and what the judge was asked."""
    kept: dict[str, Any] = {}

    async def body() -> None:
        async with judged_by(tmp_path, *answers) as run:
            url = run.objects.put(json.dumps(TRAJECTORY).encode(), media_type="application/json").url
            told = {"agent_trajectory_object_url": url, "agent_trajectory_format": "agentenv-events/v1"}
            run.context["prompt_responses"] = [{"prompt_id": PROMPT, "prompt_text": "Add it up", "response": "The sum is 42.", **told}]
            result = await run.do({"id": "j", "type": "rubrics_verifier", "prompt_id": PROMPT, "criteria": criteria, **fields})
            kept.update(run.metadata["verifications"], told=dict(result.scores()), asked=run.models.asked)
            kept["exchanges"] = run.objects.read(kept["j"]["judge_trajectory_object_url"]).decode()

    asyncio.run(body())
    return kept


def pointing(**said: Mapping[str, Any]) -> Says:
    """A judge that answers the controls as it should, and these criteria so."""

    def answer(document: Mapping[str, Any]) -> Mapping[str, Any]:
        results = []
        for each in document["criteria"]:
            word = each["title"].split()[-1].rstrip(".")
            own = said.get(word) or {
                "score": int(honest(document, each)),
                "evidence_status": "supported" if honest(document, each) else "contradicted",
                "evidence": ["case_number"],
            }
            results.append({"id": each["id"], "justification": each["title"], **own})
        return {"results": results}

    return Says(answer)


SEEN = {"score": 1, "evidence_status": "supported", "evidence": ["step 4", "answer"]}


def test_a_criterion_holds_where_the_evidence_that_is_pointed_at_supports_it(tmp_path: Path) -> None:
    told = {"score": 1, "evidence_status": "missing", "evidence": []}
    seen = judge(tmp_path, pointing(**{"42": SEEN, "Paris": told}), output_format="rubric_evidence", score_aggregator="weighted_average")
    rows = {row["id"]: row for row in seen["j"]["results"]}
    assert (rows["sum"]["score"], rows["sum"]["evidence_status"], rows["sum"]["evidence"]) == (1.0, "supported", ["step 4", "answer"])
    assert (rows["city"]["score"], rows["city"]["raw_score"], rows["city"]["evidence_status"]) == (0.0, 1.0, "missing")
    assert (seen["j"]["score"], seen["j"]["format"]) == (0.5, "rubric_evidence")
    document = shown_to(seen["asked"][0]["messages"])
    assert [each["step"] for each in document["evidence"]["trajectory"]] == [1, 2, 3, 4, 5]
    assert PIXEL not in json.dumps(document)


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"evidence": ["step 9"]}, "points at 'step 9', which is not in the document"),
        ({"evidence": []}, "holds, and points at nothing"),
        ({"evidence_status": "sure"}, "has the evidence_status 'sure'"),
    ],
)
def test_evidence_that_is_not_there_is_asked_for_again(tmp_path: Path, wrong: dict[str, Any], complaint: str) -> None:
    seen = judge(tmp_path, pointing(**{"42": {**SEEN, **wrong}}), pointing(**{"42": SEEN}), output_format="rubric_evidence")
    assert seen["j"]["judge_output_retries"] == 1
    assert complaint in seen["asked"][1]["messages"][-1]["content"]
    assert seen["j"]["results"][0]["score"] == 1.0


# mistakes


def listing(*mistakes: Mapping[str, Any], botched: bool = False, lie: bool = False) -> Says:
    """A judge that lists these mistakes, for criteria by the last word of their titles; `lie` gets the statements wrong."""

    def answer(document: Mapping[str, Any]) -> Mapping[str, Any]:
        names = {each["title"].split()[-1]: each["id"] for each in document["criteria"]}
        found = [{**each, "criteria": [names[word] for word in each.get("criteria", ())]} for each in mistakes]
        checks = [{"id": each["id"], "holds": bool(honest(document, each)) is not lie} for each in document["checks"]]
        return {"reasoning": "r", "mistakes": found, "botched": botched, "summary": "s", "checks": checks}

    return Says(answer)


TYPO = {"what": "A typo", "severity": "low", "evidence": ["step 5"]}
WRONG = {"what": "It bought two", "severity": "high", "evidence": ["step 3"], "criteria": ["42"]}


def test_mistakes_take_off_by_severity_and_by_what_they_concern(tmp_path: Path) -> None:
    seen = judge(tmp_path, listing(TYPO, WRONG), output_format="trajectory_mistakes", score_aggregator="weighted_average")
    rows = {row["id"]: row for row in seen["j"]["results"]}
    assert list(rows) == ["summary", "botched", "mistake_1", "mistake_2", "coverage_sum", "coverage_city"]
    assert [(row["weight"], row["score"]) for row in rows.values()] == [(0, 1), (1, 1), (-0.02, 0), (-0.375, 0), (0, 0), (0, 1)]
    assert (rows["mistake_2"]["criteria"], rows["mistake_2"]["coverage"], rows["mistake_2"]["evidence"]) == (["sum"], 0.5, ["step 3"])
    assert seen["j"]["score"] == pytest.approx(1 - 0.02 - 0.375)
    assert seen["told"] == {"j": seen["j"]["score"]}


def test_of_several_lists_the_middle_one_counts_and_one_with_a_wrong_statement_does_not(tmp_path: Path) -> None:
    answers = (listing(WRONG, lie=True), listing(WRONG), listing(TYPO), listing())
    said = iter(answers)
    fields = {"output_format": "trajectory_mistakes", "samples": 3, "judge_batch_concurrency": 1}
    seen = judge(tmp_path, Says(lambda document: next(said).answer(document)), **fields)["j"]
    assert [row["justification"] for row in seen["results"] if row["id"].startswith("mistake")] == ["A typo"]
    assert seen["results"][0]["samples"] == [0, 0.02, 0.375]
    assert seen["judgements_thrown_away"] == 1
    assert seen["agreement"]["samples"] == 3


def test_a_mistake_that_nothing_shows_is_asked_for_again(tmp_path: Path) -> None:
    nowhere = {**TYPO, "evidence": []}
    with pytest.raises(JudgeFaultError, match=r"mistake 1 has the severity 'odd'; mistake 1 points at nothing"):
        judge(tmp_path, *[listing({**nowhere, "severity": "odd"})] * 3, output_format="trajectory_mistakes")


def test_a_rubric_and_its_mistakes_are_two_verifications(tmp_path: Path) -> None:
    def both(document: Mapping[str, Any]) -> Mapping[str, Any]:
        return (listing(WRONG, botched=True) if "checks" in document else pointing(**{"42": SEEN})).answer(document)

    seen = judge(tmp_path, Says(both), output_format="rubric_evidence_with_mistakes")
    assert [row["score"] for row in seen["j"]["results"]] == [1.0, 0.0]
    beside = seen["j-trajectory-mistakes"]
    assert (beside["score"], beside["source_verifier_id"], beside["format"]) == (0.0, "j", "trajectory_mistakes")
    assert seen["told"] == {"j": 0.0, "j-trajectory-mistakes": 0.0}


# pictures


def test_pictures_are_shown_beside_the_text_and_kept_apart(tmp_path: Path) -> None:
    seen = judge(tmp_path, honest, trajectory_filter={"compaction_type": "screenshot", "screenshot_last_n": 2})
    content = seen["asked"][0]["messages"][1]["content"]
    assert [part["type"] for part in content] == ["text", "text", "image_url", "text", "image_url"]
    assert content[2]["image_url"]["url"] == f"data:image/png;base64,{PIXEL}"
    document = shown_to(seen["asked"][0]["messages"])
    assert [(each["name"], each["step"]) for each in document["evidence"]["screenshots"]] == [("screenshot 2", 3), ("screenshot 3", 4)]
    assert "[screenshot 1]" in json.dumps(document["evidence"]["trajectory"])
    assert list(seen["j"]["screenshot_object_urls"]) == ["screenshot 1", "screenshot 2", "screenshot 3"]
    assert PIXEL not in seen["exchanges"]
    assert "sha256_of_base64" in seen["exchanges"]


def test_without_them_the_judge_is_told_where_one_was(tmp_path: Path) -> None:
    seen = judge(tmp_path, honest)
    assert "[screenshot 3]" in seen["asked"][0]["messages"][1]["content"]
    assert "screenshot_object_urls" not in seen["j"]


def test_for_each_criterion_those_pictures_are_chosen_that_share_the_rarest_words(tmp_path: Path) -> None:
    del tmp_path
    shots = [Screenshot(f"screenshot {n}", n, f"click({n})", f"a page, item {n} basket", "image/png", PIXEL) for n in range(1, 40)]
    shots[4] = Screenshot("screenshot 5", 5, "click(5)", "the invoice of Paris", "image/png", PIXEL)
    shots[8] = Screenshot("screenshot 9", 9, "wait(9)", "the invoice again", "image/png", PIXEL)
    gallery = gallery_of(shots, Choice("per_criterion", budget=6, exclude="^wait"), timeout_seconds=60)
    chosen = [each.step for each in gallery.chosen(["It opens the invoice", "It fills the basket"])]
    assert len(chosen) == 6
    assert {5, 39} <= set(chosen)
    assert 9 not in chosen
    assert Gallery(shots).chosen(["anything"]) == ()


def test_of_many_actions_the_middle_ones_are_left_out_except_those_that_are_wanted() -> None:
    steps = [
        {"step_id": n, "tool_calls": [{"function_name": "buy" if n == 20 else "look", "arguments": {"item": n}}]} for n in range(1, 41)
    ]
    log = action_log([{"steps": steps}], Actions(10, {"purchase": "^buy"}), timeout_seconds=60)
    assert [each.get("step") for each in log] == [1, 2, 3, 4, 5, None, 20, 36, 37, 38, 39, 40]
    assert log[5] == {"left_out_actions": 29}
    assert log[6]["label"] == "purchase"
    steps[0]["tool_calls"] = [{"function_name": "look", "arguments": "a" * 100}]
    with pytest.raises(TaskError, match="takes longer than"):
        action_log([{"steps": steps}], Actions(10, {"slow": "(.+)+Z$"}), timeout_seconds=0.5)


@pytest.mark.parametrize(
    "block",
    [
        SHOT,
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}},
        {"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}"},
        {"kind": "file", "file": {"bytes": PIXEL, "mimeType": "image/png"}},
    ],
)
def test_pictures_are_known_in_every_spelling(block: dict[str, Any]) -> None:
    assert picture_of(block) == ("image/png", PIXEL)
    assert picture_of({"type": "text", "text": "no picture"}) is None


def test_labelled_answers_are_judged_as_often_as_the_answer(tmp_path: Path) -> None:
    labelled = [{"response": "42 in Paris.", "expected": {"sum": 1, "city": 1}}]
    seen = judge(tmp_path, honest, samples=3, oracle=labelled, oracle_accuracy=1.0)["j"]
    assert (seen["oracle"]["samples"], seen["oracle"]["pairwise"]) == (3, 1.0)
    assert seen["judge_usage"]["requests"] == 3 + 3
