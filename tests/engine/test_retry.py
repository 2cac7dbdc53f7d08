"""Retries take attempts back: the journal keeps them as evidence, the context and the scores do without them."""

from __future__ import annotations

import asyncio

from tests.engine.parts import Watcher, engine_at, marks, run, started


def test_a_retry_runs_the_span_again_and_says_so_as_the_reference_does(tmp_path):
    async def whole():
        async with engine_at(tmp_path / "state") as engine:
            log = tmp_path / "log"
            steps = [
                {"id": "a", "type": "t_note", "log": str(log), "value": 1},
                {"id": "b", "type": "t_note", "log": str(log), "value": 2},
                {"id": "c", "type": "t_note", "log": str(log), "fails": 1, "retry_config": {"go_to_step_id": "b", "backoff_seconds": 0.01}},
            ]
            outcome = await started(engine, steps)
            assert marks(log) == ["a", "b", "c", "b", "c"]
            assert outcome.status == "completed"
            metadata = outcome.context["metadata"]
            (reset,) = metadata["retry_resets"]
            assert {key: reset[key] for key in ("attempt", "step_id", "retry_from_step_id", "replayed")} == {
                "attempt": 2,
                "step_id": "c",
                "retry_from_step_id": "b",
                "replayed": ["b", "c"],
            }
            assert reset["rolled_back_sandboxes"] == {"deployed_envs": [], "deployed_agents": [], "deployed_sandboxes": []}
            assert [(entry["step_id"], entry["retried"]) for entry in metadata["failed_steps"]] == [("c", True)]
            stored = engine.stores.journal.load(outcome.run_id)
            assert [(row.step_id, row.number, row.superseded) for row in stored.attempts] == [
                ("a", 1, False),
                ("b", 1, True),
                ("c", 1, True),
                ("b", 2, False),
                ("c", 2, False),
            ]

    run(whole())


def test_overlapping_parallel_steps_are_no_obstacle_to_a_retry(tmp_path):
    async def whole():
        async with engine_at(tmp_path / "state") as engine:
            log = tmp_path / "log"
            steps = [
                {"id": "side", "type": "t_note", "log": str(log), "value": "kept", "depends_on": []},
                {"id": "a", "type": "t_note", "log": str(log), "depends_on": []},
                {
                    "id": "b",
                    "type": "t_note",
                    "log": str(log),
                    "fails": 1,
                    "depends_on": ["a"],
                    "retry_config": {"retry_from_step_id": "a"},
                },
            ]
            outcome = await started(engine, steps)
            assert outcome.status == "completed"
            assert marks(log).count("side") == 1
            assert outcome.context["metadata"]["script_results"]["side"] == "kept"

    run(whole())


def test_a_tolerant_step_is_retried_before_its_failure_is_tolerated(tmp_path):
    async def whole():
        async with engine_at(tmp_path / "state") as engine:
            log = tmp_path / "log"
            step = {"id": "a", "type": "t_note", "log": str(log), "fails": 9, "fail_task_on_error": False}
            steps = [
                {**step, "retry_config": {"retry_from_step_id": "a", "max_retries": 2}},
                {"id": "b", "type": "t_note", "log": str(log)},
            ]
            outcome = await started(engine, steps)
            assert marks(log) == ["a", "a", "a", "b"]
            assert [entry.get("retried", False) for entry in outcome.context["metadata"]["failed_steps"]] == [True, True, False]

    run(whole())


