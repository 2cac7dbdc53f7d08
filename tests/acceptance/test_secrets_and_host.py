"""What must never be seen, what a host need not have, and what a grader must not believe."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.acceptance.conftest import AGENT_ENV, BOX, PATIENCE, Home, check, code
from tests.busy import lasting, within

CANARIES = {"LITELLM_API_KEY": "canary-key-4b1d86", "SOME_TOKEN": "canary-token-77ac02", "AWS_SECRET_ACCESS_KEY": "canary/aws+9f31=="}


@contextmanager
def watched_arguments() -> Iterator[set[bytes]]:
    """Every command line that any process of this machine has meanwhile."""
    seen: set[bytes] = set()
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.002):
            for entry in os.listdir("/proc"):  # noqa: PTH208 - many times a second
                if entry.isdigit():
                    with suppress(OSError), open(f"/proc/{entry}/cmdline", "rb") as file:
                        seen.add(file.read())

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


LOOKING = """
import os, sys

def run(given):
    found = []
    for process in filter(str.isdigit, os.listdir("/proc")):
        for name in ("environ", "cmdline"):
            try:
                text = open(f"/proc/{process}/{name}", "rb").read()
            except OSError:
                continue
            found += [name for word in given["args"]["parts"] if ("canary" + word).encode() in text]
    print("environment:", dict(os.environ), file=sys.stderr)
    return found
