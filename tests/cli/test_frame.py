"""The frame: start-up, errors, exit codes, plug-ins, completion, pipes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from agent_env.bundles.verdict import Result, Wanted
from agent_env.cli.batch import Agenda, Presentation, conclude
from agent_env.cli.boundary import CutShortError, _report, run
from agent_env.cli.command_table import COMMANDS
from agent_env.cli.output import clean, fitting, folded, table, width_of
from agent_env.cli.progress import Lines, Live, Silent
from agent_env.cli.state import State
from agent_env.clock import SystemClock
from agent_env.engine import Event
from agent_env.errors import StorageError
from tests.cli.conftest import AGENT_ENV, Cli

PAGE = Path(__file__).parents[2] / "docs/reference/cli.md"
COSTLY = ("httpx", "sqlalchemy", "aiohttp", "mcp", "a2a", "pydantic", "rich", "asyncio", "alembic", "importlib.metadata", "logging")


def loaded_by(code: str) -> set[str]:
    program = f"import sys\n{code}\nsys.stdout.write('\\nMODULES ' + ' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.rpartition("MODULES ")[2].split())


def test_help_imports_nothing_costly() -> None:
    loaded = loaded_by("from agent_env.cli import main\nmain(['--help'])")
    assert not loaded & set(COSTLY)
    assert not [name for name in loaded if name.startswith("agent_env.cli.commands.")]


def test_version_answers_before_click_is_imported() -> None:
    loaded = loaded_by("from agent_env.cli import main\nmain(['--version'])")
    assert "click" not in loaded
    assert "agent_env.cli.boundary" not in loaded


def test_version_is_the_same_through_the_frame(cli: Cli) -> None:
    assert cli("--version").out == cli("--debug", "--version").out


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_of_the_table_has_help_and_the_same_first_line(cli: Cli, name: str) -> None:
    answer = cli(name, "--help")
    assert answer.code == 0, answer.err
    assert answer.out.startswith("Usage: agent-env ")
    assert answer.err == ""


def test_cl02_unknown_command_is_one_line_with_the_near_spelling_and_exit_code_2(cli: Cli) -> None:
    answer = cli("rnu")
    assert answer.code == 2
    assert answer.err.splitlines()[0] == "error: No such command 'rnu'. Did you mean 'run'?"
    assert answer.out == ""


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["version"], "--version"),
        (["help"], "--help"),
        (["task", "delete"], "rm"),
        (["env", "validate"], "check"),
        (["agent", "check"], "validate"),
        (["artifact", "ls"], "list"),
        (["task", "help"], None),
    ],
)
def test_cl02_what_others_call_a_command_leads_to_ours(words: list[str], meant: str | None) -> None:
    said = told(words)
    assert said.startswith(f"error: No such command {words[-1]!r}.")
    assert (f"Did you mean {meant!r}?" in said) if meant else ("Did you mean" not in said)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["run", "hello", "--attempts", "x"], "error: Invalid value for '--attempts': 'x' is no whole number."),
        (["run", "hello", "--attempts", "9" * 20], f"error: Invalid value for '--attempts': {'9' * 20} is not in the range 1<=x<=100000."),
        (["run", "hello", "--fail-under", "nan"], "error: Invalid value for '--fail-under': 'nan' is no finite number."),
        (["exec", "--timeout", "inf", "run-1", "--", "true"], "error: Invalid value for '--timeout': 'inf' is no finite number."),
        (["run", "hello", "--fail-under", "x"], "error: Invalid value for '--fail-under': 'x' is no number."),
        (["completion"], "error: Missing argument '{bash|zsh|fish}'. Choose from: bash, zsh, fish"),
        (["task", "get"], "error: an id is needed"),
        (["task", "get", "a", "--id", "b"], "error: the id is given twice"),
    ],
)
def test_cl02_a_mistake_of_the_command_line_is_one_plain_line(words: list[str], expected: str) -> None:
    assert told(words).splitlines()[0] == expected


def told(words: list[str]) -> str:
    with redirect_stderr(StringIO()) as err:
        assert run(words) == 2
    return err.getvalue()


@pytest.mark.parametrize("group", [(), ("config",)])
def test_group_alone_shows_its_help_and_no_error(cli: Cli, group: tuple[str, ...]) -> None:
    answer = cli(*group)
    assert answer.code == 2
    assert answer.err.startswith("Usage:")
    assert answer.err.count("Usage:") == 1
    assert "error" not in answer.err.partition("\n")[0]


def test_usage_error_of_a_command_with_json_is_one_object(cli: Cli) -> None:
    answer = cli("runs", "list", "--json", "--nope")
    assert answer.code == 2
    assert answer.json["error"]["code"] == "usage"
    assert "--nope" in answer.json["error"]["message"]


def test_control_characters_of_a_task_cannot_steer_the_terminal() -> None:
    assert clean("a\x1b[2Jb\tc\nd\x9b") == "a\\x1b[2Jb\tc\nd\\x9b"


class Screen(StringIO):
    """A terminal, as far as a table asks."""

    def isatty(self) -> bool:
        return True


def letters(text: str) -> list[str]:
    return sorted("".join(text.split()))


@pytest.mark.parametrize("columns", [64, 80, 300])
def test_a_table_fits_the_terminal_and_loses_nothing(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        ("run-0cokopbuu1r3", "@local/agent-env/hello/hello", "0.50 s", "a reason, long as they are, with 日本語 and a joined o\u0308"),
        ("run-1", "x" * 90, "12.00 s", None),
    ]
    screen, pipe = Screen(), StringIO()
    monkeypatch.setenv("COLUMNS", str(columns))
    for stream in (screen, pipe):
        with redirect_stdout(stream):
            table(("RUN", "TASK", "TIME", "WHY"), rows, right=(2,))
    shown = screen.getvalue()
    assert max(width_of(line) for line in shown.splitlines()) <= columns
    assert letters(shown) == letters(pipe.getvalue())
    assert [line.split()[0] for line in shown.splitlines() if line[0] != " "] == ["RUN", "run-0cokopbuu1r3", "run-1"]
    assert len(pipe.getvalue().splitlines()) == 3, "a row is a line for whoever reads it by program"


def test_a_narrow_column_breaks_where_words_and_names_do() -> None:
    assert folded("@local/agent-env/hello/hello", 18) == ["@local/agent-env/", "hello/hello"]
    assert folded("the widest give way", 12) == ["the widest", "give way"]
    assert folded("日本語", 3) == ["日", "本", "語"]
    assert fitting([30, 30, 3], 40, [12, 12, 12]) == [18, 19, 3]
    assert fitting([20, 20], 10, [12, 12]) == [12, 12]


def test_broken_pipe_is_quiet(cli: Cli) -> None:
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {AGENT_ENV} completion bash | true; echo ${{PIPESTATUS[0]}}"],
        env=cli.environ(),
        cwd=cli.cwd,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "0\n"
    assert done.stderr == ""


def test_full_disk_behind_standard_output_is_an_error_without_traceback(cli: Cli) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [AGENT_ENV, "completion", "bash"], env=cli.environ(), stdout=full, stderr=subprocess.PIPE, timeout=60, check=False
        )
    assert done.returncode == 1
    assert b"Traceback" not in done.stderr
    assert b"error:" in done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_of_each_shell_calls_back(cli: Cli, shell: str) -> None:
    answer = cli("completion", shell)
    assert answer.code == 0
    assert "_AGENT_ENV_COMPLETE" in answer.out


def test_completion_of_bash_completes_commands_and_options(cli: Cli) -> None:
    script = cli.write("completion.bash", cli("completion", "bash").out)

    def complete(*words: str) -> list[str]:
        text = f"source {script}; COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; _agent_env_completion agent-env; " + (
            'printf "%s\\n" "${COMPREPLY[@]}"'
        )
        done = subprocess.run(["bash", "-c", text], cwd=cli.cwd, env=cli.environ(), capture_output=True, text=True, timeout=60, check=True)
        assert done.stderr == ""
        return done.stdout.splitlines()

    assert complete("agent-env", "ru") == ["run", "runs"]
    assert "--fail-under" in complete("agent-env", "run", "--fail")
    assert complete("agent-env", "runs", "tear") == ["teardown"]
    (cli.cwd / "hello there").mkdir()
    assert complete("agent-env", "run", "hel") == ["hello", "hello there"], "names and folders beside each other"
    assert complete("agent-env", "agent", "chat", "errand", ":", "or") == ["oracle"], "bash puts it behind the colon"
    assert complete("agent-env", "env", "deploy", "errand", ":") == ["office"]


def test_completing_a_command_name_imports_no_command() -> None:
    loaded = loaded_by(
        "import os\nos.environ.update(_AGENT_ENV_COMPLETE='bash_complete', COMP_WORDS='agent-env ', COMP_CWORD='1')\n"
        "from agent_env.cli import main\nmain([])"
    )
    assert not [name for name in loaded if name.startswith("agent_env.cli.commands.")]


ALL = [path.split() for path in sorted(set(re.findall(r"^#+ `agent-env ([a-z -]+)`", PAGE.read_text(), re.MULTILINE)))]


@pytest.mark.parametrize("columns", [20, 40, 80, 200])
def test_help_fills_the_terminal_and_cuts_nothing(columns: int) -> None:
    """Of every command, groups too: all words of the widest help are there, in lines that fit wherever words do."""
    os.environ["COLUMNS"] = str(columns)
    try:
        for words in [[], *ALL]:
            text = help_of(words)
            longest = max(len(line) for line in text.splitlines())
            assert "..." not in text.replace("[ARG]...", "").replace("[ARGS]...", "").replace("RUN...", "").replace("ID...", "").replace(
                "KEY...", ""
            ), words
            if columns >= 80:
                assert longest <= columns, words
            if columns < 200:
                os.environ["COLUMNS"] = "10000"
                everything = help_of(words)
                os.environ["COLUMNS"] = str(columns)
                assert squeezed(text) == squeezed(everything), words
    finally:
        del os.environ["COLUMNS"]


def help_of(words: list[str]) -> str:
    with redirect_stdout(StringIO()) as out:
        assert run([*words, "--help"]) == 0
    return out.getvalue()


def squeezed(text: str) -> str:
    return re.sub(r"\s+", "", text)


def plug_in(folder: Path, body: str) -> None:
    info = folder / "extra_words-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: extra-words\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[agent_env.cli_plugins]\ngreet = extra_words:greet\n")
    (folder / "extra_words.py").write_text(body)


def test_plug_in_command_is_listed_and_imported_only_when_its_name_is_used(cli: Cli, tmp_path: Path) -> None:
    plug_in(
        tmp_path / "site", 'import click\nclick.echo("imported")\n@click.command()\ndef greet():\n    click.echo("hello from a plug-in")\n'
    )
    env = {"PYTHONPATH": str(tmp_path / "site")}
    listed = cli("--help", env=env)
    assert "greet" in listed.out
    assert "imported" not in listed.out
    answer = cli("greet", env=env)
    assert answer.out == "hello from a plug-in\n"
    assert answer.err == "imported\n"


@pytest.mark.parametrize("body", ["raise OSError('no such weather')", "print('{}')\nraise SystemExit('no such weather')"])
def test_cl02_plug_in_that_fails_to_import_is_one_line_and_disturbs_nothing_else(cli: Cli, tmp_path: Path, body: str) -> None:
    plug_in(tmp_path / "site", body)
    with (tmp_path / "site/extra_words-1.0.dist-info/entry_points.txt").open("a") as file:
        file.write("[agent_env.task_steps]\nweather = extra_words:Weather\n[agent_env.secret_stores]\nweather = extra_words:Weather\n")
    env = {"PYTHONPATH": str(tmp_path / "site")}
    cli.write("t.json", [{"id": "a", "type": "weather"}])
    for words in (["greet"], ["run", "t.json", "--dry-run"], ["secret", "list"]):
        answer = cli(*words, env=env)
        assert answer.code == 2
        assert "no such weather" in answer.err
        assert "Traceback" not in answer.all
        assert "{}" not in answer.out
    assert "no such weather" in cli("plugin", "list", "--json", env=env).json["packages"][0]["contributions"][0]["message"]
    assert cli("completion", "bash", env=env).code == 0


def test_a_package_whose_metadata_is_broken_disturbs_nothing_else(cli: Cli, tmp_path: Path) -> None:
    plug_in(tmp_path / "site", 'import click\n@click.command()\ndef greet():\n    click.echo("hello")\n')
    broken = tmp_path / "site/broken-1.0.dist-info"
    broken.mkdir()
    (broken / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    env = {"PYTHONPATH": str(tmp_path / "site")}
    for content in (b"\xff\xfe", b"[agent_env.bundles]\nno equals sign\n"):
        (broken / "entry_points.txt").write_bytes(content)
        assert cli("greet", env=env).out == "hello\n"
        assert cli("run", "hello", "--dry-run", env=env).code == 0
        assert [one["package"] for one in cli("plugin", "list", "--json", env=env).json["packages"]] == ["extra-words"]


def test_a_command_that_two_packages_bring_is_neithers(cli: Cli, tmp_path: Path) -> None:
    plug_in(tmp_path / "site", "")
    other = tmp_path / "site/other-1.0.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (other / "entry_points.txt").write_text("[agent_env.cli_plugins]\ngreet = other:greet\n")
    answer = cli("greet", env={"PYTHONPATH": str(tmp_path / "site")})
    assert answer.code == 2
    assert "extra_words:greet and other:greet both bring the command 'greet'" in answer.err


def test_unexpected_error_is_one_line_and_a_traceback_only_with_debug(cli: Cli, tmp_path: Path) -> None:
    plug_in(tmp_path / "site", 'import click\n@click.command()\ndef greet():\n    raise ZeroDivisionError("by\\nnothing")\n')
    env = {"PYTHONPATH": str(tmp_path / "site")}
    plain = cli("greet", env=env)
    assert plain.code == 1
    assert plain.err.splitlines()[0] == "error: ZeroDivisionError: by nothing"
    assert "--debug" in plain.err
    assert "Traceback" not in plain.err
    assert "Traceback" in cli("--debug", "greet", env=env).err


def test_output_of_another_encoding_is_escaped_not_an_error(cli: Cli) -> None:
    assert cli("--help", env={"PYTHONIOENCODING": "ascii"}).code == 0


def test_module_can_be_run_like_the_command(cli: Cli) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "agent_env.cli", "--version"], env=cli.environ(), capture_output=True, text=True, check=True
    )
    assert done.stdout == cli("--version").out


def test_se03_an_error_has_the_documented_keys_and_no_secret_in_json_either(cli: Cli) -> None:
    secret = "k" + "3y" * 12
    steps = [{"id": secret, "type": "deploy_sandbox", "sandbox_nmae": "x"}, {"id": secret, "type": "review"}]
    answer = cli("run", cli.write("t.json", steps), "--json", env={"SOME_API_KEY": secret})
    assert answer.code == 2
    assert set(answer.json["error"]) == {"code", "message", "hint", "problems"}
    assert all(set(problem) == {"file", "path", "message", "hint"} for problem in answer.json["error"]["problems"])
    assert secret not in answer.all
    missing = cli("runs", "show", secret, "--json", env={"SOME_API_KEY": secret})
    assert set(missing.json["error"]) == {"code", "message", "hint"}
    assert secret not in missing.all


def test_an_error_between_runs_stands_beside_what_is_known_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    done = Result("tasks/a.json", "run-1", "completed", "passed", {"check": 1.0}, 0.5, None, "completed")
    agenda = Agenda("group-1", {2: Wanted("tasks/b.json", 1)}, {}, [done])
    with pytest.raises(CutShortError) as cut:
        conclude(agenda, Silent(), Presentation(as_json=True, quiet=True), StorageError("the disk is full"))
    assert _report(cut.value, State(json=True), []) == StorageError("").exit_code
    shown = capsys.readouterr()
    answer = json.loads(shown.out)
    assert ([run["run_id"] for run in answer["runs"]], answer["not_started"]) == (["run-1"], [{"task": "tasks/b.json", "attempt": 1}])
    assert (answer["error"]["message"], answer["passed"], answer["group_id"]) == ("the disk is full", False, "group-1")
    assert shown.err == "error: the disk is full\n"


class StandingClock(SystemClock):
    seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds


def test_without_a_terminal_what_takes_long_has_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    clock = StandingClock()
    watcher = Lines(clock)
    watcher.begin("run-1", "tasks/a.json")
    for seconds, kind, said in (
        (0, "step_started", "building"),
        (4, "step_progress", "exporting"),
        (6, "step_progress", "exporting\nmail"),
        (1, "step_progress", "exporting"),
        (9, "step_progress", "exporting notes"),
        (1, "step_done", "built"),
        (9, "step_progress", "of another step"),
    ):
        clock.seconds += seconds
        watcher.on_event(Event("run-1", 1, "now", kind, "agent", {"message": said, "summary": said, "done": 2, "total": 3}))
    assert capsys.readouterr().err.splitlines() == [
        "[tasks/a.json] agent: exporting mail 2 of 3",
        "[tasks/a.json] agent: exporting notes 2 of 3",
        "[tasks/a.json] 1/3 agent: built",
    ]


def test_on_a_terminal_what_takes_long_shows_for_how_long() -> None:
    clock, screen = StandingClock(), StringIO()
    watcher = Live(clock)
    for step in ("deploy", "check"):
        watcher.on_event(Event("run-1", 1, "now", "step_started", step, {"type": "run_code"}))
        clock.seconds += 11
    watcher.on_event(Event("run-1", 1, "now", "step_progress", "deploy", {"message": "building"}))
    clock.seconds -= 10
    Console(file=screen, width=100).print(watcher.render())
    assert "deploy (12 s) building, check run_code" in screen.getvalue()


def test_a_step_that_is_done_again_after_a_retry_counts_once(capsys: pytest.CaptureFixture[str]) -> None:
    watcher = Lines()
    watcher.begin("run-1", "t")
    told = [("run_started", ""), *(("step_done", step) for step in ("box", "work", "work", "check"))]
    for kind, step in told:
        watcher.on_event(Event("run-1", 1, "now", kind, step, {"steps": 3, "done": 0}))
    assert [line.split()[1] for line in capsys.readouterr().err.splitlines()] == ["1/3", "2/3", "2/3", "3/3"]


def test_of_a_long_message_a_line_has_both_ends_and_a_tolerated_failure_counts_as_done(capsys: pytest.CaptureFixture[str]) -> None:
    watcher = Lines()
    watcher.begin("run-1", "t")
    watcher.on_event(Event("run-1", 1, "now", "run_started", None, {"steps": 2, "done": 0}))
    failure = {"code": "c", "message": f"exited 3:\n{'x' * 20_000}\nValueError: no", "tolerated": True}
    watcher.on_event(Event("run-1", 2, "now", "step_failed", "a", failure))
    watcher.on_event(Event("run-1", 3, "now", "step_done", "b", {}))
    watcher.on_event(Event("run-1", 4, "now", "step_failed", "c", {"code": "cancelled", "message": "cancelled"}))
    first, second, third = capsys.readouterr().err.splitlines()
    assert first.startswith("[t] 1/2 a failed (tolerated): c: exited 3: xxx")
    assert first.endswith("xxx ValueError: no")
    assert len(first) < 600
    assert (second, third) == ("[t] 2/2 b", "[t] c cancelled")
