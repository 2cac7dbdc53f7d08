"""`agent-env runs`: looking back, following, stopping, removing."""

from __future__ import annotations

import json
import re
import shutil
import signal
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from agent_env.cli.comparing import compared
from agent_env.cli.rows import criteria_not_passed, criteria_not_scored
from agent_env.cli.stored import recorded_as_up
from agent_env.config import load_config
from agent_env.documents.scoring import Tally, tally
from agent_env.stores.opening import open_memory
from agent_env.stores.records import RunRow, RunStatus
from tests.cli.conftest import Cli
from tests.cli.tasks import BOX, FAILING, PASSING, REVIEWED, SCORED_ZERO, SLOW, Steps, bundle, graded, shell
from tests.cli.test_run import PATIENCE, sandboxes, wait_for_line

RUN_KEYS = {
    "run_id",
    "task",
    "task_version",
    "status",
    "interrupted",
    "outcome",
    "kind",
    "scores",
    "score",
    "created_at",
    "started_at",
    "finished_at",
    "duration_seconds",
    "error",
    "instance_id",
    "group_id",
    "attempt",
    "attempts",
}


def one_run(cli: Cli, steps: Steps, *options: str) -> str:
    answer = cli("run", cli.write("t.json", steps), "--json", *options)
    assert answer.code == 0, answer.err
    return str(answer.json["runs"][-1]["run_id"])


def test_must_show_8_runs_list_is_one_documented_object_newest_first(cli: Cli) -> None:
    ids = [one_run(cli, PASSING) for _ in range(3)]
    listed = cli("runs", "list", "--json").json
    assert set(listed) == {"runs"}
    assert [run["run_id"] for run in listed["runs"]] == ids[::-1]
    assert set(listed["runs"][0]) == RUN_KEYS
    page = cli("runs", "list", "--json", "--limit", "2").json["runs"]
    rest = cli("runs", "list", "--json", "--before", page[-1]["run_id"]).json["runs"]
    assert [run["run_id"] for run in (*page, *rest)] == ids[::-1]
    said = cli("runs", "list", "--limit", "2", "--status", "completed").err
    assert said == f"more: agent-env runs list --status completed --limit 2 --before {ids[1]}\n"
    assert cli("runs", "list", "--limit", "3").err == ""


def test_runs_list_filters_by_status_and_task(cli: Cli) -> None:
    run_id = one_run(cli, PASSING)
    task = cli("runs", "show", run_id, "--json").json["task"]
    assert [run["run_id"] for run in cli("runs", "list", "--json", "--task", task).json["runs"]] == [run_id]
    assert cli("runs", "list", "--json", "--status", "failed").json == {"runs": []}
    assert cli("runs", "list", "--status", "nope").code == 2


def test_runs_show_tells_steps_places_and_limits_also_by_the_first_letters(cli: Cli) -> None:
    run_id = one_run(cli, PASSING)
    shown = cli("runs", "show", run_id[:-3], "--json").json
    assert set(shown) > RUN_KEYS
    assert [step["step_id"] for step in shown["steps"]] == ["box", "check"]
    assert shown["resources"][0]["state"] == "closed"
    assert shown["notes"]["sandboxes"]["box"]["levels"]
    text = cli("runs", "show", run_id).out
    assert run_id in text
    assert "memory" in text


def test_runs_show_works_when_stored_objects_are_gone(cli: Cli) -> None:
    folder = bundle(
        cli.cwd / "b", a=[BOX, {"id": "l", "type": "load_artifact", "sandbox_name": "box", "artifact_id": "script"}, shell("true")]
    )
    run_id = cli("run", folder, "--json").json["runs"][0]["run_id"]
    shutil.rmtree(cli.home / "state/agent-env/objects")
    assert cli("runs", "show", run_id, "--json").json["status"] == "completed"
    assert cli("runs", "show", run_id).code == 0


