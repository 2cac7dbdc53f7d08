"""`agent-env exec`, `shell` and `cp`: into a place of a run."""

from __future__ import annotations

import asyncio
import hashlib
import os
import pty
import select
import shlex
import signal
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest

from agent_env.cli import terminal
from agent_env.cli.copying import Remote, side
from agent_env.places import Command, Completed, Ending, Place
from tests.busy import within
from tests.cli.conftest import AGENT_ENV, Cli
from tests.cli.tasks import BOX, graded
from tests.cli.test_run import sandboxes

PATIENCE = 60


@pytest.fixture
def kept(cli: Cli) -> str:
    answer = cli(
        "run",
        cli.write("t.json", graded("mkdir -p /app/d && echo one > /app/d/1.txt && ln -s /etc/hostname /app/d/out")),
        "--keep",
        "--json",
    )
    assert answer.code == 0, answer.err
    return str(answer.json["runs"][0]["run_id"])


def test_exec_passes_output_exit_code_environment_and_input(cli: Cli, kept: str) -> None:
    answer = cli("exec", kept, "--", "bash", "-c", "echo out; echo err >&2; exit 7")
    assert (answer.code, answer.out, answer.err) == (7, "out\n", "err\n")
    assert cli("exec", "--env", "A=b c", "--cwd", "/tmp", f"{kept}:box", "--", "bash", "-c", 'echo "$A $PWD"').out == "b c /tmp\n"
    assert cli("exec", "-i", kept, "--", "cat", stdin=b"typed\0bytes").out == "typed\0bytes"
    assert cli("exec", kept, "--", "cat", stdin=b"not passed on").out == ""
    told = cli("exec", "--json", kept, "--", "bash", "-c", "printf hi; kill -9 $$").json
    assert (told["ending"], told["signal"], told["stdout"], told["reason"]) == ("signalled", 9, "hi", "it was killed by SIGKILL")
    killed = cli("exec", kept, "--", "bash", "-c", "kill -9 -1; sleep 60")  # everything of the place
    assert (killed.code, killed.err) == (137, "the command did not end by itself: it was killed by SIGKILL\n")
    assert cli("exec", "--timeout", "0.3", kept, "--", "sleep", "30").code == 124


def test_exec_option_of_the_command_is_the_commands(cli: Cli, kept: str) -> None:
    assert cli("exec", kept, "--", "echo", "--json", "--help").out == "--json --help\n"
    assert cli("exec", kept, "echo", "--json").out == "--json\n"


def test_exec_ends_when_its_reader_left_also_what_ignores_the_signal(cli: Cli, kept: str) -> None:
    ignoring = "trap '' PIPE TERM; echo first; while echo more; do :; done 2>/dev/null; sleep 600"
    text = f"{AGENT_ENV} exec {kept} -- bash -c {shlex.quote(ignoring)} | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", text], env=cli.environ(), cwd=cli.cwd, capture_output=True, text=True, check=True, timeout=PATIENCE
    )
    assert (done.stdout.split(), done.stderr) == (["first", "141"], "")


class Flooding:
    """A command whose output is held up while somebody reads it, and that therefore tells no ending."""

    def __init__(self) -> None:
        self.unread = asyncio.Event()

    async def output(self) -> AsyncIterator[tuple[int, bytes]]:
        try:
            while True:
                yield 1, b"more"
        finally:
            self.unread.set()

    async def wait(self) -> Completed:
        async with asyncio.timeout(within(5)):
            await self.unread.wait()
        return Completed(Ending.SIGNALLED, signal=9)

    async def nothing(self, *_: object) -> None: ...

    kill = close_stdin = aclose = nothing


def test_a_command_that_floods_a_reader_who_left_is_waited_for_without_reading_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "reader_left", lambda: True)

    class Started:
        async def start(self, command: Command) -> Flooding:
            return Flooding()

    done = asyncio.run(terminal.pass_through(cast("Place", Started()), Command(["yes"]), None))
    assert done.signal == signal.SIGPIPE


def test_exec_mistakes_are_one_line(cli: Cli, kept: str) -> None:
    behind = cli("exec", kept, "--json", "--", "true")
    assert (behind.code, "--json stands behind RUN" in behind.err) == (2, True)
    assert "box" in cli("exec", f"{kept}:nope", "--", "true").err
    missing = cli("exec", kept, "--", "no-such-program")
    assert missing.code == 127
    assert "no-such-program" in missing.err
    assert len(missing.err.splitlines()) == 1
    assert cli("exec", kept).code == 2
    assert cli("exec", kept, "--").code == 2
    assert cli("exec", "--env", "novalue", kept, "--", "true").code == 2


