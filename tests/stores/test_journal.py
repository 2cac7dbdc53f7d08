"""The journal: what was finished stays finished, in order, lossless; resources, events, reviews, lists."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent_env.documents.updates import AppendRecord, ExtendMetadata, SetField, SetMetadata, Update, decode
from agent_env.errors import ConcurrentModificationError, InternalError, NotFoundError, RunOwnedError, StorageError, UsageError, UserError
from agent_env.stores import Database, Journal, Lease, NewRun, Objects, Resource, UsedDocument, live_objects
from agent_env.stores.records import OPEN_STATES
from tests.busy import within
from tests.memory import by_a_small_parent

ROOT = Path(__file__).parents[2]

KEPT_FIXTURE = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=25)


async def started(journal: Journal, run_id: str = "run-1", **fields: object) -> Lease:
    await journal.create_run(NewRun(run_id, f"{run_id}-inst", **{"task_id": "task", **fields}))  # type: ignore[arg-type]
    return await journal.claim(run_id)


def test_a_run_is_stored_with_all_it_starts_from(journal: Journal) -> None:
    new = NewRun(
        "run-1",
        "t-abc",
        "t",
        3,
        "sha256:d",
        task={"steps": [{"id": "a"}]},
        context={"metadata": {"x": [1, 1]}},
        bundle_id="b",
        bundle_path="/b",
        group_id="g",
        attempt_index=2,
        attempt_count=5,
        seed={"k": "v"},
        options={"keep": True},
        notes={"network": "none"},
    )
    row = asyncio.run(journal.create_run(new))
    stored = journal.load("run-1")
    assert stored.run == row == journal.run("run-1")
    assert (row.status, row.owner, row.epoch, row.started_at, row.scores, row.error) == ("queued", None, 0, None, {}, None)
    for field in (
        "instance_id",
        "task_version",
        "task_digest",
        "bundle_path",
        "attempt_index",
        "attempt_count",
        "seed",
        "options",
        "notes",
    ):
        assert getattr(row, field) == getattr(new, field)
    assert (stored.task, stored.context) == (new.task, new.context)
    with pytest.raises(ConcurrentModificationError, match="run-1"):
        asyncio.run(journal.create_run(new))
    with pytest.raises(NotFoundError):
        journal.load("run-2")


def test_what_happens_to_a_run_is_stamped_and_a_resume_clears_the_ending_before_it_rs05(journal: Journal) -> None:
    async def live() -> None:
        lease = await started(journal)
        await journal.set_run(lease, status="running", notes={"cpu": "watched"})
        first = journal.run("run-1").started_at
        await journal.set_run(lease, status="failed", kind="infrastructure", word="failed", error={"code": "x"}, notes={"disk": "none"})
        ended = journal.run("run-1")
        assert ended.finished_at is not None
        assert (ended.status, ended.kind, ended.word, ended.error) == ("failed", "infrastructure", "failed", {"code": "x"})
        await journal.set_run(lease, status="running")
        again = journal.run("run-1")
        assert (again.kind, again.word, again.error, again.scores, again.finished_at) == (None, None, None, {}, None)
        assert again.started_at == first
        await journal.set_run(lease, status="completed", kind="completed", word="passed", scores={"v": 1.0, "w": None})

    asyncio.run(live())
    run = journal.run("run-1")
    assert (run.status, run.scores, run.notes) == ("completed", {"v": 1.0, "w": None}, {"cpu": "watched", "disk": "none"})


def test_attempts_are_kept_in_the_order_in_which_they_ended(journal: Journal) -> None:
    async def live() -> list[str]:
        lease = await started(journal)
        a = await journal.start_attempt(lease, "a", number=1)
        b = await journal.start_attempt(lease, "b", number=1)
        c = await journal.start_attempt(lease, "c", number=1)
        await journal.finish_attempt(lease, b, state="succeeded", scores={"v": 0.5, "w": None}, used=[("artifacts", "x", 2, "sha256:e")])
        await journal.finish_attempt(lease, a, state="failed", kind="task", error={"code": "boom"}, duration_seconds=1.5)
        return [a, b, c]

    a, b, c = asyncio.run(live())
    stored = journal.load("run-1")
    assert [attempt.attempt_id for attempt in stored.attempts] == [b, a, c]
    done, failed, running = stored.attempts
    assert (done.state, done.scores, done.number) == ("succeeded", {"v": 0.5, "w": None}, 1)
    assert (failed.state, failed.kind, failed.error, failed.duration_seconds) == ("failed", "task", {"code": "boom"}, 1.5)
    assert (running.state, running.ended, running.finished_at, running.updates) == ("running", None, None, [])
    assert stored.used == (UsedDocument("artifacts", "x", 2, "sha256:e"),)


def test_f15_an_attempt_ends_once_and_what_it_did_is_never_overwritten(journal: Journal) -> None:
    async def live() -> None:
        lease = await started(journal)
        attempt = await journal.start_attempt(lease, "a", number=1)
        await journal.finish_attempt(lease, attempt, state="succeeded", updates=[SetMetadata(("x",), 1)])
        with pytest.raises(ConcurrentModificationError, match="has ended already"):
            await journal.finish_attempt(lease, attempt, state="failed", updates=[])

    asyncio.run(live())
    assert journal.load("run-1").attempts[0].updates == [["set", ["x"], 1]]


def test_a_score_that_is_no_finite_number_is_refused(journal: Journal) -> None:
    async def live() -> None:
        lease = await started(journal)
        attempt = await journal.start_attempt(lease, "a", number=1)
        for bad in (float("nan"), float("inf")):
            with pytest.raises(InternalError, match="no finite number"):
                await journal.finish_attempt(lease, attempt, state="succeeded", scores={"v": bad})

    asyncio.run(live())


def test_superseded_attempts_stay_as_evidence_with_the_reason(journal: Journal) -> None:
    async def live() -> str:
        lease = await started(journal)
        attempt = await journal.start_attempt(lease, "a", number=1)
        await journal.finish_attempt(lease, attempt, state="failed")
        await journal.supersede(lease, [attempt], reset={"attempt": 2})
        await journal.supersede(lease, [], reset={"attempt": 3})
        return attempt

    asyncio.run(live())
    stored = journal.load("run-1")
    assert [attempt.superseded for attempt in stored.attempts] == [True]
    assert stored.resets == ({"attempt": 2}, {"attempt": 3})


TEXT = st.text(st.characters(codec=None), max_size=20)
VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=10,
)
PATH = st.lists(TEXT, min_size=1, max_size=3).map(tuple)
UPDATE = st.one_of(
    st.builds(SetMetadata, PATH, VALUE),
    st.builds(ExtendMetadata, PATH, st.lists(VALUE, max_size=4)),
    st.builds(SetField, st.sampled_from(["agent_model", "instance_id"]), VALUE),
    st.builds(AppendRecord, st.sampled_from(["deployed_envs", "prompt_responses"]), st.dictionaries(TEXT, VALUE, max_size=3)),
)


@KEPT_FIXTURE
@given(updates=st.lists(UPDATE, max_size=6))
def test_updates_come_back_as_they_were_with_duplicates_empty_lists_and_any_text(journal: Journal, updates: list[Update]) -> None:
    run_id = f"run-{os.urandom(6).hex()}"

    async def live() -> None:
        lease = await started(journal, run_id)
        attempt = await journal.start_attempt(lease, "a", number=1)
        await journal.finish_attempt(lease, attempt, state="succeeded", updates=updates)

    asyncio.run(live())
    assert decode(journal.load(run_id).attempts[0].updates) == updates


def test_large_results_are_objects_and_their_references_stay_live(db: Database, journal: Journal, objects: Objects) -> None:
    inner = objects.put(b"collected by the step")
    text = "x" * db.limits.inline_result_bytes

    async def live() -> None:
        lease = await started(journal, task={"steps": [text]}, context={"metadata": {"text": text}})
        attempt = await journal.start_attempt(lease, "a", number=1)
        await journal.finish_attempt(lease, attempt, state="succeeded", updates=[SetMetadata(("big",), [text, inner.url])])
        await journal.release(lease)

    asyncio.run(live())
    row = db.read(lambda tx: tx.execute("SELECT updates FROM attempts"))[0]
    assert len(row.updates) < 100
    stored = journal.load("run-1")
    assert stored.attempts[0].updates == [["set", ["big"], [text, inner.url]]]
    assert (stored.task, stored.context) == ({"steps": [text]}, {"metadata": {"text": text}})
    assert inner.sha256 in live_objects(db, objects)
    assert objects.collect(live_objects(db, objects), grace_seconds=0).objects == 0
    journal.delete_run("run-1")
    assert objects.collect(live_objects(db, objects), grace_seconds=0).objects == 4


def test_a_damaged_large_result_is_named_and_other_runs_are_read(journal: Journal, objects: Objects, db: Database) -> None:
    async def live(run_id: str) -> None:
        await started(journal, run_id, context={"text": run_id * 20_000})

    asyncio.run(live("run-1"))
    asyncio.run(live("run-2"))
    reference = db.read(lambda tx: tx.execute("SELECT context FROM run_inputs WHERE run_id = 'run-1'"))[0].context
    objects.path(reference[1:]).write_bytes(b"{}")
    with pytest.raises(StorageError, match="is damaged"):
        journal.load("run-1")
    assert journal.load("run-2").context == {"text": "run-2" * 20_000}


def test_resources_go_from_intended_to_closed_and_say_who_made_them(journal: Journal) -> None:
    async def live() -> None:
        lease = await started(journal)
        for name in ("one", "two", "three"):
            await journal.intend(
                lease,
                Resource(name, "sandbox", "local", f"box-{name}", "att-1", {"agentenv.run": "run-1"}, {"pid": 1}, "2030-01-01T00:00:00Z"),
            )
        await journal.opened(lease, "one", {"port": 8})
        await journal.opened(lease, "two", {})
        await journal.closing("two")
        await journal.closed("three")
        await journal.closed("three")
        await journal.closing("three")
        await journal.closed("unknown")

    asyncio.run(live())
    rows = {row.id: row for row in journal.resources("run-1")}
    assert {id: row.state for id, row in rows.items()} == {"one": "live", "two": "closing", "three": "closed"}
    one = rows["one"]
    assert (one.run_id, one.attempt_id, one.epoch, one.provider, one.facts) == ("run-1", "att-1", 1, "local", {"pid": 1, "port": 8})
    assert (one.labels, one.expires_at) == ({"agentenv.run": "run-1"}, "2030-01-01T00:00:00Z")
    assert [row.id for row in journal.resources(state=OPEN_STATES)] == ["one", "two"]
    assert [row.id for row in journal.resources(state="live")] == ["one"]
    assert journal.resources(state=()) == []
    assert journal.resource("one") == one
    assert journal.resource("unknown") is None
    asyncio.run(journal.lost(["one", "two"]))
    assert [row.state for row in journal.resources(state="lost")] == ["lost", "lost"]


def test_a_resource_that_is_made_anew_is_intended_again(journal: Journal) -> None:
    async def live() -> None:
        lease = await started(journal)
        await journal.intend(lease, Resource("one", "sandbox", "local", "a"))
        await journal.closed("one")
        await journal.intend(lease, Resource("one", "sandbox", "local", "b", facts={"n": 2}))
        with pytest.raises(InternalError, match="without having been intended"):
            await journal.opened(lease, "never", {})

    asyncio.run(live())
    assert [(row.state, row.name, row.facts) for row in journal.resources()] == [("intended", "b", {"n": 2})]


def test_events_are_numbered_within_the_run_and_ride_along_with_the_next_commit(journal: Journal) -> None:
    async def live() -> None:
        lease = await started(journal)
        assert [journal.event(lease, "tick", "s", {"n": n, "bytes": "\ud800\0"}) for n in range(3)] == [1, 2, 3]
        assert journal.events("run-1") == []
        await journal.flush(lease)
        assert journal.event(lease, "tock", None, None) == 4
        await journal.release(lease)
        lease = await journal.claim("run-1")
        assert journal.event(lease, "again", None, None) == 5
        await journal.release(lease)

    asyncio.run(live())
    events = journal.events("run-1")
    assert [(event.seq, event.kind) for event in events] == [(1, "tick"), (2, "tick"), (3, "tick"), (4, "tock"), (5, "again")]
    assert (events[1].step_id, events[1].payload) == ("s", {"n": 1, "bytes": "\ud800\0"})
    assert [event.seq for event in journal.events("run-1", after=3, limit=1)] == [4]
    assert journal.last_event("run-1") == 5


def test_events_that_could_not_be_written_are_written_with_the_next_commit(sqlite: Database) -> None:
    journal = Journal(sqlite)

    async def live() -> None:
        lease = await started(journal)
        sqlite.write(lambda tx: tx.change("CREATE TRIGGER full BEFORE INSERT ON events BEGIN SELECT RAISE(ABORT, 'no'); END"))
        journal.event(lease, "one", None, None)
        with pytest.raises(StorageError):
            await journal.renew(lease)
        journal.event(lease, "two", None, None)
        sqlite.write(lambda tx: tx.change("DROP TRIGGER full"))
        await journal.renew(lease)

    asyncio.run(live())
    assert [event.kind for event in journal.events("run-1")] == ["one", "two"]


def test_reviews_are_asked_once_and_decided_once(journal: Journal) -> None:
    async def live() -> None:
        lease = await started(journal)
        await journal.ask(lease, "look", "att-1", label="Ship it?", upstream={"a": 1})
        await journal.ask(lease, "look", "att-1", label="other", upstream={})
        (asked,) = journal.pending_reviews()
        assert (asked.step_id, asked.label, asked.upstream, asked.decision) == ("look", "Ship it?", {"a": 1}, None)
        await journal.decide("run-1", "look", "continue", "ann")
        with pytest.raises(ConcurrentModificationError, match="already decided by ann"):
            await journal.decide("run-1", "look", "abort", "bob")
        with pytest.raises(NotFoundError, match="waits for no review"):
            await journal.decide("run-1", "elsewhere", "abort", "bob")

    asyncio.run(live())
    answered = journal.review("run-1", "look")
    assert answered is not None
    assert (answered.decision, answered.decided_by) == ("continue", "ann")
    assert journal.pending_reviews() == []


def test_runs_are_listed_newest_first_page_by_page(journal: Journal) -> None:
    async def live() -> None:
        for number in range(7):
            lease = await started(journal, f"run-{number}", task_id=f"t{number % 2}", group_id="g" if number > 4 else None)
            if number % 3 == 0:
                await journal.set_run(lease, status="completed")

    asyncio.run(live())
    pages, before = [], None
    while page := journal.list_runs(limit=3, before=before):
        pages.append([run.run_id for run in page])
        before = page[-1].run_id
    assert pages == [["run-6", "run-5", "run-4"], ["run-3", "run-2", "run-1"], ["run-0"]]
    assert [run.run_id for run in journal.list_runs(task="t1")] == ["run-5", "run-3", "run-1"]
    assert [run.run_id for run in journal.list_runs(task="t0", status="completed")] == ["run-6", "run-0"]
    assert [run.run_id for run in journal.list_runs(group="g")] == ["run-6", "run-5"]
    assert [run.run_id for run in journal.list_runs(status="queued", limit=1)] == ["run-5"]
    assert [run.run_id for run in journal.runs_of_group("g")] == ["run-6", "run-5"]
    (group,) = journal.groups()
    assert (group.group_id, group.newest_run, group.endings) == ("g", "run-6", {("completed", None): 1, ("queued", None): 1})
    assert [each.newest_run for each in journal.groups(task="t1")] == ["run-5"]
    assert journal.groups(bundle="none") == []


def test_a_run_is_found_by_the_beginning_of_its_id_or_its_instance(journal: Journal) -> None:
    for run_id in ("run-abc", "run-abd", "run-x%", "run-ab"):
        asyncio.run(journal.create_run(NewRun(run_id, f"{run_id}-inst", "t")))
    assert journal.find_run("run-x").run_id == "run-x%"
    assert journal.find_run("run-ab").run_id == "run-ab"
    assert journal.find_run("run-abd-inst").run_id == "run-abd"
    with pytest.raises(UsageError, match="run-ab, run-abc, run-abd"):
        journal.find_run("run-a")
    assert journal.find_run("abc").run_id == "run-abc"
    with pytest.raises(UsageError, match="run-ab, run-abc, run-abd"):
        journal.find_run("a")
    for nothing in ("run-y", "", "%"):
        with pytest.raises(NotFoundError):
            journal.find_run(nothing)


def test_a_group_is_found_by_the_beginning_of_its_id(journal: Journal) -> None:
    for number, group in enumerate(("group-ab", "group-ab", "group-ac", "7f")):
        asyncio.run(journal.create_run(NewRun(f"run-{number}", f"{number}-inst", "t", group_id=group)))
    assert [journal.find_group(text) for text in ("ab", "group-ac", "7", "group-b", "")] == ["group-ab", "group-ac", "7f", None, None]
    with pytest.raises(UsageError, match="group-ab, group-ac"):
        journal.find_group("a")


def test_a_run_is_deleted_only_when_nobody_owns_it_and_nothing_of_it_is_left(db: Database, journal: Journal) -> None:
    async def live() -> None:
        lease = await started(journal)
        await journal.intend(lease, Resource("one", "sandbox", "local", "box"))
        with pytest.raises(RunOwnedError):
            journal.delete_run("run-1")
        await journal.release(lease)
        with pytest.raises(UserError, match=r"still has sandbox box.*teardown run-1"):
            journal.delete_run("run-1")
        assert journal.run("run-1").epoch == 1
        await journal.closed("one")
        journal.delete_run("run-1")

    asyncio.run(live())
    with pytest.raises(NotFoundError):
        journal.delete_run("run-1")
    tables = ("runs", "run_inputs", "attempts", "resources", "events", "scores", "resets", "reviews", "used_documents")
    assert [db.read(lambda tx, t=t: tx.execute(f"SELECT count(*) AS n FROM {t}"))[0].n for t in tables] == [0] * len(tables)


def test_the_first_page_of_many_runs_is_read_from_an_index(sqlite: Database) -> None:
    journal = Journal(sqlite)
    rows = [{"run": f"run-{n:06}", "at": f"2030-01-01T00:00:00.{n:06}Z", "task": f"t{n % 7}"} for n in range(20_000)]
    insert = "INSERT INTO runs (run_id, instance_id, task_id, status, created_at) VALUES (:run, :run, :task, 'completed', :at)"
    sqlite.write(lambda tx: tx.executemany(insert, rows))
    journal.list_runs(limit=1)
    for filters in ({}, {"task": "t3"}, {"status": "completed"}, {"before": "run-010000"}, {"task": "t3", "before": "run-010000"}):
        times = []
        for _ in range(5):
            began = time.perf_counter()
            assert len(journal.list_runs(limit=50, **filters)) == 50  # type: ignore[arg-type]
            times.append(time.perf_counter() - began)
        assert min(times) < 0.05, filters
    reader = sqlite._readers[0].connection  # type: ignore[attr-defined]
    asked: list[str] = []
    reader.set_trace_callback(asked.append)
    journal.list_runs(task="t3", before="run-010000")
    journal.resources(state=OPEN_STATES)
    journal.pending_reviews()
    journal.events("run-1", 5)
    reader.set_trace_callback(None)
    plans = [sqlite.read(lambda tx, sql=sql: tx.execute(f"EXPLAIN QUERY PLAN {sql}")) for sql in asked if sql.startswith("SELECT")]
    assert len(plans) == 4
    assert not [row.detail for plan in plans for row in plan if row.detail.startswith("SCAN")]


def test_a_step_with_2000_keys_costs_in_proportion_to_itself_and_not_to_the_run(sqlite: Database) -> None:
    journal = Journal(sqlite)
    keys = [SetMetadata(("results", f"key{number}"), number) for number in range(2000)]

    async def step(lease: Lease, number: int) -> float:
        began = time.process_time()
        attempt = await journal.start_attempt(lease, "a", number=number)
        await journal.finish_attempt(lease, attempt, state="succeeded", updates=keys)
        return time.process_time() - began

    async def live() -> tuple[float, float]:
        long = await started(journal)
        for number in range(1, 41):
            await step(long, number)
        fresh = await started(journal, "run-2")
        # In turns: whatever else the machine does then, both feel it.
        turns = [(await step(fresh, number), await step(long, 40 + number)) for number in range(1, 21)]
        return min(early for early, _ in turns), min(late for _, late in turns)

    early, late = asyncio.run(live())
    assert late < early * 2


EVENTS = """
import asyncio, sys, time
from agent_env.stores import Database, Journal, NewRun
from tests.memory import peak_bytes
url, count = sys.argv[1], int(sys.argv[2])

