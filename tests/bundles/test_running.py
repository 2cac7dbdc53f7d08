"""Bundles run through one engine: to a score, many at once, resumed by content."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

from agent_env.artifacts import Artifacts
from agent_env.bundles import (
    BundleRun,
    BundleRunRequest,
    Earlier,
    TaskRun,
    WorkItem,
    Written,
    dry_run,
    find_bundle,
    new_bundle,
    run_bundle,
)
from agent_env.bundles.report import summary_lines
from agent_env.config import Config, load_config
from agent_env.engine import Engine, Event
from agent_env.engine.opening import open_engine
from agent_env.engine.options import Stores
from agent_env.errors import ProblemsError
from agent_env.stores.opening import open_memory
from tests.bundles.building import BOX, GOOD, write

T = TypeVar("T")
REFERENCE_HELLO = [
    {"id": "box", "type": "deploy_sandbox", "sandbox_name": "box", "sandbox_mode": "vm", "sandbox_type": "local"},
    {"id": "load", "type": "load_artifact", "sandbox_name": "box", "artifact_id": "greeting", "destination_path": "/app/greeting"},
    {
        "id": "hello",
        "type": "verify_sandbox",
        "sandbox_name": "box",
        "base_dir": "/app/greeting",
        "verifier_id": "hello",
        "criteria": [
            {"type": "probe_file_contains", "criterion": "the greeting is there", "paths": ["hello.txt"], "expected": "hello"},
            {"type": "bash_cmd_succeeds", "criterion": "the check passes", "bash_cmd": "bash check.sh"},
        ],
    },
]
HELLO = {
    "README.md": "# Hello\n",
    "artifacts/greeting/hello.txt": "hello\n",
    "artifacts/greeting/check.sh": "grep -q hello hello.txt\n",
    "tasks/hello.json": REFERENCE_HELLO,
}


class Recording:
    """An observer that keeps what it was told."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.outcomes: list[TaskRun] = []
        self.events: list[Event] = []
        self.started: list[str] = []
        self.written: Written | None = None
        self._stop_after = stop_after

    def on_written(self, written: Written) -> None:
        self.written = written

    def on_earlier(self, earlier: Earlier) -> None:
        self.earlier = earlier

    def on_work(self, items: Sequence[WorkItem], concurrency: int, group_id: str) -> None:
        self.items, self.concurrency = items, concurrency

    def on_started(self, item: WorkItem, run_id: str) -> None:
        self.started.append(run_id)

    def on_event(self, event: Event) -> None:
        self.events.append(event)

    def on_outcome(self, run: TaskRun) -> None:
        self.outcomes.append(run)
        if self._stop_after is not None and len(self.outcomes) == self._stop_after:
            for task in asyncio.all_tasks():
                if task.get_name() == "the call":
                    task.cancel()

    def on_wait(self, bundle_id: str) -> None:
        raise AssertionError(f"nobody else writes {bundle_id}")


@pytest.fixture
def config(home: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "state"))
    return load_config(home, os.environ)


def with_engine(config: Config, work: Callable[[Engine], Awaitable[T]]) -> T:
    async def main() -> T:
        async with open_engine(config) as engine:
            return await work(engine)

    return asyncio.run(main())


def run(config: Config, folder: Path | str, observer: Recording | None = None, **options: Any) -> BundleRun:
    found = find_bundle(str(folder))
    request = BundleRunRequest(found.folder, found.id_root, found.name, **options)
    return with_engine(config, lambda engine: run_bundle(request, engine, config=config, observer=observer))


def interrupted(config: Config, folder: Path, after: int, **options: Any) -> Recording:
    """A call that is cancelled once so many runs have ended."""
    observer = Recording(stop_after=after)

    async def work(engine: Engine) -> None:
        request = BundleRunRequest(folder, **options)
        call = asyncio.create_task(run_bundle(request, engine, config=config, observer=observer), name="the call")
        with pytest.raises(asyncio.CancelledError):
            await call

    with_engine(config, work)
    return observer