"""


def test_c13_se03_secrets_are_in_no_database_event_log_argument_output_or_place(home: Home) -> None:
    parts = [value.removeprefix("canary") for value in CANARIES.values()]
    home.write("b/artifacts/note/note.txt", "nothing")
    load = {"id": "load", "type": "load_artifact", "sandbox_name": "box", "artifact_id": "note"}
    collect = {"id": "collect", "type": "collect_artifacts", "sandbox_name": "box", "base_path": "/loaded"}
    env_dump = check("! env | grep canary", "! grep -a canary /proc/*/environ")
    passing = [BOX, load, code("looking", args={"parts": parts}), env_dump, collect]
    failing = [BOX, code("broken")]
    broken = "import os\ndef run(given):\n    raise RuntimeError(str(dict(os.environ)))\n"
    folder = home.bundle(scripts={"looking": LOOKING, "broken": broken}, a=passing, b=failing)
    env = {**CANARIES, "AGENT_ENV_DEBUG": "1"}
    with watched_arguments() as arguments:
        answer = home("--debug", "run", folder, "--json", "--output", "out", "--keep", env=env)
        by_task = {run["task"]: run for run in answer.json["runs"]}
        passed = by_task["tasks/a.json"]
        told = [
            home(*command, env=env).all
            for command in (("runs", "list"), ("runs", "logs", passed["run_id"]), ("config", "show"), ("doctor",))
        ]
        told.append(json.dumps(home.context(passed["run_id"])))
    assert passed["scores"] == {"check": 1.0}, answer.all
    assert home.context(passed["run_id"])["metadata"]["script_results"]["work"] == []
    files = [
        path for root in (home.state, home.places, home.cwd / "out") for path in root.rglob("*") if path.is_file() and not path.is_symlink()
    ]
    assert len(files) > 3
    assert len(arguments) > 5
    for value in (canary.encode() for canary in CANARIES.values()):
        assert value.decode() not in answer.all
        assert not [text for text in told if value.decode() in text]
        assert not [path for path in files if value in path.read_bytes()]
        assert not [text for text in arguments if value in text]
    assert home("gc", "--kept").code == 0


SHIMMED = ("timeout", "find", "bash", "python", "python3", "unzip", "ps", "curl", "wget", "sudo", "docker", "podman", "tar", "rm")


@pytest.mark.parametrize("others", ["beside the machine's other tools", "with no tools at all"])
def test_a16_no_tool_of_the_host_is_needed_to_use_every_step(home: Home, tmp_path: Path, others: str) -> None:
    shims = tmp_path / "shims"
    shims.mkdir()
    called = tmp_path / "called"
    for name in SHIMMED:
        (shims / name).write_text(f'#!/bin/sh\necho "$0 $*" >> {called}\nexit 97\n')
        (shims / name).chmod(0o755)
    path = f"{shims}:/usr/sbin:/usr/bin:/sbin:/bin" if others.startswith("beside") else str(shims)
    tour = home("run", "tour", "--json", "--keep", env={"PATH": path})
    assert tour.code == 0, tour.all
    assert tour.json["passed"] is True
    for run in tour.json["runs"]:
        assert home("runs", "teardown", run["run_id"], env={"PATH": path}).code == 0
    assert home("gc", "--kept", env={"PATH": path}).code == 0
    assert home("doctor", env={"PATH": path}).code in {0, 1}
    assert not called.exists(), called.read_text()


VALUES = {
    "PEM": "-----BEGIN KEY-----\nabc+/=\n-----END KEY-----\n",
    "QUOTES": 'it\'s "quoted" \\n',
    "SPACES": "  leading and trailing  ",
    "COMMENT": "a # b",
    "DOLLAR": "$HOME `id` $(id) %PATH% !x",
    "EMPTY": "",
    "EQUALS": "=a=b=",
    "UNICODE": "åßç∂ 🜁",
}


def test_se02_values_of_variables_arrive_byte_for_byte_and_odd_names_are_refused(home: Home) -> None:
    run_id = home("run", home.bundle(a=[BOX]), "--keep", "--json").json["runs"][0]["run_id"]
    options = [text for name, value in VALUES.items() for text in ("--env", f"X_{name}={value}")]
    dumped = subprocess.run(
        [AGENT_ENV, "exec", *options, run_id, "--", "env", "-0"],
        env=home.environ(),
        cwd=home.cwd,
        capture_output=True,
        timeout=PATIENCE,
        check=True,
    )
    arrived = dict(text.split("=", 1) for text in dumped.stdout.decode().split("\0") if text.startswith("X_"))
    assert arrived == {f"X_{name}": value for name, value in VALUES.items()}
    for name in ("", "A B", "A\nB", "1A", "A-B"):
        refused = home("exec", "--env", f"{name}=x", run_id, "--", "true")
        assert refused.code != 0, name
        assert "Traceback" not in refused.all
    assert home("runs", "teardown", run_id).code == 0


ODD_REWARDS = "import os\ndef run(given):\n    return eval(given['args']['value'])\n"


@pytest.mark.parametrize("value", ["float('nan')", "float('inf')", "1e400", "{'reward': [float('-inf')]}", "b'1'", "{1, 2}"])
def test_tp06_a_result_that_is_no_finite_json_is_an_error_with_the_reason_and_no_score(home: Home, value: str) -> None:
    answer = home("run", home.bundle(scripts={"odd": ODD_REWARDS}, a=[BOX, code("odd", args={"value": value}), check("true")]), "--json")
    (run,) = json.loads(answer.out, parse_constant=pytest.fail)["runs"]
    assert (answer.code, run["status"], run["scores"]) == (1, "failed", {})
    assert "not JSON" in run["error"]["message"], run["error"]


def test_tp06_what_is_graded_may_be_huge_endless_or_no_file_and_costs_no_memory(home: Home) -> None:
    planted = (
        "import os\ndef run(given):\n    os.truncate(os.open('/app/huge', os.O_CREAT | os.O_RDWR), 1 << 30)\n"
        "    os.symlink('/dev/zero', '/app/endless')\n    os.mkdir('/app/folder')\n    os.mkfifo('/app/pipe')\n"
        "    open('/app/empty', 'w')\n"
        "    open('/app/bom', 'wb').write(b'\\xef\\xbb\\xbf1')\n    os.symlink('loop', '/app/loop')\n"
    )
    names = ("huge", "endless", "folder", "pipe", "empty", "loop")
    contains = [{"type": "probe_file_contains", "criterion": name, "paths": [name], "expected": "1"} for name in (*names, "bom")]
    looks = [{**check(id=f"look_{each['criterion']}"), "criteria": [each], "fail_task_on_error": False} for each in contains]
    answer = home("run", home.bundle(scripts={"plant": planted}, a=[BOX, code("plant"), *looks]), "--json")
    (run,) = answer.json["runs"]
    assert run["scores"].get("look_bom") == 1.0, answer.all
    assert {score for name, score in run["scores"].items() if name != "look_bom"} <= {0.0}
    assert run["duration_seconds"] < within(30)


def test_tp05_limits_of_grading_pay_for_nothing_else_and_bound_all_of_it(home: Home) -> None:
    limit = lasting(1)
    slow = f"import time\ndef run(given):\n    time.sleep({limit + 0.5})\n"
    first = check("sleep 0.1", id="first", timeout_seconds=limit)
    own = check("sleep 30", id="own", shell_timeout_seconds=0.5)
    whole = check("sleep 30", id="whole", timeout_seconds=1, fail_task_on_error=False)
    answer = home("run", home.bundle(scripts={"slow": slow}, a=[BOX, code("slow"), first, own, whole]), "--json")
    (run,) = answer.json["runs"]
    assert run["scores"] == {"first": 1.0, "own": 0.0}, answer.all
    assert run["duration_seconds"] < within(15) + limit


ATTACKER = """
import os, pathlib

