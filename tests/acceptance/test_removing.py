"""Nothing is left: teardown from anywhere, collection after any death, and never what belongs to somebody else."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.acceptance.conftest import BOX, Home, check, clean_up, code, ended, eventually, killed

TWO = [BOX, {**BOX, "id": "other", "sandbox_name": "other"}, check("true")]
WORKING = {"work": "import pathlib, time\ndef run(i):\n    pathlib.Path('/app/begun').touch()\n    time.sleep(60)\n"}


def kept(home: Home) -> str:
    answer = home("run", home.bundle(a=TWO), "--keep", "--json")
    assert answer.code == 0, answer.err
    assert len(home.folders()) == 2
    return str(answer.json["runs"][0]["run_id"])


def test_a12_teardown_by_run_removes_reports_and_may_be_repeated(home: Home) -> None:
    run_id = kept(home)
    ids = set(home.sandbox_ids(run_id))
    report = home("runs", "teardown", run_id, "--json")
    assert report.code == 0, report.err
    assert set(report.json["removed"]) == ids
    assert home.left() == {}
    again = home("runs", "teardown", run_id, "--json")
    assert (again.code, again.json["removed"], again.json["failed"]) == (0, [], {})


@pytest.mark.parametrize("gone", ["the database", "the whole state folder", "nothing, but another database"])
def test_a12_teardown_by_context_needs_no_database_that_knows_the_run(home: Home, tmp_path: Path, gone: str) -> None:
    run_id = kept(home)
    ids = set(home.sandbox_ids(run_id))
    context = home.write("context.json", home("runs", "show", run_id, "--context").out)
    env = {}
    match gone:
        case "the database":
            for path in home.state.glob("*.db*"):
                path.unlink()
        case "the whole state folder":
            shutil.rmtree(home.state)
        case _:
            env = {"XDG_STATE_HOME": str(tmp_path / "elsewhere")}
    report = home("runs", "teardown", "--context-json", context, "--json", env=env)
    assert report.code == 0, report.all
    assert set(report.json["removed"]) == ids
    assert home.folders() == []
    assert home.processes() == {}
    again = home("runs", "teardown", "--context-json", context, "--json", env=env)
    assert (again.code, again.json["removed"], again.json["failed"]) == (0, [], {})
    assert home("gc", "--kept").code == 0


PUBLIC = """
import asyncio, json, pathlib, sys
from agent_env.engine import teardown_run
for _ in range(2):
    print(json.dumps(asyncio.run(teardown_run(json.loads(pathlib.Path(sys.argv[1]).read_text()))).to_json()))
