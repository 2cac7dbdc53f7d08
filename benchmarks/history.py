"""History: the first page of a long list of runs, and results with many keys."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

from agent_env.stores import Database, Journal
from benchmarks.measure import Figure, median_seconds

RUNS = 100_000


def figures(bare: float) -> Iterator[Figure]:
    """Fills a database with runs and opens its first page."""
    with tempfile.TemporaryDirectory(prefix="agent-env-bench-") as folder, Database.open(f"sqlite:///{Path(folder) / 'runs.db'}") as db:
        journal = Journal(db)
        fill(db)
        seconds = median_seconds(lambda: journal.list_runs(limit=50), repeat=9)
        yield Figure(f"first page of {RUNS} stored runs", seconds * 1000, "ms", 50, seconds / bare)


def fill(db: Database) -> None:
    """Writes finished runs straight into the table: the list's cost is measured, not the engine's."""
    rows = [
        {
            "run": uuid.uuid4().hex,
            "task": f"task-{number % 97}",
            "at": f"2030-01-01T{number // 3600 % 24:02}:{number // 60 % 60:02}:{number % 60:02}.{number:06}Z",
        }
        for number in range(RUNS)
    ]
    db.write(
        lambda tx: tx.executemany(
            "INSERT INTO runs (run_id, instance_id, task_id, status, created_at) VALUES (:run, :run, :task, 'completed', :at)", rows
        )
    )
