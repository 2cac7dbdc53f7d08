"""What a person at a terminal does: look at a live table, type Ctrl-C in it, follow, go on. What is piped takes other ways."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest
from rich.console import Console
from rich.live import Live as Screen

from agent_env.cli.image_progress import moving
from agent_env.cli.output import error_line, line, note
from agent_env.cli.progress import Live
from agent_env.engine import Event
from agent_env.images import Progress, Stage
from tests.cli.conftest import AGENT_ENV, Cli
from tests.cli.tasks import SLOW, bundle
from tests.cli.terminals import CTRL_C, ESCAPE, OnTerminal
from tests.cli.test_run import sandboxes

WORKS = r"1/3  work (\(.+\) )?run_code"


def test_ctrl_c_in_the_live_table_of_several_runs_cancels_them_and_a_resume_tells_what_it_does_again(cli: Cli) -> None:
    tasks = bundle(cli.cwd / "b", slow=SLOW)
    with OnTerminal(cli, "run", tasks, "--attempts", "3", "--concurrency", "3") as several:
        several.until(f"#1  {WORKS}(.|\n)*#2  {WORKS}(.|\n)*#3  {WORKS}")
        several.type(CTRL_C)
        code, text = several.end()
    assert code == 130, text
    assert "3 runs, 3 at once" in text
    assert "3 cancelled" in text
    assert "Traceback" not in text
    assert sandboxes(cli) == []

    run_id = cli("runs", "list", "--json").json["runs"][0]["run_id"]
    with OnTerminal(cli, "resume", run_id) as resumed:
        resumed.until(WORKS)
        with OnTerminal(cli, "runs", "logs", run_id, "--follow") as followed:
            followed.until(r"step_started  work(.|\n)*step_started  work")
            followed.type(CTRL_C)
            assert followed.end()[0] == 130
        resumed.type(CTRL_C)
        code, text = resumed.end()
    assert code == 130, text
    assert "goes on in new sandboxes; done again: box" in text


def test_what_must_be_read_in_full_stands_above_the_table() -> None:
    shown = io.StringIO()
    watcher = Live()
    with pytest.MonkeyPatch.context() as patched, Screen(get_renderable=watcher.render, console=Console(file=shown, width=300)):
        patched.setattr(sys, "stderr", shown)
        watcher.begin("run-1", "a.json")
        for kind, step, payload in (
            ("run_started", None, {"steps": 3, "again": ["box"]}),
            ("step_retried", "work", {"retry_from_step_id": "box"}),
            ("review_asked", "ask", {"label": "good?"}),
            ("step_done", "ask", {}),
        ):
            watcher.on_event(Event("run-1", 1, "now", kind, step, payload))
    told = [text for text in shown.getvalue().splitlines() if text.startswith("[a.json]")]
    assert told == [
        "[a.json] goes on in new sandboxes; done again: box",
        "[a.json] work failed, going back to box",
        "[a.json] ask waits for a person: good? (agent-env runs review run-1 ask continue|abort)",
    ]


def test_whatever_is_written_while_a_display_is_live_stands_above_it(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=True, width=80, _environ={"TERM": "xterm"})
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))
    with Screen("busy", console=console):
        note("a note: ünï")
        line("a line")
        error_line("error: one\nhint: two")
    assert shown.getvalue().replace("\r", "").find("a note: ünï\n") < shown.getvalue().find("a line\n") < shown.getvalue().find("hint: two")


class Screen60(io.StringIO):
    """A terminal of 60 columns, as far as what draws on it asks."""

    def isatty(self) -> bool:
        return True


def test_what_an_image_moves_is_one_line_until_all_of_it_has_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen60()
    monkeypatch.setattr(sys, "stderr", screen)
    for name, value in {"TERM": "xterm", "COLUMNS": "60", "LINES": "10"}.items():
        monkeypatch.setenv(name, value)
    with moving(quiet=False) as tell:
        tell(Progress(Stage.SENDING, "local/a-name-that-is-far-too-long-for-such-a-terminal", done_bytes=5, total_bytes=1000))
        tell(Progress(Stage.STEP, "x", step=1, steps=2, message="FROM [bold]base"))
        tell(Progress(Stage.SENDING, "x", done_bytes=1000, total_bytes=1000))
        moved = len(screen.getvalue())
        tell(Progress(Stage.LOG, "x", message="built"))
    drawn = [ESCAPE.sub("", text).strip() for text in screen.getvalue().splitlines()]
    assert "[1/2] FROM [bold]base" in drawn
    assert [text for text in drawn if text.startswith("sending local/a-name") and text.endswith("bytes")], drawn
    assert not [text for text in drawn if text.startswith("bytes")]
    assert "sending" not in screen.getvalue()[moved:]


def test_results_that_go_to_a_file_stay_there_while_a_terminal_shows_the_table(cli: Cli) -> None:
    command = f"{AGENT_ENV} run hello --attempts 2 > results"
    with OnTerminal(cli, program=("/bin/sh", "-c", command)) as run:
        code, text = run.end()
    assert code == 0, text
    assert "2 of 2 done" in text
    assert "2 passed" in (cli.cwd / "results").read_text()
    assert "TASK" not in text
    assert subprocess.run(["grep", "-c", "\x1b", cli.cwd / "results"], capture_output=True, check=False).stdout == b"0\n"
