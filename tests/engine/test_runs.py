"""Runs from submit to outcome, over a real database."""

from __future__ import annotations

import asyncio
import json

import pytest

from agent_env.documents.outcomes import Kind
from agent_env.engine import RunOptions
from agent_env.errors import UsageError
from tests.engine.parts import Watcher, engine_at, marks, planned, run, started


def test_a_run_ends_with_scores_a_word_and_the_folded_context(tmp_path):
    async def whole():
        async with engine_at(tmp_path / "state") as engine:
            log = str(tmp_path / "log")
            steps = [
                {"id": "a", "type": "t_note", "log": log, "value": [1, 1, 2]},
                {"id": "look", "type": "t_look"},
                {"id": "v", "type": "t_note", "log": log, "score": 1.0},
            ]
            watcher = Watcher()
            outcome = await started(engine, steps, observer=watcher, metadata={"note": "x"})
            assert (outcome.status, outcome.word, outcome.scores, outcome.error) == ("completed", "passed", {"v": 1.0}, None)
            metadata = outcome.context["metadata"]
            assert metadata["script_results"]["a"] == [1, 1, 2]
            assert metadata["looks"]["look"] == {"seen": {"a": [1, 1, 2]}, "refused": True, "overrides": {}}
            assert metadata["note"] == "x"
            assert outcome.context["instance_id"].startswith("demo-")
            again = engine.outcome(outcome.run_id)
            assert (again.status, again.scores, dict(again.context)) == ("completed", {"v": 1.0}, dict(outcome.context))
            assert watcher.kinds() == [
                "run_started", "step_started", "step_done", "step_started", "step_done", "step_started", "step_done",
                "run_finished", "teardown",
            ]  # fmt: skip
            stored = [event.kind for event in engine.stores.journal.events(outcome.run_id)]
            assert stored == watcher.kinds()
            assert [event.seq for event in watcher.events] == list(range(1, 10))

    run(whole())


def test_f11_a_fault_of_the_world_is_a_failure_of_its_own_kind_and_no_number(tmp_path):
    async def whole():
        async with engine_at(tmp_path / "state") as engine:
            steps = [{"id": "v", "type": "t_note", "log": str(tmp_path / "log"), "infra": True, "fails": 9, "score": 1.0}]
            outcome = await started(engine, steps)
            assert outcome.status == "failed"
            assert outcome.scores == {}
            assert outcome.kind is Kind.SANDBOX_UNAVAILABLE
            assert not outcome.counts
            assert outcome.error == {
                "code": "sandbox_unavailable",
                "message": "asked to fail",
                "step_id": "v",
                "error_type": "SandboxUnavailableError",
            }
            assert engine.stores.journal.run(outcome.run_id).error == outcome.error

    run(whole())


def test_a_failed_step_is_listed_as_the_reference_lists_it(tmp_path):
    async def whole():
        async with engine_at(tmp_path / "state") as engine:
            log = tmp_path / "log"
            steps = [
                {"id": "a", "type": "t_note", "log": str(log), "fails": 9, "fail_task_on_error": False},
                {"id": "b", "type": "t_note", "log": str(log)},
            ]
            outcome = await started(engine, steps)
            (entry,) = outcome.context["metadata"]["failed_steps"]
            assert {key: entry[key] for key in ("step_id", "step_type", "error", "error_type", "is_fatal")} == {
                "step_id": "a",
                "step_type": "t_note",
                "error": "asked to fail",
                "error_type": "RunCodeExecutionError",
                "is_fatal": False,
            }
            assert set(entry) == {"step_id", "step_type", "error", "error_type", "is_fatal", "started_at_utc", "duration_seconds"}
            assert marks(log) == ["a", "b"]
            assert (outcome.status, outcome.word, outcome.kind) == ("failed", "failed", Kind.TASK)

    run(whole())


def test_a_step_that_outlives_its_limit_is_stopped_and_named(tmp_path):
    async def whole():
        async with engine_at(tmp_path / "state") as engine:
            steps = [{"id": "a", "type": "t_hold", "log": str(tmp_path / "log"), "timeout_seconds": 0.05}]
            outcome = await started(engine, steps)
            assert outcome.error["code"] == "step_timeout"
            assert "0.05 s" in outcome.error["message"]
            assert outcome.kind is Kind.STEP_TIMEOUT

    run(whole())


