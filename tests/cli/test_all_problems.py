"""Whatever reads a task tells everything that is wrong with it: a broken graph hides no broken field."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Cli

STEPS = [
    {"id": "box", "type": "deploy_sandbox", "sandbox_name": "box", "sandbox_mode": "boat"},
    {"id": "a\0b", "type": "teardown_sandboxes", "sandbox_names": ["box"], "depends_on": ["nobody"], "timeout_seconds": "soon"},
]
PLACES = ("$[0].sandbox_mode", "$[1].id", "$[1].depends_on[0]", "$[1].timeout_seconds")


def file(cli: Cli) -> Path:
    path = cli.cwd / "task.json"
    path.write_text(json.dumps(STEPS))
    return path


def bundle(cli: Cli) -> Path:
    folder = cli.cwd / "bundle"
    (folder / "tasks").mkdir(parents=True)
    (folder / "tasks" / "t.json").write_text(json.dumps(STEPS))
    return folder


WAYS: dict[str, Callable[[Cli], list[str | Path]]] = {
    "task create": lambda cli: ["task", "create", file(cli), "--id", "t"],
    "run FILE": lambda cli: ["run", file(cli)],
    "run FILE --dry-run": lambda cli: ["run", file(cli), "--dry-run"],
    "bundle check": lambda cli: ["bundle", "check", bundle(cli)],
    "run BUNDLE": lambda cli: ["run", bundle(cli)],
}


@pytest.mark.parametrize("way", WAYS)
def test_all_problems_of_a_task_are_told_in_one_report(cli: Cli, way: str) -> None:
    answer = cli(*WAYS[way](cli))
    assert answer.code == 2
    assert [place for place in PLACES if place not in answer.err] == []
    assert "\0" not in answer.all
    assert not (cli.home / "state" / "agent-env" / "runs").exists()


MISSPELT = [
    {"id": "box", "type": "deploy_sandbx", "sandbox_name": "box", "sandbox_mode": "vm", "memory_mb": "much"},
    {"id": "load", "type": "load_artifact", "sandbox_name": "box", "artifact_id": "nothing"},
    {"id": "look", "type": "verify_sandbox", "sandbox_name": "bux", "criteria": [{"type": "bash_cmd_succeeds", "bash_cmd": "true"}]},
    {"id": "odd", "type": "verify_sandbox", "sandbox_name": "box", "criteria": "none"},
    {"id": "sum", "type": "aggregate_verifiers", "verifier_ids": ["look", "nobody"]},
    {"id": "near", "type": "run_code", "sandbox_name": "bix", "script_artifact_id": "none", "timout_seconds": 3},
]
HIDDEN = (
    "$[0].type",
    "$[0].memory_mb",
    "$[1].artifact_id",
    "$[2].sandbox_name",
    "$[3].criteria",
    "$[4].verifier_ids",
    "$[5].sandbox_name",
    "$[5].timout_seconds",
)


@pytest.mark.parametrize("way", WAYS)
def test_a_misspelt_type_and_a_broken_field_hide_nothing_else(cli: Cli, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.cli.test_all_problems.STEPS", MISSPELT)
    answer = cli(*WAYS[way](cli))
    assert answer.code == 2
    assert [place for place in HIDDEN if place not in answer.err] == []
    assert "'nobody'" in answer.err
    assert "uses the sandbox 'box'" not in answer.err, "the misspelt step was meant to provide it"


def test_names_of_a_misspelt_step_mean_what_they_would_mean(cli: Cli) -> None:
    folder = cli.cwd / "bundle"
    (folder / "tasks").mkdir(parents=True)
    (folder / "artifacts/orders").mkdir(parents=True)
    (folder / "artifacts/orders/orders.csv").write_text("item\n")
    box = {"id": "box", "type": "deploy_sandbox", "sandbox_name": "box", "sandbox_mode": "vm"}
    load = {"id": "load", "type": "load_artefact", "sandbox_name": "box", "artifact_id": "orders", "destination_path": "/app"}
    (folder / "tasks/t.json").write_text(json.dumps([box, load]))
    answer = cli("bundle", "check", folder, "--json")
    assert [problem["path"] for problem in answer.json["error"]["problems"]] == ["$[1].type"]
    alone = cli("run", folder / "tasks/t.json", "--dry-run")
    assert "artifact 'orders' does not exist" in alone.err
    assert alone.err.splitlines()[-1].endswith(f"agent-env run {folder} --task t")