def test_places_of_a_span_stay_unless_their_reset_is_asked_for(tmp_path):
    async def whole(reset: bool):
        async with engine_at(tmp_path / f"state{reset}") as engine:
            log = tmp_path / f"log{reset}"
            config = {"retry_from_step_id": "box", "reset_places": reset}
            steps = [
                {"id": "box", "type": "t_deploy", "provider": "local"},
                {"id": "b", "type": "t_note", "log": str(log), "fails": 1, "retry_config": config},
            ]
            watcher = Watcher()
            outcome = await started(engine, steps, observer=watcher, keep=True)
            assert outcome.status == "completed"
            (now,) = outcome.context["deployed_sandboxes"]
            (before,) = outcome.context["metadata"]["retry_resets"][0]["rolled_back_sandboxes"]["deployed_sandboxes"]
            assert before["sandbox_id"] != now["sandbox_id"]
            states = {row.id: row.state for row in engine.stores.journal.resources(outcome.run_id)}
            assert states == {before["sandbox_id"]: "closed" if reset else "live", now["sandbox_id"]: "live"}
            report = await engine.teardown(outcome.run_id)
            assert set(report.removed) == {name for name, state in states.items() if state == "live"}

    run(whole(reset=False))
    run(whole(reset=True))


def test_always_run_steps_see_what_was_achieved_after_a_failure(tmp_path):
    async def whole():
        async with engine_at(tmp_path / "state") as engine:
            log = tmp_path / "log"
            steps = [
                {"id": "a", "type": "t_note", "log": str(log), "value": 1},
                {"id": "b", "type": "t_note", "log": str(log), "fails": 9},
                {"id": "c", "type": "t_note", "log": str(log)},
                {"id": "collect", "type": "t_look", "always_run": True},
            ]
            outcome = await started(engine, steps)
            assert marks(log) == ["a", "b"]
            assert outcome.status == "failed"
            assert outcome.error["step_id"] == "b"
            assert outcome.context["metadata"]["looks"]["collect"]["seen"] == {"a": 1}

    run(whole())


def test_d7_cancelling_stops_steps_runs_clean_up_and_ends_as_cancelled(tmp_path):
    async def whole():
        async with engine_at(tmp_path / "state") as engine:
            log = tmp_path / "log"
            steps = [
                {"id": "box", "type": "t_deploy", "provider": "local"},
                {"id": "hold", "type": "t_hold", "log": str(log)},
                {"id": "clean", "type": "t_note", "log": str(log), "always_run": True},
            ]
            watcher = Watcher()
            async with asyncio.TaskGroup() as group:
                result = group.create_task(started(engine, steps, observer=watcher))
                begun = await watcher.until("step_progress", "hold")
                assert await engine.cancel(begun.run_id)
            outcome = result.result()
            assert (outcome.status, outcome.word) == ("cancelled", "cancelled")
            assert marks(log) == ["hold", "clean"]
            assert len(outcome.teardown.removed) == 1
            assert not await engine.cancel(begun.run_id)

    run(whole())


def test_d7_a_second_cancellation_stops_the_clean_up_and_teardown_says_what_is_left(tmp_path):
    async def whole():
        async with engine_at(tmp_path / "state") as engine:
            log = tmp_path / "log"
            steps = [
                {"id": "box", "type": "t_deploy", "provider": "local"},
                {"id": "hold", "type": "t_hold", "log": str(log)},
                {"id": "clean", "type": "t_hold", "log": str(log), "always_run": True},
            ]
            watcher = Watcher()
            async with asyncio.TaskGroup() as group:
                result = group.create_task(started(engine, steps, observer=watcher))
                begun = await watcher.until("step_progress", "hold")
                await engine.cancel(begun.run_id)
                await watcher.until("step_progress", "clean")
                await engine.cancel(begun.run_id)
            outcome = result.result()
            assert outcome.status == "cancelled"
            assert len(outcome.teardown.left) == 1
            report = await engine.teardown(begun.run_id)
            assert report.removed == outcome.teardown.left

    run(whole())


def test_d7_cancelling_the_caller_cleans_up_and_then_delivers_the_cancellation(tmp_path):
    async def whole():
        async with engine_at(tmp_path / "state") as engine:
            watcher = Watcher()
            task = asyncio.ensure_future(started(engine, [{"id": "h", "type": "t_hold", "log": str(tmp_path / "log")}], observer=watcher))
            begun = await watcher.until("step_progress")
            task.cancel()
            await asyncio.wait({task})
            assert task.cancelled()
            assert engine.stores.journal.run(begun.run_id).status == "cancelled"
            assert not engine.stores.journal.is_owned(begun.run_id)

    run(whole())