def test_runs_show_context_can_be_read_by_context_json(cli: Cli) -> None:
    run_id = one_run(cli, PASSING, "--keep")
    context = cli.write("context.json", cli("runs", "show", run_id, "--context").out)
    assert cli("task", "create", cli.write("t.json", PASSING), "--id", "t").code == 0
    again = cli("task", "run", "--id", "t", "--start-step", "1", "--context-json", context, "--json", "--output-dir", "out", "--keep")
    assert again.code == 0, again.err
    assert again.json["runs"][0]["scores"] == {"check": 1.0}
    # What a step needs that is not done again may be missing by now, and what one needs that is may not.
    box = {
        **BOX,
        "sandbox_mode": "container",
        "image": "absent/image:1",
        "port": 80,
        "env_vars": {"A": "env:NOWHERE"},
        "sandbox_type": "rootfs",
    }
    assert cli("task", "create", cli.write("t.json", [box, *PASSING[1:]]), "--id", "t", "--skip-validation").code == 0
    run = ("task", "run", "--id", "t", "--context-json", context)
    again = cli(*run, "--start-step", "1", "--json")
    assert again.json["runs"][0]["scores"] == {"check": 1.0}
    refused = cli(*run, "--json")
    assert (refused.code, "NOWHERE" in refused.err) == (2, True)


def test_a_context_brings_its_seed_and_its_overrides_and_what_is_gone_of_it_is_needed_only_where_a_step_acts(cli: Cli) -> None:
    again = {"id": "again", "type": "aggregate_verifiers", "verifier_ids": ["check"]}
    seeded = [*graded('test "<who>" = me'), again]
    assert cli("task", "create", cli.write("t.json", seeded), "--id", "t").code == 0
    cli.write("s.csv", "who\nme\n")
    assert cli("task", "run-batch", "--id", "t", "--seeds", "s.csv", "--output-dir", "out", "-q").code == 0
    (context,) = [path for path in (cli.cwd / "out").iterdir() if path.name != "results.json"]
    run = ("task", "run", "t", "--context-json", context, "--json")
    assert cli(*run, "--start-step", "2").json["runs"][0]["scores"] == {"again": 1.0}
    refused = cli(*run, "--start-step", "1")
    assert (refused.code, "was removed" in refused.err) == (1, True)
    assert context.read_text().count('"who": "me"') == 1
    known = json.loads(context.read_text())
    fresh = {"metadata": {"seed": known["metadata"]["seed"]}}
    answer = cli("task", "run", "t", "--context-json", cli.write("fresh.json", json.dumps(fresh)), "--json")
    assert answer.json["runs"][0]["scores"] == {"check": 1.0, "again": 1.0}
    fresh["metadata"]["user_overrides"] = {"step_params": {"nope": {}}}
    unknown = cli("task", "run", "t", "--context-json", cli.write("fresh.json", json.dumps(fresh)))
    assert (unknown.code, "'nope'" in unknown.err) == (2, True)


def test_unknown_run_is_one_line_and_exit_code_2(cli: Cli) -> None:
    for command in (["runs", "show"], ["runs", "logs"], ["runs", "rm"], ["runs", "cancel"], ["runs", "teardown"], ["resume"]):
        answer = cli(*command, "run-nope")
        assert answer.code == 2, command
        assert "run-nope" in answer.err
        assert "Traceback" not in answer.all


def test_a_run_is_named_without_its_prefix_too_and_where_that_could_be_another_name_the_hint_says_it_whole(cli: Cli) -> None:
    run_id = one_run(cli, PASSING)
    short = run_id.removeprefix("run-")[:6]
    assert cli("runs", "show", short, "--json").json["run_id"] == run_id
    group = cli("runs", "show", run_id, "--json").json["group_id"]
    assert [run["run_id"] for run in cli("runs", "list", "--group", group[:12], "--json").json["runs"]] == [run_id]
    for command in (["env", "rm"], ["agent", "rm"], ["env", "check"], ["agent", "validate"]):
        answer = cli(*command, short)
        assert (answer.code, f"write all of its id: {run_id}" in answer.err) == (2, True), answer.all


