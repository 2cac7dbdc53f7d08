"""`resume` of what is finished, `--keep` of what goes on, and the one line that a collection says about what it leaves."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.cli.tasks import PASSING, SCORED_ZERO, SLOW, Steps, bundle
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


def test_a_collection_leaves_what_an_interrupted_run_needs_and_says_so_in_one_line(cli: Cli) -> None:
    run_id, _ = interrupted(cli)
    assert f"go on: agent-env resume {run_id}" in cli("runs", "show", run_id).err
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