def test_cp_copies_files_and_folders_both_ways(cli: Cli, kept: str) -> None:
    source = cli.cwd / "in"
    (source / "sub").mkdir(parents=True)
    (source / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (source / "run.sh").chmod(0o755)
    (source / "sub/odd name\n.bin").write_bytes(bytes(range(256)))
    assert cli("cp", "in", f"{kept}:/app/").code == 0
    assert cli("exec", kept, "--", "/app/in/run.sh").out == "ran\n"
    back = cli("cp", f"{kept}:box:/app/in", "back", "--json")
    assert back.code == 0, back.err
    assert back.json["files"] == 2
    assert (cli.cwd / "back/sub/odd name\n.bin").read_bytes() == bytes(range(256))
    assert (cli.cwd / "back/run.sh").stat().st_mode & 0o111
    (cli.cwd / "target").mkdir()
    assert cli("cp", f"{kept}:/app/d/1.txt", "target").code == 0
    assert (cli.cwd / "target/1.txt").read_text() == "one\n"


@pytest.mark.parametrize(
    ("argv", "code"),
    [(["/no/such"], 127), (["no-such"], 127), (["/app"], 126), (["/app/d/1.txt"], 126), (["/app/d/1.txt/x"], 127)],
)
def test_ex07_program_that_cannot_be_started_has_the_exit_codes_of_a_shell(cli: Cli, kept: str, argv: list[str], code: int) -> None:
    assert cli("exec", kept, "--", *argv).code == code
    told = cli("exec", "--json", kept, "--", *argv)
    assert (told.code, told.json["error"]["code"]) == (code, "launch_failed")
    assert cli("shell", "--shell", argv[0], kept).code == code


def test_ex07_missing_folder_or_user_is_not_a_missing_program(cli: Cli, kept: str) -> None:
    assert cli("exec", "--cwd", "/no/such", kept, "--", "true").code == 126
    assert cli("exec", "--user", "nobody-knows", kept, "--", "true").code == 126


def test_cp_of_a_folder_that_is_closed_in_part_brings_the_rest_and_names_what_is_not_there(cli: Cli, kept: str) -> None:
    script = "mkdir -p /app/half/closed /app/half/open && echo 1 > /app/half/open/a && touch /app/half/closed/b && chmod 0 /app/half/closed"
    assert cli("exec", kept, "--", "bash", "-c", script).code == 0
    copied = cli("cp", "--json", f"{kept}:/app/half", "here")
    assert copied.json == {"files": 1, "bytes": 2, "skipped": ["/app/half/closed (EACCES)"]}
    assert [path.name for path in (cli.cwd / "here").rglob("*") if path.is_file()] == ["a"]


def test_cp_streams_one_file_in_and_out(cli: Cli, kept: str) -> None:
    data = bytes(range(256)) * 20_000
    assert cli("cp", "-", f"{kept}:/app/new/raw.bin", stdin=data).out == f"1 file, {len(data)} bytes\n"
    back = subprocess.run(
        [AGENT_ENV, "cp", f"{kept}:/app/new/raw.bin", "-"], env=cli.environ(), cwd=cli.cwd, capture_output=True, check=True
    )
    assert (back.stdout, back.stderr) == (data, b"")
    assert cli("cp", "-", f"{kept}:box:/app/empty", stdin=b"", env={}).code == 0
    assert cli("cp", f"{kept}:/app/empty", "-").all == ""
    assert cli("exec", kept, "--", "stat", "-c", "%a", "/app/empty").out == "644\n"
    cli.write("-", "a file of that name")
    assert cli("cp", "./-", f"{kept}:/app/dash").code == 0
    assert cli("cp", f"{kept}:/app/dash", "-").out == "a file of that name"


def test_cp_of_a_stream_says_what_it_cannot_do(cli: Cli, kept: str) -> None:
    for argv in (["-", f"{kept}:/app/"], [f"{kept}:/app/d", "-"], ["-", "-"], ["-", "here"]):
        answer = cli("cp", *argv)
        assert answer.code == 2, argv
        assert answer.out == ""
    assert cli("cp", f"{kept}:/app/none", "-").code == 2
    assert cli("cp", f"{kept}:/app/d/1.txt", "-", "--json").json["error"]["code"] == "usage"


def test_cp_to_a_reader_who_left_is_quiet(cli: Cli, kept: str) -> None:
    assert cli("exec", kept, "--", "bash", "-c", "head -c 5000000 /dev/zero > /app/zeros").code == 0
    text = f"set -o pipefail; {AGENT_ENV} cp {kept}:/app/zeros - | head -c 10 | wc -c; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", text], env=cli.environ(), cwd=cli.cwd, capture_output=True, text=True, check=True, timeout=60)
    assert (done.stdout.split(), done.stderr) == (["10", "0"], "")