@pytest.mark.parametrize(
    "command", [["runs", "rm"], ["runs", "diff"], ["task", "rm"], ["artifact", "rm"], ["env", "rm"], ["agent", "rm"], ["secret", "rm"]]
)
def test_of_several_names_all_that_are_unknown_are_told_at_once(cli: Cli, command: list[str]) -> None:
    answer = cli(*command, "run-one", "run-two")
    assert answer.code == 2
    assert all(name in answer.err for name in ("run-one", "run-two"))


def test_logs_tell_every_event_in_order_and_follow_ends_with_the_run(cli: Cli) -> None:
    run_id = one_run(cli, PASSING)
    events = cli("runs", "logs", run_id, "--json").json["events"]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    kinds = [event["kind"] for event in events]
    assert kinds[0] == "run_started"
    assert "step_done" in kinds
    assert "run_finished" in kinds
    shown = cli("runs", "logs", run_id).out
    assert "step_done     check" in shown
    assert "attempt_id" not in shown, "nobody can use it there"
    assert re.search(r"duration_seconds=\d\.\d{1,6} ", shown)
    followed = cli("runs", "logs", run_id, "--follow", "--json")
    assert [json.loads(text)["seq"] for text in followed.out.splitlines()] == [event["seq"] for event in events]
    assert cli("runs", "logs", run_id, "--json", "--after", str(len(events))).json["events"] == []
    of_step = [event for event in events if event["step_id"] == "check"]
    assert cli("runs", "logs", run_id, "--step", "check", "--json").json["events"] == of_step != []
    followed = cli("runs", "logs", run_id, "--step", "check", "--follow", "--json")
    assert [json.loads(text) for text in followed.out.splitlines()] == of_step
    assert {line.split()[3] for line in cli("runs", "logs", run_id, "--step", "check").out.splitlines()} == {"check"}
    unknown = cli("runs", "logs", run_id, "--step", "chekc", "--step", "nope")
    assert (unknown.code, "did you mean 'check'?" in unknown.err, "it has box, check" in unknown.err) == (2, True, True), unknown.err


def test_what_a_failed_script_printed_is_kept_and_its_error_is_one_line(cli: Cli) -> None:
    folder = bundle(cli.cwd / "b", f=FAILING)
    text = "import sys\ndef run(given):\n    print('to out')\n    print('to err', file=sys.stderr)\n    raise ValueError('bare')\n"
    (folder / "artifacts/script/run.py").write_text(text)
    (told,) = cli("run", folder, "--json").json["runs"]
    assert told["error"]["message"] == "run_code 'work': exited 1: run.py, line 5: ValueError: bare"
    trace = ['  File "run.py", line 5, in run', "ValueError: bare"]
    for shown in (cli("runs", "show", told["run_id"]).out, cli("runs", "logs", told["run_id"]).out):
        lines = [line.strip() for line in shown.splitlines()]
        assert {"stdout of work:", "to out", "stderr of work:", "to err", *map(str.strip, trace)} <= set(lines)
        assert "/tmp/agent_env_run_code" not in shown
    (step,) = (step for step in cli("runs", "show", told["run_id"], "--json").json["steps"] if step["step_id"] == "work")
    (event,) = (each for each in cli("runs", "logs", told["run_id"], "--json").json["events"] if each["kind"] == "step_failed")
    assert event["printed"] == step["printed"]
    assert step["printed"]["stdout"] == "to out"
    assert [line for line in step["printed"]["stderr"].splitlines() if line in trace] == trace
    assert f"all that it printed: agent-env runs logs {told['run_id']} --step work" in cli("resume", told["run_id"]).out


def test_logs_follow_hears_a_living_run_that_has_only_just_begun_and_cancel_stops_it(cli: Cli) -> None:
    cli.env["AGENT_ENV_LIMIT_CONTROL_DELAY_SECONDS"] = "2.5"  # until then it does not listen
    process = cli.start("run", bundle(cli.cwd / "b", slow=SLOW))
    wait_for_line(process, "box")
    run_id = cli("runs", "list", "--json").json["runs"][0]["run_id"]
    follower = cli.start("runs", "logs", run_id, "--follow", "--json")
    assert follower.stdout is not None
    assert json.loads(follower.stdout.readline())["kind"] == "run_started"
    answer = cli("runs", "cancel", run_id, "--json")
    assert answer.code == 0, answer.err
    out, _ = follower.communicate(timeout=PATIENCE)
    assert b"run_finished" in out
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert sandboxes(cli) == []