"""


def test_a12_the_public_function_removes_from_a_fresh_process_twice(home: Home) -> None:
    run_id = kept(home)
    ids = set(home.sandbox_ids(run_id))
    context = home.write("context.json", home("runs", "show", run_id, "--context").out)
    for path in home.state.glob("*.db*"):
        path.unlink()
    done = subprocess.run(
        [sys.executable, "-c", PUBLIC, context], env=home.environ(), capture_output=True, text=True, timeout=60, check=True
    )
    first, second = map(json.loads, done.stdout.splitlines())
    assert set(first["removed"]) == ids
    assert (second["removed"], set(second["absent"]), second["failed"]) == ([], ids, {})


def test_a18_lc08_what_one_home_removes_and_collects_leaves_another_homes_living_and_kept_places(home: Home, tmp_path: Path) -> None:
    other = Home(tmp_path / "two")
    try:
        theirs = kept(other)
        running = other.start("run", other.bundle("c", WORKING, slow=[BOX, code("work")]))
        eventually(lambda: len(other.folders()) == 3, "a third place")
        mine = kept(home)
        dead = home.start("run", home.bundle("c", WORKING, slow=[BOX, code("work")]))
        eventually(lambda: len(home.folders()) == 3, "a third place")
        killed(dead)
        context = home.write("theirs.json", other("runs", "show", theirs, "--context").out)
        assert home("gc", "--kept").code == 0
        home("runs", "teardown", mine)
        assert home.left() == {}
        report = home("runs", "teardown", "--context-json", context, "--json").json
        assert report["removed"] == []
        assert len(other.folders()) == 3
        assert other("exec", f"{theirs}:box", "--", "echo", "alive").out == "alive\n"
        assert running.poll() is None
        assert other("runs", "cancel", other.runs()[0]["run_id"]).code == 0
        ended(running)
        assert other("runs", "teardown", theirs).code == 0
        assert other.left() == {}
    finally:
        clean_up(other)


def test_lc08_collection_spares_the_place_of_a_run_that_lives(home: Home) -> None:
    folder = home.bundle(scripts=WORKING, slow=[BOX, code("work")])
    dead, living = home.start("run", folder), home.start("run", folder)
    eventually(lambda: len(home.folders()) == 2, "two places")
    killed(dead)
    report = home("gc", "--all", "--json").json
    assert len(report["sandboxes"]["removed"]) == 1
    assert len(home.folders()) == 1
    assert living.poll() is None
    living.terminate()
    assert ended(living).code == 143


CUT = {
    "count": "def run(i):\n    with open('/app/count', 'a') as f:\n        f.write('x')\n    return open('/app/count').read()\n",
    "big": "def run(i):\n    return {str(n): n for n in range(2000)}\n",
}
SEVERAL = [
    BOX,
    code("count", "one"),
    code("big", "two"),
    code("count", "three"),
    {**BOX, "id": "more", "sandbox_name": "more"},
    check("test -s /app/count"),
]


def cut_at_any_moment(home: Home, chance: random.Random, times: int) -> None:
    folder = home.bundle(scripts=CUT, several=SEVERAL)
    begun = time.monotonic()
    assert home("run", folder).code == 0
    whole = time.monotonic() - begun
    seen = {home.runs()[0]["run_id"]}
    for number in range(times):
        process = home.start("run", folder, "--json")
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=chance.uniform(0, whole))
        killed(process)
        newest, known = home.runs()[0], seen.copy()
        seen.add(newest["run_id"])
        cut = newest if newest["interrupted"] and newest["run_id"] not in known else None
        if cut and number % 2:
            before = {step["step_id"] for step in home.show(cut["run_id"])["steps"] if step["state"] == "completed"}
            resumed = home("resume", cut["run_id"], "--json")
            assert resumed.code == 0, resumed.all
            assert resumed.json["runs"][0]["scores"] == {"check": 1.0}
            again = [s for s in home.show(cut["run_id"])["steps"] if s["step_id"] in before and s["state"] == "completed"]
            assert len(again) == len(before)
        collected = home("gc", "--all", "--json")
        assert collected.code == 0, collected.all
        assert collected.json["sandboxes"]["failed"] == {}
        assert home.left() == {}, f"after kill {number}"
    states = {row["state"] for run in home.runs() for row in home.show(run["run_id"])["resources"]}
    assert states == {"closed"}


def test_d1_killed_at_any_moment_resume_and_collection_leave_nothing(home: Home, chance: random.Random) -> None:
    cut_at_any_moment(home, chance, 6)


@pytest.mark.slow
def test_d1_killed_at_many_moments_resume_and_collection_leave_nothing(home: Home, chance: random.Random) -> None:
    cut_at_any_moment(home, chance, 100)


def test_a_copied_state_folder_leaves_the_originals_sandboxes_alone_and_a_moved_one_owns_them(home: Home, tmp_path: Path) -> None:
    run_id = kept(home)
    ids = set(home.sandbox_ids(run_id))
    subprocess.run(["cp", "-a", home.state.parent, tmp_path / "copy"], check=True)
    copy = {"XDG_STATE_HOME": str(tmp_path / "copy")}
    collected = home("gc", "--all", env=copy)
    assert (collected.code, collected.err.count(f"is a copy of {home.state}")) == (0, 1), collected.all
    assert "of another installation" in collected.err
    refused = home("runs", "teardown", run_id, env=copy)
    assert (refused.code, refused.out.count(f"it belongs to the installation in {home.state}")) == (1, 2), refused.all
    assert f"hint: AGENT_ENV_STATE_ROOT={home.state} agent-env runs teardown {run_id}" in refused.err
    assert "is a copy of" not in refused.err.replace("of which this state folder is a copy", "")
    taken_down = home("agent", "rm", run_id, env=copy)
    assert (taken_down.code, taken_down.out.count(f"it belongs to the installation in {home.state}")) == (1, 2), taken_down.all
    entered = home("exec", f"{run_id}:other", "--", "true", env=copy)
    assert (entered.code != 0, "of which this state folder is a copy" in entered.err) == (True, True), entered.all
    removed = home("runs", "rm", run_id, env=copy)
    assert removed.code == 0, removed.all
    assert home("exec", f"{run_id}:other", "--", "true").code == 0
    home.state.parent.rename(tmp_path / "moved")
    moved = {"XDG_STATE_HOME": str(tmp_path / "moved")}
    assert home("exec", f"{run_id}:other", "--", "true", env=moved).code == 0
    report = home("gc", "--all", "--json", env=moved)
    assert set(report.json["sandboxes"]["removed"]) == ids, report.all
    assert (home.folders(), home.processes()) == ([], {})
