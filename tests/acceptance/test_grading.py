"""What is graded, seen from outside: evidence that can only be read in part, limits that were met, processes that were left running."""

from __future__ import annotations

import json
import zipfile
from typing import Any

import pytest

from tests.acceptance.conftest import BOX, Home, Steps, check, code

LEAVES = """
import subprocess
def run(given):
    loop = "while :; do date +%s%N > /app/now.new; mv /app/now.new /app/now; done"
    subprocess.Popen(["setsid", "sh", "-c", loop], stdin=-3, stdout=-3, stderr=-3)
    subprocess.run(["sh", "-c", "until test -s /app/now; do :; done"], check=True)
"""
STILL = "a=$(cat /app/now); sleep 0.3; test $a = $(cat /app/now)"
MOVES = "a=$(cat /app/now); for i in $(seq 200); do sleep 0.02; test $a = $(cat /app/now) || exit 0; done; exit 1"
HOG = """
def run(given):
    taken = []
    while True:
        taken.append(bytearray(b"x") * 10_000_000)
"""


def ran(home: Home, steps: Steps, scripts: dict[str, str] | None = None, **env: str) -> dict[str, Any]:
    """Runs one task, whatever becomes of it, and gives the line that the command prints of it."""
    home.env.update(env)
    folder = home.bundle(scripts=scripts, task=steps)
    return dict(json.loads(home("run", folder, "--json").out)["runs"][0])


@pytest.mark.parametrize(
    ("word", "fields", "command", "says"),
    [
        (None, {}, MOVES, None),
        (None, {"quiesce": "freeze"}, STILL, "freeze: processes held still: "),
        ("freeze", {}, STILL, "freeze: processes held still: "),
        ("kill", {}, STILL, "kill: process trees ended: 1"),
        ("kill", {"quiesce": "leave"}, MOVES, None),
    ],
)
def test_f13_the_step_or_the_configuration_says_what_becomes_of_what_still_runs_and_the_record_says_it_too(
    home: Home, word: str | None, fields: dict[str, Any], command: str, says: str | None
) -> None:
    steps = [BOX, code("leaves"), check(command, **fields)]
    line = ran(home, steps, {"leaves": LEAVES}, **({"AGENT_ENV_QUIESCE": word} if word else {}))
    assert (line["status"], line["scores"]) == ("completed", {"check": 1.0}), line
    done = home.context(line["run_id"])["metadata"]["verifications"]["check"].get("quiesce")
    assert done is None if says is None else str(done).startswith(says)


def test_evidence_that_can_be_read_in_part_is_kept_in_part_and_the_step_says_what_is_missing(home: Home) -> None:
    closes = (
        "import os\ndef run(given):\n    os.makedirs('/app/out/d')\n    open('/app/out/a', 'w').write('1')\n    os.chmod('/app/out/d', 0)\n"
    )
    collect = {"id": "keep", "type": "collect_artifacts", "sandbox_name": "box", "base_path": "/app/out", "fail_task_on_error": False}
    line = ran(home, [BOX, code("closes"), collect, check("test -e /app/out/a")], {"closes": closes})
    assert line["scores"] == {"check": 1.0}
    metadata = home.context(line["run_id"])["metadata"]
    record = metadata["collected_artifacts"]["keep"]
    assert list(record["artifacts"]) == ["a"]
    assert record["uncollected"] == [{"path": "/app/out/d", "reason": "EACCES"}]
    (failed,) = metadata["failed_steps"]
    assert (failed["step_id"], failed["error_type"], failed["is_fatal"]) == ("keep", "TransferError", False)
    assert "/app/out/d could not be looked at: EACCES" in failed["error"]


def test_f11_a_script_that_met_its_sandboxs_limit_is_told_as_that_and_not_as_a_lost_connection(home: Home) -> None:
    line = ran(home, [{**BOX, "memory_mb": 128}, code("hog")], {"hog": HOG})
    assert (line["status"], line["error"]["code"], line["error"]["step_id"]) == ("failed", "limit_hit", "work")
    assert "memory limit of 134217728 bytes" in line["error"]["message"]


def test_b5_a_hostile_archive_fails_its_step_by_the_members_name_and_leaves_no_file(home: Home) -> None:
    archive = home.cwd / "seed.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("root/good", "x")
        file.writestr("root/../../evil", "x")
    stored = home("artifact", "put", archive, "--id", "@local/seed", "--type", "environment", "--environment-name", "mail")
    assert stored.code == 0, stored.all
    load = {"id": "load", "type": "load_artifact", "sandbox_name": "box", "artifact_id": "@local/seed", "destination_path": "/data/in"}
    after = check("test ! -e /data && test ! -e /evil && test ! -e /app/evil", depends_on=["load"])
    line = ran(home, [BOX, {**load, "fail_task_on_error": False}, after])
    assert line["scores"] == {"check": 1.0}
    (failed,) = home.context(line["run_id"])["metadata"]["failed_steps"]
    assert (failed["step_id"], failed["error_type"]) == ("load", "ProblemsError")
    assert "root/../../evil: leads outside" in failed["error"]