def test_fi07_link_of_the_place_is_copied_as_content_and_a_local_link_is_replaced(cli: Cli, kept: str) -> None:
    victim = cli.write("victim", "untouched")
    (cli.cwd / "copy").mkdir()
    (cli.cwd / "copy/1.txt").symlink_to(victim)
    assert cli("exec", kept, "--", "cp", "/app/d/1.txt", "/app/1.txt").code == 0
    assert cli("cp", f"{kept}:/app/1.txt", "copy").code == 0
    assert victim.read_text() == "untouched"
    assert not (cli.cwd / "copy/1.txt").is_symlink()


def test_cp_of_a_folder_of_this_machine_leaves_out_what_leads_out_of_it_and_says_so(cli: Cli, kept: str) -> None:
    source = cli.cwd / "in"
    (source / "sub").mkdir(parents=True)
    (source / "sub/real").write_text("real")
    cli.write("private", "canary")
    for name, target in {"own": "sub/real", "out": "../private", "away": "none", "folder": "sub", "up": "."}.items():
        (source / name).symlink_to(target)
    os.mkfifo(source / "pipe")
    copied = cli("cp", "in", f"{kept}:/app/", "--json").json
    assert copied["files"] == 2
    assert sorted(copied["skipped"]) == [
        "in/away (a link that leads nowhere)",
        "in/folder (a link to a folder)",
        "in/out (a link that leads out of the folder)",
        "in/pipe (neither a file nor a folder)",
        "in/up (a link to a folder)",
    ]
    found = cli("exec", kept, "--", "bash", "-c", "cd /app/in; find . -type f -o -type l | sort; cat own").out
    assert found.split() == ["./own", "./sub/real", "real"]


def test_cp_makes_nothing_that_others_may_write_and_one_file_that_cannot_be_read_is_an_error(cli: Cli, kept: str) -> None:
    script = "mkdir /app/m && cd /app/m && echo 1 > open && chmod 777 open && ln -s open link && echo 2 > plain && chmod 666 plain"
    assert cli("exec", kept, "--", "bash", "-c", script).code == 0
    assert cli("cp", f"{kept}:/app/m", "m").code == 0
    assert {path.name: path.stat().st_mode & 0o777 for path in (cli.cwd / "m").iterdir()} == {"open": 0o755, "link": 0o755, "plain": 0o644}
    for path in ("/proc/self/mem", "/dev/null"):
        refused = cli("cp", f"{kept}:{path}", "here")
        assert (refused.code, path in refused.err) == (1, True)
    assert not (cli.cwd / "here").exists()


def test_cp_mistakes_are_one_line(cli: Cli, kept: str) -> None:
    assert cli("cp", "a", "b").code == 2
    assert "ENOENT" in cli("cp", f"{kept}:/app/none", ".").err
    assert cli("cp", "none", f"{kept}:/app").code == 2
    cli.write("file", "x")
    assert cli("cp", f"{kept}:/app/d", "file").err == "error: file can't be written: File exists\n"


def test_sides_of_a_copy_are_told_apart() -> None:
    assert side("run-1:/app/x") == Remote("run-1", side("run-1:/app/x").path, False)  # type: ignore[union-attr]
    assert isinstance(side("run-1:box:/app/"), Remote)
    assert side("./run:/x") == Path("run:/x")
    assert side("/abs:/x") == Path("/abs:/x")
    assert side("C:/x") == Remote("C", side("C:/x").path, False)  # type: ignore[union-attr]