def test_diff_names_what_two_runs_have_not_in_common(cli: Cli) -> None:
    one, other = one_run(cli, PASSING), cli("run", cli.write("t.json", SCORED_ZERO), "--json").json["runs"][0]["run_id"]
    found = cli("runs", "diff", one, other, "--json").json["differences"]
    assert found["scores.check"] == {"left": 1.0, "right": 0.0}
    assert found["outcome"] == {"left": "passed", "right": "scored below 1"}
    assert "scores.check" in cli("runs", "diff", one, other).out
    assert cli("runs", "diff", one, one).out == "no differences\n"


def test_diff_tells_which_model_was_asked_for_and_show_too(cli: Cli) -> None:
    one, other = one_run(cli, PASSING, "--model", "small"), one_run(cli, PASSING, "--model", "large")
    assert cli("runs", "diff", one, other, "--json").json["differences"]["asked.model"] == {"left": "small", "right": "large"}
    assert "work_key" not in cli("runs", "diff", one, other).out
    assert re.search(r"^model +large$", cli("runs", "show", other).out, re.MULTILINE)


def test_diff_of_two_groups_compares_what_each_task_came_to(cli: Cli) -> None:
    folder = bundle(cli.cwd / "b", good=PASSING, other=SCORED_ZERO)
    before = cli("run", folder, "--attempts", "2", "--json").json["group_id"]
    (folder / "tasks/other.json").write_text(json.dumps(PASSING))
    after = cli("run", folder, "--json").json["group_id"]
    found = cli("runs", "diff", before, after, "--json").json
    assert (found["left"], found["right"]) == (before, after)
    good, other, every = found["tasks"].values()
    assert good["left"] == {"runs": 2, "counted": 2, "passed": 2, "mean": 1.0, "standard_error": 0.0, "not_counted": 0}
    assert (other["left"]["passed"], other["left"]["mean"], other["right"]["mean"], other["change"]) == (0, 0.0, 1.0, 1.0)
    assert (every["left"]["mean"], every["right"]["mean"], every["change"]) == (0.5, 1.0, 0.5)
    assert "+0.500" in cli("runs", "diff", before, after).out
    assert cli("run", folder, "--output", "kept", "--quiet").code == 0
    kept = cli("runs", "diff", before, "kept", "--json").json
    assert kept["tasks"] == found["tasks"]
    assert cli("runs", "diff", "kept/results.json", "kept", "--json").json["left"] == kept["right"]
    assert "tells no group of runs" in cli("runs", "diff", "b/tasks/good.json", "kept").err
    nothing = cli("runs", "diff", "b/tasks", "b/tasks")  # an id of a group may well begin like a folder's name: with `b`
    assert "the folder 'b/tasks' has no results.json, and no run is called so" in nothing.err
    run = cli("runs", "list", "--group", after, "--json").json["runs"][0]["run_id"]
    refused = cli("runs", "diff", before, run)
    assert refused.code == 2
    assert f"{run!r} is no group" in refused.err
    assert f"group       {after}\n" in cli("runs", "show", run).out


def test_a_group_without_a_score_has_no_mean_and_faults_of_the_world_are_not_counted() -> None:
    def ended(kind: str | None, score: float | None) -> RunRow:
        status: RunStatus = "running" if kind is None else "completed" if kind == "completed" else "failed"
        nothing: dict[str, Any] = dict.fromkeys(RunRow.__slots__)
        facts = {"task_id": "t", "kind": kind, "status": status, "word": "passed" if score == 1 else None, "scores": {"v": score}}
        return RunRow(**{**nothing, **facts})

    runs = [ended("completed", 1.0), ended("completed", 0.5), ended("infrastructure", 0.0), ended(None, None)]
    assert tally(runs) == Tally(runs=4, counted=2, passed=1, mean=0.75, standard_error=0.25)
    assert tally(runs[2:]) == Tally(runs=2, counted=0, passed=0, mean=None, standard_error=None)
    crashed = [*runs, ended("task", None), ended("step_timeout", 0.5)]
    assert compared(runs, crashed)["t"]["change"] == 0.5 - 0.75
    assert compared(runs, crashed)["t"]["right"]["not_counted"] == 2
    assert list(compared(runs, [])) == ["t"]
    assert compared(runs, [])["t"]["change"] is None


