"""One owner at a time: dead owners are replaced at once, live ones are named, and who was replaced can't write."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent_env import host
from agent_env.errors import AgentEnvError, NotFoundError, RunOwnedError, SupersededError
from agent_env.stores import Database, Journal, Lease, NewRun, Owner, Resource
from agent_env.stores.owners import Life
from agent_env.stores.packing import dump

from .test_database import actor

HERE = Owner.this_process()
ELSEWHERE = replace(HERE, boot="another boot", machine="another machine", host="far-away")


def new(journal: Journal, run_id: str = "run-1") -> None:
    asyncio.run(journal.create_run(NewRun(run_id, f"{run_id}-i", "task")))


def pretend_owner(db: Database, owner: Owner, *, silent_seconds: float = 0.0, run_id: str = "run-1") -> None:
    """Writes another owner into a run, as a process elsewhere would have."""
    db.write(
        lambda tx: tx.change(
            f"UPDATE runs SET owner = :owner, epoch = epoch + 1, heartbeat_at = {tx.clock_sql} - :silent WHERE run_id = :run",
            {"owner": dump(owner.to_json()), "silent": silent_seconds, "run": run_id},
        )
    )


def test_a_claim_makes_this_process_the_owner_under_the_next_epoch(journal: Journal) -> None:
    new(journal)
    lease = asyncio.run(journal.claim("run-1"))
    run = journal.run("run-1")
    assert (lease.epoch, run.epoch, run.owner) == (1, 1, HERE)
    assert journal.is_owned("run-1")
    asyncio.run(journal.release(lease))
    assert journal.run("run-1").owner is None
    assert not journal.is_owned("run-1")
    assert asyncio.run(journal.claim("run-1")).epoch == 2


def test_claiming_what_does_not_exist_says_so(journal: Journal) -> None:
    with pytest.raises(NotFoundError, match="no run 'run-9'"):
        asyncio.run(journal.claim("run-9"))


def test_d03_a_live_owner_is_named_with_process_host_and_command(db: Database, journal: Journal) -> None:
    process = actor("own", db_url(db), "run-1")
    assert process.stdout is not None
    assert process.stdout.readline() == "owned\n"
    with pytest.raises(RunOwnedError, match=rf"process {process.pid} on {os.uname().nodename} \(actors\.py own\)"):
        asyncio.run(journal.claim("run-1"))
    process.kill()
    process.communicate()
    assert asyncio.run(journal.claim("run-1")).epoch == 2


def test_d03_a_suspended_owner_is_alive_and_can_be_taken_over(db: Database, journal: Journal) -> None:
    process = actor("own", db_url(db), "run-1")
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGSTOP)
    try:
        with pytest.raises(RunOwnedError):
            asyncio.run(journal.claim("run-1"))
        assert asyncio.run(journal.claim("run-1", takeover=True)).epoch == 2
    finally:
        process.kill()
        process.communicate()


def test_d03_of_processes_that_claim_at_once_exactly_one_wins(database_url: str) -> None:
    with Database.open(database_url) as db:
        journal = Journal(db)
        new(journal)
        racers = [actor("claim", database_url, "run-1", stdin=subprocess.PIPE) for _ in range(5)]
        for racer in racers:
            assert racer.stdout is not None
            assert racer.stdout.readline() == "ready\n"
        for racer in racers:
            tell(racer)
        said = [racer.stdout.readline() for racer in racers if racer.stdout]
        assert sorted(line.split()[0] for line in said) == ["lost"] * 4 + ["won"]
        winner = racers[next(index for index, line in enumerate(said) if line.startswith("won"))]
        assert all(f"process {winner.pid} " in line for line in said if line.startswith("lost"))
        for racer in racers:
            tell(racer)
            racer.communicate(timeout=60)


def tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


WRITES: dict[str, Callable[[Journal, Lease], Awaitable[object]]] = {
    "renew": lambda j, lease: j.renew(lease),
    "set_run": lambda j, lease: j.set_run(lease, status="completed"),
    "start_attempt": lambda j, lease: j.start_attempt(lease, "s", number=1),
    "finish_attempt": lambda j, lease: j.finish_attempt(lease, "att-1", state="succeeded"),
    "supersede": lambda j, lease: j.supersede(lease, ["att-1"], reset={}),
    "intend": lambda j, lease: j.intend(lease, Resource("r2", "sandbox", "local", "n")),
    "opened": lambda j, lease: j.opened(lease, "r1", {}),
    "ask": lambda j, lease: j.ask(lease, "s", "att-1", label=None, upstream={}),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("how", ["taken over", "released", "deleted"])
def test_d03_whoever_lost_the_run_can_write_nothing(sqlite: Database, write: str, how: str) -> None:
    journal = Journal(sqlite)
    new(journal)

    async def lose_and_write() -> None:
        lease = await journal.claim("run-1")
        await journal.start_attempt(lease, "s", number=1, attempt_id="att-1")
        await journal.intend(lease, Resource("r1", "sandbox", "local", "n"))
        if how == "taken over":
            await journal.claim("run-1", takeover=True)
        else:
            await journal.release(lease)
            await journal.closed("r1")
        if how == "deleted":
            journal.delete_run("run-1")
        before = snapshot(sqlite)
        with pytest.raises(SupersededError, match=how):
            await WRITES[write](journal, lease)
        assert snapshot(sqlite) == before

    asyncio.run(lose_and_write())


def test_d03_events_of_a_superseded_owner_are_not_written(journal: Journal) -> None:
    new(journal)

    async def race() -> None:
        old = await journal.claim("run-1")
        journal.event(old, "late", None, {})
        newer = await journal.claim("run-1", takeover=True)
        journal.event(newer, "mine", None, {})
        with pytest.raises(SupersededError):
            await journal.renew(old)
        await journal.release(old)
        await journal.renew(newer)

    asyncio.run(race())
    assert [(event.seq, event.kind) for event in journal.events("run-1")] == [(1, "mine")]
    assert journal.is_owned("run-1")


def snapshot(db: Database) -> list[object]:
    tables = ("runs", "attempts", "resets", "resources", "reviews", "scores", "events")
    return [db.read(lambda tx, table=table: tx.execute(f"SELECT * FROM {table}")) for table in tables]


def test_d08_a_reboot_or_a_reused_process_id_is_a_dead_owner_and_a_new_host_name_is_not(db: Database, journal: Journal) -> None:
    new(journal)
    for dead in (replace(HERE, boot="the boot before"), replace(HERE, start=HERE.start + 1), replace(HERE, pid=2**22 + 1)):
        assert dead.life() is Life.DEAD
        pretend_owner(db, dead)
        asyncio.run(journal.claim("run-1"))
    pretend_owner(db, replace(HERE, host="renamed-machine"))
    with pytest.raises(RunOwnedError, match="renamed-machine"):
        asyncio.run(journal.claim("run-1"))


def test_an_exited_process_that_nobody_waited_for_is_a_dead_owner() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    owner = replace(HERE, pid=child.pid, start=host.start_time(child.pid) or 0)
    assert owner.life() is Life.ALIVE
    assert child.stdin is not None
    child.stdin.close()
    until = time.monotonic() + 60
    while owner.life() is Life.ALIVE and time.monotonic() < until:
        select.select([], [], [], 0.01)
    assert owner.life() is Life.DEAD
    child.wait()


def test_a_machine_id_that_a_container_image_brings_proves_nothing() -> None:
    inside = replace(HERE, boot="another boot", namespace="pid:[4026532999]")
    assert inside.life() is Life.UNKNOWN
    assert replace(HERE, namespace="pid:[4026532999]").life() is Life.UNKNOWN
    assert replace(HERE, boot="another boot", machine="").life() is Life.UNKNOWN


def test_an_owner_elsewhere_is_replaced_once_it_has_been_silent_for_the_lease(db: Database, journal: Journal) -> None:
    new(journal)
    pretend_owner(db, ELSEWHERE, silent_seconds=db.limits.lease_seconds - 5)
    with pytest.raises(RunOwnedError, match="far-away"):
        asyncio.run(journal.claim("run-1"))
    pretend_owner(db, ELSEWHERE, silent_seconds=db.limits.lease_seconds + 1)
    assert asyncio.run(journal.claim("run-1")).epoch == 3


def test_a_living_owner_is_to_be_stopped_gently_and_killed_only_when_it_hangs(db: Database, journal: Journal) -> None:
    new(journal)
    for silent, hangs in ((0, False), (db.limits.lease_seconds + 1, True)):
        pretend_owner(db, HERE, silent_seconds=silent)
        with pytest.raises(RunOwnedError) as refused:
            asyncio.run(journal.claim("run-1"))
        assert refused.value.hint is not None
        assert refused.value.hint.startswith("wait for it, or stop it: agent-env runs cancel run-1, or Ctrl-C where it runs")
        assert (f"kill -9 {HERE.pid}" in refused.value.hint) == hangs


class JumpingClock:
    """A wall clock that an operator sets to and fro."""

    def __init__(self) -> None:
        self.year = 2030

    def monotonic(self) -> float:
        return 0.0

    def now(self) -> datetime:
        return datetime(self.year, 1, 1, tzinfo=UTC)


def test_ck01_d08_jumps_of_this_processes_clock_change_no_owner(database_url: str) -> None:
    clock = JumpingClock()
    with Database.open(database_url, clock=clock) as db:
        journal = Journal(db)
        new(journal)
        pretend_owner(db, ELSEWHERE)
        for year in (2050, 1999):
            clock.year = year
            with pytest.raises(RunOwnedError):
                asyncio.run(journal.claim("run-1"))
        pretend_owner(db, ELSEWHERE, silent_seconds=3600)
        asyncio.run(journal.claim("run-1"))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)
@given(deeds=st.lists(st.tuples(st.sampled_from(["claim", "take over", "renew", "release", "write"]), st.integers(0, 2)), max_size=20))
def test_leases_behave_like_a_plain_model(sqlite: Database, deeds: list[tuple[str, int]]) -> None:
    journal = Journal(sqlite)
    run_id = f"run-{os.urandom(6).hex()}"
    new(journal, run_id)
    held: dict[int, Lease] = {}
    epoch, owner = 0, None

    async def play() -> None:
        nonlocal epoch, owner
        for deed, who in deeds:
            if deed in {"claim", "take over"}:
                try:
                    held[who] = await journal.claim(run_id, takeover=deed == "take over")
                    outcome = "done"
                except RunOwnedError:
                    outcome = "owned"
                expected = "owned" if deed == "claim" and owner is not None else "done"
                assert outcome == expected
                if outcome == "done":
                    epoch, owner = epoch + 1, who
                    assert held[who].epoch == epoch
            elif who in held:
                current = owner == who and held[who].epoch == epoch
                if deed == "release":
                    await journal.release(held[who])
                    owner = None if current else owner
                else:
                    assert await outcome_of(journal, deed, held[who]) == ("done" if current else "superseded")

    asyncio.run(play())
    assert journal.run(run_id).epoch == epoch
    assert journal.is_owned(run_id) == (owner is not None)


async def outcome_of(journal: Journal, deed: str, lease: Lease) -> str:
    try:
        await (journal.renew(lease) if deed == "renew" else journal.start_attempt(lease, "s", number=1))
    except AgentEnvError as error:
        return error.code
    return "done"


def db_url(db: Database) -> str:
    return f"sqlite:///{db.name}" if db.name.startswith("/") else db.name
