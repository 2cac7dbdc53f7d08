"""A run goes on after `kill -9`: what was finished is never done again, what was cut is treated as its class says."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from agent_env.engine import Choice
from agent_env.engine.teardown import KEPT_NOTE
from agent_env.errors import PlaceLostError, ResumeRefusedError, RunOwnedError, SupersededError
from agent_env.stores.records import OPEN_STATES
from tests.busy import lasting
from tests.engine.child import child, finished, first_ended, start, until_marked
from tests.engine.parts import Watcher, engine_at, marks, planned, run, started

RUN = "run-resumed0001"


def task(log, cut):
    return [
        {"id": "a", "type": "t_note", "log": str(log), "value": 1},
        {"id": "b", "type": "t_note", "log": str(log), "value": 2},
        {"id": "cut", "type": cut, "log": str(log)},
        {"id": "v", "type": "t_note", "log": str(log), "score": 1.0},
    ]


def attempts(log):
    return [line.split()[1] for line in log.read_text().splitlines() if line.startswith("cut ")]


def test_rs02_f15_finished_steps_are_never_run_again_whenever_the_process_dies(tmp_path):
    log = tmp_path / "log"
    assert child(tmp_path / "state", "run", task(log, "t_die"), run_id=RUN) is None
    answer = child(tmp_path / "state", "resume", RUN)
    assert answer is not None
    assert answer["status"] == "completed"
    assert marks(log) == ["a", "b", "cut", "cut", "v"]
    assert len(set(attempts(log))) == 2


def test_a_reattaching_step_goes_on_as_the_same_attempt(tmp_path):
    log = tmp_path / "log"
    assert child(tmp_path / "state", "run", task(log, "t_reattach"), run_id=RUN) is None
    answer = child(tmp_path / "state", "resume", RUN)
    assert answer is not None
    assert answer["status"] == "completed"
    assert len(attempts(log)) == 2
    assert len(set(attempts(log))) == 1


@pytest.mark.parametrize(("choice", "expected"), [("repeat", ["a", "b", "cut", "cut", "v"]), ("done", ["a", "b", "cut", "v"])])
def test_a_refusing_step_waits_for_a_persons_decision_and_obeys_it(tmp_path, choice, expected):
    log = tmp_path / "log"
    assert child(tmp_path / "state", "run", task(log, "t_refuse"), run_id=RUN) is None

    async def whole():
        async with engine_at(tmp_path / "state") as engine:
            with pytest.raises(ResumeRefusedError, match="'cut'") as refused:
                await engine.resume(RUN)
            assert "--decide cut=repeat|done" in (refused.value.hint or "")
            assert not engine.stores.journal.is_owned(RUN)
            outcome = await engine.resume(RUN, choices={"cut": Choice(choice)})
            assert outcome.status == "completed"

    run(whole())
    assert marks(log) == expected


def test_tp12_a_resume_needs_neither_the_files_nor_the_folder_that_the_run_began_in(tmp_path):
    log, elsewhere = tmp_path / "log", tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert child(tmp_path / "state", "run", task(log, "t_die"), run_id=RUN) is None
    answer = child(tmp_path / "state", "resume", RUN, cwd=elsewhere)
    assert answer is not None
    assert answer["status"] == "completed"


def test_d3_of_two_processes_that_resume_one_wins_and_the_other_is_told_who_owns_it(tmp_path):
    log = tmp_path / "log"
    steps = [*task(log, "t_die"), {"id": "hold", "type": "t_hold", "log": str(log), "until": str(tmp_path / "go")}]
    assert child(tmp_path / "state", "run", steps, run_id=RUN) is None
    resuming = [start(tmp_path / "state", "resume", RUN) for _ in range(2)]
    first_ended(resuming)
    (tmp_path / "go").touch()
    answers = [finished(process) for process in resuming]
    refused = [answer for answer in answers if answer and "refused" in answer]
    assert [answer["refused"] for answer in refused] == ["run_owned"]
    assert "process" in refused[0]["message"]
    assert marks(log).count("v") == 1


def test_d3_an_owner_that_was_suspended_and_is_woken_after_a_takeover_can_not_act(tmp_path):
    log = tmp_path / "log"
    steps = [
        {"id": "a", "type": "t_note", "log": str(log)},
        {"id": "hold", "type": "t_hold", "log": str(log), "timeout_seconds": lasting(2), "fail_task_on_error": False},
        {"id": "late", "type": "t_note", "log": str(log)},
    ]
    owner = start(tmp_path / "state", "run", steps, run_id=RUN, limits={"lease_renew_seconds": 0.1})
    until_marked(log, ["a", "hold"], owner)
    os.kill(owner.pid, signal.SIGSTOP)
    try:
        taken = child(tmp_path / "state", "resume", RUN, takeover=True)
    finally:
        os.kill(owner.pid, signal.SIGCONT)
    woken = finished(owner)
    assert woken is not None
    assert woken["refused"] == "superseded"
    assert taken is not None
    assert taken["status"] == "failed"
    assert marks(log) == ["a", "hold", "hold", "late"]


def test_d3_a_woken_owner_can_not_act_in_the_place_that_another_took_over(tmp_path):
    """The journal would refuse what it did; the place itself refuses to do it, by the epoch."""
    log = tmp_path / "log"
    steps = [
        {"id": "box", "type": "deploy_sandbox", "sandbox_name": "box", "sandbox_mode": "vm", "sandbox_type": "local"},
        {"id": "beat", "type": "t_beat", "on": "box", "log": str(log), "times": 2000},
    ]
    owner = start(tmp_path / "state", "run", steps, run_id=RUN, limits={"lease_renew_seconds": 60.0})
    until_marked(log, ["beat"], owner)
    os.kill(owner.pid, signal.SIGSTOP)
    taking = start(tmp_path / "state", "resume", RUN, takeover=True, keep=True)
    try:
        until_marked(log, ["beat", "beat"], taking)
    finally:
        os.kill(owner.pid, signal.SIGCONT)  # now both are at it, and only one may be
    woken, taken = finished(owner), finished(taking)
    assert woken is not None
    assert taken is not None
    assert woken["refused"] == "superseded"
    assert (taken["status"], taken["error"]) == ("completed", None)

    async def whole():
        async with engine_at(tmp_path / "state") as engine:
            beats = engine.context(RUN)["metadata"]["script_results"]["beat"]
            await engine.gc(include_kept=True)
            return beats

    beats = run(whole())
    old, new = dict.fromkeys(beats)
    assert beats == [old] * beats.count(old) + [new] * 2000, "the old owner acted after the new one had begun"
    assert beats.count(old) < 2000


def test_a_run_that_another_live_process_owns_is_neither_resumed_nor_torn_down(tmp_path):
    log = tmp_path / "log"
    owner = start(tmp_path / "state", "run", [{"id": "hold", "type": "t_hold", "log": str(log)}], run_id=RUN)
    until_marked(log, ["hold"], owner)

    async def whole():
        async with engine_at(tmp_path / "state") as engine:
            for forbidden in (engine.resume(RUN), engine.teardown(RUN), engine.execute(RUN)):
                with pytest.raises(RunOwnedError, match=f"process {owner.pid}"):
                    await forbidden
            assert await engine.cancel(RUN)

    run(whole())
    answer = finished(owner)
    assert answer is not None
    assert answer["status"] == "cancelled"


def test_a_failed_run_is_tried_again_from_its_failed_step_in_the_same_places(tmp_path):
    async def whole():
        async with engine_at(tmp_path / "state") as engine:
            log = tmp_path / "log"
            steps = [
                {"id": "box", "type": "t_deploy", "provider": "local", "log": str(log)},
                {"id": "b", "type": "t_note", "log": str(log), "fails": 1},
                {"id": "collect", "type": "t_note", "log": str(log), "always_run": True},
            ]
            first = await started(engine, steps, pause_on_failure=True)
            assert (first.status, first.teardown) == ("failed", None)
            second = await engine.resume(first.run_id)
            assert second.status == "completed"
            assert marks(log) == ["box", "b", "collect", "b", "collect"]
            assert second.context["deployed_sandboxes"] == first.context["deployed_sandboxes"]
            assert len(second.teardown.removed) == 1
            assert engine.stores.journal.run(first.run_id).error is None

    run(whole())


def test_d8_a_place_that_is_gone_is_named_with_what_redeploying_would_do_again(tmp_path):
    async def whole():
        async with engine_at(tmp_path / "state") as engine:
            log = tmp_path / "log"
            steps = [
                {"id": "free", "type": "t_note", "log": str(log), "depends_on": []},
                {"id": "box", "type": "t_deploy", "provider": "local", "depends_on": []},
                {"id": "b", "type": "t_note", "log": str(log), "depends_on": ["box"]},
                {"id": "c", "type": "t_note", "log": str(log), "fails": 1, "depends_on": ["b"]},
            ]
            first = await started(engine, steps, pause_on_failure=True)
            (sandbox_id,) = (record["sandbox_id"] for record in first.context["deployed_sandboxes"])
            await engine.provider("local").destroy(sandbox_id)
            with pytest.raises(PlaceLostError, match="'box'") as lost:
                await engine.resume(first.run_id)
            assert lost.value.hint == f"agent-env resume {first.run_id} --redeploy does again: box, b, c"
            second = await engine.resume(first.run_id, redeploy=True)
            assert second.status == "completed"
            assert sorted(marks(log)) == ["b", "b", "c", "c", "free"]
            assert len(second.context["deployed_sandboxes"]) == 1

    run(whole())


@pytest.mark.parametrize("ending", ["failed", "cancelled"])
def test_d8_places_that_the_runs_own_end_removed_are_made_again_without_being_asked_for(tmp_path, ending):
    async def whole():
        async with engine_at(tmp_path / "state") as engine:
            log, until = tmp_path / "log", tmp_path / "until"
            last = {"type": "t_note", "fails": 1} if ending == "failed" else {"type": "t_hold", "until": str(until)}
            steps = [
                {"id": "free", "type": "t_note", "log": str(log), "depends_on": []},
                {"id": "box", "type": "t_deploy", "provider": "local", "depends_on": ["free"]},
                {"id": "b", "type": "t_note", "log": str(log), "depends_on": ["box"]},
                {"id": "c", "log": str(log), "depends_on": ["b"], **last},
            ]
            cut, watcher = Watcher(), Watcher()
            async with asyncio.TaskGroup() as group:
                running = group.create_task(started(engine, steps, observer=cut, run_id=RUN))
                await cut.until("step_started", "c")
                if ending == "cancelled":
                    await engine.cancel(RUN)
            first = running.result()
            assert (first.status, len(first.teardown.removed)) == (ending, 1)
            until.touch()
            assert (await engine.resume(RUN, observer=watcher)).status == "completed"
            begun = await watcher.until("run_started")
            assert (begun.payload["again"], begun.payload["done"]) == (["box", "b"], 1)
            assert marks(log) == ["free", "b", "c", "b", "c"]

    run(whole())


@pytest.mark.parametrize("there", [True, False])
def test_d02_a_place_whose_removal_was_begun_is_gone_on_with_where_it_is_whole_and_named_where_it_is_not(tmp_path, there):
    """As when an engine was away for the clean-up of the run that it failed, and took its containers with it or not."""

    async def whole():
        async with engine_at(tmp_path / "state") as engine:
            log = tmp_path / "log"
            steps = [
                {"id": "box", "type": "t_deploy", "provider": "local"},
                {"id": "b", "type": "t_note", "log": str(log), "fails": 1},
            ]
            first = await started(engine, steps, pause_on_failure=True)
            (sandbox_id,) = (record["sandbox_id"] for record in first.context["deployed_sandboxes"])
            await engine.stores.journal.closing(sandbox_id)
            if there:
                assert (await engine.resume(first.run_id)).context["deployed_sandboxes"] == first.context["deployed_sandboxes"]
            else:
                await engine.provider("local").destroy(sandbox_id)
                with pytest.raises(PlaceLostError, match="'box'"):
                    await engine.resume(first.run_id)
                assert (await engine.resume(first.run_id, redeploy=True)).status == "completed"

    run(whole())


def test_d8_a_place_that_the_runs_own_clean_up_took_away_too_early_is_made_again(tmp_path):
    async def whole():
        async with engine_at(tmp_path / "state") as engine:
            log = tmp_path / "log"
            steps = [
                {"id": "box", "type": "t_deploy", "sandbox_name": "box", "provider": "local"},
                {"id": "b", "type": "t_note", "log": str(log), "fails": 1},
                {"id": "free", "type": "teardown_sandboxes", "sandbox_names": ["box"], "always_run": True},
            ]
            first = await started(engine, steps, pause_on_failure=True)
            (taken,) = first.context["metadata"]["torn_down_sandbox_ids"]
            with pytest.raises(PlaceLostError, match="'box'") as lost:
                await engine.resume(first.run_id)
            assert lost.value.hint == f"agent-env resume {first.run_id} --redeploy does again: box, b, free"
            second = await engine.resume(first.run_id, redeploy=True)
            assert (second.status, marks(log)) == ("completed", ["b", "b"])
            assert taken not in second.context["metadata"]["torn_down_sandbox_ids"]

    run(whole())


def test_a14_a_context_adopts_its_sandboxes_so_that_nobody_else_removes_them(tmp_path):
    async def whole():
        async with engine_at(tmp_path / "state") as engine:
            log = tmp_path / "log"
            steps = [
                {"id": "box", "type": "t_deploy", "provider": "local"},
                {"id": "b", "type": "t_note", "log": str(log)},
            ]
            first = await started(engine, steps, keep=True)
            (sandbox,) = first.context["deployed_sandboxes"]
            second = await started(engine, steps, start_step=1, context=first.context, keep=True)
            assert second.status == "completed"
            row = next(row for row in engine.stores.journal.resources() if row.id == sandbox["sandbox_id"])
            assert row.run_id == second.run_id
            assert (await engine.teardown(first.run_id)).removed == ()
            assert (await engine.gc()).sandboxes.removed == ()
            assert (await engine.teardown(second.run_id)).removed == (sandbox["sandbox_id"],)
            with pytest.raises(PlaceLostError, match="was removed"):
                await started(engine, steps, start_step=1, context=second.context)

    run(whole())


def test_a_run_that_was_killed_while_its_places_were_removed_is_rid_of_them_and_one_that_keeps_them_is_not(tmp_path):
    async def resumed(run_id):
        async with engine_at(tmp_path / "state") as engine:
            assert (await engine.resume(run_id)).status == "completed"
            return len(engine.stores.journal.resources(run_id, state=OPEN_STATES))

    async def whole():
        async with engine_at(tmp_path / "state") as engine:
            run_id = (await started(engine, [{"id": "box", "type": "t_deploy", "provider": "local"}], keep=True)).run_id
        assert await resumed(run_id) == 1
        async with engine_at(tmp_path / "state") as engine:  # as after a kill: nothing says that they are kept
            lease = await engine.stores.journal.claim(run_id)
            await engine.stores.journal.set_run(lease, notes={KEPT_NOTE: None})
            await engine.stores.journal.release(lease)
        assert await resumed(run_id) == 0

    run(whole())


def test_a_run_that_ended_well_is_not_run_again(tmp_path):
    async def whole():
        async with engine_at(tmp_path / "state") as engine:
            log = tmp_path / "log"
            first = await started(engine, task(log, "t_note"))
            again = await engine.resume(first.run_id)
            assert again.scores == first.scores
            assert marks(log) == ["a", "b", "cut", "v"]

    run(whole())


def test_a_lost_lease_stops_the_run_without_tearing_down(tmp_path):
    async def whole():
        async with engine_at(tmp_path / "state", lease_renew_seconds=0.05) as engine:
            steps = [
                {"id": "box", "type": "t_deploy", "provider": "local"},
                {"id": "hold", "type": "t_hold", "log": str(tmp_path / "log")},
            ]

            class Thief(Watcher):
                async def steal(self):
                    event = await self.until("step_progress")
                    await engine.stores.journal.claim(event.run_id, takeover=True)

            thief = Thief()
            run_id = await engine.submit(planned(engine, steps))
            async with asyncio.TaskGroup() as group:
                group.create_task(thief.steal())
                with pytest.raises(SupersededError, match="taken over"):
                    await engine.execute(run_id, thief)
            states = [row.state for row in engine.stores.journal.resources(run_id)]
            assert states == ["live"]
            await engine.stores.journal.release(await engine.stores.journal.claim(run_id, takeover=True))
            assert len((await engine.teardown_context(engine.context(run_id))).removed) == 1

    run(whole())
