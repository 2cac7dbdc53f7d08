"""A full disk, output without end, a start that never ends: said, bounded, and no other run's business."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent_env.sandboxes.confined import probe
from tests.acceptance.conftest import AGENT_ENV, BOX, PATIENCE, Answer, Home, check, code, measured
from tests.busy import within

MIB = 1024 * 1024


class Apart:
    """A mount namespace of its own that several commands share."""

    def __init__(self, home: Home, pid: int) -> None:
        self._home = home
        self._into = (
            ["nsenter", "-t", str(pid), "-m"] if os.geteuid() == 0 else ["nsenter", "-t", str(pid), "-U", "-m", "--preserve-credentials"]
        )

    def __call__(self, *argv: str | Path) -> Answer:
        command = [*self._into, f"--wd={self._home.cwd}", *map(str, argv)]
        done = subprocess.run(command, env=self._home.environ(), capture_output=True, timeout=PATIENCE, check=False)
        return Answer(done.returncode, done.stdout.decode(), done.stderr.decode())


@contextmanager
def small_disk(home: Home, mebibytes: int) -> Iterator[Apart]:
    """The state folder is a file system of its own, of so many MiB."""
    home.state.mkdir(parents=True)
    mount = 'mount -t tmpfs -o size="$2" none "$1" && echo ready && exec sleep 1000'
    unshare = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-rm"]
    holder = subprocess.Popen([*unshare, "sh", "-c", mount, "sh", home.state, f"{mebibytes}m"], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == b"ready\n"
        yield Apart(home, holder.pid)
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()


def test_d5_a_full_disk_fails_the_step_with_that_reason_and_the_run_goes_on_when_there_is_space(home: Home) -> None:
    scripts = {"small": "def run(given):\n    return 'kept'\n", "large": "def run(given):\n    return 'x' * (12 << 20)\n"}
    steps = [BOX, code("small", "first"), code("large", "second"), check("true")]
    folder = home.bundle(scripts=scripts, a=steps)
    ballast = home.state / "ballast"
    with small_disk(home, 24) as apart:
        apart("head", "-c", "16M", "/dev/zero")
        assert apart("sh", "-c", f"head -c 16M /dev/zero > {ballast}").code == 0
        failed = apart(AGENT_ENV, "run", folder, "--json", "--pause-on-failure")
        assert failed.code == 1, failed.all
        run = failed.json["runs"][0]
        assert run["status"] == "failed"
        assert "space" in run["error"]["message"].lower(), run["error"]
        assert run["error"]["step_id"] == "second"
        assert run["scores"] == {}
        context = json.loads(apart(AGENT_ENV, "runs", "show", run["run_id"], "--context").out)
        assert context["metadata"]["script_results"] == {"first": "kept"}
        apart("rm", ballast)
        resumed = apart(AGENT_ENV, "resume", run["run_id"], "--json")
        assert resumed.code == 0, resumed.all
        assert resumed.json["runs"][0]["scores"] == {"check": 1.0}
        context = json.loads(apart(AGENT_ENV, "runs", "show", run["run_id"], "--context").out)
        assert context["metadata"]["script_results"]["first"] == "kept"
        assert len(context["metadata"]["script_results"]["second"]) == 12 << 20
        assert apart(AGENT_ENV, "gc", "--kept").code == 0
    assert home.processes() == {}
    assert home.folders() == []


MUCH = pytest.mark.parametrize("mebibytes", [256, pytest.param(1024, marks=pytest.mark.slow)])
"""The smaller one is more than twice what memory the command may take, too."""


@MUCH
def test_d6_f18_a_large_output_costs_the_command_no_memory(home: Home, mebibytes: int) -> None:
    scripts = {
        "loud": "import os\ndef run(given):\n    block = bytes(range(256)) * 4096\n"
        f"    for _ in range({mebibytes}):\n        os.write(1, block)\n    return 1\n",
        "quiet": "def run(given):\n    return 1\n",
    }
    folder = home.bundle(
        scripts=scripts,
        quiet=[BOX, code("quiet"), check("true")],
        loud=[BOX, code("loud"), check(f"head -c {mebibytes}M /dev/zero; cat")],
    )
    with measured(home, "run", folder, "--task", "quiet") as wait:
        least = wait()
    with measured(home, "run", folder, "--task", "loud") as wait:
        most = wait()
    run = home.runs()[0]
    assert run["scores"] == {"check": 1.0}
    log = home.context(run["run_id"])["metadata"]["script_logs"]["work"]["stdout"]
    assert "bytes before this were cut" in log
    assert len(log) <= 3 * 64 * 1024
    # Both verifier streams and the script's own kept end may be held, each once, up to their limits.
    assert most - least < 100 * MIB, f"{(most - least) // MIB} MiB"


@MUCH
def test_d6_what_goes_through_exec_is_passed_on_and_not_kept(home: Home, mebibytes: int) -> None:
    answer = home("run", home.bundle(a=[BOX]), "--keep", "--json")
    run_id = answer.json["runs"][0]["run_id"]
    with measured(home, "exec", run_id, "--", "true") as wait:
        least = wait()
    counter = subprocess.Popen(["wc", "-c"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with measured(home, "exec", run_id, "--", "head", "-c", f"{mebibytes}M", "/dev/zero", stdout=counter.stdin) as wait:
        assert counter.stdin is not None
        counter.stdin.close()
        most = wait()
    assert counter.stdout is not None
    assert int(counter.stdout.read()) == mebibytes * MIB
    counter.stdout.close()
    counter.wait()
    assert most - least < 50 * MIB, f"{(most - least) // MIB} MiB"
    assert home("runs", "teardown", run_id).code == 0


HANGS = """#!/bin/sh
if mkdir "{first}" 2>/dev/null; then
    yes "{line}" | head -c 100000
    yes "{line}" | head -c 100000 >&2
    exec sleep 300
