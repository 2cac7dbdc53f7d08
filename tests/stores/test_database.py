"""Transactions: shared commits, isolation between the writes that share one, kills, full disks, damage, other processes."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from agent_env.defaults import DEFAULT_LIMITS
from agent_env.errors import ConfigError, InternalError, StorageError, UserError
from agent_env.stores import Connection, Database, Documents, Journal, Lease, NewRun

SET = "INSERT INTO meta (name, value) VALUES (:name, :value)"


def setting(name: str, value: str = "x"):
    return lambda tx: tx.change(SET, {"name": name, "value": value})


def names(db: Database) -> set[str]:
    return {row.name for row in db.read(lambda tx: tx.execute("SELECT name FROM meta"))}


def actor(*argv: str | Path, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-m", "tests.stores.actors", *argv], stdin=stdin, stdout=subprocess.PIPE, text=True)


class BoomError(Exception):
    pass


def test_a_write_returns_what_it_did_and_readers_see_it(db: Database) -> None:
    assert db.write(setting("a")) == 1
    assert names(db) == {"a"}


def test_a_row_is_a_mapping_and_its_columns_are_attributes(db: Database) -> None:
    row = db.read(lambda tx: tx.execute("SELECT 1 AS one, 'b' AS letter"))[0]
    assert (row["one"], row.letter, dict(row)) == (1, "b", {"one": 1, "letter": "b"})
    with pytest.raises(AttributeError):
        _ = row.other


def test_a_write_that_fails_leaves_nothing_and_spares_those_that_share_its_commit(db: Database) -> None:
    def failing(tx: Connection) -> None:
        setting("bad")(tx)
        raise BoomError

    async def together() -> list[object]:
        writes = [db.awrite(failing if number % 3 == 0 else setting(f"good{number}")) for number in range(30)]
        return await asyncio.gather(*writes, return_exceptions=True)

    outcomes = asyncio.run(together())
    assert [isinstance(outcome, BoomError) for outcome in outcomes] == [number % 3 == 0 for number in range(30)]
    assert names(db) == {f"good{number}" for number in range(30) if number % 3}


def test_a_statement_that_the_database_refuses_is_named_and_spares_the_others(db: Database) -> None:
    async def together() -> list[object]:
        return await asyncio.gather(
            db.awrite(setting("one")),
            db.awrite(lambda tx: tx.execute("SELECT nothing FROM nowhere")),
            db.awrite(setting("two")),
            return_exceptions=True,
        )

    outcomes = asyncio.run(together())
    assert isinstance(outcomes[1], StorageError)
    assert names(db) == {"one", "two"}


def test_a_number_that_no_column_holds_is_the_askers_fault_and_spares_the_others(sqlite: Database) -> None:
    with pytest.raises(UserError, match="a number is larger"):
        sqlite.read(lambda tx: tx.execute("SELECT 1 WHERE 1 = :number", {"number": 2**70}))
    assert sqlite.read(lambda tx: tx.execute("SELECT 1 AS one"))[0].one == 1


def test_writes_that_wait_together_share_commits(sqlite: Database) -> None:
    started, go = threading.Event(), threading.Event()

    def holding(tx: Connection) -> None:
        started.set()
        go.wait()

    async def together() -> None:
        first = asyncio.ensure_future(sqlite.awrite(holding))
        await asyncio.to_thread(started.wait)
        rest = [asyncio.ensure_future(sqlite.awrite(setting(str(number)))) for number in range(10)]
        await asyncio.sleep(0)
        go.set()
        await asyncio.gather(first, *rest)

    before = wal_commits(sqlite)
    asyncio.run(together())
    assert names(sqlite) == {str(number) for number in range(10)}
    assert wal_commits(sqlite) - before < 10


def wal_commits(db: Database) -> int:
    """Commit frames in the write-ahead log: those that say the database's size."""
    log = Path(f"{db.name}-wal")
    data = log.read_bytes() if log.exists() else b""
    page = int.from_bytes(data[8:12], "big") if data else 1
    frames = range(32, len(data) - 23, 24 + page)
    return sum(1 for at in frames if int.from_bytes(data[at + 4 : at + 8], "big"))


def test_what_was_handed_over_is_written_although_its_caller_was_cancelled(db: Database) -> None:
    async def cancelled() -> None:
        task = asyncio.ensure_future(db.awrite(setting("kept")))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    db.write(lambda tx: None)
    assert names(db) == {"kept"}