def test_the_references_hello_layout_runs_unmodified(tmp_path: Path, config: Config) -> None:
    observer = Recording()
    call = run(config, write(tmp_path / "hello", HELLO), observer)
    assert [(task.task, task.outcome.status, dict(task.outcome.scores)) for task in call.runs] == [
        ("tasks/hello.json", "completed", {"hello": 1.0})
    ]
    assert call.verdict().passed
    assert (call.runs[0].result.task, call.runs[0].result.word, call.runs[0].result.version) == ("tasks/hello.json", "passed", 1)
    assert {"run_started", "step_done", "run_finished"} <= {event.kind for event in observer.events}
    report = call.verdict().to_json()
    assert json.loads(json.dumps(report)) == report
    assert set(report) == {
        *("runs", "passed", "mean_score", "standard_error", "counted", "not_counted"),
        *("group_id", "not_started"),
    }
    assert set(report["runs"][0]) == {"run_id", "task", "status", "kind", "scores", "score", "duration_seconds", "error"}


def test_the_shipped_hello_runs_by_its_name(config: Config) -> None:
    assert run(config, "hello").verdict().passed


def test_a_new_bundle_runs_and_passes(tmp_path: Path, config: Config) -> None:
    new_bundle(tmp_path / "first")
    assert run(config, tmp_path / "first").verdict().passed


def test_cl01_a_score_below_one_is_completed_and_not_passed(tmp_path: Path, config: Config) -> None:
    call = run(config, write(tmp_path / "hello", {**HELLO, "artifacts/greeting/check.sh": "exit 1\n"}))
    assert (call.verdict().completed, call.verdict().passed) == (True, False)
    assert call.verdict().mean is not None
    assert call.verdict().ok
    assert not call.verdict(1.0).ok


def test_attempts_and_seeds_are_runs_of_one_group(tmp_path: Path, config: Config) -> None:
    steps = [
        {**REFERENCE_HELLO[0]},
        REFERENCE_HELLO[1],
        {
            **REFERENCE_HELLO[2],
            "criteria": [{"type": "bash_cmd_succeeds", "criterion": "seeded", "bash_cmd": "test <seed> -ge 0 && test <word> = b"}],
        },
    ]
    root = write(tmp_path / "seeded", {**HELLO, "tasks/hello.json": steps})
    observer = Recording()
    options = {"attempts": 2, "seeds": [{"word": "a"}, {"word": "b"}], "seed": 7, "concurrency": 3}
    call = run(config, root, observer, **options)
    assert [task.outcome.scores["hello"] for task in call.runs] == [0.0, 1.0, 0.0, 1.0]
    assert observer.concurrency == 3
    seeds = [item.seed["seed"] for item in observer.items]
    assert len(set(seeds)) == 4
    again = Recording()
    run(config, root, again, **options)
    assert [item.seed["seed"] for item in again.items] == seeds
    assert [item.key for item in again.items] == [item.key for item in observer.items]


def test_an_eval_is_run_and_what_it_does_not_name_is_skipped(tmp_path: Path, config: Config) -> None:
    root = write(tmp_path / "evaluated", {**HELLO, "tasks/other.json": [BOX], "evals/e.toml": 'tasks = ["hello"]'})
    call = run(config, root)
    assert [task.task for task in call.runs] == ["tasks/hello.json"]
    assert list(summary_lines(call)) == ["evals/e.toml: 1 of 1 passed", "Skipped, because no eval names them: tasks/other.json"]
    assert [task.task for task in run(config, root, tasks=["other"]).runs] == ["tasks/other.json"]


def test_f15_an_interrupted_call_is_resumed_and_finished_runs_are_not_repeated(tmp_path: Path, config: Config) -> None:
    root = write(tmp_path / "many", {**HELLO, **{f"tasks/t{number}.json": REFERENCE_HELLO for number in range(4)}})
    first = interrupted(config, root, after=2, concurrency=1)
    finished = [task.outcome.run_id for task in first.outcomes if task.outcome.status == "completed"]
    assert len(finished) >= 2
    second = Recording()
    call = run(config, root, second, resume=True, concurrency=2)
    assert len(call.runs) == 5
    assert call.verdict().passed
    assert {task.outcome.run_id for task in call.runs if task.reused} == set(finished)
    assert not set(finished) & set(second.started)
    third = run(config, root, resume=True)
    assert all(task.reused for task in third.runs)
    assert third.group_id == call.group_id


