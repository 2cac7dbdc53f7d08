"""A killed owner's run goes on: in the same place, past its orphans, by one successor, over clocks, names and reboots."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from tests.acceptance.conftest import AGENT_ENV, BOX, PATIENCE, Home, check, code, ended, eventually, killed
from tests.busy import within

ORPHAN = """
import os, pathlib, signal, time

def run(given):
    if pathlib.Path("/app/begun").exists():
        time.sleep(1)
        return "resumed"
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            poison()
        os._exit(0)
    poison()

def poison():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    pathlib.Path("/app/begun").touch()
    until = time.monotonic() + 45
    while time.monotonic() < until:
        time.sleep(0.05)
        for folder in pathlib.Path("/tmp/agent_env_run_code").glob("*"):
            (folder / "output.json").write_text('"poison"')
"""
COUNT = "def run(given):\n    with open('/app/count', 'a') as file:\n        file.write('x')\n    return 1\n"
RESUMABLE = [BOX, code("count", "before"), code("orphan"), code("count", "after"), check("test $(cat /app/count) = xx")]
SCRIPTS = {"orphan": ORPHAN, "count": COUNT}
UNTIL_LET_GO = "while not pathlib.Path('/app/go').exists():\n            time.sleep(0.02)"
HELD = {**SCRIPTS, "orphan": ORPHAN.replace("time.sleep(1)", UNTIL_LET_GO)}
"""As `SCRIPTS`, but a resumed script ends only when the test lets it go: who owns the run meanwhile is no matter of speed."""


def begun(home: Home) -> bool:
    return any(home.places.glob("agent-env-*/app/begun"))


def let_go(home: Home) -> None:
    for folder in home.places.glob("agent-env-*/app"):
        (folder / "go").touch()


def orphaned(home: Home, *argv: str | Path) -> tuple[str, list[str]]:
    """The run of a command that was killed while a script worked, and its places."""
    process = home.start(*argv)
    eventually(lambda: begun(home), "the script begins")
    killed(process)
    run = home.runs()[0]
    assert run["interrupted"]
    return str(run["run_id"]), home.folders()


def test_a14_after_kill_9_resume_stops_the_orphan_and_goes_on_in_the_same_place(home: Home) -> None:
    run_id, folders = orphaned(home, "run", home.bundle(scripts=SCRIPTS, a=RESUMABLE))
    ids = home.sandbox_ids(run_id)
    assert len(folders) == 1
    resumed = home("resume", run_id, "--json")
    assert resumed.code == 0, resumed.all
    assert resumed.json["runs"][0]["scores"] == {"check": 1.0}
    context = home.context(run_id)
    assert [record["sandbox_id"] for record in context["deployed_sandboxes"]] == ids
    assert context["metadata"]["script_results"]["work"] == "resumed"
    assert home.left() == {}


def test_a14_a_run_with_the_context_of_a_killed_one_adopts_its_places(home: Home) -> None:
    for name, text in SCRIPTS.items():
        assert home("artifact", "put", home.write(f"{name}/run.py", text), "--id", name).code == 0
    assert home("task", "create", home.write("t.json", RESUMABLE), "--id", "t").code == 0
    old, folders = orphaned(home, "task", "run", "--id", "t", "--output-dir", "out")
    instance = home.write("context.json", home("task", "get-instance", "--id", old, "--json").json["context"])
    again = ("task", "run", "--id", "t", "--start-step", "2", "--context-json", instance, "--output-dir", "out", "--keep", "--json")
    answer = home(*again)
    assert answer.code == 0, answer.all
    new = answer.json["runs"][0]["run_id"]
    assert answer.json["runs"][0]["scores"] == {"check": 1.0}
    context = home.context(new)
    assert context["metadata"]["script_results"]["work"] == "resumed"
    assert home.folders() == folders
    assert home("gc").code == 0
    home("runs", "teardown", old)
    assert home.folders() == folders
    assert home("exec", new, "--", "cat", "/app/count").out == "xx"
    assert home("runs", "teardown", new).code == 0
    assert home("gc", "--kept").code == 0
    assert home.left() == {}


def test_d3_of_two_commands_that_resume_at_once_one_wins_and_the_other_is_told_who_owns_it(home: Home) -> None:
    run_id, _ = orphaned(home, "run", home.bundle(scripts=HELD, a=RESUMABLE))
    both = [home.start("resume", run_id, "--json") for _ in range(2)]
    pids = [str(process.pid) for process in both]
    eventually(lambda: any(process.poll() is not None for process in both), "the loser is told")
    let_go(home)
    first, second = sorted(map(ended, both), key=lambda answer: answer.code)
    assert first.code == 0, first.all
    assert second.code != 0, "both did it"
    assert "Traceback" not in second.all
    assert any(pid in second.all for pid in pids), second.all
    assert home.context(run_id)["metadata"]["script_results"]["work"] == "resumed"
    assert first.json["runs"][0]["scores"] == {"check": 1.0}


def unshared(home: Home, script: str, *argv: str) -> subprocess.CompletedProcess[str]:
    """The command in a world that differs: `script` changes names or mounts of namespaces of its own before."""
    differing, same_user = ["unshare", "--mount", "--uts"], list[str]()
    if os.geteuid():  # who changes things is root there, and whose command it is the user that it was
        differing += ["--map-root-user"]
        same_user = ["unshare", "--user", f"--map-user={os.geteuid()}", f"--map-group={os.getegid()}"]
    command = [*differing, "sh", "-ec", f'{script}\nexec "$@"', "sh", *same_user, str(AGENT_ENV), *argv]
    return subprocess.run(command, env=home.environ(), cwd=home.cwd, capture_output=True, text=True, timeout=PATIENCE, check=False)


def test_d8_another_host_name_is_the_same_machine(home: Home) -> None:
    run_id, folders = orphaned(home, "run", home.bundle(scripts=HELD, a=RESUMABLE))
    owner = home.start("resume", run_id, "--json")
    eventually(lambda: home.show(run_id)["owner"] and not home.show(run_id)["interrupted"], "it is owned again")
    refused = unshared(home, "hostname another-name", "resume", run_id)
    assert refused.returncode != 0
    assert str(owner.pid) in refused.stderr, refused.stderr
    assert home.folders() == folders
    let_go(home)
    assert ended(owner).code == 0


def test_d8_after_a_reboot_places_are_lost_resume_says_what_redeploying_would_do_and_gc_cleans(home: Home, tmp_path: Path) -> None:
    run_id, _ = orphaned(home, "run", home.bundle(scripts=SCRIPTS, a=RESUMABLE))
    for pid in home.processes():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    eventually(lambda: not home.processes(), "everything ends, as in a reboot")
    (tmp_path / "boot_id").write_text("11111111-2222-3333-4444-555555555555\n")
    reboot = f"mount --bind {tmp_path}/boot_id /proc/sys/kernel/random/boot_id"
    told = unshared(home, reboot, "resume", run_id)
    assert told.returncode != 0
    assert "--redeploy" in told.stderr, told.stderr
    for step in ("box", "before"):
        assert step in told.stderr, told.stderr
    collected = unshared(home, reboot, "gc", "--json", "--kept")
    assert collected.returncode == 0, collected.stderr
    assert home.left() == {}


@pytest.mark.parametrize("faketime", ["an hour ago", "an hour ahead"])
def test_ck01_d8_a_clock_that_jumps_moves_no_deadline_and_no_owner(home: Home, faketime: str) -> None:
    shift = -3600 if faketime == "an hour ago" else 3600
    jump = (
        f"import time\nreal, begun = time.time, time.monotonic()\ntime.time = lambda: real() + {shift} * (time.monotonic() - begun > 1)\n"
    )
    jumping = home.write("jumping/sitecustomize.py", jump)
    slow = {"slow": "import time\ndef run(given):\n    time.sleep(1.5)\n    return 1\n"}
    folder = home.bundle(scripts=slow, a=[BOX, code("slow", timeout_seconds=30), check("true")])
    answer = home("run", folder, "--json", env={"PYTHONPATH": str(jumping.parent)})
    assert answer.code == 0, answer.all
    assert answer.json["runs"][0]["scores"] == {"check": 1.0}
    assert 1.5 < answer.json["runs"][0]["duration_seconds"] < within(60)


def test_a14_a_place_whose_maker_went_before_any_command_lives_with_its_limits_and_its_network(home: Home) -> None:
    folder = home.bundle(a=[BOX])
    for _ in range(3):
        run_id = home("run", folder, "--keep", "--json").json["runs"][0]["run_id"]
        (sandbox_id,) = home.sandbox_ids(run_id)
        looked = home("exec", run_id, "--", "cat", "/proc/net/dev", "/proc/self/cgroup")
        assert looked.code == 0, looked.all
        facts = json.loads((home.state / "sandboxes" / sandbox_id / "facts.json").read_text())
        if facts["network"]["how"] == "slirp4netns":
            assert "tap0" in looked.out
        for group in facts["cgroups"]:
            assert Path(group, "cgroup.procs").read_text().split(), f"nobody is in {group}"
        assert home("runs", "teardown", run_id).code == 0