def test_closing_commits_what_waits_and_then_refuses(db: Database) -> None:
    for number in range(50):
        db.submit(setting(str(number)))
    db.close()
    db.close()
    with pytest.raises(StorageError, match="is closed"):
        db.write(setting("late"))
    with pytest.raises(StorageError, match="is closed"):
        db.read(lambda tx: None)


def test_a_write_inside_a_write_is_refused_instead_of_waiting_for_itself(db: Database) -> None:
    with pytest.raises(InternalError, match="inside its own transaction"):
        db.write(lambda tx: db.write(setting("inner")))


def test_a_reader_has_one_snapshot_and_never_waits_for_the_writer(db: Database) -> None:
    db.write(setting("before"))

    def looking(tx: Connection) -> tuple[int, int]:
        first = len(tx.execute("SELECT name FROM meta"))
        thread = threading.Thread(target=lambda: db.write(setting("meanwhile")))
        thread.start()
        thread.join()
        return first, len(tx.execute("SELECT name FROM meta"))

    assert db.read(looking) == (1, 1)
    assert names(db) == {"before", "meanwhile"}


def test_a_reader_cannot_write(db: Database) -> None:
    with pytest.raises(StorageError):
        db.read(setting("sneaky"))
    assert names(db) == set()


@pytest.mark.parametrize(
    ("url", "says"),
    [("mysql://x/y", "no kind of run database"), ("sqlite://", "names no database file"), ("sqlite:///:memory:", "names no database file")],
)
def test_a_url_that_names_no_database_is_refused(url: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Database.open(url)


def test_full_durability_is_one_word_in_the_url(tmp_path: Path) -> None:
    with Database.open(f"sqlite:///{tmp_path / 'x.db'}?synchronous=full") as db:
        assert db.write(lambda tx: tx.execute("PRAGMA synchronous"))[0].synchronous == 2
    with Database.open(f"sqlite:///{tmp_path / 'x.db'}") as db:
        assert db.write(lambda tx: tx.execute("PRAGMA synchronous"))[0].synchronous == 1
    with pytest.raises(ConfigError, match="synchronous=sometimes"):
        Database.open(f"sqlite:///{tmp_path / 'x.db'}?synchronous=sometimes")


def test_a_server_that_is_not_there_is_an_error_that_hides_the_password(postgres_server: Path) -> None:
    with pytest.raises(StorageError, match="nowhere") as raised:
        Database.open("postgresql://me:s3cret-word@/nowhere?host=/nonexistent")
    assert "s3cret-word" not in str(raised.value)


def test_a_cut_connection_is_replaced_for_writers_and_readers(postgres_url: str) -> None:
    with Database.open(postgres_url) as db:
        db.write(setting("one"))
        names(db)
        with Database.open(postgres_url) as other:
            cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            other.write(lambda tx: tx.execute(cut))
        db.write(setting("two"))
        assert names(db) == {"one", "two"}


def test_a_write_whose_connection_was_cut_before_its_commit_is_run_again(postgres_url: str) -> None:
    with Database.open(postgres_url) as db, Database.open(postgres_url) as other:
        runs: list[int] = []

        def cut_before_commit(tx: Connection) -> None:
            runs.append(tx.execute("SELECT pg_backend_pid() AS pid")[0].pid)
            setting("x")(tx)
            if len(runs) == 1:
                other.write(lambda killer: killer.execute("SELECT pg_terminate_backend(:pid, 5000)", {"pid": runs[-1]}))

        db.write(cut_before_commit)
        assert len(runs) == 2
        db.write(setting("y"))
        assert names(db) == {"x", "y"}


def test_two_writes_that_deadlock_are_both_done_in_the_end(postgres_url: str) -> None:
    with Database.open(postgres_url) as one, Database.open(postgres_url) as two:
        one.write(lambda tx: tx.executemany(SET, [{"name": "a", "value": "-"}, {"name": "b", "value": "-"}]))
        both_hold_a_row = threading.Barrier(2)
        attempts: list[str] = []

        def crossing(first: str, second: str, word: str):
            def write(tx: Connection) -> None:
                attempts.append(word)
                for position, name in enumerate((first, second)):
                    tx.change("UPDATE meta SET value = value || :word WHERE name = :name", {"word": word, "name": name})
                    if position == 0 and attempts.count(word) == 1:
                        both_hold_a_row.wait()

            return write

        thread = threading.Thread(target=lambda: one.write(crossing("a", "b", "1")))
        thread.start()
        two.write(crossing("b", "a", "2"))
        thread.join()
        values = [sorted(row.value) for row in one.read(lambda tx: tx.execute("SELECT value FROM meta"))]
        assert values == [["-", "1", "2"]] * 2
        assert len(attempts) >= 3  # who gave way once may meet the other once more


def test_a_damaged_file_is_an_error_that_names_it_and_others_go_on(tmp_path: Path) -> None:
    bad, good = tmp_path / "bad.db", tmp_path / "good.db"
    for path in (bad, good):
        with Database.open(f"sqlite:///{path}") as db:
            Documents(db).put("tasks", "a", "task", {"x": "y" * 50_000})
    bad.write_bytes(b"not a database at all" * 100)
    with pytest.raises(StorageError, match=r"bad\.db is damaged"):
        Database.open(f"sqlite:///{bad}")
    with Database.open(f"sqlite:///{good}") as db:
        assert Documents(db).get("tasks", "a") is not None


def test_rs03_a_truncated_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "cut.db"
    with Database.open(f"sqlite:///{path}") as db:
        for number in range(20):
            Documents(db).put("tasks", str(number), "task", {"x": "y" * 50_000})
    os.truncate(path, path.stat().st_size // 2)

    def read_all() -> None:
        with Database.open(f"sqlite:///{path}") as db:
            for number in range(20):
                Documents(db).get("tasks", str(number))

    with pytest.raises(StorageError, match=r"cut\.db is damaged"):
        read_all()


def test_a_file_that_was_removed_or_replaced_meanwhile_is_known_to_keep_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with Database.open(f"sqlite:///{path}") as db:
        db.write(setting("a"))
        kept = [db.keeps_what_was_written()]
        path.unlink()
        db.write(setting("b"))
        kept.append(db.keeps_what_was_written())
        path.touch()
        kept.append(db.keeps_what_was_written())
    assert kept == [True, False, False]


def test_a_file_that_stays_locked_is_an_error_after_the_limit(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'x.db'}"
    with Database.open(url) as holder, Database.open(url, limits=replace(DEFAULT_LIMITS, database_busy_seconds=0.05)) as waiter:
        go = threading.Event()
        started = threading.Event()
        thread = threading.Thread(target=lambda: holder.write(lambda tx: (started.set(), go.wait())))
        thread.start()
        started.wait()
        with pytest.raises(StorageError, match="stayed locked"):
            waiter.write(setting("a"))
        go.set()
        thread.join()
        waiter.write(setting("b"))
        assert names(waiter) == {"b"}


@contextmanager
def small_disk(folder: Path, mebibytes: int) -> Iterator[None]:
    folder.mkdir()
    mounted = (
        os.getuid() == 0
        and subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", folder], check=False).returncode == 0
    )
    if not mounted:
        pytest.skip("agentenv-capability-missing: mount")
    try:
        yield
    finally:
        subprocess.run(["umount", folder], check=True)


def test_d05_a_full_disk_fails_the_write_keeps_what_was_and_works_again(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with small_disk(disk, 4), Database.open(f"sqlite:///{disk / 'x.db'}") as db:
        journal = Journal(db)
        ballast = disk / "ballast"
        ballast.write_bytes(b"\0" * 1_500_000)

        async def commit(lease: Lease, number: int, size: int) -> None:
            attempt = await journal.start_attempt(lease, "s", number=number)
            await journal.finish_attempt(lease, attempt, state="succeeded", updates=[["set", ["x"], "y" * size]])

        async def fill_and_free() -> int:
            await journal.create_run(NewRun("run-1", "i", "t"))
            lease = await journal.claim("run-1")
            for number in range(1, 100):
                try:
                    await commit(lease, number, 200_000)
                except StorageError as error:
                    assert "can't be written" in error.message  # noqa: PT017 - how many fitted before is what counts
                    break
            ballast.unlink()
            await commit(lease, number + 1, 5)
            return number - 1

        done = asyncio.run(fill_and_free())
        finished = [attempt for attempt in journal.load("run-1").attempts if attempt.state == "succeeded"]
        assert done > 0
        assert [len(attempt.updates[0][2]) for attempt in finished] == [200_000] * done + [5]


FILE_LIMIT = """
import resource, signal, sys
from agent_env.errors import StorageError
from agent_env.stores import Database, Documents
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with Database.open(sys.argv[1]) as db:
    documents = Documents(db)
    documents.put('tasks', 'before', 'task', {})
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, resource.RLIM_INFINITY))
    try:
        documents.put('tasks', 'large', 'task', {'x': 'y' * 3_000_000})
    except StorageError as error:
        print(error.code, error.concerns == sys.argv[1].removeprefix('sqlite:///'))
    documents.put('tasks', 'small', 'task', {})
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    documents.put('tasks', 'large', 'task', {'x': 'y' * 3_000_000})
    print(documents.ids('tasks'))
"""


def test_d05_a_limit_on_file_sizes_is_met_like_a_full_disk(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FILE_LIMIT, f"sqlite:///{tmp_path / 'x.db'}"], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "storage True\n['before', 'large', 'small']\n"


def test_d05_one_write_that_is_too_large_spares_the_small_ones_that_share_its_commit(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with small_disk(disk, 4), Database.open(f"sqlite:///{disk / 'x.db'}") as db:

        async def together() -> list[object]:
            large = setting("large", "y" * 8_000_000)
            return await asyncio.gather(*(db.awrite(large if n == 5 else setting(str(n))) for n in range(10)), return_exceptions=True)

        outcomes = asyncio.run(together())
        assert [isinstance(outcome, StorageError) for outcome in outcomes] == [n == 5 for n in range(10)]
        assert names(db) == {str(n) for n in range(10) if n != 5}


def test_two_processes_that_write_the_same_document_lose_no_version(database_url: str) -> None:
    Database.open(database_url).close()
    writers = [actor("count", database_url, "shared", "100") for _ in range(3)]
    said = [[int(line) for line in writer.communicate(timeout=100)[0].split()] for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0, 0]
    assert sorted(version for versions in said for version in versions) == list(range(1, 301))
    with Database.open(database_url) as db:
        assert Documents(db).versions("tasks", "shared") == list(range(1, 301))


def test_processes_that_open_a_new_database_at_once_all_succeed(database_url: str) -> None:
    writers = [actor("count", database_url, f"id{number}", "1") for number in range(3)]
    assert [writer.communicate(timeout=60)[0] for writer in writers] == ["1\n"] * 3


@pytest.mark.parametrize("seed", range(4))
def test_d01_what_was_awaited_survives_a_kill(database_url: str, seed: int) -> None:
    source = random.Random(seed)
    with Database.open(database_url) as db:
        journal = Journal(db)
        asyncio.run(journal.create_run(NewRun("run-1", "i", "t")))
        said: list[str] = []
        for _ in range(2):
            writer = actor("commit_for_ever", database_url, "run-1")
            assert writer.stdout is not None
            for _ in range(source.randrange(1, 60)):
                said.append(writer.stdout.readline().strip())
            writer.kill()
            said += writer.stdout.read().split()
            writer.wait()
        stored = journal.load("run-1")
        finished = {attempt.attempt_id for attempt in stored.attempts if attempt.state == "succeeded"}
        assert set(said) <= finished, f"seed {seed}"
        assert len(finished) - len(set(said)) <= 2
        assert stored.run.epoch == 2
        assert [attempt.ended for attempt in stored.attempts if attempt.ended] == sorted(a.ended for a in stored.attempts if a.ended)
        sequence = [event.seq for event in journal.events("run-1")]
        assert sequence == list(range(1, len(sequence) + 1))


def test_rs03_a_reader_sees_whole_documents_while_writers_are_killed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'x.db'}"
    with Database.open(url) as db:
        documents = Documents(db)
        documents.put("tasks", "record", "task", {"n": 0, "padding": "x" * 2000})
        writers = [actor("count", url, "record", "100000") for _ in range(2)]
        for reads in range(10_000):
            found = documents.get("tasks", "record")
            assert found is not None
            assert len(found.body["padding"]) == 2000
            if reads % 2500 == 2499:
                for writer in writers:
                    writer.kill()
                    writer.communicate()
                writers = [actor("count", url, "record", "100000") for _ in range(2)] if reads < 9000 else []
        versions = documents.versions("tasks", "record")
        assert versions == list(range(1, len(versions) + 1))
