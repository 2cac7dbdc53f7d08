"""Many at once never mix, limits are kept to the second, and nothing of one attempt reaches the next."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from agent_env.sandboxes.confined import probe
from tests.acceptance.conftest import BOX, Home, check, code, ended
from tests.busy import lasting, within

APART = """
import http.server, os, pathlib, socket, threading, time, urllib.request

def run(given):
    mark = os.urandom(8).hex()
    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(mark.encode())
        def log_message(self, *_):
            pass
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 18765), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for name in ("/app/mark", "/tmp/mark", os.path.expanduser("~/mark")):
        with open(name, "a") as file:
            file.write(mark)
    time.sleep(0.5)
    seen = {pathlib.Path(name).read_text() for name in ("/app/mark", "/tmp/mark", os.path.expanduser("~/mark"))}
    seen.add(urllib.request.urlopen("http://127.0.0.1:18765/").read().decode())
    running = [p for p in os.listdir("/proc") if p.isdigit()]
    return {"mark": mark, "host": socket.gethostname(), "mixed": seen != {mark}, "processes": len(running)}
"""


def eight_at_once(home: Home, rounds: int) -> None:
    # Where nothing can give places a way out, those that may use the network share this machine's ports.
    box = BOX if probe.survey().slirp else {**BOX, "network_policy": {"mode": "none"}}
    folder = home.bundle(scripts={"apart": APART}, a=[box, code("apart"), check("test $(wc -c < /app/mark) = 16")])
    for _ in range(rounds):
        both = [home.start("run", folder, "--attempts", "4", "--concurrency", "4", "--json", "--seed", str(n)) for n in range(2)]
        answers = [ended(process) for process in both]
        assert [answer.code for answer in answers] == [0, 0], [answer.all for answer in answers]
        runs = [run for answer in answers for run in answer.json["runs"]]
        assert [run["scores"] for run in runs] == [{"check": 1.0}] * 8
        results = [home.context(run["run_id"]) for run in runs]
        scripts = [context["metadata"]["script_results"]["work"] for context in results]
        ids = [context["deployed_sandboxes"][0]["sandbox_id"] for context in results]
        assert not [result for result in scripts if result["mixed"]]
        assert [result["host"] for result in scripts] == ids
        assert len(set(ids)) == len({result["mark"] for result in scripts}) == 8
        assert max(result["processes"] for result in scripts) < 6


def test_a13_eight_runs_at_once_have_their_own_places_files_ports_names_and_results(home: Home) -> None:
    eight_at_once(home, 1)


@pytest.mark.slow
def test_a13_eight_runs_at_once_five_times(home: Home) -> None:
    eight_at_once(home, 5)


STAGED = """
import os, stat

def run(given):
    here = os.path.dirname(os.path.abspath(__file__))
    return {"folder": here, "mode": stat.S_IMODE(os.stat(here).st_mode), "above": os.listdir(os.path.dirname(here))}