def test_what_is_up_is_found_however_many_runs_came_after(cli: Cli) -> None:
    kept = one_run(cli, PASSING, "--keep")
    with sqlite3.connect(next(cli.home.rglob("agent-env.db"))) as database:
        own = {"run_id": "'run-' || value", "instance_id": "'instance-' || value", "created_at": "'9999-01-01T00:00:00.000000Z'"}
        names = [name for _, name, *_ in database.execute("PRAGMA table_info(runs)")]
        columns = ", ".join(own.get(name, name) for name in names)
        numbers = "WITH RECURSIVE n(value) AS (SELECT 1 UNION ALL SELECT value + 1 FROM n WHERE value < 300)"
        database.execute(f"{numbers} INSERT INTO runs ({', '.join(names)}) SELECT {columns} FROM n, runs")
    assert len(cli("runs", "list", "--limit", "400", "--json").json["runs"]) == 301
    with open_memory(load_config(cli.cwd, cli.env)) as memory:
        assert [run_id for run_id, _ in recorded_as_up(memory, "deployed_sandboxes")] == [kept]


def test_rm_removes_a_run_but_not_one_with_places(cli: Cli) -> None:
    run_id = one_run(cli, PASSING, "--keep")
    refused = cli("runs", "rm", run_id)
    assert refused.code == 2
    assert "teardown" in refused.err
    left = cli("gc")
    assert left.err == (
        f"left: sandboxes of 1 kept run (agent-env runs teardown {run_id} removes them): {run_id}; agent-env gc --all removes them\n"
    )
    assert cli("runs", "teardown", run_id).code == 0
    folder = cli.home / "state/agent-env/runs" / run_id
    folder.mkdir(parents=True, exist_ok=True)
    assert cli("runs", "rm", run_id, "--json").json == {"removed": [run_id]}
    assert not folder.exists()
    assert cli("runs", "list", "--json").json == {"runs": []}


def test_a12_teardown_is_idempotent_and_reports_what_it_removed(cli: Cli) -> None:
    run_id = one_run(cli, PASSING, "--keep")
    assert len(sandboxes(cli)) == 1
    first = cli("runs", "teardown", run_id, "--json").json
    assert len(first["removed"]) == 1
    again = cli("runs", "teardown", run_id, "--json")
    assert again.code == 0
    assert again.json["removed"] == []
    assert sandboxes(cli) == []


def test_a12_teardown_by_context_works_with_an_empty_database(cli: Cli) -> None:
    run_id = one_run(cli, PASSING, "--keep")
    context = cli.write("context.json", cli("runs", "show", run_id, "--context").out)
    for path in (cli.home / "state/agent-env").glob("agent-env.db*"):
        path.unlink()
    report = cli("runs", "teardown", "--context-json", context, "--json")
    assert report.code == 0, report.err
    assert len(report.json["removed"]) == 1
    assert sandboxes(cli) == []
    assert cli("runs", "teardown", "--context-json", context, "--json").json["removed"] == []


def test_teardown_needs_exactly_one_of_run_and_file(cli: Cli) -> None:
    assert cli("runs", "teardown").code == 2
    assert cli("runs", "teardown", "x", "--context-json", "y").code == 2