def test_f15_a_moved_folder_still_resumes(tmp_path: Path, config: Config) -> None:
    root = write(tmp_path / "here", HELLO)
    first = run(config, root)
    moved = Path(shutil.move(root, tmp_path / "there"))
    second = run(config, moved, resume=True)
    assert second.runs[0].reused
    assert second.runs[0].outcome.run_id == first.runs[0].outcome.run_id
    write(moved, {"artifacts/greeting/hello.txt": "hello again\n"})
    assert not run(config, moved, resume=True).runs[0].reused


def test_f15_a_task_may_be_named_like_the_artifact_that_it_loads(tmp_path: Path, config: Config) -> None:
    root = write(tmp_path / "bundle", {**GOOD, "tasks/inputs.json": GOOD["tasks/good.json"]})
    assert {task.task for task in run(config, root).runs} == {"tasks/good.json", "tasks/inputs.json"}
    assert all(task.reused for task in run(config, root, resume=True).runs)
    write(root, {"artifacts/inputs/one.txt": "another\n"})
    again = run(config, root, resume=True)
    assert len(again.runs) == 2
    assert not any(task.reused for task in again.runs)
    assert again.verdict().passed
    assert run(config, root, tasks=["inputs"]).verdict().passed


def test_a_run_of_another_content_is_not_resumed(tmp_path: Path, config: Config) -> None:
    root = write(tmp_path / "bundle", HELLO)
    run(config, root)
    assert not run(config, root, resume=True, seed=1).runs[0].reused


def test_a_call_goes_on_with_the_group_of_its_own_seeds_alone(tmp_path: Path, config: Config) -> None:
    criterion = {"type": "bash_cmd_succeeds", "criterion": "seeded", "bash_cmd": "test <word> != none"}
    root = write(
        tmp_path / "seeded", {**HELLO, "tasks/hello.json": [*REFERENCE_HELLO[:2], {**REFERENCE_HELLO[2], "criteria": [criterion]}]}
    )
    mine, others = [{"word": "same"}, {"word": "mine"}], [{"word": "same"}, {"word": "theirs"}]
    first = interrupted(config, root, after=1, seeds=mine, concurrency=1)
    between = run(config, root, seeds=others)
    observer = Recording()
    again = run(config, root, observer, seeds=mine, resume=True)
    assert again.verdict().passed
    assert again.runs[0].outcome.run_id == first.outcomes[0].outcome.run_id
    assert again.group_id != between.group_id
    assert f"going on with {again.group_id}: 1 kept, " in observer.earlier.said()
    with open_memory(config) as memory:
        rows = {group: list(memory.journal.runs_of_group(group)) for group in (between.group_id, again.group_id)}
    assert {group: sorted(row.attempt_index for row in each) for group, each in rows.items()} == {group: [0, 1] for group in rows}
    other = Recording()
    assert run(config, root, other, seeds=[*mine, {"word": "third"}], resume=True).group_id not in rows
    assert other.earlier.differs == ("the seeds differ",)
    write(root, {"tasks/hello.json": [REFERENCE_HELLO[0]]})
    assert run(config, root, observer, resume=True, seeds=()).group_id not in rows
    assert "tasks/hello.json changed since" in observer.earlier.said()


def test_tp12_a_call_does_not_depend_on_the_current_folder(tmp_path: Path, config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "bundle", HELLO)
    monkeypatch.chdir(tmp_path)
    run(config, "./bundle")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert run(config, "../bundle", resume=True).runs[0].reused


