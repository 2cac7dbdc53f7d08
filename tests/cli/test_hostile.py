"""Hostile files, closed streams, narrow terminals, interruptions at any moment: each ends in one message and the right exit code."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from agent_env.cli.results import score_text
from tests.cli.conftest import AGENT_ENV, Cli
from tests.cli.tasks import PASSING, bundle, graded
from tests.cli.terminals import OnTerminal
from tests.cli.test_run import PATIENCE, sandboxes

STEP = '{"id": "a", "type": "review", "label": %s}'


def fifo(path: Path) -> None:
    os.mkfifo(path)


def loop(path: Path) -> None:
    path.symlink_to(path)


def written(data: bytes) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(data) and None


FILES: dict[str, Callable[[Path], None]] = {
    "a pipe": fifo,
    "a folder": Path.mkdir,
    "a link to itself": loop,
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    "nothing": lambda path: None,
    "empty": written(b""),
    "UTF-16": written("[1]".encode("utf-16")),
    "zero bytes": written(b"\0" * 100),
    "random bytes": written(bytes(range(256))),
    "deep": written(b"[" * 200_000),
    "a huge number": written(b"[" + (STEP % ("9" * 5000)).encode() + b"]"),
    "NaN": written(b"[" + (STEP % "NaN").encode() + b"]"),
    "a key twice": written(b'[{"id": "a", "id": "b", "type": "review"}]'),
    "half a surrogate": written(b"[" + (STEP % '"\\ud800"').encode() + b"]"),
    "an archive": written(b"PK\x03\x04" + b"\0" * 64),
}
"""What may stand under a file's name → how it gets there."""

COMMANDS: dict[str, list[str]] = {
    "run": ["run", "FILE"],
    "dry run": ["run", "FILE", "--dry-run"],
    "task create": ["task", "create", "FILE", "--id", "t"],
    "context": ["runs", "teardown", "--context-json", "FILE"],
    "seeds": ["run", "hello", "--seeds", "FILE"],
    "check": ["bundle", "check", "./FILE"],
}


@pytest.mark.parametrize("file", FILES)
def test_cl02_no_file_makes_a_command_hang_or_break(cli: Cli, file: str) -> None:
    FILES[file](cli.cwd / "x.json")
    for name, words in COMMANDS.items():
        answer = cli(*[word.replace("FILE", "x.json") for word in words], "--json")
        assert answer.code == 2, (name, answer.all)
        error = answer.json["error"]
        assert error["code"] != "internal", (name, error)
        assert "Traceback" not in answer.err
        assert "x.json" in answer.out, name
    assert cli("runs", "list", "--json").json["runs"] == []


@pytest.mark.parametrize("file", ["a pipe", "a link to itself", "a link to a device", "nothing", "a folder"])
def test_cl02_what_is_no_file_or_an_empty_folder_is_no_artifact(cli: Cli, file: str) -> None:
    FILES[file](cli.cwd / "x")
    answer = cli("artifact", "put", "x", "--id", "a", "--json")
    assert answer.code == 2
    assert answer.json["error"]["code"] != "internal"


NO_TEXT = os.fsdecode(b"b\xffd")
"""What an argument of bytes that are not UTF-8 becomes."""


@pytest.mark.parametrize(
    "words",
    [
        ["run", NO_TEXT],
        ["run", "hello", "--agent", NO_TEXT],
        ["task", "get", NO_TEXT],
        ["runs", "list", "--task", NO_TEXT],
        ["artifact", "put", "x", "--id", NO_TEXT],
        ["exec", NO_TEXT, "--", "true"],
        ["task", "validate", NO_TEXT],
        ["bundle", "new", NO_TEXT],
        ["run", ""],
        ["run", "hello", "--output", ""],
        ["bundle", "check", ""],
        ["artifact", "put", "", "--id", "a"],
        ["task", "get", ""],
    ],
)
def test_cl02_an_argument_that_is_no_text_or_empty_is_refused_before_anything_else(cli: Cli, words: list[str]) -> None:
    cli.write("x", "1")
    answer = cli(*words)
    assert answer.code == 2, answer.all
    assert "not UTF-8 text" in answer.err or "empty" in answer.err
    assert "--debug" not in answer.err


def test_a_state_folder_whose_name_is_no_text_keeps_runs_all_the_same(cli: Cli) -> None:
    elsewhere = {"XDG_STATE_HOME": str(cli.home / NO_TEXT)}
    assert cli("run", "hello", env=elsewhere).code == 0
    assert len(cli("runs", "list", "--json", env=elsewhere).json["runs"]) == 1


def test_cl02_what_of_a_folder_cannot_be_stored_is_told_and_never_left_out_in_silence(cli: Cli) -> None:
    folder = cli.cwd / "d"
    (folder / "below").mkdir(parents=True)
    cli.write("d/below/a", "1")
    (folder / "again").symlink_to("below")
    assert cli("artifact", "put", "d", "--id", "a").code == 0
    assert [file["path"] for file in cli("artifact", "get", "a", "--json").json["files"]] == ["again/a", "below/a"]
    (folder / "out").symlink_to("/etc/hostname")
    (folder / "broken").symlink_to("nowhere")
    os.mkfifo(folder / "pipe")
    answer = cli("artifact", "put", "d", "--id", "a", "--json")
    assert answer.code == 2
    assert [problem["file"] for problem in answer.json["error"]["problems"]] == ["d/broken", "d/out", "d/pipe"]


def test_a_name_with_a_line_break_is_told_on_one_line(cli: Cli) -> None:
    assert cli("run", "a\nb").err.splitlines()[0] == r"error: there is no folder and no installed bundle 'a\nb'"


