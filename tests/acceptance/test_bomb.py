"""Must-show 3: a script that forks without end is the task's own fault, told at its limit, and never the infrastructure's."""

from __future__ import annotations

import json

from tests.acceptance.conftest import BOX, Home, check, code
from tests.busy import within

BOMB = """
import os
def run(given):
    while True:
        try:
            os.fork()
        except OSError:
            pass
"""
SOON = 4.0
"""Seconds for the whole run: a limit of one, two for thousands of processes to end on a machine in use, and deploying and removing."""


def test_a_script_that_forks_without_end_is_told_as_timed_out_and_what_follows_is_graded(home: Home) -> None:
    steps = [BOX, code("bomb", timeout_seconds=1, fail_task_on_error=False), check("echo alive")]
    answer = home("run", home.bundle(scripts={"bomb": BOMB}, a=steps), "--json")
    (run,) = answer.json["runs"]
    assert run["scores"] == {"check": 1.0}, answer.all
    assert run["duration_seconds"] < within(SOON)
    step = next(step for step in home.show(run["run_id"])["steps"] if step["step_id"] == "work")
    assert "timed out after 1s" in json.dumps(step)
    assert home.left() == {}