def test_a_default_sandbox_of_the_bundle_fills_what_steps_leave_open_tp02(tmp_path: Path, config: Config) -> None:
    steps = [{key: value for key, value in REFERENCE_HELLO[0].items() if key != "sandbox_type"}, *REFERENCE_HELLO[1:]]
    root = write(tmp_path / "bundle", {**GOOD, **HELLO, "tasks/hello.json": steps, "bundle.toml": '[defaults]\nsandbox = "nowhere"'})
    assert run(config, root, tasks=["good"]).verdict().completed
    with pytest.raises(ProblemsError, match="nowhere") as raised:
        run(config, root, tasks=["hello", "good"])
    assert [(problem.file, problem.path) for problem in raised.value.problems] == [("tasks/hello.json", "$[0]")]


def test_a_deploy_that_no_provider_can_make_is_refused_before_anything_runs(tmp_path: Path, config: Config) -> None:
    many = {f"tasks/t{number}.json": [{**BOX, "sandbox_type": "nowhere,local"}] for number in range(3)}
    root = write(tmp_path / "bundle", {**HELLO, **many, "tasks/c.json": [{**BOX, "sandbox_type": "rootfs"}]})
    assert run(config, root, tasks=["hello"]).verdict().passed
    with pytest.raises(ProblemsError) as raised:
        run(config, root)
    told = {problem.file: problem.message for problem in raised.value.problems}
    assert set(told) == {"tasks/c.json", "tasks/t0.json"}
    assert "rootfs" in told["tasks/c.json"]
    assert "and 2 more deploys" in told["tasks/t0.json"]


CALL = """
import asyncio, os, sys
from pathlib import Path
from agent_env.bundles import BundleRunRequest, run_bundle
from agent_env.config import load_config
from agent_env.engine.opening import open_engine
from tests.bundles.test_running import Recording

class Telling(Recording):
    def on_outcome(self, run):
        print(run.outcome.run_id, run.outcome.status, flush=True)

async def main():
    config = load_config(Path(sys.argv[2]), os.environ)
    async with open_engine(config) as engine:
        await run_bundle(BundleRunRequest(sys.argv[1], concurrency=2), engine, config=config, observer=Telling())

asyncio.run(main())
"""


def test_f15_a_killed_call_is_resumed_in_another_process(tmp_path: Path, config: Config, home: Path) -> None:
    slow = [
        *REFERENCE_HELLO[:2],
        {**REFERENCE_HELLO[2], "criteria": [{"type": "bash_cmd_succeeds", "criterion": "x", "bash_cmd": "sleep 0.2"}]},
    ]
    root = write(tmp_path / "many", {**HELLO, **{f"tasks/t{number}.json": slow for number in range(6)}})
    argv = [sys.executable, "-c", CALL, str(root), str(home)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as process:
        assert process.stdout is not None
        finished = [process.stdout.readline().split()[0] for _ in range(3)]
        process.kill()
    observer = Recording()
    call = run(config, root, observer, resume=True)
    assert call.verdict().passed, [task.outcome.error for task in call.runs]
    assert len(call.runs) == 7
    assert set(finished) <= {task.outcome.run_id for task in call.runs if task.reused}
    assert not set(finished) & set(observer.started)


def test_a_dry_run_of_many_tasks_is_cheap(tmp_path: Path, config: Config) -> None:
    tasks = {f"tasks/t{number}.json": [*REFERENCE_HELLO[:2], {**REFERENCE_HELLO[2], "verifier_id": f"v{number}"}] for number in range(500)}
    root = write(tmp_path / "many", {**HELLO, **tasks})

    def seconds(only: str | None) -> float:
        with open_memory(config) as memory:
            stores = Stores(
                memory.db, memory.documents, memory.objects, memory.journal, memory.secrets, Artifacts(memory.documents, memory.objects)
            )
            start = time.process_time()
            dry = dry_run(BundleRunRequest(root, tasks=[only] if only else ()), stores)
            assert dry.runs == (1 if only else 501)
            return time.process_time() - start

    seconds("hello")
    each = min(seconds(None) for _ in range(3)) / 501
    assert each < 0.0015, f"{each * 1000:.2f} ms a task"