async def live():
    with Database.open(url) as db:
        journal = Journal(db)
        await journal.create_run(NewRun('run-1', 'i', 't'))
        lease = await journal.claim('run-1')
        for number in range(count):
            journal.event(lease, 'step_progress', 'step', {'message': 'line', 'done': number})
            if number % 2000 == 0:
                await journal.flush(lease)
        await journal.release(lease)

began = time.perf_counter(); asyncio.run(live()); wrote = time.perf_counter() - began
with Database.open(url) as db:
    journal = Journal(db)
    began = time.perf_counter(); runs = journal.list_runs(); listed = time.perf_counter() - began
    began = time.perf_counter(); stored = journal.load('run-1'); first = journal.events('run-1', limit=1000)
    last = journal.events('run-1', journal.last_event('run-1') - 1000); opened = time.perf_counter() - began
    assert len(runs) == 1 and len(first) == len(last) == 1000 and last[-1].seq == count
    print(wrote, listed, opened, peak_bytes())
"""


@pytest.mark.parametrize("count", [50_000, pytest.param(1_000_000, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_f16_a_run_of_many_events_is_listed_and_opened_at_once_in_little_memory(tmp_path: Path, count: int) -> None:
    done = subprocess.run(
        by_a_small_parent(sys.executable, "-c", EVENTS, f"sqlite:///{tmp_path / 'x.db'}", str(count)),
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
        cwd=ROOT,
    )
    wrote, listed, opened, peak = map(float, done.stdout.split())
    print(f"{count} events: written in {wrote:.1f} s, listed in {listed:.4f} s, opened in {opened:.4f} s, {peak / 2**20:.0f} MiB")
    assert listed < within(1)
    assert opened < within(1)
    assert peak < 200 << 20
