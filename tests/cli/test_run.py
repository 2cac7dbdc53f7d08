"""`agent-env run`: results, exit codes, interruption, resume, output."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.cli.conftest import AGENT_ENV, Cli
from tests.cli.tasks import BOX, FAILING, PASSING, SCORED_ZERO, SLOW, Steps, bundle, graded, shell

PATIENCE = 80


def wait_for_line(process: subprocess.Popen[bytes], text: str) -> bytes:
    """Reads progress until a line has this text, and gives all that was read: more may have come at once."""
    assert process.stderr is not None
    until = time.monotonic() + PATIENCE
    seen = b""
    while text.encode() not in seen:
        ready, _, _ = select.select([process.stderr], [], [], max(0.0, until - time.monotonic()))
        assert ready, f"{text!r} was never said: {seen.decode()}"
        piece = os.read(process.stderr.fileno(), 65536)
        assert piece, f"{text!r} was never said: {seen.decode()}"
        seen += piece
    return seen


def sandboxes(cli: Cli) -> list[Path]:
    root = cli.home / "state/agent-env/sandboxes"
    return sorted(root.iterdir()) if root.is_dir() else []


def test_must_show_8_json_is_one_object_of_the_documented_shape_and_nothing_else(cli: Cli) -> None:
    answer = cli("run", bundle(cli.cwd / "b", one=PASSING, two=SCORED_ZERO, three=FAILING), "--json")
    assert answer.code == 1
    assert set(answer.json) == {
        *("runs", "passed", "mean_score", "standard_error", "counted", "not_counted"),
        *("group_id", "not_started"),
    }
    by_task = {run["task"]: run for run in answer.json["runs"]}
    assert set(by_task) == {"tasks/one.json", "tasks/two.json", "tasks/three.json"}
    for run in by_task.values():
        assert set(run) == {"run_id", "task", "status", "kind", "scores", "score", "duration_seconds", "error"}
    assert by_task["tasks/one.json"]["status"] == "completed"
    assert by_task["tasks/one.json"]["scores"] == {"check": 1.0}
    assert by_task["tasks/one.json"]["error"] is None
    assert by_task["tasks/two.json"]["scores"] == {"check": 0.0}
    assert by_task["tasks/three.json"]["status"] == "failed"
    assert set(by_task["tasks/three.json"]["error"]) == {"code", "message", "step_id"}
    assert by_task["tasks/three.json"]["error"]["step_id"] == "work"
    assert (by_task["tasks/three.json"]["scores"], by_task["tasks/three.json"]["score"]) == ({}, 0.0), "who crashes has nothing of it"
    assert answer.json["passed"] is False
    assert (answer.json["mean_score"], answer.json["counted"], answer.json["not_counted"]) == (pytest.approx(1 / 3), 3, 0)
    stored = {run["task"]: run["score"] for run in cli("runs", "list", "--json").json["runs"]}
    assert sorted(stored.values()) == [0.0, 0.0, 1.0]


CASES: list[tuple[str, dict[str, Steps], list[str], int, bool | None]] = [
    ("all pass", {"a": PASSING, "b": PASSING}, [], 0, True),
    ("graded 0", {"a": PASSING, "b": SCORED_ZERO}, [], 0, False),
    ("graded 0 above the mark", {"a": PASSING, "b": SCORED_ZERO}, ["--fail-under", "0.5"], 0, True),
    ("graded 0 below the mark", {"a": PASSING, "b": SCORED_ZERO}, ["--fail-under", "0.6"], 1, False),
    ("error", {"a": PASSING, "b": FAILING}, [], 1, False),
    ("none selected", {"a": PASSING}, ["--task", "nope"], 2, None),
    ("no tasks", {}, [], 2, None),
    ("bad option", {"a": PASSING}, ["--attempts", "0"], 2, None),
]


@pytest.mark.parametrize(("tasks", "options", "code", "passed"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_cl01_exit_code_and_json_say_the_same(
    cli: Cli, tasks: dict[str, Steps], options: list[str], code: int, passed: bool | None
) -> None:
    answer = cli("run", bundle(cli.cwd / "b", **tasks), "--json", *options)
    assert answer.code == code, answer.all
    if passed is None:
        assert set(answer.json) == {"error"}
        assert answer.err.startswith("error: ")
    else:
        assert answer.json["passed"] is passed


def test_cl01_bad_configuration_is_exit_code_2_and_names_file_and_key(cli: Cli) -> None:
    cli.write(".agentenv/config.toml", "[limits]\nexec_secnds = 3\n")
    answer = cli("run", bundle(cli.cwd / "b", a=PASSING))
    assert answer.code == 2
    assert "config.toml" in answer.err
    assert "exec_seconds" in answer.err
    trusted = {"AGENT_ENV_TRUST": str(cli.cwd)}
    cli.write(".agentenv/config.toml", "[sandbox.providers.locl.config]\nmachine_image = 'x'\n")
    answer = cli("runs", "list", env=trusted)
    assert answer.code == 2
    assert "did you mean [sandbox.providers.local]?" in answer.err
    cli.write(".agentenv/config.toml", "[sandbox.providers.elsewhere.config]\nregion = 'x'\n")
    answer = cli("runs", "list", env=trusted)
    assert (answer.code, answer.err.count("nothing reads [sandbox.providers.elsewhere]")) == (0, 1)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_d7_cl01_one_signal_cancels_tears_down_and_still_prints_the_result(cli: Cli, number: signal.Signals, code: int) -> None:
    process = cli.start("run", bundle(cli.cwd / "b", slow=SLOW), "--output", "out.json")
    wait_for_line(process, "box")
    process.send_signal(number)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == code, err.decode()
    assert "cancelled" in out.decode()
    assert json.loads((cli.cwd / "out.json").read_text())["runs"][0]["status"] == "cancelled"
    assert sandboxes(cli) == []
    stored = cli("runs", "list", "--json").json["runs"][0]
    assert stored["status"] == "cancelled"
    for said in ("the same command with --resume goes on", f"agent-env resume {stored['run_id']} goes on", "is done again in new ones"):
        assert said in out.decode()
    assert f"go on: agent-env resume {stored['run_id']}" in cli("runs", "show", stored["run_id"]).err


def test_cl01_interrupted_json_is_still_one_object_and_names_what_had_not_begun(cli: Cli) -> None:
    process = cli.start("run", bundle(cli.cwd / "b", a_slow=SLOW, later=PASSING), "--attempts", "2", "--concurrency", "1", "--json")
    until = time.monotonic() + PATIENCE
    while not sandboxes(cli):
        assert time.monotonic() < until, "no sandbox was made"
        cli("runs", "list")
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 143, err.decode()
    answer = json.loads(out)
    assert [(run["task"], run["status"]) for run in answer["runs"]] == [("tasks/a_slow.json", "cancelled")]
    assert answer["not_started"] == [
        {"task": "tasks/later.json", "attempt": 1},
        {"task": "tasks/a_slow.json", "attempt": 2},
        {"task": "tasks/later.json", "attempt": 2},
    ]
    assert answer["passed"] is False
    listed = cli("runs", "list", "--group", answer["group_id"], "--json").json["runs"]
    assert [(run["run_id"], run["attempt"], run["attempts"]) for run in listed] == [(answer["runs"][0]["run_id"], 1, 2)]
    assert f"attempt     1 of 2 in {answer['group_id']}" in cli("runs", "show", listed[0]["run_id"]).out


def test_d7_second_signal_stops_the_teardown_and_says_what_is_left(cli: Cli) -> None:
    process = cli.start("run", bundle(cli.cwd / "b", slow=SLOW))
    wait_for_line(process, "box")
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode in {130, 143}, err.decode()  # which of two signals is delivered first is the kernel's choice
    assert b"Traceback" not in err
    left = sandboxes(cli)
    if left:  # the teardown may have been quicker than the second signal
        assert b"left:" in err
        assert b"were removed" not in out
        assert cli("gc").code == 0
    assert sandboxes(cli) == []


def test_interrupted_signal_that_was_ignored_on_entry_stays_ignored(cli: Cli) -> None:
    folder = bundle(cli.cwd / "b", a=PASSING)
    text = f"trap '' INT; {AGENT_ENV} run {folder} --quiet & wait $!"
    process = subprocess.Popen(["bash", "-c", f"set -m; ({text})"], env=cli.environ(), cwd=cli.cwd, stdout=subprocess.PIPE)
    os.kill(process.pid, signal.SIGCONT)
    out, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    assert b"1 passed" in out


def test_f01_killed_run_is_resumed_by_the_same_command_and_finished_runs_are_not_done_again(cli: Cli) -> None:
    marks = cli.cwd / "b"
    process = cli.start("run", bundle(marks, a=PASSING, b=graded("sleep 2")), "--concurrency", "1")
    wait_for_line(process, "[tasks/a.json] passed")
    process.kill()
    process.communicate(timeout=PATIENCE)
    listed = cli("runs", "list", "--json").json["runs"]
    expected = cli("run", marks, "--resume", "--dry-run", "--json").json["resume"]
    assert (expected["group_id"], expected["kept"] + expected["go_on"] + expected["begin"]) == (listed[-1]["group_id"], 2)
    again = cli("run", marks, "--resume", "--json")
    assert again.code == 0, again.err
    assert f"going on with {listed[-1]['group_id']}: " in again.err
    resumed = {run["task"]: run["run_id"] for run in again.json["runs"]}
    assert (set(resumed), resumed["tasks/a.json"]) == ({"tasks/a.json", "tasks/b.json"}, listed[-1]["run_id"])
    assert again.json["group_id"] == listed[-1]["group_id"]
    shown = cli("run", marks, "--resume", "--dry-run").out
    assert "Would run 0 runs of 2 tasks, go on with 0 runs and keep 2 runs:" in shown
    (marks / "tasks/b.json").unlink()
    fewer = cli("run", marks, "--resume", "--json")
    assert len(fewer.json["runs"]) == 1
    assert fewer.json["group_id"] != again.json["group_id"], "what is left of the bundle is other work"
    assert cli("gc").code == 0  # the kill came between a run's last word and the end of its teardown, or after it
    assert sandboxes(cli) == []


def test_a_task_that_is_run_alone_is_resumed_by_the_same_command(cli: Cli) -> None:
    cli.write("t.json", json.dumps(graded("sleep 0.5")))
    typed = ("run", "t.json", "--attempts", "2", "--concurrency", "1")
    process = cli.start(*typed)
    wait_for_line(process, "[t.json #1] passed")
    process.kill()
    process.communicate(timeout=PATIENCE)
    first = cli("runs", "list", "--json").json["runs"][-1]
    fewer = cli("run", "t.json", "--resume")
    assert f"a new group begins, because {first['group_id']} is for other work: its --attempts was 2 (the command" in fewer.err
    again = cli(*typed, "--resume", "--json")
    assert again.code == 0, again.all
    assert f"going on with {first['group_id']}: " in again.err
    assert again.json["runs"][0]["run_id"] == first["run_id"]
    listed = cli("runs", "list", "--group", first["group_id"], "--json").json["runs"]
    assert sorted((run["run_id"], run["attempt"]) for run in listed) == sorted(
        (run["run_id"], number) for number, run in enumerate(again.json["runs"], 1)
    )
    assert "\n0 runs, go on with 0 runs and keep 2 runs\n" in cli(*typed, "--resume", "--dry-run").out
    once_more = cli(*typed, "--resume")
    assert f"nothing to go on with: every run of {first['group_id']} has ended" in once_more.err
    assert first["run_id"] in once_more.out
    cli.write("t.json", json.dumps(graded("true")))
    assert ": the task changed since\n" in cli(*typed, "--resume").err
    assert cli("gc").code == 0


def test_broken_pipe_after_the_run_is_quiet_and_the_run_is_complete(cli: Cli) -> None:
    folder = bundle(cli.cwd / "b", **{f"t{n}": PASSING for n in range(3)})
    text = f"{AGENT_ENV} run {folder} --quiet | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", text], env=cli.environ(), cwd=cli.cwd, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "0\n"
    assert done.stderr == ""
    assert [run["status"] for run in cli("runs", "list", "--json").json["runs"]] == ["completed"] * 3


def test_quiet_tells_why_a_run_failed(cli: Cli) -> None:
    broken = [BOX, {"id": "load", "type": "load_artifact", "sandbox_name": "box", "urls": ["http://127.0.0.1:1/nothing"]}]
    answer = cli("run", bundle(cli.cwd / "b", a=broken), "--quiet")
    assert answer.code == 1
    assert answer.out.startswith("1 failed")
    assert len(answer.out.splitlines()) == 1
    assert "step load:" in answer.err
    assert "127.0.0.1" in answer.err
    assert len(answer.err.splitlines()) <= 2


def test_progress_goes_to_standard_error_and_quiet_has_none(cli: Cli) -> None:
    folder = bundle(cli.cwd / "b", a=PASSING)
    loud = cli("run", folder)
    assert "[tasks/a.json] 2/2 check" in loud.err
    assert loud.out.splitlines()[-1] == "1 passed · mean score 1.000"
    quiet = cli("run", folder, "--quiet")
    assert quiet.err == ""
    assert quiet.out == "1 passed · mean score 1.000\n"


def test_attempts_are_summed_up_by_task(cli: Cli) -> None:
    answer = cli("run", bundle(cli.cwd / "b", a=PASSING, z=SCORED_ZERO), "--attempts", "2", "--concurrency", "4")
    assert answer.code == 0, answer.err
    assert "2 of 2" in answer.out
    assert "0 of 2" in answer.out
    assert answer.out.splitlines()[-1] == "2 passed · 2 scored below 1 · mean score 0.500"


def test_output_folder_has_the_results_and_every_context_private(cli: Cli) -> None:
    folder = bundle(cli.cwd / "b", a=PASSING)
    answer = cli("run", folder, "--output", "results", "--json")
    written = json.loads((cli.cwd / "results/results.json").read_text())
    assert written == answer.json
    contexts = [path for path in (cli.cwd / "results").iterdir() if path.name != "results.json"]
    assert [path.name for path in contexts] == [run["context"] for run in written["runs"]]
    context = json.loads(contexts[0].read_text())
    assert context["metadata"]["verifications"]["check"]["score"] == 1.0
    assert contexts[0].stat().st_mode & 0o777 == 0o600
    again = cli("run", folder, "--output", "results", "--resume", "--json")
    assert again.json["runs"] == answer.json["runs"]
    assert sorted((cli.cwd / "results").iterdir()) == sorted([*contexts, cli.cwd / "results/results.json"]), "a run is there once"
    taken, mine = contexts[0].read_bytes(), json.dumps({"instance_id": "of another run"})
    contexts[0].write_text(mine)
    assert cli("run", folder, "--output", "results", "--resume", "--quiet").code == 0
    assert contexts[0].read_text() == mine, "what is another run's is left alone"
    assert taken in [path.read_bytes() for path in (cli.cwd / "results").iterdir()]
    other = cli("run", folder, "--output", "results")
    earlier = cli.cwd / "results" / answer.json["group_id"]
    assert f"written: results (what an earlier call had written there is in results/{earlier.name})" in other.out
    (run,) = json.loads((cli.cwd / "results/results.json").read_text())["runs"]
    assert run["run_id"] != answer.json["runs"][0]["run_id"]
    (before,) = json.loads((earlier / "results.json").read_text())["runs"]
    assert sorted(path.name for path in earlier.iterdir()) == sorted([before["context"], "results.json"])
    assert sorted(path.name for path in (cli.cwd / "results").iterdir()) == sorted(
        [run["context"], contexts[0].name, earlier.name, "results.json"]
    ), "what no results name is left alone"


def test_output_that_can_not_be_written_is_one_line(cli: Cli) -> None:
    answer = cli("run", bundle(cli.cwd / "b", a=PASSING), "--output", "/dev/null/x.json", "--quiet")
    assert answer.code == 2
    assert "/dev/null/x.json can't be written" in answer.err


def test_a_run_that_is_refused_leaves_no_folder_for_its_output(cli: Cli) -> None:
    cli.write("there/results.json", "{}")
    for output in ("made/of/folders", "there/below", "made/of/x.json"):
        assert cli("run", "hello", "--output", output, "--budget", "tokens=no").code == 2
    assert [path.relative_to(cli.cwd).as_posix() for path in sorted(cli.cwd.rglob("*"))] == ["there", "there/results.json"]


def test_dry_run_writes_and_runs_nothing(cli: Cli) -> None:
    folder = bundle(cli.cwd / "b", a=PASSING, b=PASSING)
    answer = cli("run", folder, "--dry-run", "--attempts", "3")
    assert answer.code == 0, answer.err
    assert "nothing is written or run" in answer.out
    assert cli("run", folder, "--dry-run", "--json").json["runs"] == 2
    assert cli("runs", "list", "--json").json == {"runs": []}
    assert cli("task", "list", "--json").json == {"tasks": []}


def test_without_a_bundle_the_installed_ones_are_listed_and_options_are_refused(cli: Cli) -> None:
    assert {"hello", "tour"} <= {entry["name"] for entry in cli("run", "--json").json["bundles"]}
    assert "hello" in cli("run").out
    answer = cli("run", "--keep")
    assert answer.code == 2
    assert "--keep needs a BUNDLE" in answer.err
    assert "agent-env run ." not in cli("run").err + answer.err
    (cli.cwd / "tasks").mkdir()
    for given in ((), ("--keep",)):
        assert "agent-env run . runs the bundle in this folder" in cli("run", *given).err


def test_single_task_file_and_stored_task_can_be_run(cli: Cli) -> None:
    file = cli.write("lone.json", PASSING)
    answer = cli("run", file, "--json", "--attempts", "2")
    assert answer.code == 0, answer.err
    assert [run["task"] for run in answer.json["runs"]] == [str(file)] * 2
    assert cli("task", "create", file, "--id", "lone").code == 0
    assert cli("run", "lone", "--json").json["runs"][0]["scores"] == {"check": 1.0}


def test_a_file_that_has_an_installed_bundles_name_is_not_taken_for_a_task(cli: Cli) -> None:
    cli.write("hello", "a note to myself")
    assert "Would run 1 run" in cli("run", "hello", "--dry-run").out
    assert "not valid JSON" in cli("run", "./hello").err
    assert "neither a file nor a folder" in cli("run", "/dev/stdin", stdin=b"[]").err


def test_cl02_unknown_bundle_names_near_ones(cli: Cli) -> None:
    answer = cli("run", "helo")
    assert answer.code == 2
    assert "hello" in answer.err
    assert "Traceback" not in answer.err


MISTAKES: list[tuple[str, str, str | bytes, str]] = [
    ("missing file", "gone.json", "", "gone.json"),
    ("no JSON", "t.json", "{nope", "t.json"),
    ("not UTF-8", "t.json", b"\xff\xfe[", "t.json"),
    ("no list", "t.json", "{}", "t.json"),
    ("unknown type", "t.json", '[{"id": "a", "type": "deploy_sandbx"}]', "deploy_sandbox"),
    ("unknown key", "t.json", '[{"id": "a", "type": "deploy_sandbox", "sandbox_nme": "a", "sandbox_mode": "vm"}]', "sandbox_name"),
]


@pytest.mark.parametrize(("name", "content", "said"), [case[1:] for case in MISTAKES], ids=[case[0] for case in MISTAKES])
def test_cl02_mistake_in_a_task_file_names_file_and_remedy_without_traceback(cli: Cli, name: str, content: str | bytes, said: str) -> None:
    path = cli.write(name, content) if content else cli.cwd / name
    answer = cli("run", path)
    assert answer.code == 2, answer.all
    assert name in answer.err
    assert said in answer.err
    assert "Traceback" not in answer.all


def test_cl02_byte_order_mark_is_no_mistake(cli: Cli) -> None:
    path = cli.write("bom.json", b"\xef\xbb\xbf" + json.dumps(PASSING).encode())
    assert cli("run", path, "--quiet").code == 0


def test_cl02_all_problems_of_a_bundle_are_told_at_once_in_json_too(cli: Cli) -> None:
    broken: Steps = [{"id": "a", "type": "nope"}, {"id": "b", "type": "deploy_sandbox"}]
    answer = cli("run", bundle(cli.cwd / "b", one=broken, two=[{"type": "deploy_sandbox"}]), "--json")
    assert answer.code == 2
    problems = answer.json["error"]["problems"]
    assert len(problems) >= 3
    assert {problem["file"] for problem in problems} == {"tasks/one.json", "tasks/two.json"}


@pytest.mark.parametrize("given", ["a bundle", "a file"])
def test_keep_leaves_the_place_and_says_how_to_get_in_and_rid_of_it(cli: Cli, given: str) -> None:
    steps = graded("echo here > /app/note")
    answer = cli("run", bundle(cli.cwd / "b", a=steps) if given == "a bundle" else cli.write("a.json", steps), "--keep")
    run_id = cli("runs", "list", "--json").json["runs"][0]["run_id"]
    assert f"kept: {run_id}" in answer.err
    assert cli("exec", run_id, "--", "cat", "/app/note").out == "here\n"
    assert cli("gc").code == 0
    assert len(sandboxes(cli)) == 1
    assert cli("runs", "teardown", run_id).code == 0
    assert sandboxes(cli) == []


def test_pause_on_failure_leaves_only_failed_runs(cli: Cli) -> None:
    answer = cli("run", bundle(cli.cwd / "b", a=PASSING, f=FAILING), "--pause-on-failure")
    assert answer.code == 1
    failed = cli("runs", "list", "--status", "failed", "--json").json["runs"][0]["run_id"]
    kept = f"kept: {failed}  (agent-env shell {failed} · agent-env runs teardown {failed})\n"
    assert kept in answer.err
    assert len(sandboxes(cli)) == 1
    assert kept in cli("resume", failed).err, "it fails again"
    assert len(sandboxes(cli)) == 1
    assert cli("gc", "--kept").code == 0
    assert sandboxes(cli) == []


def test_infrastructure_faults_are_told_apart_from_scores(cli: Cli) -> None:
    missing: Steps = [BOX, {**shell("true"), "criteria": [{"type": "bash_cmd_succeeds", "criterion": "c", "bash_cmd": "true"}]}]
    folder = bundle(cli.cwd / "b", ok=missing, f=FAILING)
    answer = cli("run", folder)
    assert answer.code == 1
    assert "run_code_failed" in answer.out
    assert "1 failed" in answer.out


def test_seed_is_the_same_in_each_call_and_differs_between_runs(cli: Cli) -> None:
    folder = bundle(cli.cwd / "b", a=graded("test <seed> -ge 0"))
    for _ in range(2):
        assert cli("run", folder, "--seed", "7", "--attempts", "2", "--json").json["passed"] is True
    seeds = [cli("runs", "show", run["run_id"], "--json").json["seed"]["seed"] for run in cli("runs", "list", "--json").json["runs"]]
    assert sorted(seeds[:2]) == sorted(seeds[2:])
    assert len(set(seeds)) == 2


def read_only_home(cli: Cli, temporary: Path, *argv: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs a command whose home can't be written, not even by root: it is mounted read-only in a namespace of its own."""
    mount = 'mount --bind "$HOME" "$HOME" && mount -o remount,ro,bind "$HOME" && exec "$@"'
    unshare = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-rm"]
    env = cli.environ({"XDG_STATE_HOME": None, "XDG_CONFIG_HOME": None, "TMPDIR": str(temporary)})
    command = [*unshare, "bash", "-c", mount, "bash", AGENT_ENV, *argv]
    return subprocess.run(command, env=env, cwd=temporary, capture_output=True, text=True, timeout=100, check=False)


