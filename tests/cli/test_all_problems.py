"""Whatever reads a task tells everything that is wrong with it: a broken graph hides no broken field."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Answer, Cli

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


def test_a_misspelt_key_is_read_as_it_is_meant_and_the_stored_form_has_paths_of_its_own(cli: Cli) -> None:
    box = {"id": "box", "type": "deploy_sandbox", "sandbox_name": "box", "sandbox_mode": "vm"}
    criteria = [{"type": "bash_cmd_succeeds", "criterion": "it works", "bash_cmd": "true"}]
    checks = [
        {"id": "a", "type": "verify_sandbox", "sandbox_nme": "box", "criteria": criteria},
        {"id": "b", "type": "verify_sandbox", "sandbox_nme": "bix", "criteria": criteria, "depends_on": ["nobody"]},
        {"id": "c", "type": "verify_sandbox", "sandbox_name": "box", "criteria": criteria, "shell_timout_seconds": "soon"},
        {"id": "d", "type": "verify_sandbox", "sandbox_name": "bx", "criteria": criteria, "depends_on": []},
    ]
    told = {
        "[1].sandbox_nme": "unknown key 'sandbox_nme'",
        "[2].depends_on[0]": "depends_on names 'nobody', which is no step of this task",
        "[2].sandbox_nme": "unknown key 'sandbox_nme'",
        "[2].sandbox_name": "uses the sandbox 'bix', which no earlier step provides",
        "[3].shell_timout_seconds": "unknown key 'shell_timout_seconds'",
        "[4].sandbox_name": "uses the sandbox 'bx', which no earlier step provides",
    }
    steps = [box, *checks]
    for name, written, start in (("list.json", steps, "$"), ("stored.json", {"id": "t", "type": "task", "steps": steps}, "$.steps")):
        problems = cli("run", cli.write(name, written), "--dry-run", "--json").json["error"]["problems"]
        assert {f"{start}{path}" for path in told} == {problem["path"] for problem in problems}
        for path, message in told.items():
            assert any(problem["path"] == f"{start}{path}" and message in problem["message"] for problem in problems)
        assert any("shell_timeout_seconds is a number" in problem["message"] for problem in problems)
        assert "provided before: none; this step doesn't wait for what is listed before it: 'box' provides 'box'" in [
            problem["hint"] for problem in problems
        ]


def test_a_task_with_a_key_twice_is_refused_with_all_else_that_is_wrong(cli: Cli) -> None:
    twice = cli.write("twice.json", '[{"id": "a", "id": "a", "type": "deploy_sandbox", "sandbox_name": "b", "sandbox_mode": "boat"}]')
    nowhere = {"AGENT_ENV_STATE_ROOT": "relative", "AGENT_ENV_CONFIG": "nowhere.toml"}
    for command in (["task", "create", twice, "--id", "a\tb"], ["run", twice], ["run", twice, "--dry-run"]):
        answer = cli(*command, env=nowhere)
        assert answer.code == 2
        for said in ("the key 'id' appears twice", "$[0].sandbox_mode", "is an absolute path, not 'relative'", "names 'nowhere.toml'"):
            assert said in answer.err, (command, said)
        assert ("task id" in answer.err) == (command[0] == "task")
    assert not (cli.home / "state").exists()


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


CHECK = {"type": "verify_sandbox", "sandbox_name": "box", "criteria": [{"type": "probe_file_exists", "paths": ["x"]}]}
ELSEWHERE = {"type": "deploy_sandbox", "sandbox_name": "a", "sandbox_mode": "vm", "sandbox_type": "nowhere"}
CONTAINER = {"type": "deploy_sandbox", "sandbox_mode": "container", "port": 1}
AGENT = {"type": "deploy_agent", "a2a_agent_id": "claude-code"}
LAYERS: dict[str, tuple[dict[str, Any], str]] = {
    "where it stands in the graph": ({**CHECK, "depends_on": ["nobody"]}, ".depends_on[0]"),
    "a field": ({**CHECK, "shell_timeout_seconds": "soon"}, ".shell_timeout_seconds"),
    "a rule across fields": ({"type": "run_code", "sandbox_name": "box", "agent_name": "odd", "script_artifact_id": "code"}, ""),
    "a name of another step": ({**CHECK, "sandbox_name": "nobox"}, ".sandbox_name"),
    "what is planned": ({**CHECK, "criteria": [{"type": "probe_file_contains", "paths": ["a"], "expected": "("}]}, ".criteria[0].expected"),
    "a document": ({"type": "load_artifact", "sandbox_name": "box", "artifact_id": "nothing"}, ".artifact_id"),
    "a provider": (ELSEWHERE, ""),
}
"""What may be wrong with a step, and where that is told."""
HERE: dict[str, tuple[dict[str, Any], str]] = {
    "what no sandbox can do": ({**CONTAINER, "sandbox_name": "b", "sandbox_type": "unsafe_host", "image": "a"}, ""),
    "a secret": ({**AGENT, "agent_name": "keyed", "env_vars": {"AN_API_KEY": "env:NOTHING_HAS_IT"}}, ".env_vars.AN_API_KEY"),
    "a model": ({**AGENT, "agent_name": "other"}, ""),
}
"""What is only asked of a machine that is to run it."""


def steps_of(*layers: tuple[dict[str, Any], str]) -> list[dict[str, Any]]:
    box = {"id": "box", "type": "deploy_sandbox", "sandbox_name": "box", "sandbox_mode": "vm"}
    return [box, *({**step, "id": f"s{number}"} for number, (step, _) in enumerate(layers, 1))]


def places_of(*layers: tuple[dict[str, Any], str]) -> list[str]:
    return [f"$[{number}]{place}" for number, (_, place) in enumerate(layers, 1)]


def layered(cli: Cli) -> tuple[Path, set[tuple[str, str]]]:
    """A bundle with something wrong at every layer, a configuration with something wrong, and where all of it is to be told."""
    folder, both = cli.cwd / "layered", [*LAYERS.values(), *HERE.values()]
    for name in ("tasks", "evals", "artifacts/code"):
        (folder / name).mkdir(parents=True)
    (folder / "tasks/all.json").write_text(json.dumps(steps_of(*both)))
    (folder / "tasks/next.json").write_text(json.dumps(steps_of(LAYERS["a field"], LAYERS["a document"])))
    (folder / "tasks/bad.json").write_text("[")
    (folder / "evals/e.toml").write_text('tasks = ["all", "next", "nothing", "bad"]')
    (folder / "artifacts/code/run.py").write_text("")
    (folder / "artifacts/code/artifact.toml").write_text("type =")
    config = cli.home / "config/agent-env/config.toml"
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text("[limits]\nexec_seconds = -1\n")
    told = {("tasks/all.json", place) for place in places_of(*both)} | {("tasks/all.json", "$[3].agent_name")}
    told |= {("tasks/next.json", place) for place in places_of(LAYERS["a field"], LAYERS["a document"])}
    told |= {("evals/e.toml", "$.tasks[2]"), ("tasks/bad.json", "None"), ("artifacts/code/artifact.toml", "None")}
    return folder, told | {(str(config), "$.limits.exec_seconds")}


def told_by(answer: Answer) -> list[tuple[str, str]]:
    assert answer.code == 2
    return sorted((str(problem["file"]), str(problem["path"])) for problem in answer.json["error"]["problems"])


@pytest.mark.parametrize("options", [["--dry-run"], []], ids=["dry run", "run"])
def test_problems_of_every_layer_are_told_in_one_round_and_once(cli: Cli, options: list[str]) -> None:
    folder, told = layered(cli)
    assert told_by(cli("run", folder, *options, "--json")) == sorted(told)


def test_a_check_tells_every_layer_but_what_this_machine_lacks(cli: Cli) -> None:
    folder, told = layered(cli)
    here = {("tasks/all.json", place) for place in places_of(*LAYERS.values(), *HERE.values())[len(LAYERS) :]}
    assert told_by(cli("bundle", "check", folder, "--json")) == sorted(told - here)


def test_options_are_told_beside_broken_files(cli: Cli) -> None:
    folder, told = layered(cli)
    (cli.cwd / "seeds.csv").write_text("a,a\n")
    options = ["--agent", "nobody", "--eval", "e", "--task", "none", "--seeds", cli.cwd / "seeds.csv", "--budget", "tokens=no"]
    answer = cli("run", folder, "--json", "--output", folder / "tasks/all.json/x.json", *options)
    found = told_by(answer)
    own = [("--agent", "None"), ("--task", "None")]
    assert [place for place in found if place[0].startswith("--")] == own
    assert all(word in answer.err for word in ("tasks/all.json/x.json can't be written", "--budget 'tokens=no' is no LIMIT=N"))
    assert any(file.endswith("seeds.csv") for file, _ in found)
    assert {place for place in told if place[0] != "tasks/all.json"} <= set(found)


def test_a_stored_task_its_context_and_the_configuration_are_told_of_at_once(cli: Cli) -> None:
    steps = steps_of(*LAYERS.values())
    del steps[1]["depends_on"]
    cli("task", "create", cli.write("t.json", steps), "--id", "t", "--skip-validation")
    _, told = layered(cli)
    here = {("t v1", place) for place in (*places_of(*LAYERS.values())[1:], "$[3].script_artifact_id")}
    named = {("t v1", "$[3].agent_name"), ("t v1", "$[4].sandbox_name")}
    (config,) = [place for place in told if place[1] == "$.limits.exec_seconds"]
    assert told_by(cli("task", "validate", "--id", "t", "--json")) == sorted({*here, *named, config})
    context = cli.write("context.json", "[1")
    found = told_by(cli("task", "run", "--id", "t", "--context-json", context, "--agent", "nobody", "--json"))
    # What the context would have provided nobody can tell.
    assert found == sorted({*here - named, config, (str(context), "None"), ("--agent", "None")})


def test_what_a_broken_configuration_may_have_said_is_no_problem_of_documents(cli: Cli) -> None:
    steps = steps_of(LAYERS["a field"], LAYERS["a document"], LAYERS["a provider"], HERE["a secret"], ({"type": "of_a_plug_in"}, ""))
    file, config = cli.write("t.json", steps), cli.home / "config/agent-env/config.toml"
    config.parent.mkdir(parents=True)
    config.write_text("[state\n")
    assert told_by(cli("run", file, "--json")) == sorted([(str(file), "$[1].shell_timeout_seconds"), (str(config), "None")])


@pytest.mark.parametrize("way", ["bundle check", "run FILE"])
def test_a_key_that_is_there_twice_hides_nothing_else_of_its_file(cli: Cli, way: str) -> None:
    (cli.cwd / "bundle/tasks").mkdir(parents=True)
    file = cli.cwd / "bundle/tasks/t.json"
    file.write_text(json.dumps(STEPS).replace('"boat"', '"boat", "sandbox_mode": "boat"'))
    answer = cli(*(["bundle", "check", file.parents[1]] if way == "bundle check" else ["run", file]))
    assert [place for place in ("$[0]: the key 'sandbox_mode' appears twice", *PLACES) if place not in answer.err] == []


def test_a_bundle_that_is_not_there_is_told_beside_a_broken_configuration(cli: Cli) -> None:
    config = cli.home / "config/agent-env/config.toml"
    config.parent.mkdir(parents=True)
    config.write_text("[run]\nconcurrency = 0\n")
    for command in (["run", "nowhere"], ["bundle", "check", "nowhere"]):
        answer = cli(*command)
        assert answer.code == 2
        assert all(word in answer.err for word in ("$.run.concurrency", "no installed bundle 'nowhere'")), answer.err
