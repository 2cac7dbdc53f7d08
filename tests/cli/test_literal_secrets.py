"""Literal secrets of documents are nowhere in what commands store or print."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Cli

CANARY = "canary-1a2b3c4d5e6f7a8b"
STEPS = [
    {"id": "box", "type": "deploy_sandbox", "sandbox_name": "box", "sandbox_mode": "vm", "env_vars": {"API_KEY": CANARY, "LEVEL": "debug"}},
    {"id": "free", "type": "teardown_sandboxes", "sandbox_names": ["box"]},
]


def stored(cli: Cli) -> list[str]:
    """Files of the state folder that hold the canary."""
    state = cli.home / "state"
    return [str(path.relative_to(state)) for path in state.rglob("*") if path.is_file() and CANARY.encode() in path.read_bytes()]


def bundle(cli: Cli) -> Path:
    folder = cli.cwd / "b"
    (folder / "tasks").mkdir(parents=True)
    (folder / "tasks" / "t.json").write_text(json.dumps(STEPS))
    return folder


def test_a_task_that_is_created_keeps_a_reference_and_runs(cli: Cli) -> None:
    assert cli("task", "create", cli.write("t.json", STEPS), "--id", "t").code == 0
    steps = json.loads(cli("task", "get", "--id", "t").out)
    assert steps[0]["env_vars"]["API_KEY"].startswith("secret:kept/")
    assert steps[0]["env_vars"]["LEVEL"] == "debug"
    assert stored(cli) == ["agent-env/secrets.json"]
    ran = cli("task", "run", "--id", "t", "--output-dir", "out", "--json")
    assert ran.code == 0, ran.err
    shown = cli("runs", "show", ran.json["runs"][0]["run_id"], "--json")
    assert CANARY not in ran.all + shown.all
    assert stored(cli) == ["agent-env/secrets.json"]
    assert not [path for path in (cli.cwd / "out").rglob("*") if CANARY in path.read_text()]


def test_the_same_task_again_is_the_same_document(cli: Cli) -> None:
    file = cli.write("t.json", STEPS)
    first, second = (cli("task", "create", file, "--id", "t", "--json").json for _ in range(2))
    assert first["digest"] == second["digest"]


def test_a_bundles_task_is_stored_with_a_reference_and_is_found_unchanged_next_time(cli: Cli) -> None:
    folder = bundle(cli)
    foreseen = cli("run", folder, "--dry-run")
    assert foreseen.code == 0, foreseen.err
    assert not (cli.home / "state" / "agent-env" / "installation.key").exists()
    assert cli("run", folder).code == 0
    assert stored(cli) == ["agent-env/secrets.json"]
    assert "tasks/t.json: v1, unchanged" in cli("run", folder, "--dry-run").out
    again = cli("run", folder)
    assert again.code == 0
    assert "tasks/t.json: v1, unchanged" in cli("run", folder, "--dry-run").out
    assert stored(cli) == ["agent-env/secrets.json"]


def test_a_file_that_is_run_leaves_no_literal_behind(cli: Cli) -> None:
    assert cli("run", cli.write("t.json", STEPS)).code == 0
    assert stored(cli) == ["agent-env/secrets.json"]
