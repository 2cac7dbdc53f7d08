"""`agent-env task`, `artifact` and `bundle`: storing, checking, listing, removing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent_env.cli.commands.artifact import STORED_TYPES
from agent_env.documents.artifact_kinds import ARTIFACT_TYPES
from agent_env.steps.registry import CHECKS
from tests.cli.conftest import Cli
from tests.cli.tasks import BOX, PASSING, SCORED_ZERO, bundle, graded, shell


def test_task_is_created_fetched_validated_listed_and_removed(cli: Cli) -> None:
    file = cli.write("t.json", PASSING)
    assert cli("task", "create", file, "--id", "my task", "--json").json["version"] == 1
    assert cli("task", "create", file, "--id", "my task").out == "my task: v2\n"
    assert cli("task", "get", "--id", "my task").json == PASSING
    assert cli("task", "validate", "--id", "my task", "--version", "1").out == "my task v1: 2 steps; no problems found\n"
    assert [item["id"] for item in cli("task", "list", "--json").json["tasks"]] == ["my task"]
    assert "my task" in cli("task", "list").out
    assert cli("task", "rm", "my task").code == 0
    assert cli("task", "get", "--id", "my task").code == 2


NOT_RUN = max(CHECKS)
REFUSED: list[tuple[str, object, list[str]]] = [
    ("no list", {"id": "a"}, ["JSON list of steps"]),
    ("unknown type", [{"id": "a", "type": "nope"}], ["nope"]),
    ("known type that is a command here", [{"id": "a", "type": NOT_RUN}], [NOT_RUN]),
    ("several", [{"id": "a", "type": "nope"}, {"id": "b", "type": "deploy_sandbox"}], ["nope", "sandbox_name", "sandbox_mode"]),
    ("same id", [BOX, BOX], ["box"]),
]


@pytest.mark.parametrize(("steps", "said"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_task_create_refuses_with_all_problems_and_saves_nothing(cli: Cli, steps: object, said: list[str]) -> None:
    answer = cli("task", "create", cli.write("t.json", json.dumps(steps)), "--id", "t")
    assert answer.code == 2
    for words in said:
        assert words in answer.err
    assert "t.json" in answer.err
    assert "Traceback" not in answer.all
    assert cli("task", "list", "--json").json == {"tasks": []}


def test_task_create_skips_validation_only_when_asked(cli: Cli) -> None:
    file = cli.write("t.json", [BOX, {**shell("true"), "sandbox_name": "other"}])
    refused = cli("task", "create", file, "--id", "t")
    assert refused.code == 2
    assert "--skip-validation" in refused.err
    assert cli("task", "create", file, "--id", "t", "--skip-validation").code == 0
    assert cli("task", "validate", "--id", "t").code == 2


def test_task_run_writes_a_context_for_each_run_under_the_tasks_stem(cli: Cli) -> None:
    assert cli("task", "create", cli.write("t.json", PASSING), "--id", "my task").code == 0
    answer = cli("task", "run", "--id", "my task", "--k", "2", "--output-dir", "out", "--agent-model", "p/m", "--json")
    assert answer.code == 0, answer.err
    assert len(answer.json["runs"]) == 2
    contexts = [path for path in (cli.cwd / "out").iterdir() if path.name != "results.json"]
    assert len(contexts) == 2
    for path in contexts:
        context = json.loads(path.read_text())
        assert context["metadata"]["verifications"]["check"]["score"] == 1.0
        assert context["agent_model"] == "p/m"
        assert len(path.stem.rpartition("_")[2]) == 8
    instance = contexts and json.loads(contexts[0].read_text())["instance_id"]
    told = cli("task", "get-instance", "--id", instance)
    assert told.code == 0, told.err
    assert "Context: {" in told.out
    assert cli("task", "get-instance", "--id", instance, "--json").json["context"]["instance_id"] == instance


def test_task_run_exit_code_is_1_when_the_mark_is_missed(cli: Cli) -> None:
    assert cli("task", "create", cli.write("t.json", SCORED_ZERO), "--id", "t").code == 0
    assert cli("task", "run", "--id", "t", "--output-dir", "out", "-q").code == 0
    assert cli("task", "run", "--id", "t", "--output-dir", "out", "-q", "--fail-under", "1").code == 1


def test_tp11_run_batch_makes_a_run_of_each_row_and_empty_cells_are_absent(cli: Cli) -> None:
    assert cli("task", "create", cli.write("t.json", graded('test "<word>" = good')), "--id", "t").code == 0
    seeds = cli.write("seeds.csv", "\ufeffname,word,other\nyes,good,\nno,bad,x\n,,\n")
    answer = cli("task", "run-batch", "--id", "t", "--seeds", seeds, "--output-dir", "out", "--json")
    assert answer.code == 0, answer.err
    assert {run["task"]: run["scores"]["check"] for run in answer.json["runs"]} == {"t [row 1 yes]": 1.0, "t [row 2 no]": 0.0}
    shown = {run["task"]: cli("runs", "show", run["run_id"], "--json").json["seed"] for run in answer.json["runs"]}
    assert shown["t [row 1 yes]"] == {"name": "yes", "word": "good"}
    assert {path.name.rpartition("_")[0] for path in (cli.cwd / "out").glob("t-*.json")} == {"t-seed0", "t-seed1"}


@pytest.mark.parametrize("text", ["", "a,a\n1,2\n", "a\n1,2\n", "a\n", 'a\n"open\n'])
def test_seeds_that_are_no_table_are_refused_with_the_file_named(cli: Cli, text: str) -> None:
    assert cli("task", "create", cli.write("t.json", PASSING), "--id", "t").code == 0
    answer = cli("task", "run-batch", "--id", "t", "--seeds", cli.write("seeds.csv", text), "--output-dir", "out")
    assert answer.code == 2
    assert "seeds.csv" in answer.err


def test_context_json_of_another_shape_is_refused_with_file_and_path(cli: Cli) -> None:
    assert cli("task", "create", cli.write("t.json", PASSING), "--id", "t").code == 0
    broken = cli.write("c.json", {"deployed_sandboxes": [{"sandbox_name": "a"}], "metadata": []})
    answer = cli("task", "run", "--id", "t", "--context-json", broken, "--output-dir", "out")
    assert answer.code == 2
    assert "c.json" in answer.err
    assert "sandbox_id" in answer.err
    assert "metadata" in answer.err


def test_artifact_file_and_folder_are_stored_fetched_listed_and_removed(cli: Cli) -> None:
    file = cli.write("greeting.txt", "hello\n")
    folder = cli.write("tree/sub/a.sh", "#!/bin/sh\n").parents[1]
    (folder / "sub/a.sh").chmod(0o755)
    assert cli("artifact", "put", file, "--id", "one").out == "one: v1 (file)\n"
    assert cli("artifact", "put", folder, "--id", "many-files", "--json").json["type"] == "file_artifact_universe"
    assert [found["id"] for found in cli("artifact", "list", "--type", "folder", "--json").json["artifacts"]] == ["many-files"]
    assert cli("artifact", "list", "--type", "foldr").code == 2
    assert set(STORED_TYPES) == {"folder", *ARTIFACT_TYPES}
    assert [entry["path"] for entry in cli("artifact", "get", "many-files", "--json").json["files"]] == ["sub/a.sh"]
    assert cli("artifact", "get", "many-files", "--output", "back").code == 0
    taken = cli("artifact", "get", "many-files", "--output", cli.write("taken", "a file"))
    assert (taken.code, "taken/sub/a.sh can't be written" in taken.err, "--debug" in taken.err) == (2, True, False)
    assert (cli.cwd / "back/sub/a.sh").stat().st_mode & 0o111
    assert {item["id"] for item in cli("artifact", "list", "--json").json["artifacts"]} == {"one", "many-files"}
    assert [item["id"] for item in cli("artifact", "list", "--json", "--contains", "ON").json["artifacts"]] == ["one"]
    near = cli("artifact", "get", "many-fies")
    assert near.code == 2
    assert "many-files" in near.err
    assert cli("artifact", "rm", "one", "many-files").code == 0
    assert cli("artifact", "list", "--json").json == {"artifacts": []}


def test_artifact_mistakes_are_one_line(cli: Cli) -> None:
    assert cli("artifact", "put", "gone", "--id", "x").code == 2
    folder = cli.write("tree/a", "x").parent
    assert cli("artifact", "put", folder, "--id", "x", "--type", "file").code == 2
    assert "--entrypoint" in cli("artifact", "put", folder, "--id", "x", "--type", "cli").err


def test_bundle_new_is_checked_shown_and_runs_to_a_score_of_one(cli: Cli) -> None:
    made = cli("bundle", "new", "first")
    assert made.code == 0, made.err
    assert "agent-env run" in made.err
    checked = cli("bundle", "check", "first")
    assert checked.code == 0, checked.err
    assert "no problems" in checked.out
    shown = cli("bundle", "show", "first", "--json").json
    assert {entry["kind"] for entry in shown["entries"]} >= {"task", "artifact"}
    assert cli("run", "first", "--json").json["passed"] is True
    again = cli("bundle", "new", "first")
    assert again.code == 2
    assert "not empty" in again.err


def test_bundle_check_tells_all_problems_and_runs_nothing(cli: Cli) -> None:
    folder = bundle(cli.cwd / "b", a=[{"id": "a", "type": "nope"}], b=[{"id": "a", "type": "deploy_sandbox"}])
    answer = cli("bundle", "check", folder, "--json")
    assert answer.code == 2
    assert len(answer.json["error"]["problems"]) >= 3
    assert cli("runs", "list", "--json").json == {"runs": []}


def test_bundle_init_makes_a_folder_of_a_stored_task_that_runs(cli: Cli) -> None:
    assert cli("artifact", "put", cli.write("words.txt", "x\n"), "--id", "words").code == 0
    load = {"id": "load", "type": "load_artifact", "sandbox_name": "box", "artifact_id": "words", "destination_path": "/app"}
    assert cli("task", "create", cli.write("t.json", [BOX, load, shell("test -s /app/words.txt")]), "--id", "t").code == 0
    made = cli("bundle", "init", "imported", "--from-task", "t")
    assert made.code == 0, made.err
    assert cli("run", "imported", "--json").json["passed"] is True
    assert cli("bundle", "init", "other").code == 2
    assert cli("bundle", "init", "other", "--from-task", "t", "--from-eval", "e").code == 2
    assert not Path(cli.cwd / "other").exists()


SEEDED = graded('test "<unit>" = pieces')


@pytest.mark.parametrize("way", ["bundle", "file", "stored", "batch"])
def test_seeds_and_placeholders_that_miss_each_other_are_warned_about_and_refused_when_strict(cli: Cli, way: str) -> None:
    """Whichever way a task is run."""
    steps = graded('test "<unit>" = pieces; : <colour>')
    file = cli.write("t.json", steps)
    assert cli("task", "create", file, "--id", "t").code == 0
    bundle(cli.cwd / "b", t=steps)
    seeds = cli.write("rows.csv", "unit,size\npieces,1\n,2\n")
    call: list[str | Path] = {
        "bundle": ["run", cli.cwd / "b"],
        "file": ["run", file],
        "stored": ["run", "t"],
        "batch": ["task", "run-batch", "--id", "t", "--output-dir", "out"],
    }[way]
    answer = cli(*call, "--seeds", seeds)
    assert answer.code == 0, answer.err
    told = [line for line in answer.err.splitlines() if line.startswith("warning: ")]
    assert any("$[1].criteria[0].bash_cmd: nothing fills <colour>" in line for line in told), answer.err
    assert f"warning: {seeds}: line 1: the column 'size' fills nothing: no task has <size>" in told
    assert any(f"{seeds}: line 3: the row has no value for 'unit'" in line for line in told)
    assert len(told) == 3
    assert "[row 1]" in answer.out
    assert "[row 2]" in answer.out
    strict = cli(*call, "--seeds", seeds, "--strict", "--json")
    assert strict.code == 2
    assert len(strict.json["error"]["problems"]) == 3


def test_a_placeholder_that_nothing_fills_is_warned_about_in_every_check_and_run_without_seeds(cli: Cli) -> None:
    """Text that is meant as it is written looks the same, so that it is no problem when strict."""
    file, folder = cli.write("t.json", SEEDED), bundle(cli.cwd / "b", t=SEEDED)
    assert cli("task", "create", file, "--id", "t").code == 0
    for call in (
        ("bundle", "check", folder, "--strict"),
        ("task", "validate", "t", "--strict"),
        ("run", folder, "--dry-run"),
        ("run", file, "--dry-run", "--strict"),
        ("task", "run", "--id", "t", "--output-dir", "out"),
    ):
        answer = cli(*call)
        assert answer.code == 0, answer.all
        (told,) = [line for line in answer.all.splitlines() if "nothing fills" in line]
        assert told.startswith("warning: "), answer.all
        assert "$[1].criteria[0].bash_cmd: nothing fills <unit>" in told


def test_a_broken_task_and_broken_seeds_are_told_at_once(cli: Cli) -> None:
    steps = [{**BOX, "sandbox_nmae": "x"}, shell("true")]
    seeds = cli.write("rows.csv", "a,a\n1,2\n")
    for what in (cli.write("t.json", steps), bundle(cli.cwd / "b", t=steps)):
        answer = cli("run", what, "--seeds", seeds)
        assert answer.code == 2
        assert "sandbox_nmae" in answer.err
        assert "two columns are named 'a'" in answer.err


def test_a_value_that_does_not_fit_its_field_names_the_row_before_anything_runs(cli: Cli) -> None:
    criterion = {"type": "probe_file_contains", "criterion": "it is there", "paths": ["/etc/passwd"], "expected": "<pattern>"}
    steps = [BOX, {**shell("true"), "criteria": [criterion]}]
    seeds = cli.write("rows.csv", "pattern\nroot\n(\n")
    for what in (cli.write("t.json", steps), bundle(cli.cwd / "b", t=steps)):
        answer = cli("run", what, "--seeds", seeds)
        assert answer.code == 2, answer.all
        assert f"$[1].criteria[0].expected: with line 3 of {seeds}: " in answer.err
    assert cli("runs", "list", "--json").json["runs"] == []


def test_rows_of_seeds_are_told_apart_in_progress_and_results(cli: Cli) -> None:
    folder = bundle(cli.cwd / "b", t=SEEDED)
    seeds = cli.write("rows.csv", "name,unit\nada,pieces\nbob,other\n")
    answer = cli("run", folder, "--seeds", seeds, "--attempts", "2")
    for label in ("[row 1 ada] #1", "[row 1 ada] #2", "[row 2 bob] #1", "[row 2 bob] #2"):
        assert f"tasks/t.json {label}  " in answer.out
        assert f"[tasks/t.json {label}] " in answer.err
    assert "2 of 4" in answer.out


@pytest.mark.parametrize("verb", [["run"], ["run", "--k", "2"], ["run-batch", "--seeds", "seeds.csv"]])
def test_a_stored_task_leaves_nothing_in_the_temporary_folder(cli: Cli, verb: list[str]) -> None:
    assert cli("task", "create", cli.write("t.json", SCORED_ZERO), "--id", "t").code == 0
    cli.write("seeds.csv", "name\none\n")
    (cli.home / "tmp").mkdir(mode=0o1777)
    answer = cli("task", *verb, "--id", "t", "--json", env={"TMPDIR": str(cli.home / "tmp")})
    assert answer.code == 0, answer.err
    assert list((cli.home / "tmp").iterdir()) == []


def test_contexts_are_written_for_their_user_alone_and_attempts_are_told_apart(cli: Cli) -> None:
    assert cli("task", "create", cli.write("t.json", SCORED_ZERO), "--id", "t").code == 0
    answer = cli("task", "run", "--id", "t", "--k", "2", "--output-dir", "results")
    assert answer.code == 0
    assert all(f"[t #{number}] scored below 1" in answer.err and f"t #{number} " in answer.out for number in (1, 2))
    assert (cli.cwd / "results").stat().st_mode & 0o777 == 0o700
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in (cli.cwd / "results").iterdir())


@pytest.mark.parametrize("words", [["env", "deploy"], ["a2a-agent", "get"]])
def test_environments_and_agents_are_named_in_front_or_by_id(cli: Cli, words: list[str]) -> None:
    said = [cli(*words, *given) for given in (["nope"], ["--id", "nope"])]
    assert [answer.code for answer in said] == [2, 2]
    assert said[0].err == said[1].err
    assert "'nope'" in said[0].err
    assert "is given twice" in cli(*words, "nope", "--id", "nope").err
    assert "is needed" in cli(*words).err
