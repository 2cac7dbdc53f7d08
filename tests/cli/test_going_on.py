"""`resume` of what is finished, `--keep` of what goes on, and the one line that a collection says about what it leaves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.cli.tasks import BOX, FAILING, PASSING, SCORED_ZERO, SLOW, Steps, bundle, shell
from tests.cli.test_run import PATIENCE, sandboxes, wait_for_line


def interrupted(cli: Cli) -> tuple[str, Path]:
    folder = bundle(cli.cwd / "b", slow=SLOW)
    process = cli.start("run", folder)
    wait_for_line(process, "box")
    process.kill()
    process.communicate(timeout=PATIENCE)
    return cli("runs", "list", "--json").json["runs"][0]["run_id"], folder


@pytest.mark.parametrize("task", [PASSING, SCORED_ZERO])
def test_resume_of_a_finished_run_says_so_and_shows_its_scores(cli: Cli, task: Steps) -> None:
    first = cli("run", bundle(cli.cwd / "b", a=task), "--json")
    run_id, scores = first.json["runs"][0]["run_id"], first.json["runs"][0]["scores"]
    again = cli("resume", run_id)
    assert f"run {run_id} is finished" in again.err
    assert "nothing is done again" in again.err
    assert again.code == first.code == 0
    assert cli("resume", run_id, "--json").json["runs"][0]["scores"] == scores


def test_resume_says_that_a_script_or_a_task_which_was_mended_since_is_not_what_goes_on(cli: Cli) -> None:
    folder = bundle(cli.cwd / "b", a=FAILING)
    (run_id,) = [run["run_id"] for run in cli("run", folder, "--json").json["runs"]]
    assert "changed in" not in cli("resume", run_id).err
    cli.write("b/artifacts/script/run.py", "def run(input):\n    pass\n")
    again = cli("resume", run_id)
    assert again.code == 1, "it is what was stored that goes on"
    said = f"tasks/a.json, or what it uses, changed in {folder} since, and run {run_id} goes on with what it began with (agent-env run"
    assert said in again.err
    begun = cli("run", folder, "--resume")
    assert begun.code == 0, begun.all
    assert "for other work: tasks/a.json changed since, or what it uses did" in begun.err
    cli.write("t.json", json.dumps([BOX, {**shell("true"), "id": "load", "base_dir": "/nowhere"}]))
    (alone,) = [run["run_id"] for run in cli("run", "t.json", "--json").json["runs"]]
    cli.write("t.json", json.dumps(PASSING))
    assert f"the task changed in {cli.cwd / 't.json'} since, and run {alone} goes on" in cli("resume", alone).err


def test_a_collection_leaves_what_an_interrupted_run_needs_and_says_so_in_one_line(cli: Cli) -> None:
    run_id, _ = interrupted(cli)
    shown = cli("runs", "show", run_id)
    assert f"go on: agent-env resume {run_id}" in shown.err
    listed = cli("runs", "list", "--status", "interrupted", "--json").json["runs"]
    assert [(run["run_id"], run["interrupted"]) for run in listed] == [(run_id, True)]
    assert cli("runs", "list", "--status", "interrupted", "--before", run_id, "--json").json == {"runs": []}
    answer = cli("gc")
    assert answer.out == "nothing to remove\n"
    (said,) = answer.err.splitlines()
    resume = f"agent-env resume {run_id} goes on in them"
    assert said == f"left: sandboxes of 1 interrupted run ({resume}): {run_id}; agent-env gc --all removes them"
    assert len(sandboxes(cli)) == 1
    assert f" of {run_id}: removed" in cli("gc", "--older-than", "0s").out
    assert sandboxes(cli) == []


@pytest.mark.parametrize("text", ["soon", "-1h", "5", "h", "1w", ""])
def test_an_age_that_is_no_time_is_refused(cli: Cli, text: str) -> None:
    answer = cli("gc", f"--older-than={text}")
    assert answer.code == 2
    assert "90s, 30m, 12h, 7d" in answer.err


def test_folders_of_ended_runs_are_one_line(cli: Cli) -> None:
    for name in ("run-a", "run-b", "run-c"):
        (cli.home / "state" / "agent-env" / "runs" / name).mkdir(parents=True)
    assert "scratch folders of 3 ended runs: removed: run-a, run-b, run-c\n" in cli("gc").out