def test_review_is_listed_and_decided_from_another_process(cli: Cli) -> None:
    process = cli.start("run", bundle(cli.cwd / "b", asked=REVIEWED))
    before = wait_for_line(process, "box")
    waiting: list[dict[str, object]] = []
    for _ in range(50):
        waiting = cli("runs", "review", "--json").json["reviews"]
        if waiting:
            break
    assert waiting[0]["step_id"] == "ask"
    decide = f"agent-env runs review {waiting[0]['run_id']} ask continue|abort"
    assert f"waits for a person: {decide}" in cli("runs", "show", str(waiting[0]["run_id"])).err
    answer = cli("runs", "review", str(waiting[0]["run_id"]), "ask", "continue", "--by", "Ada", "--json")
    assert answer.json["decided_by"] == "Ada"
    _, told = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    assert f"ask waits for a person: good enough? ({decide})" in str(before + told)
    assert cli("runs", "review", "--json").json == {"reviews": []}
    assert cli("runs", "review", "x", "y").code == 2


def test_d5_killed_run_is_resumed_in_the_same_sandbox(cli: Cli) -> None:
    folder = bundle(cli.cwd / "b")
    (folder / "artifacts/once").mkdir()
    script = (
        "import pathlib, time\ndef run(i):\n    p = pathlib.Path('/app/once')\n    if not p.exists():\n        p.touch(); time.sleep(60)\n"
    )
    (folder / "artifacts/once/run.py").write_text(script)
    steps = [BOX, {"id": "work", "type": "run_code", "sandbox_name": "box", "script_artifact_id": "once"}, shell("test -e /app/once")]
    (folder / "tasks/t.json").write_text(json.dumps(steps))
    process = cli.start("run", folder)
    wait_for_line(process, "box")
    run_id = cli("runs", "list", "--json").json["runs"][0]["run_id"]
    for _ in range(50):
        if cli("exec", run_id, "--", "test", "-e", "/app/once").code == 0:
            break
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=PATIENCE)
    assert cli("runs", "list").out.count("interrupted") == 1
    steps_shown = [line.split()[:4] for line in cli("runs", "show", run_id).out.splitlines()]
    assert ["work", "run_code", "1", "cut"] in steps_shown
    resumed = cli("resume", run_id, "--json")
    assert resumed.code == 0, resumed.err
    assert resumed.json["runs"][0]["scores"] == {"check": 1.0}
    assert sandboxes(cli) == []


def test_resume_refuses_a_decision_that_it_does_not_know(cli: Cli) -> None:
    assert cli("resume", "x", "--decide", "step=perhaps").code == 2


@pytest.mark.parametrize("name", ["x", "../x", "%"])
def test_odd_run_names_are_not_found(cli: Cli, name: str) -> None:
    assert cli("runs", "show", name).code == 2


def test_gc_json_is_the_documented_object_and_dry_run_removes_nothing(cli: Cli) -> None:
    process = cli.start("run", bundle(cli.cwd / "b", slow=SLOW))
    wait_for_line(process, "box")
    process.kill()
    process.communicate(timeout=PATIENCE)
    assert len(sandboxes(cli)) == 1
    dry = cli("gc", "--all", "--dry-run", "--json")
    assert dry.code == 0, dry.err
    assert set(dry.json) == {"dry_run", "sandboxes", "folders", "objects", "images", "kept", "left", "unreachable"}
    assert len(dry.json["sandboxes"]["removed"]) == 1
    assert len(sandboxes(cli)) == 1
    assert len(cli("gc", "--all", "--json").json["sandboxes"]["removed"]) == 1
    assert sandboxes(cli) == []
    assert cli("gc").out == "nothing to remove\n"


def test_stored_secrets_of_overrides_are_nowhere_in_the_state_folder(cli: Cli) -> None:
    canary = "canary-0e1f2a3b4c5d6e7f"
    assert cli("task", "create", cli.write("t.json", graded("true")), "--id", "t").code == 0
    answer = cli("task", "run", "--id", "t", "--litellm-api-key", canary, "--output-dir", "out", "--json")
    assert answer.code == 0, answer.err
    kept = [path for root in (cli.home, cli.cwd / "out") for path in Path(root).rglob("*") if path.is_file()]
    assert kept
    assert not [path for path in kept if canary.encode() in path.read_bytes()]
    assert canary not in answer.all