def test_cp_takes_files_of_any_name(cli: Cli) -> None:
    answer = cli("cp", NO_TEXT, "run-1:/app")
    assert "no run" in answer.err, answer.all


@pytest.mark.parametrize("output", ["/dev/null/x", "/proc/nowhere/x.json", "folder.json", "file/below"])
def test_output_that_cannot_be_written_is_told_before_anything_runs(cli: Cli, output: str) -> None:
    (cli.cwd / "folder.json").mkdir()
    cli.write("file", "x")
    answer = cli("run", "hello", "--output", output, "--json")
    assert answer.code == 2
    assert "can't be written" in answer.json["error"]["message"] or "is a folder" in answer.json["error"]["message"]
    assert cli("runs", "list", "--json").json["runs"] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="agentenv-capability-missing: root")  # others are told before anything runs
def test_output_that_fails_at_the_end_leaves_the_results_whole(cli: Cli) -> None:
    answer = cli("run", "hello", "--output", "/proc/x.json", "--json")
    assert answer.code == 1
    assert answer.json["runs"][0]["status"] == "completed"
    assert answer.err.startswith("error: /proc/x.json can't be written")


@pytest.mark.parametrize("closed", ["1>&-", "0<&- 1>&- 2>&-"])
@pytest.mark.parametrize("command", ["run hello --json", "runs list", "--help", "--version", "nonsense"])
def test_closed_streams_change_nothing_but_what_is_read(cli: Cli, command: str, closed: str) -> None:
    text = f"{AGENT_ENV} {command} {closed}"
    done = subprocess.run(["bash", "-c", text], env=cli.environ(), cwd=cli.cwd, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == (2 if command == "nonsense" else 0), done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert cli("runs", "list").code == 0  # no file of ours was taken for a stream


@pytest.mark.parametrize("seconds", [0.1, 0.3, 0.8])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_at_any_moment_has_its_exit_code_and_leaves_nothing(cli: Cli, number: signal.Signals, seconds: float) -> None:
    process = cli.start("run", cli.write("t.json", graded("sleep 30")))
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=seconds)  # however far it has come by then
    process.send_signal(number)
    _, err = process.communicate(timeout=PATIENCE)
    before_us = {1, -number}  # the interpreter's own answers while it starts; nothing of ours is in them
    assert process.returncode == 128 + number or process.returncode in before_us
    if process.returncode in before_us:  # also while it reads the few lines that come before any of ours can answer
        err = re.sub(rb'  File "[^"]*agent_env/(cli/)?__init__\.py", line \d+, in <module>\n', b"", err)
    assert b"agent_env/" not in err, err.decode()
    assert sandboxes(cli) == []


@pytest.mark.parametrize("columns", [1, 20, 300])
@pytest.mark.parametrize("extra", [{}, {"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_any_terminal_shows_the_results_of_several_runs(cli: Cli, columns: int, extra: dict[str, str]) -> None:
    with OnTerminal(cli, "run", bundle(cli.cwd / "b", t=PASSING), "--attempts", "2", columns=columns, env=extra) as run:
        code, text = run.end()
    assert code == 0, text
    assert "2 passed" in " ".join(text.split()) or columns == 1
    assert "Traceback" not in text
    if "NO_COLOR" in extra:
        assert "\x1b[3" not in run.seen
    if extra.get("TERM") == "dumb":
        assert "\x1b" not in run.seen


def test_json_stays_one_object_whatever_is_wrong(cli: Cli) -> None:
    for words in (
        ["runs", "show", "x"],
        ["runs", "logs", "x"],
        ["runs", "diff", "x", "y"],
        ["runs", "cancel", "x"],
        ["runs", "rm", "x"],
        ["runs", "review", "x", "y", "abort"],
        ["runs", "list", "--limit", "0"],
        ["resume", "x"],
        ["cp", "x:/y", "z"],
        ["task", "get", "--id", "x"],
        ["task", "validate", "--id", "x"],
        ["task", "run", "--id", "x"],
        ["task", "get-instance", "--id", "x"],
        ["task", "list", "--limit", "many"],
        ["artifact", "get", "x"],
        ["artifact", "rm", "x"],
        ["bundle", "show", "x"],
        ["bundle", "init", "x"],
        ["config", "explain", "x"],
        ["trust", "x"],
        ["run", "--strict"],
    ):
        answer = cli(*words, "--json")
        assert answer.code == 2, words
        assert set(json.loads(answer.out)) == {"error"}, words


def test_a_folder_that_is_gone_is_named_as_the_reason(cli: Cli) -> None:
    text = f"mkdir gone && cd gone && rmdir ../gone && {AGENT_ENV} runs list"
    done = subprocess.run(["bash", "-c", text], env=cli.environ(), cwd=cli.cwd, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: the folder that this command was started in has been removed")


def test_names_of_files_look_like_no_line_of_ours(cli: Cli) -> None:
    tasks = cli.cwd / "b/tasks"
    tasks.mkdir(parents=True)
    (tasks / "a\nerror: all is well.json").write_text("[")
    (tasks / "b\u202enosj.json").write_text("[")
    err = cli("run", "b").err
    assert "\n  tasks/a\\nerror: all is well.json" in err
    assert "tasks/b\\u202enosj.json" in err


def test_scores_of_very_many_verifiers_are_summed_up() -> None:
    assert score_text({"v": None}) == "-"
    assert score_text({f"v{i}": 1.0 for i in range(7)}).count("v") == 7
    assert score_text({f"v{i}": i % 2 for i in range(2000)}, 0.5) == "v0 0, v1 1, v2 0, v3 1, v4 0, v5 1 and 1994 more, mean 0.500"