fi
exec {real} "$@"
"""


def test_lc02_a_start_that_prints_and_never_gets_ready_ends_at_its_time_and_blocks_no_other(home: Home, tmp_path: Path) -> None:
    real = probe.survey().slirp
    if real is None:
        pytest.skip("agentenv-capability-missing: slirp4netns")
    shims = tmp_path / "shims"
    shims.mkdir()
    (shims / "slirp4netns").write_text(HANGS.format(first=tmp_path / "first", real=real, line="z" * 100))
    (shims / "slirp4netns").chmod(0o755)
    limit = min(within(3), 30.0)
    env = {"PATH": f"{shims}:{home.env['PATH']}", "AGENT_ENV_LIMIT_CONNECT_SECONDS": str(limit)}
    steps = [{**BOX, "network_policy": {"mode": "allow_all"}}, check("true")]
    folder = home.bundle(**{f"t{number}": steps for number in range(5)})
    begun = time.monotonic()
    answer = home("run", folder, "--json", "--concurrency", "5", env=env)
    elapsed = time.monotonic() - begun
    assert (tmp_path / "first").is_dir(), "slirp4netns was not used"
    statuses = sorted(run["status"] for run in answer.json["runs"])
    assert statuses == ["completed"] * 4 + ["failed"], answer.all
    failed = next(run for run in answer.json["runs"] if run["status"] == "failed")
    assert failed["scores"] == {}
    assert "network" in failed["error"]["message"], failed["error"]
    assert "zzz" in failed["error"]["message"], failed["error"]
    assert max(run["duration_seconds"] for run in answer.json["runs"] if run["status"] == "completed") < limit
    assert elapsed < limit + within(5)
    assert answer.code == 1


def test_lc12_f11_two_of_ten_tasks_that_can_not_be_done_are_two_errors_and_eight_scores(home: Home) -> None:
    scripts = {"broken": "raise SystemExit('the build broke')\n"}
    tasks = {f"t{number}": [BOX, check("true")] for number in range(10)}
    tasks["t4"] = [BOX, code("broken"), check("true")]
    tasks["t7"] = [{**BOX, "memory_mb": 1}, check("true")]
    answer = home("run", home.bundle(scripts=scripts, **tasks), "--json")
    assert answer.code == 1
    by_task = {run["task"]: run for run in answer.json["runs"]}
    assert len(by_task) == 10
    wrong = {task for task, run in by_task.items() if run["error"]}
    assert "tasks/t4.json" in wrong
    assert len(wrong) <= 2
    assert "the build broke" in by_task["tasks/t4.json"]["error"]["message"]
    assert all(run["scores"] == ({} if task in wrong else {"check": 1.0}) for task, run in by_task.items())
    assert answer.json["passed"] is False


def test_lc15_only_what_is_selected_is_deployed(home: Home) -> None:
    folder = home.bundle(**{f"t{number:02}": [BOX, check("true")] for number in range(20)})
    answer = home("run", folder, "--task", "t07", "--json")
    assert [run["task"] for run in answer.json["runs"]] == ["tasks/t07.json"]
    import sqlite3

    (database,) = home.state.glob("*.db")
    with sqlite3.connect(database) as connection:
        assert connection.execute("SELECT count(*) FROM resources").fetchone() == (1,)
        assert connection.execute("SELECT count(*) FROM runs").fetchone() == (1,)
    connection.close()


@pytest.mark.parametrize("how", ["it ends by itself", "it is interrupted"])
def test_lc14_nothing_is_said_by_destructors_and_nothing_stays_open(home: Home, how: str) -> None:
    scripts = {
        "slow": "import pathlib, time\ndef run(given):\n    pathlib.Path('/app/begun').touch()\n    time.sleep(given['args'].get('s', 0))\n"
    }
    env = {"PYTHONDEVMODE": "1", "PYTHONWARNINGS": "error::ResourceWarning"}
    if how == "it ends by itself":
        answer = home("run", home.bundle(scripts=scripts, a=[BOX, code("slow"), check("true")]), "--quiet", env=env)
        assert answer.code == 0, answer.all
        said = answer.err
    else:
        process = home.start("run", home.bundle(scripts=scripts, a=[BOX, code("slow", args={"s": 60})]), env=env)
        from tests.acceptance.conftest import ended, eventually

        eventually(lambda: any(home.places.glob("agent-env-*/app/begun")), "the script begins")
        process.terminate()
        answer = ended(process)
        assert answer.code == 143, answer.all
        said = answer.err
    for word in ("Warning", "Exception ignored", "Traceback", "never awaited", "was destroyed"):
        assert word not in said, said