def test_seeds_fill_the_steps_and_the_stored_task_has_them(tmp_path):
    async def whole():
        async with engine_at(tmp_path / "state") as engine:
            steps = [{"id": "a", "type": "t_note", "log": str(tmp_path / "log"), "value": ["<n>", 1]}]
            outcome = await started(engine, steps, seed={"n": 7})
            assert outcome.context["metadata"]["script_results"]["a"] == ["7", 1]
            assert engine.stores.journal.load(outcome.run_id).task["steps"][0]["value"] == ["7", 1]
            assert outcome.context["metadata"]["seed"] == {"n": 7}

    run(whole())


def test_a_part_of_a_task_runs_between_two_positions(tmp_path):
    async def whole():
        async with engine_at(tmp_path / "state") as engine:
            log = tmp_path / "log"
            steps = [{"id": name, "type": "t_note", "log": str(log)} for name in "abcd"]
            outcome = await started(engine, steps, start_step=1, end_step=3)
            assert marks(log) == ["b", "c"]
            assert outcome.status == "completed"
            for bad in ({"start_step": 4}, {"start_step": -1}, {"start_step": 2, "end_step": 2}, {"end_step": 5}):
                with pytest.raises(UsageError, match="out of range"):
                    await engine.submit(planned(engine, steps), RunOptions(**bad))

    run(whole())


def test_step_parameters_reach_their_step_alone(tmp_path):
    async def whole():
        async with engine_at(tmp_path / "state") as engine:
            steps = [{"id": "a", "type": "t_look"}, {"id": "b", "type": "t_look"}]
            outcome = await started(engine, steps, overrides={"step_params": {"b": {"n": 1}}})
            looks = outcome.context["metadata"]["looks"]
            assert (looks["a"]["overrides"], looks["b"]["overrides"]) == ({}, {"n": 1})

    run(whole())


def test_lc12_rs06_one_run_that_fails_leaves_the_others_of_the_process_alone(tmp_path):
    async def whole():
        async with engine_at(tmp_path / "state") as engine:

            async def one(number: int):
                steps = [
                    {"id": "a", "type": "t_note", "log": str(tmp_path / f"log{number}"), "value": number, "fails": 9 if number == 4 else 0},
                    {"id": "look", "type": "t_look"},
                ]
                return await started(engine, steps)

            outcomes = await asyncio.gather(*(one(number) for number in range(10)))
            assert [outcome.status for outcome in outcomes].count("completed") == 9
            for number, outcome in enumerate(outcomes):
                if number != 4:
                    assert outcome.context["metadata"]["looks"]["look"]["seen"] == {"a": number}

    run(whole())


def test_c13_a_secret_is_in_no_event_error_result_or_file_of_the_state_folder(tmp_path, monkeypatch):
    canary = "canary-4f9d2b7e81"
    monkeypatch.setenv("AE_TEST_CANARY", canary)

    async def whole():
        async with engine_at(tmp_path / "state") as engine:
            watcher = Watcher()
            steps = [
                {"id": "ok", "type": "t_tell", "secret": "env:AE_TEST_CANARY"},
                {"id": "no", "type": "t_tell", "secret": "env:AE_TEST_CANARY", "fail": True},
            ]
            overrides = {"litellm_api_key": "canary-override-77", "sandbox": "local"}
            outcome = await started(engine, steps, observer=watcher, overrides=overrides)
            said = json.dumps([event.to_json() for event in watcher.events]) + json.dumps(outcome.error) + json.dumps(outcome.context)
            assert "canary" not in said
            assert outcome.context["metadata"]["script_results"]["ok"] == {"out": "key=***", "token": "harmless"}
            assert outcome.context["metadata"]["script_logs"]["no"] == {"stderr": "key=***"}
            assert outcome.context["metadata"]["user_overrides"] == {"sandbox": "local"}

    run(whole())
    for path in (tmp_path / "state").rglob("*"):
        if path.is_file():
            assert b"canary-" not in path.read_bytes(), path