def test_shell_reads_commands_from_a_pipe(cli: Cli, kept: str) -> None:
    answer = cli("shell", kept, stdin=b"cd /app/d\ncat 1.txt\nexit 5\n")
    assert (answer.code, answer.out) == (5, "one\n")


def test_shell_has_a_real_terminal_with_the_size_of_ours_and_loses_nothing(cli: Cli, kept: str) -> None:
    leader, follower = pty.openpty()
    subprocess.run(["stty", "rows", "33", "cols", "77"], stdin=follower, check=True)
    process = subprocess.Popen([AGENT_ENV, "shell", kept], stdin=follower, stdout=follower, stderr=follower, env=cli.environ(), cwd=cli.cwd)
    os.write(leader, b"stty size; tty; yes 0123456789 | head -n 30000; exit 3\n")
    seen, blocking, until = b"", set(), time.monotonic() + PATIENCE
    while process.poll() is None and time.monotonic() < until:
        blocking.add(os.get_blocking(follower))
        if select.select([leader], [], [], 0.1)[0]:
            seen += os.read(leader, 65536)
    process.kill()
    assert process.wait(timeout=PATIENCE) == 3, seen[-1000:]
    while select.select([leader], [], [], 0)[0]:
        seen += os.read(leader, 65536)
    os.close(leader)
    os.close(follower)
    assert b"33 77" in seen
    assert b"/dev/pts/" in seen
    assert seen.count(b"0123456789\r\n") == 30000
    assert b"roken pipe" not in seen
    assert blocking == {True}, "whoever shares the terminal is given EAGAIN"


def test_everything_is_removed_afterwards(cli: Cli, kept: str) -> None:
    assert cli("runs", "teardown", kept).code == 0
    assert sandboxes(cli) == []
    gone = cli("exec", kept, "--", "true")
    assert gone.code != 0
    assert "Traceback" not in gone.err


SECRET = "canary-4f5e6d7c8b"
TELLING = [
    BOX,
    {"id": "code", "type": "run_docker_container", "sandbox_name": "box", "image": "nothing", "env_vars": {"API_KEY": "secret:KEY"},
     "fail_task_on_error": False},
]  # fmt: skip


@pytest.fixture
def telling(cli: Cli) -> str:
    """A kept run whose task refers to a secret, and whose place knows it."""
    assert cli("secret", "set", "KEY", stdin=SECRET.encode()).code == 0
    answer = cli("run", cli.write("telling.json", TELLING), "--keep", "--json", env={"DOCKER_HOST": "unix:///nowhere.sock"})
    run_id = str(answer.json["runs"][0]["run_id"])
    assert cli("exec", "--env", f"A={SECRET}", run_id, "--", "bash", "-c", 'echo "API_KEY=$A" > /app/env').code == 0
    return run_id


def test_exec_shows_no_secret_of_the_run_unless_it_is_asked_to(cli: Cli, telling: str) -> None:
    shown = cli("exec", telling, "--", "bash", "-c", "cat /app/env; cat /app/env >&2; base64 /app/env")
    assert (shown.code, SECRET in shown.all) == (0, False)
    assert shown.out.startswith("API_KEY=***\n")
    assert shown.err == "API_KEY=***\n"
    told = cli("exec", "--json", telling, "--", "cat", "/app/env").json
    assert told["stdout"] == "API_KEY=***\n"
    assert cli("exec", "--raw", telling, "--", "cat", "/app/env").out == f"API_KEY={SECRET}\n"
    assert cli("exec", "--raw", "--json", telling, "--", "cat", "/app/env").json["stdout"] == f"API_KEY={SECRET}\n"


def test_exec_shows_no_secret_that_comes_in_pieces_and_keeps_all_other_bytes(cli: Cli, telling: str) -> None:
    pieces = "; sleep 0.05; ".join(f"printf %s '{SECRET[i : i + 3]}'" for i in range(0, len(SECRET), 3))
    assert cli("exec", telling, "--", "bash", "-c", f"printf 'a\\0b'; {pieces}; printf canary-4f5e").out == "a\0b***canary-4f5e"
    everything = bytes(range(256)) * 40
    assert cli("exec", "-i", telling, "--", "bash", "-c", "cat > /app/all", stdin=everything).code == 0
    assert cli("exec", telling, "--", "sha256sum", "/app/all").out.split()[0] == hashlib.sha256(everything).hexdigest()