def test_show_says_which_criterion_did_not_pass_and_why(cli: Cli) -> None:
    shown = cli("runs", "show", one_run(cli, SCORED_ZERO)).out
    assert "NOT PASSED" in shown
    assert "it succeeds" in shown
    assert "exited 1" in shown
    assert "NOT PASSED" not in cli("runs", "show", one_run(cli, PASSING)).out


def test_what_stands_for_a_row_is_its_reason_and_unscored_rows_stand_apart() -> None:
    half = {"id": "reward", "score": 0.5, "result": False, "message": "reward 0.5"}
    other = {"type": "made_elsewhere", "criterion_index": 1, "justification": "is not scored here", "skipped": True}
    failed = {"type": "bash_cmd_succeeds", "score": 0.0, "result": False, "justification": "exited 1", "weight": 0}
    context = {"metadata": {"verifications": {"tests": {"results": [half]}, "check": {"results": [failed, other]}}}}
    assert criteria_not_passed(context) == [
        ("tests", "reward", 1, "reward 0.5"),
        ("check", "criteria[0] bash_cmd_succeeds", 0, "exited 1"),
    ]
    assert criteria_not_scored(context) == [("check", "criteria[1] made_elsewhere", "is not scored here")]


def test_one_run_has_one_duration_whoever_shows_it(cli: Cli) -> None:
    told = cli("run", cli.write("t.json", PASSING), "--json").json["runs"][0]
    id = told["run_id"]
    shown = [cli("runs", "show", id, "--json").json, cli("runs", "list", "--json").json["runs"][0]]
    shown += [cli("resume", id, "--json").json["runs"][0]]
    assert {each["duration_seconds"] for each in shown} == {told["duration_seconds"]}
    assert cli("runs", "diff", id, id).out == "no differences\n"


def test_every_step_says_what_it_did_in_the_progress_and_in_the_record(cli: Cli) -> None:
    work = {"id": "work", "type": "run_code", "sandbox_name": "box", "script_artifact_id": "sum"}
    folder = bundle(cli.cwd / "b", t=[BOX, work, shell("true")])
    (folder / "artifacts/sum").mkdir()
    (folder / "artifacts/sum/run.py").write_text("def run(given):\n    return {'total': 3}\n")
    answer = cli("run", folder)
    assert '[tasks/t.json] 2/3 work: sum returned {"total": 3' in answer.err
    id = cli("runs", "list", "--json").json["runs"][0]["run_id"]
    assert 'sum returned {"total": 3' in cli("runs", "show", id).out
    steps = cli("runs", "show", id, "--json").json["steps"]
    assert [step["type"] for step in steps] == ["deploy_sandbox", "run_code", "verify_sandbox"]
    assert all(step["summary"] for step in steps)


def test_runs_show_and_trajectory_tell_what_an_agent_did(cli: Cli) -> None:
    check = {"type": "response_contains", "needles": ["42"]}
    text = {"id": "text", "type": "agent_prompt_response_verifier", "prompt_id": "sum", "criteria": [check]}
    cli("task", "create", cli.write("t.json", [text]), "--id", "t", "--skip-validation")
    answer = {"prompt_responses": [{"prompt_id": "sum", "prompt_text": "Add.", "response": "It is 42.", "tool_call_count": 2}]}
    (cli.cwd / "answer.json").write_text(json.dumps(answer))
    run_id = cli("task", "run", "t", "--context-json", "answer.json", "--json").json["runs"][0]["run_id"]
    shown = cli("runs", "show", run_id)
    assert "It is 42." in shown.out
    assert f"agent-env runs trajectory {run_id}" in shown.err
    (prompt,) = cli("runs", "trajectory", run_id, "--json").json["prompts"]
    assert (prompt["prompt_id"], prompt["tool_calls"], prompt["response"]) == ("sum", 2, "It is 42.")
    assert cli("runs", "trajectory", run_id).out.startswith("sum · 2 tool calls")
    refused = cli("runs", "trajectory", run_id, "--prompt", "nope")
    assert (refused.code, "it has sum" in refused.err) == (2, True)