def run(given):
    for folder in ("/app", "/app/bin", os.path.expanduser("~/bin"), os.path.expanduser("~/.local/bin"), "/usr/local/bin"):
        for name in ("bash", "sh", "test", "grep", "python3", "cat", "sleep"):
            try:
                os.makedirs(folder, exist_ok=True)
                path = pathlib.Path(folder, name)
                path.write_text("#!/bin/sh\\nexit 0\\n")
                path.chmod(0o755)
            except OSError:
                pass
    for name in (".bashrc", ".profile", ".bash_profile", ".bash_env"):
        pathlib.Path(os.path.expanduser("~"), name).write_text("exit 0\\n")
    pathlib.Path("/app/sitecustomize.py").write_text("import os\\nos._exit(0)\\n")
    pathlib.Path("/app/json.py").write_text("raise SystemExit(0)\\n")
    pathlib.Path("/app/answer").symlink_to("/app/elsewhere")
"""


def test_tp08_planted_programs_start_files_and_modules_never_make_a_score(home: Home) -> None:
    honest = "def run(given):\n    import json\n    return json.dumps([1])\n"
    command = "grep -q right /app/answer", "test -e /app/never", "python3 -I -c 'raise SystemExit(1)'", "cat /app/never"
    tricked = [check(text, id=f"tricked{number}") for number, text in enumerate(command)]
    exists = {**check(id="link"), "criteria": [{"type": "probe_file_contains", "criterion": "c", "paths": ["answer"], "expected": "right"}]}
    steps = [BOX, code("attack"), *tricked, exists, code("honest", "after")]
    answer = home("run", home.bundle(scripts={"attack": ATTACKER, "honest": honest}, a=steps), "--json")
    (run,) = answer.json["runs"]
    assert set(run["scores"]) == {*(each["id"] for each in tricked), "link"}, answer.all
    assert set(run["scores"].values()) == {0.0}, run["scores"]
    assert home.context(run["run_id"])["metadata"]["script_results"]["after"] == "[1]"


def test_tp09_commands_are_judged_in_base_dir_with_the_places_own_variables(home: Home) -> None:
    made = "import os\ndef run(given):\n    os.makedirs('/srv/project')\n    open('/srv/project/here', 'w')\n"
    there = check("test -e here", 'test "$(pwd)" = /srv/project', 'test -z "$A$PYTHONPATH"', 'test -d "$HOME"', base_dir="/srv/project")
    answer = home("run", home.bundle(scripts={"made": made}, a=[BOX, code("made"), there]), "--json", env={"A": "1"})
    assert answer.json["runs"][0]["scores"] == {"check": 1.0}, answer.all
