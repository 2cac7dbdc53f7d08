"""Collection beside runs that were cut: what one needs to go on stays for a stated time, and nothing is removed under a run's feet."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta

import pytest

from agent_env import host
from agent_env.clock import SystemClock
from agent_env.engine import RunOptions
from agent_env.engine.gc import Claim
from agent_env.errors import RunOwnedError
from tests.engine.child import child
from tests.engine.parts import engine_at, marks, planned, run, started
from tests.engine.test_teardown import Toy, Toys, toy_box

RUN = "run-collection01"
BOX = {"id": "box", "type": "deploy_sandbox", "sandbox_name": "box", "sandbox_mode": "vm", "sandbox_type": "local"}


def cut(tmp_path):
    """A run whose process died after it had deployed a confined machine."""
    log = tmp_path / "log"
    steps = [BOX, {"id": "die", "type": "t_die", "log": str(log)}, {"id": "v", "type": "t_note", "log": str(log), "score": 1.0}]
    assert child(tmp_path / "state", "run", steps, run_id=RUN) is None
    return log


def test_a_run_that_was_cut_goes_on_in_its_place_after_any_number_of_collections(tmp_path):
    log = cut(tmp_path)
    for _ in range(2):
        report = child(tmp_path / "state", "gc", "")
        assert report is not None
        assert report["sandboxes"]["removed"] == []
        assert len(report["kept"]) == 1
        assert report["folders"] == []
    answer = child(tmp_path / "state", "resume", RUN)
    assert answer is not None
    assert (answer["status"], answer["scores"]) == ("completed", {"v": 1.0})
    assert marks(log) == ["die", "die", "v"]
    assert child(tmp_path / "state", "gc", "", include_kept=True)["sandboxes"]["removed"] == []


def test_what_a_cut_run_left_is_named_by_its_reason(tmp_path):
    cut(tmp_path)

    async def whole():
        async with engine_at(tmp_path / "state") as engine:
            report = await engine.gc()
            assert list(report.left.values()) == [Claim.RESUMABLE]
            assert report.resumable == (RUN,)
            await engine.gc(include_kept=True)

    run(whole())


@pytest.mark.parametrize("way", ["all of it", "older than no time", "the time is over"])
def test_what_a_cut_run_left_is_removed_when_it_is_asked_for_or_its_time_is_over(tmp_path, way):
    cut(tmp_path)
    options = {
        "all of it": {"include_kept": True},
        "older than no time": {"older_than_seconds": 0.0},
        "the time is over": {"limits": {"gc_resumable_seconds": 0.0}},
    }[way]
    assert child(tmp_path / "state", "gc", "", older_than_seconds=3600.0)["sandboxes"]["removed"] == []
    report = child(tmp_path / "state", "gc", "", **options)
    assert report is not None
    assert len(report["sandboxes"]["removed"]) == 1
    answer = child(tmp_path / "state", "resume", RUN)
    assert answer is not None
    assert answer["refused"] == "place_lost"
    assert "--redeploy" in answer["message"]
    again = child(tmp_path / "state", "resume", RUN, redeploy=True)
    assert again is not None
    assert again["status"] == "completed"


@pytest.mark.parametrize("boot", ["this boot", "an earlier boot"])
def test_what_a_cut_run_left_stays_for_its_time_though_somebody_set_the_clock_far_ahead(tmp_path, boot):
    """As the wall clock tells it, the run died 400 days ago. Of a process of this boot, the clock since the boot knows better."""
    cut(tmp_path)

    async def whole():
        async with engine_at(tmp_path / "state") as engine:

            def set_ahead(tx):
                (row,) = tx.execute("SELECT owner FROM runs WHERE run_id = :run", {"run": RUN})
                owner = json.loads(row.owner) | ({} if boot == "this boot" else {"boot": "an-earlier-one"})
                sql = "UPDATE runs SET owner = :owner, heartbeat_at = heartbeat_at - 400 * 86400.0 WHERE run_id = :run"
                tx.change(sql, {"run": RUN, "owner": json.dumps(owner)})

            engine.stores.db.write(set_ahead)
            collected = await engine.gc()
            assert (list(collected.left.values()) == [Claim.RESUMABLE]) is (boot == "this boot" and host.IS_LINUX)
            assert len(collected.sandboxes.removed) == 1 - len(collected.left)
            await engine.gc(include_kept=True)

    run(whole())


def test_what_was_kept_on_purpose_goes_once_it_is_older_than_asked_for(tmp_path):
    async def whole():
        toy = Toy("local")
        async with Toys(tmp_path, toy) as engine:
            await started(engine, [toy_box("local")], keep=True)
            report = await engine.gc(older_than_seconds=3600.0)
            assert list(report.left.values()) == [Claim.KEPT]
            assert len((await engine.gc(older_than_seconds=0.0)).sandboxes.removed) == 1

    run(whole())


def test_what_was_kept_expires_by_a_clock_that_nobody_sets(tmp_path, monkeypatch):
    async def whole():
        toy = Toy("local")
        async with Toys(tmp_path, toy) as engine:
            await started(engine, [toy_box("local")], keep=True)
            monkeypatch.setattr(SystemClock, "now", lambda self: datetime.now(UTC) + timedelta(days=400))
            report = await engine.gc()
            assert (report.sandboxes.removed, list(report.left.values())) == ((), [Claim.KEPT])
            since_boot = host.boot_seconds()
            monkeypatch.setattr(host, "boot_seconds", lambda: since_boot + engine._house.limits.sandbox_ttl_seconds + 1)
            assert len((await engine.gc(dry_run=True)).sandboxes.removed) == 1
            monkeypatch.setattr(host, "boot_id", lambda: "another")
            assert len((await engine.gc()).sandboxes.removed) == 1

    run(whole())


class Slow(Toy):
    """A provider that takes its time to remove things."""

    def __init__(self, name):
        super().__init__(name)
        self.removing, self.go_on = asyncio.Event(), asyncio.Event()

    async def destroy(self, sandbox_id):
        self.removing.set()
        await self.go_on.wait()
        return await super().destroy(sandbox_id)


async def interrupted(engine):
    """A run that has a place and was left by its process, as a kill leaves it."""
    run_id = await engine.submit(planned(engine, [toy_box("local"), {"id": "hold", "type": "t_hold", "log": "/dev/null"}]), RunOptions())
    lease = await engine.stores.journal.claim(run_id)
    from agent_env.stores.records import Resource

    labels = engine.installation.labels(run_id, "local-1", epoch=lease.epoch, ttl_seconds=60, clock=engine._house.clock)
    await engine.stores.journal.intend(lease, Resource("local-1", "sandbox", "local", "box", labels=labels))
    await engine.stores.journal.opened(lease, "local-1")
    await engine.stores.journal.set_run(lease, status="running")
    await engine.stores.journal.release(lease)
    return run_id, labels


def test_nobody_resumes_a_run_while_its_places_are_being_collected(tmp_path):
    async def whole():
        slow = Slow("local")
        async with Toys(tmp_path, slow) as engine:
            run_id, labels = await interrupted(engine)
            slow.alive["local-1"] = dict(labels)
            collecting = asyncio.create_task(engine.gc(include_kept=True))
            await slow.removing.wait()
            with pytest.raises(RunOwnedError):
                await engine.resume(run_id)
            slow.go_on.set()
            assert (await collecting).sandboxes.removed == ("local-1",)
            assert engine.stores.journal.run(run_id).owner is None

    run(whole())


def test_a_place_of_a_run_that_began_to_go_on_during_the_collection_stays(tmp_path):
    """Between the look at what is there and the removal, somebody resumes: here, while a provider lists what it has."""

    class Resuming(Toy):
        async def list(self, labels):
            self.lease = await self.engine.stores.journal.claim(self.run_id)
            async for info in super().list(labels):
                yield info

    async def whole():
        toy = Resuming("local")
        async with Toys(tmp_path, toy) as engine:
            toy.engine = engine
            toy.run_id, labels = await interrupted(engine)
            toy.alive["local-1"] = dict(labels)
            report = await engine.gc(include_kept=True)
            assert report.sandboxes.removed == ()
            assert list(report.left.values()) == [Claim.LIVE]
            assert list(toy.alive) == ["local-1"]
            await engine.stores.journal.release(toy.lease)

    run(whole())


@pytest.mark.parametrize(("asked", "score", "stays"), [("keep", 1.0, True), ("pause_on_failure", 1.0, False), (None, 1.0, False)])
def test_a_resume_leaves_the_places_when_it_is_asked_to(tmp_path, asked, score, stays):
    cut(tmp_path)
    options = {} if asked is None else {asked: True}
    answer = child(tmp_path / "state", "resume", RUN, **options)
    assert answer is not None
    assert answer["scores"] == {"v": score}
    report = child(tmp_path / "state", "gc", "", include_kept=True)
    assert report is not None
    assert bool(report["sandboxes"]["removed"]) is stays
