"""Faults of the world around a run: a full disk, a reboot, clocks that jump."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from agent_env.documents.outcomes import Kind
from agent_env.engine import RunOptions
from agent_env.errors import RunOwnedError
from agent_env.stores.connection import DiskFullError
from tests.busy import within
from tests.engine.child import child
from tests.engine.parts import engine_at, marks, planned, run, started

RUN = "run-faults000001"


def test_d5_a_full_disk_fails_the_step_with_that_reason_and_a_resume_goes_on_in_the_same_place(tmp_path):
    async def whole():
        async with engine_at(tmp_path / "state") as engine:
            log = tmp_path / "log"
            steps = [
                {"id": "box", "type": "t_deploy", "provider": "local"},
                {"id": "a", "type": "t_note", "log": str(log), "value": "small"},
                {"id": "big", "type": "t_note", "log": str(log), "value": "x" * 4_000_000},
                {"id": "v", "type": "t_note", "log": str(log), "score": 1.0},
            ]
            run_id = await engine.submit(planned(engine, steps), RunOptions())
            objects = engine.stores.objects
            real = objects.put

            def full(data, **options):
                raise DiskFullError("there is no space left for the result")

            objects.put = full  # the one call that a full disk makes fail; everything around it is real
            first = await engine.execute(run_id)
            assert first.status == "failed"
            assert first.kind is Kind.STORAGE
            assert "no space left" in first.error["message"]
            assert first.teardown is None
            assert first.context["metadata"]["script_results"] == {"a": "small"}
            objects.put = real
            second = await engine.resume(run_id)
            assert (second.status, second.scores) == ("completed", {"v": 1.0})
            assert marks(log) == ["a", "big", "big", "v"]
            assert second.context["deployed_sandboxes"] == first.context["deployed_sandboxes"]

    run(whole())


def test_d8_a_run_of_an_earlier_boot_has_no_owner_and_can_be_resumed(tmp_path):
    log = tmp_path / "log"
    steps = [{"id": "a", "type": "t_note", "log": str(log)}, {"id": "die", "type": "t_die", "log": str(log)}]
    assert child(tmp_path / "state", "run", steps, run_id=RUN) is None

    async def whole():
        async with engine_at(tmp_path / "state") as engine:
            db = engine.stores.db
            owner = engine.stores.journal.run(RUN).owner.to_json()
            alive = {**owner, "pid": 1, "start": owner["start"], "boot": "another-boot"}
            set_owner = "UPDATE runs SET owner = :owner WHERE run_id = :run"
            await db.awrite(lambda tx: tx.change(set_owner, {"owner": json.dumps(alive), "run": RUN}))
            assert (await engine.resume(RUN)).status == "completed"
            assert marks(log) == ["a", "die", "die"]

    run(whole())


def test_lc08_a_process_id_that_was_used_again_is_not_taken_for_the_owner(tmp_path):
    log = tmp_path / "log"
    assert child(tmp_path / "state", "run", [{"id": "die", "type": "t_die", "log": str(log)}], run_id=RUN) is None

    async def whole():
        async with engine_at(tmp_path / "state") as engine:
            from agent_env.stores.owners import Owner

            me = Owner.this_process().to_json()
            set_owner = "UPDATE runs SET owner = :owner WHERE run_id = :run"

            async def owned_by(start):
                text = json.dumps({**me, "start": start})
                await engine.stores.db.awrite(lambda tx: tx.change(set_owner, {"owner": text, "run": RUN}))

            await owned_by(me["start"])
            with pytest.raises(RunOwnedError):
                await engine.resume(RUN)
            await owned_by(me["start"] - 1)
            assert (await engine.resume(RUN)).status == "completed"

    run(whole())


@pytest.mark.parametrize("hours", [-1, 1])
def test_ck01_a_jump_of_the_wall_clock_moves_no_deadline(tmp_path, hours):
    class Jumping:
        """The real clocks, with a wall clock that jumps after its first reading."""

        def __init__(self):
            self.read = 0

        def monotonic(self):
            import time

            return time.monotonic()

        def now(self):
            self.read += 1
            return datetime.now(UTC) + (timedelta(hours=hours) if self.read > 1 else timedelta())

    async def whole():
        async with engine_at(tmp_path / "state", lease_renew_seconds=0.02) as engine:
            from dataclasses import replace

            engine._house = replace(engine._house, clock=Jumping())
            steps = [{"id": "h", "type": "t_hold", "log": str(tmp_path / "log"), "timeout_seconds": 0.2}]
            outcome = await started(engine, steps)
            assert outcome.error["code"] == "step_timeout"
            assert 0.2 <= outcome.duration_seconds < within(5)

    run(whole())