def test_tp12_bundle_is_found_again_from_another_folder_with_a_home_that_can_not_be_written(cli: Cli, tmp_path: Path) -> None:
    folder = bundle(cli.cwd / "b", a=PASSING)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    first = read_only_home(cli, temporary, "run", "../work/b")
    assert first.returncode == 0, first.stderr
    assert f"runs are kept in {temporary}" in first.stderr
    again = read_only_home(cli, temporary, "run", folder, "--resume", "--json")
    assert again.returncode == 0, again.stderr
    listed = read_only_home(cli, temporary, "runs", "list", "--json")
    assert [run["run_id"] for run in json.loads(listed.stdout)["runs"]] == [json.loads(again.stdout)["runs"][0]["run_id"]]


def test_on_the_bare_host_the_work_folder_stands_for_app(cli: Cli) -> None:
    check = {**shell("test $(cat note.txt) = mine && test ! -e /app/note.txt"), "id": "text"}
    criterion = {"type": "probe_file_exists", "criterion": "n", "paths": ["note.txt"]}
    exists = {"id": "there", "type": "verify_sandbox", "sandbox_name": "box", "criteria": [criterion]}
    load = {"id": "load", "type": "load_artifact", "sandbox_name": "box", "artifact_id": "note", "destination_path": "/app"}
    cli.write("b/artifacts/note/note.txt", "mine")
    answer = cli("run", bundle(cli.cwd / "b", a=[BOX, load, check, exists]), "--unsafe-host", "--json")
    assert answer.code == 0, answer.all
    assert set(answer.json["runs"][0]["scores"].values()) == {1.0}


def test_unsafe_host_is_loud(cli: Cli) -> None:
    check = {**shell("test -d /proc/1"), "base_dir": "/tmp"}
    answer = cli("run", bundle(cli.cwd / "b", a=[BOX, check]), "--unsafe-host", "--quiet")
    assert answer.code == 0, answer.err
    assert answer.err.startswith("warning: --unsafe-host:")


def test_se03_secret_of_a_variable_is_in_no_output_also_with_debug(cli: Cli) -> None:
    canary = "canary-5f3a91c7d2e84b60"
    task = graded(f"echo {canary}; false")
    env = {"LITELLM_API_KEY": canary, "AGENT_ENV_DEBUG": "1"}
    answer = cli("--debug", "run", cli.write("t.json", [*task, {"id": canary, "type": "nope"}]), env=env)
    assert answer.code == 2
    assert canary not in answer.all


def test_a_run_that_outlives_its_sandbox_is_told_why_it_lost_it(cli: Cli) -> None:
    answer = cli("run", cli.write("t.json", [{**BOX, "ttl_seconds": 1}, shell("sleep 60")]))
    assert answer.code == 1
    assert "hint: its ttl_seconds were over: box at 20" in answer.out