"""
BROKEN = "import time\ndef run(given):\n    time.sleep(30) if given['args'].get('hang') else 1 / 0\n"


def test_c10_thirteen_deployments_at_once_four_times_stage_apart_and_leave_nothing_staged(home: Home) -> None:
    empty = check('test -z "$(ls -A /tmp/agent_env_run_code)"')
    answer = home(
        "run", home.bundle(scripts={"staged": STAGED}, a=[BOX, code("staged"), empty]), "--attempts", "52", "--concurrency", "13", "--json"
    )
    assert answer.code == 0, answer.all
    assert [run["scores"] for run in answer.json["runs"]] == [{"check": 1.0}] * 52
    results = [home.context(run["run_id"])["metadata"]["script_results"]["work"] for run in answer.json["runs"][::8]]
    assert {result["mode"] for result in results} == {0o700}
    assert {len(result["above"]) for result in results} == {1}
    assert len({result["folder"] for result in results}) == len(results)


@pytest.mark.parametrize("hang", [False, True])
def test_c10_nothing_stays_staged_after_a_failure_or_a_timeout(home: Home, hang: bool) -> None:
    bad = code("broken", args={"hang": hang}, timeout_seconds=1, fail_task_on_error=False)
    answer = home(
        "run", home.bundle(scripts={"broken": BROKEN}, a=[BOX, bad, check('test -z "$(ls -A /tmp/agent_env_run_code)"')]), "--json"
    )
    assert answer.json["runs"][0]["scores"] == {"check": 1.0}, answer.all


def test_c11_a_retry_that_fails_is_an_error_and_never_the_earlier_result(home: Home) -> None:
    script = (
        "import json, os, pathlib, sys\ndef run(given):\n    first = not pathlib.Path('/app/tried').exists()\n"
        "    pathlib.Path('/app/tried').touch()\n    here = pathlib.Path(os.path.dirname(os.path.abspath(__file__)))\n"
        "    if first:\n        (here / 'output.json').write_text('\"old\"')\n"
        "        (here / 'mate.py').write_text('x = 1')\n        sys.exit(7)\n"
        "    try:\n        import mate\n    except ImportError:\n        pass\n    else:\n        return 'a module of the first attempt'\n"
        "    os._exit(0)\n"
    )
    steps = [BOX, code("twice", retry_config={"retry_from_step_id": "work", "max_retries": 1}), check("true")]
    answer = home("run", home.bundle(scripts={"twice": script}, a=steps), "--json")
    (run,) = answer.json["runs"]
    assert (answer.code, run["status"], run["scores"]) == (1, "failed", {})
    assert "wrote no result" in run["error"]["message"], run["error"]
    assert len([step for step in home.show(run["run_id"])["steps"] if step["step_id"] == "work"]) == 2


STUBBORN = """
import os, signal, time

def run(given):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.system("date +%s.%N > /app/begun")
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if os.fork() == 0:
            os.setsid()
            time.sleep(60)
            os._exit(0)
        with open("/app/alive", "w") as file:
            file.write(str(time.monotonic()))
        time.sleep(0.05)
"""


def test_c12_f6_at_the_limit_come_sigterm_five_seconds_of_grace_and_the_end_of_the_whole_tree(home: Home) -> None:
    gone = "for e in /proc/[0-9]*/cmdline; do tr '\\0' ' ' < $e; done | grep -q runner[.]py && exit 1; exit 0"
    limit = lasting(1)
    steps = [BOX, code("stubborn", timeout_seconds=limit, fail_task_on_error=False), check(gone)]
    begun = time.monotonic()
    answer = home("run", home.bundle(scripts={"stubborn": STUBBORN}, a=steps), "--json")
    elapsed = time.monotonic() - begun
    (run,) = answer.json["runs"]
    assert run["scores"] == {"check": 1.0}, answer.all
    assert limit + 5.0 <= run["duration_seconds"] < limit + within(6.5)
    assert elapsed < limit + within(11)
    step = next(step for step in home.show(run["run_id"])["steps"] if step["step_id"] == "work")
    assert f"timed out after {limit:g}s" in json.dumps(step)


def test_c12_a_crash_tells_code_and_last_words_whole_to_a_user(home: Home) -> None:
    crash = "import sys\ndef run(given):\n    sys.stderr.write('<' + 'x' * 20000 + '>')\n    sys.exit(3)\n"
    answer = home("run", home.bundle(scripts={"crash": crash}, a=[BOX, code("crash")]), "--json")
    assert answer.code == 1
    message = answer.json["runs"][0]["error"]["message"]
    assert f"exited 3: <{'x' * 20000}>" in message


def test_b6_what_a_machine_step_loads_lies_under_the_places_work_folder_and_nowhere_else(home: Home) -> None:
    home.write("b/artifacts/note/note.txt", "b6-canary-content")
    load = {"id": "load", "type": "load_artifact", "sandbox_name": "box", "artifact_id": "note", "destination_path": "/b6-canary"}
    folder = home.bundle(a=[BOX, load, check("grep -q canary /b6-canary/note.txt")])
    answer = home("run", folder, "--keep", "--json")
    assert answer.code == 0, answer.all
    found = sorted(home.places.rglob("b6-canary/note.txt"))
    assert len(found) == 1
    assert found[0].read_text() == "b6-canary-content"
    assert not Path("/b6-canary").exists()
    assert home("runs", "teardown", answer.json["runs"][0]["run_id"]).code == 0
